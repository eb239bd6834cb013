package controllers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	migrationlisters "k8s.io/client-go/listers/storagemigration/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
)

func newMigration(name string, age time.Duration) *storagemigrationv1.StorageVersionMigration {
	return &storagemigrationv1.StorageVersionMigration{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Now().Add(-age))},
		Spec: storagemigrationv1.StorageVersionMigrationSpec{
			Resource: metav1.GroupResource{Group: "example.com", Resource: "widgets"}},
	}
}

// TestMigrationsOfAResourceRunInOrder plays the life of migrations that are created, deleted and end at random.
func TestMigrationsOfAResourceRunInOrder(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // seeded
		var all []*storagemigrationv1.StorageVersionMigration
		set := func(one *storagemigrationv1.StorageVersionMigration, c metav1.Condition) {
			meta.SetStatusCondition(&one.Status.Conditions, c)
		}
		created := 0
		for n := 0; n < 60 || len(all) > 0 && n < 500; n++ {
			if n < 60 && r.IntN(3) == 0 {
				// Two have the same age, and the order of the list is random.
				all = append(all, newMigration(fmt.Sprint("m", created), -time.Duration(created/2)*time.Second))
				created++
			}
			r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
			if n < 60 && len(all) > 0 && r.IntN(9) == 0 {
				all = all[1:]
			}
			step := nextMigrationStep(all)
			for _, one := range step.complete {
				set(one, migrationCompleted())
			}
			switch {
			case step.run != nil && step.start != nil:
				t.Fatalf("seed %d: one runs and another one starts", seed)
			case step.run != nil && r.IntN(2) == 0:
				set(step.run, []metav1.Condition{migrationSucceeded(), migrationFailed("x")}[r.IntN(2)])
			case step.start != nil:
				for _, one := range all {
					if len(one.Status.Conditions) == 0 && one.CreationTimestamp.Time.Before(
						step.start.CreationTimestamp.Time) {
						t.Fatalf("seed %d: %s starts before %s", seed, step.start.Name, one.Name)
					}
				}
				set(step.start, migrationRunning(migrationProgress{}, nil))
			case step.run == nil && len(step.complete) == 0 && n >= 60:
				for _, one := range all {
					c := meta.FindStatusCondition(one.Status.Conditions, "Running")
					if c == nil || c.Status != "False" {
						t.Fatalf("seed %d: nothing to do, but %s is %v", seed, one.Name, one.Status.Conditions)
					}
				}
				all = nil
			}
		}
		if len(all) > 0 {
			t.Errorf("seed %d: the migrations never end", seed)
		}
	}
}

// objectStore is a store of objects of one resource, which others change meanwhile.
type objectStore struct {
	metadata.ResourceInterface

	random   *rand.Rand
	revision int
	names    []string // sorted
	versions map[string]int
	old      map[string]bool // stored in the old version
	failures int             // how many requests still fail
	invalid  string          // name of an object that cannot be written
}

func (s *objectStore) Resource(schema.GroupVersionResource) metadata.Getter { return s }
func (s *objectStore) Namespace(string) metadata.ResourceInterface          { return s }

// write writes an object in the new version.
func (s *objectStore) write(name string) {
	s.revision++
	s.versions[name] = s.revision
	delete(s.old, name)
	if i, found := slices.BinarySearch(s.names, name); !found {
		s.names = slices.Insert(s.names, i, name)
	}
}

// others writes, creates and deletes objects at random.
func (s *objectStore) others() {
	switch name := fmt.Sprintf("o%04d", s.random.IntN(3000)); s.random.IntN(8) {
	case 0:
		s.write(name)
	case 1:
		if i, found := slices.BinarySearch(s.names, name); found {
			s.names = slices.Delete(s.names, i, i+1)
			delete(s.versions, name)
			delete(s.old, name)
		}
	}
}

func (s *objectStore) fails() error {
	if s.failures == 0 || s.random.IntN(5) > 0 {
		return nil
	}
	s.failures--
	return []error{apierrors.NewServiceUnavailable("test"), apierrors.NewTooManyRequests("test", 1),
		apierrors.NewInternalError(errors.New("test"))}[s.random.IntN(3)]
}

func (s *objectStore) List(_ context.Context, o metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	s.others()
	if err := s.fails(); err != nil {
		return nil, err
	}
	out := &metav1.PartialObjectMetadataList{}
	out.ResourceVersion = strconv.Itoa(s.revision)
	from, _ := slices.BinarySearch(s.names, o.Continue)
	to := min(len(s.names), from+int(o.Limit))
	for _, name := range s.names[from:to] {
		out.Items = append(out.Items, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name,
			ResourceVersion: strconv.Itoa(s.versions[name])}})
	}
	if left := int64(len(s.names) - to); left > 0 {
		out.Continue, out.RemainingItemCount = s.names[to], &left
	}
	return out, nil
}

func (s *objectStore) Patch(_ context.Context, name string, _ types.PatchType, data []byte, _ metav1.PatchOptions,
	_ ...string) (*metav1.PartialObjectMetadata, error) {
	s.others()
	if err := s.fails(); err != nil {
		return nil, err
	}
	version, exists := s.versions[name]
	of := schema.GroupResource{Resource: "widgets"}
	switch {
	case !exists:
		return nil, apierrors.NewNotFound(of, name)
	case string(data) != fmt.Sprintf(`{"metadata":{"resourceVersion":"%d"}}`, version):
		return nil, apierrors.NewConflict(of, name, errors.New("changed"))
	case name == s.invalid:
		return nil, apierrors.NewInvalid(schema.GroupKind{Kind: "Widget"}, name, nil)
	case s.old[name]:
		s.write(name)
	}
	return &metav1.PartialObjectMetadata{}, nil
}

// TestMigrationWritesAllObjects migrates stores that others change, with requests that fail.
func TestMigrationWritesAllObjects(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 2)) //nolint:gosec // seeded
		s := &objectStore{random: r, versions: map[string]int{}, old: map[string]bool{}, failures: r.IntN(12)}
		for range r.IntN(2500) {
			name := fmt.Sprintf("o%04d", r.IntN(3000))
			s.write(name)
			s.old[name] = true
		}
		one := runMigration(t, s)
		if !hasMigrationCondition(one, storagemigrationv1.MigrationSucceeded) || len(s.old) > 0 {
			t.Errorf("seed %d: %d objects are stored in the old version, conditions %v", seed, len(s.old),
				one.Status.Conditions)
		}
	}
}

// TestMigrationFailsWithAnObject: an object that cannot be written ends the migration.
func TestMigrationFailsWithAnObject(t *testing.T) {
	t.Parallel()
	s := &objectStore{random: rand.New(rand.NewPCG(1, 3)), versions: map[string]int{}, //nolint:gosec // seeded
		old: map[string]bool{}, invalid: "o9002"}
	for _, name := range []string{"o9001", "o9002", "o9003"} {
		s.write(name)
		s.old[name] = true
	}
	one := runMigration(t, s)
	failed := meta.FindStatusCondition(one.Status.Conditions, string(storagemigrationv1.MigrationFailed))
	if failed == nil || failed.Reason != "StorageVersionMigrationFailed" || !strings.HasPrefix(failed.Message,
		"2/") || !strings.Contains(failed.Message, "not yet migrated. migration encountered unhandled error: Widget") {
		t.Errorf("got %+v", one.Status.Conditions)
	}
}

// runMigration syncs a migration until it has ended, and has no condition Running.
func runMigration(t *testing.T, s *objectStore) *storagemigrationv1.StorageVersionMigration {
	t.Helper()
	one := newMigration("m", 0)
	client := fake.NewClientset(one)
	client.Resources = []*metav1.APIResourceList{{GroupVersion: "example.com/v1",
		APIResources: []metav1.APIResource{{Name: "widgets", Verbs: []string{"list", "patch", "update"}}}}}
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	m := &storageMigrator{Config{Client: client, Metadata: s, Log: slog.New(slog.DiscardHandler)},
		migrationlisters.NewStorageVersionMigrationLister(indexer)}
	for range 100 {
		if err := indexer.Add(one); err != nil {
			t.Fatal(err)
		}
		if _, err := m.sync(t.Context(), "widgets.example.com"); err != nil && !retriable(err) {
			t.Fatal(err)
		}
		var err error
		if one, err = client.StoragemigrationV1().StorageVersionMigrations().Get(t.Context(), "m",
			metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
		if c := meta.FindStatusCondition(one.Status.Conditions, "Running"); c != nil && c.Status == "False" {
			return one
		}
	}
	t.Fatalf("the migration does not end: %+v", one.Status)
	return nil
}

// TestMigrationOfUnknownResource: a migration waits for its resource for a minute, and one without the verbs fails.
func TestMigrationOfUnknownResource(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		resources []metav1.APIResource
		age       time.Duration
		want      string
	}{
		"new":           {nil, 0, ""},
		"old":           {nil, 2 * time.Minute, "resource does not exist in discovery"},
		"without verbs": {[]metav1.APIResource{{Name: "widgets", Verbs: []string{"list"}}}, 0, "[update patch list]"},
	} {
		one := newMigration("m", row.age)
		client := fake.NewClientset(one)
		client.Resources = []*metav1.APIResourceList{{GroupVersion: "example.com/v1", APIResources: row.resources}}
		m := &storageMigrator{Config: Config{Client: client, Log: slog.New(slog.DiscardHandler)}}
		wait, err := m.run(t.Context(), one)
		failed := meta.FindStatusCondition(one.Status.Conditions, string(storagemigrationv1.MigrationFailed))
		if err != nil || (failed == nil) != (row.want == "") || (wait > 0) != (row.want == "") ||
			failed != nil && !strings.Contains(failed.Message, row.want) {
			t.Errorf("%s: got %v, %v, %+v, want %q", name, wait, err, failed, row.want)
		}
	}
}

// TestStoredVersionsOfDefinition: only a success of a migration of the current generation changes the stored versions.
func TestStoredVersionsOfDefinition(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		began     int64
		succeeded bool
		want      []string
	}{
		"succeeded":          {4, true, []string{"v2"}},
		"failed":             {4, false, nil},
		"definition changed": {3, true, nil},
	} {
		crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Generation: 4}}
		crd.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1"}, {Name: "v2", Storage: true}}
		crd.Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{{
			Type: apiextensionsv1.StorageMigrating, Status: apiextensionsv1.ConditionTrue,
			ObservedGeneration: row.began}}
		got := definitionMigrated(row.succeeded)(crd)
		if !slices.Equal(got.StoredVersions, row.want) || *got.Conditions[0].Status != apiextensionsv1.ConditionFalse {
			t.Errorf("%s: got versions %q and %+v, want %q", name, got.StoredVersions, got.Conditions, row.want)
		}
	}
}
