package controllers

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/lru"
)

// TestGarbageCollectorIgnoresOwnerInOtherNamespace: an object without another owner is deleted, and
// one with another owner keeps only that one. A cluster-scoped object with a namespaced owner is
// not changed.
func TestGarbageCollectorIgnoresOwnerInOtherNamespace(t *testing.T) {
	t.Parallel()
	configs := gcResource{corev1.SchemeGroupVersion.WithResource("configmaps"), true}
	nodes := gcResource{corev1.SchemeGroupVersion.WithResource("nodes"), false}
	of := map[string]gcResource{"ConfigMap": configs, "Node": nodes}
	newObject := func(kind, namespace, name string, owners ...metav1.OwnerReference) *metav1.PartialObjectMetadata {
		return &metav1.PartialObjectMetadata{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: kind},
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name),
				OwnerReferences: owners},
		}
	}
	owned := func(kind, name string) metav1.OwnerReference {
		return metav1.OwnerReference{APIVersion: "v1", Kind: kind, Name: name, UID: types.UID(name)}
	}
	objects := []*metav1.PartialObjectMetadata{
		newObject("ConfigMap", "here", "owner"), newObject("ConfigMap", "there", "other"),
		newObject("Node", "", "node"),
		newObject("ConfigMap", "here", "same-ns", owned("ConfigMap", "owner")),
		newObject("ConfigMap", "there", "away", owned("ConfigMap", "owner")),
		newObject("ConfigMap", "there", "both", owned("ConfigMap", "owner"), owned("ConfigMap", "other")),
		newObject("ConfigMap", "there", "of-node", owned("Node", "node")),
		newObject("Node", "", "nowhere", owned("ConfigMap", "owner")),
	}
	g, queued := newTestCollector(t, objects, of)
	for _, key := range *queued {
		if _, err := g.sync(t.Context(), key); err != nil {
			t.Error(err)
		}
	}
	got := map[string]int{}
	for _, o := range objects {
		live, err := g.client(newGraphObject(of[o.Kind], o)).Get(t.Context(), o.Name, metav1.GetOptions{})
		if ignoreNotFound(err) != nil {
			t.Fatal(err)
		}
		if err == nil {
			got[o.Name] = len(live.OwnerReferences)
		}
	}
	for name, owners := range map[string]int{"owner": 0, "other": 0, "node": 0, "same-ns": 1, "both": 1, "of-node": 1,
		"nowhere": 1} {
		if have, exists := got[name]; !exists || have != owners {
			t.Errorf("%s: exists %v with %d owners, want %d", name, exists, have, owners)
		}
	}
	if _, exists := got["away"]; exists {
		t.Error("an object whose only owner is in another namespace was not deleted")
	}
	if slices.Contains(*queued, collectPrefix+"same-ns") {
		t.Errorf("queued an object whose owner exists: %s", strings.Join(*queued, ", "))
	}
}

// TestGarbageCollectorRemembersAbsentOwners: the dependents of a deleted owner are deleted after one request for the
// owner. A dependent in another namespace, which could have an owner of that name, needs another request.
func TestGarbageCollectorRemembersAbsentOwners(t *testing.T) {
	t.Parallel()
	configs := gcResource{corev1.SchemeGroupVersion.WithResource("configmaps"), true}
	var objects []*metav1.PartialObjectMetadata
	for _, at := range []string{"here/a", "here/b", "here/c", "there/d"} {
		namespace, name, _ := strings.Cut(at, "/")
		objects = append(objects, &metav1.PartialObjectMetadata{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name),
				OwnerReferences: []metav1.OwnerReference{
					{APIVersion: "v1", Kind: "ConfigMap", Name: "gone", UID: "gone"}}},
		})
	}
	deleting := objects[0].DeepCopy() // an earlier request has deleted it
	deleting.Name, deleting.UID, deleting.DeletionTimestamp = "e", "e", new(metav1.Now())
	deleting.Finalizers = []string{"example.com/keep"}
	g, _ := newTestCollector(t, append(objects, deleting), map[string]gcResource{"ConfigMap": configs})
	if _, err := g.sync(t.Context(), collectPrefix+"e"); err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		if _, err := g.sync(t.Context(), collectPrefix+o.Name); err != nil {
			t.Fatal(err)
		}
	}
	client, ok := g.Metadata.(*metadatafake.FakeMetadataClient)
	if !ok {
		t.Fatalf("got a %T", g.Metadata)
	}
	if n := len(client.Actions()); n != 2*len(objects)+2 {
		t.Errorf("got %d requests, want two for each object and one for the owner in each namespace", n)
	}
	reads, deletions := 0, 0
	for _, a := range client.Actions() {
		if get, is := a.(clienttesting.GetAction); is && a.GetVerb() == "get" && get.GetName() == "gone" {
			reads++
		}
		if a.GetVerb() == "delete" {
			deletions++
		}
	}
	if reads != 2 || deletions != len(objects) {
		t.Errorf("got %d reads of the owner and %d deletions, want 2 and %d", reads, deletions, len(objects))
	}
}

// TestGarbageCollectorKeepsDependentsOfRemovedAPIs: neither the removal of an API nor a response that it is not served
// means that its objects are gone. A response of its server that there is no such object does.
func TestGarbageCollectorKeepsDependentsOfRemovedAPIs(t *testing.T) {
	t.Parallel()
	configs := gcResource{corev1.SchemeGroupVersion.WithResource("configmaps"), true}
	objects := []*metav1.PartialObjectMetadata{{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "here", Name: "a", UID: "a", OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "wardle.example.com/v1", Kind: "Flunder", Name: "owner", UID: "owner"}}},
	}}
	g, _ := newTestCollector(t, objects, map[string]gcResource{"ConfigMap": configs})
	g.aggregated["wardle.example.com"] = true
	flunders := metav1.APIResource{Group: "wardle.example.com", Version: "v1", Name: "flunders", Kind: "Flunder",
		Namespaced: true}
	handler := g.addCustomResource(flunders)
	handler.OnAdd(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "here", Name: "owner",
		UID: "owner"}}, false)
	client, ok := g.Metadata.(*metadatafake.FakeMetadataClient)
	if !ok {
		t.Fatalf("got a %T", g.Metadata)
	}
	resource := schema.GroupResource{Group: flunders.Group, Resource: flunders.Name}
	response := apierrors.NewGenericServerResponse(http.StatusNotFound, "get", resource, "owner",
		"404 page not found", 0, true)
	client.PrependReactor("get", "flunders", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, response
	})
	collected := func() (deleted bool, err error) {
		_, err = g.sync(t.Context(), collectPrefix+"a")
		_, known := g.graph.get("a")
		return slices.ContainsFunc(client.Actions(), func(a clienttesting.Action) bool {
			return a.GetVerb() == "delete"
		}) || !known, err
	}
	g.removeAggregatedKind(flunders)
	if deleted, err := collected(); deleted || err != nil {
		t.Errorf("after the removal of the API: deleted %t, error %v", deleted, err)
	}
	g.addCustomResource(flunders)
	if deleted, err := collected(); deleted || err == nil {
		t.Errorf("API not served: deleted %t, error %v, want an error", deleted, err)
	}
	response = apierrors.NewNotFound(resource, "owner")
	if deleted, err := collected(); !deleted || err != nil {
		t.Errorf("owner deleted: deleted %t, error %v", deleted, err)
	}
}

// TestGarbageCollectorDeletesObservedVersion: a dependent without an owner is deleted without being read, unless it has
// changed since it was observed or a finalizer says what becomes of its own dependents.
func TestGarbageCollectorDeletesObservedVersion(t *testing.T) {
	t.Parallel()
	configs := gcResource{corev1.SchemeGroupVersion.WithResource("configmaps"), true}
	for name, row := range map[string]struct {
		changed   bool // a request with the observed version conflicts
		finalizer string
		want      string
	}{
		"unchanged":            {want: "get gone, delete a"},
		"changed":              {changed: true, want: "get gone, delete a, get a, delete a"},
		"orphans dependents":   {finalizer: metav1.FinalizerOrphanDependents, want: "get a, get gone, delete a"},
		"waits for dependents": {finalizer: metav1.FinalizerDeleteDependents, want: "get a, get gone, delete a"},
		"another finalizer":    {finalizer: "example.com/x", want: "get gone, delete a"},
	} {
		o := &metav1.PartialObjectMetadata{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "here", Name: "a", UID: "a", ResourceVersion: "7",
				OwnerReferences: []metav1.OwnerReference{
					{APIVersion: "v1", Kind: "ConfigMap", Name: "gone", UID: "gone"}}},
		}
		if row.finalizer != "" {
			o.Finalizers = []string{row.finalizer}
		}
		g, _ := newTestCollector(t, []*metav1.PartialObjectMetadata{o}, map[string]gcResource{"ConfigMap": configs})
		client, ok := g.Metadata.(*metadatafake.FakeMetadataClient)
		if !ok {
			t.Fatalf("got a %T", g.Metadata)
		}
		client.PrependReactor("delete", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
			conflict := row.changed
			row.changed = false
			return conflict, nil, apierrors.NewConflict(corev1.Resource("configmaps"), "a", errors.New("changed"))
		})
		if _, err := g.sync(t.Context(), collectPrefix+"a"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		var got []string
		for _, a := range client.Actions() {
			if named, is := a.(interface{ GetName() string }); is {
				got = append(got, a.GetVerb()+" "+named.GetName())
			}
		}
		if strings.Join(got, ", ") != row.want {
			t.Errorf("%s: got requests %v, want %s", name, got, row.want)
		}
	}
}

// TestGarbageCollectorOrphansDependents: orphaning makes one patch per dependent, which applies to its UID and names
// only the deleted owner. Only a dependent whose patch fails is read. The owner keeps its finalizer after an error.
func TestGarbageCollectorOrphansDependents(t *testing.T) {
	t.Parallel()
	configs := gcResource{corev1.SchemeGroupVersion.WithResource("configmaps"), true}
	resource := corev1.Resource("configmaps")
	wrongUID := apierrors.NewInvalid(schema.GroupKind{Kind: "ConfigMap"}, "a",
		field.ErrorList{field.Invalid(field.NewPath("metadata", "uid"), "a", "field is immutable")})
	conflict := apierrors.NewConflict(resource, "a", errors.New("changed"))
	unsupported := &apierrors.StatusError{ErrStatus: metav1.Status{
		Code: http.StatusUnsupportedMediaType, Reason: metav1.StatusReasonUnsupportedMediaType,
	}}
	owners := []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: "owner"},
		{APIVersion: "v1", Kind: "ConfigMap", Name: "other", UID: "other"},
	}
	read := "patch a strategic, get a"
	for name, row := range map[string]struct {
		failures []error // of the patches of the dependent, in order
		live     func(*metav1.PartialObjectMetadata)
		want     string // requests for the dependent
		owners   string // of it afterwards
		err      bool
	}{
		"patched": {want: "patch a strategic", owners: "other"},
		"not found": {
			failures: []error{apierrors.NewNotFound(resource, "a")}, want: "patch a strategic", owners: "owner other",
		},
		"replaced by another object": {
			failures: []error{wrongUID}, live: func(o *metav1.PartialObjectMetadata) { o.UID = "b" }, want: read,
			owners: "owner other",
		},
		"replaced, reported as conflict": {
			failures: []error{conflict}, live: func(o *metav1.PartialObjectMetadata) { o.UID = "b" }, want: read,
			owners: "owner other",
		},
		"orphaned by another writer": {
			failures: []error{conflict},
			live:     func(o *metav1.PartialObjectMetadata) { o.OwnerReferences = owners[1:] },
			want:     read, owners: "other",
		},
		"conflict": {failures: []error{conflict}, want: read + ", patch a merge", owners: "other"},
		"two conflicts": {
			failures: []error{conflict, conflict}, want: read + ", patch a merge", owners: "owner other", err: true,
		},
		"no such format": {failures: []error{unsupported}, want: read + ", patch a merge", owners: "other"},
		"server fails": {
			failures: []error{apierrors.NewInternalError(errors.New("full"))}, want: "patch a strategic",
			owners: "owner other", err: true,
		},
	} {
		owner := &metav1.PartialObjectMetadata{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "here", Name: "owner", UID: "owner",
				DeletionTimestamp: new(metav1.Now()), Finalizers: []string{metav1.FinalizerOrphanDependents}},
		}
		dependent := &metav1.PartialObjectMetadata{
			TypeMeta:   owner.TypeMeta,
			ObjectMeta: metav1.ObjectMeta{Namespace: "here", Name: "a", UID: "a", OwnerReferences: owners},
		}
		g, _ := newTestCollector(t, []*metav1.PartialObjectMetadata{owner, dependent},
			map[string]gcResource{"ConfigMap": configs})
		client, ok := g.Metadata.(*metadatafake.FakeMetadataClient)
		if !ok {
			t.Fatalf("got a %T", g.Metadata)
		}
		if row.live != nil {
			live := dependent.DeepCopy()
			row.live(live)
			if err := client.Tracker().Update(configs.GroupVersionResource, live, "here"); err != nil {
				t.Fatal(err)
			}
		}
		var got []string
		client.PrependReactor("*", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
			named, _ := a.(interface{ GetName() string })
			if named == nil || named.GetName() != "a" {
				return false, nil, nil
			}
			text := a.GetVerb() + " a"
			patch, isPatch := a.(clienttesting.PatchAction)
			if !isPatch {
				got = append(got, text)
				return false, nil, nil
			}
			switch patch.GetPatchType() {
			case types.StrategicMergePatchType:
				text += " strategic"
				want := `{"metadata":{"ownerReferences":[{"$patch":"delete","uid":"owner"}],"uid":"a"}}`
				if string(patch.GetPatch()) != want {
					t.Errorf("%s: got patch %s, want %s", name, patch.GetPatch(), want)
				}
			case types.MergePatchType:
				text += " merge"
			}
			got = append(got, text)
			if len(row.failures) == 0 {
				return false, nil, nil
			}
			err := row.failures[0]
			row.failures = row.failures[1:]
			return true, nil, err
		})
		_, err := g.sync(t.Context(), orphanPrefix+"owner")
		if (err != nil) != row.err {
			t.Errorf("%s: got error %v", name, err)
		}
		if requests := strings.Join(got, ", "); requests != row.want {
			t.Errorf("%s: got requests %s, want %s", name, requests, row.want)
		}
		stored := func(name string) *metav1.PartialObjectMetadata {
			here := g.client(graphObject{resource: configs, namespace: "here"})
			o, err := here.Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return o
		}
		var left []string
		for _, ref := range stored("a").OwnerReferences {
			left = append(left, ref.Name)
		}
		if names := strings.Join(left, " "); names != row.owners {
			t.Errorf("%s: got owners %s, want %s", name, names, row.owners)
		}
		if held := len(stored("owner").Finalizers) > 0; held != row.err {
			t.Errorf("%s: the owner has its finalizer: %t, want %t", name, held, row.err)
		}
	}
}

// slowPatches is a client whose patches take a second. It counts them.
type slowPatches struct {
	metadata.Interface
	metadata.Getter

	running, most, total atomic.Int32
}

func (s *slowPatches) Resource(schema.GroupVersionResource) metadata.Getter { return s }

func (s *slowPatches) Namespace(string) metadata.ResourceInterface { return s }

func (s *slowPatches) Get(context.Context, string, metav1.GetOptions,
	...string) (*metav1.PartialObjectMetadata, error) {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{UID: "owner"}}, nil
}

func (s *slowPatches) Patch(context.Context, string, types.PatchType, []byte, metav1.PatchOptions,
	...string) (*metav1.PartialObjectMetadata, error) {
	s.total.Add(1)
	if n := s.running.Add(1); n > s.most.Load() {
		s.most.Store(n)
	}
	time.Sleep(time.Second)
	s.running.Add(-1)
	return &metav1.PartialObjectMetadata{}, nil
}

// TestGarbageCollectorOrphansInParallel: several patches are in flight at once, and no more than the limit.
func TestGarbageCollectorOrphansInParallel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const dependents = 5 * maxOrphanPatches
		configs := gcResource{corev1.SchemeGroupVersion.WithResource("configmaps"), true}
		objects := []*metav1.PartialObjectMetadata{{ObjectMeta: metav1.ObjectMeta{UID: "owner"}}}
		for i := range dependents {
			objects = append(objects, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
				UID: types.UID(strconv.Itoa(i)), OwnerReferences: []metav1.OwnerReference{{UID: "owner"}}}})
		}
		client := &slowPatches{}
		g := &garbageCollector{Config: Config{Metadata: client}, orphanSlots: make(chan struct{}, maxOrphanPatches),
			graph: newDependencyGraph(func(string) {})}
		for _, o := range objects {
			g.graph.update(newGraphObject(configs, o))
		}
		start := time.Now()
		if _, err := g.sync(t.Context(), orphanPrefix+"owner"); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took != 5*time.Second || client.most.Load() != maxOrphanPatches ||
			client.total.Load() != dependents {
			t.Errorf("%d patches, at most %d at once, in %v", client.total.Load(), client.most.Load(), took)
		}
	})
}

// newTestCollector returns a collector that knows the objects, and the keys that its graph has
// queued.
func newTestCollector(t *testing.T, objects []*metav1.PartialObjectMetadata,
	of map[string]gcResource) (*garbageCollector, *[]string) {
	t.Helper()
	scheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	stored := make([]runtime.Object, 0, len(objects))
	for _, o := range objects {
		stored = append(stored, o)
	}
	client := metadatafake.NewSimpleMetadataClient(scheme, stored...)
	var queued []string
	g := &garbageCollector{
		Config: Config{Metadata: client, Log: slog.New(slog.DiscardHandler)}, kinds: map[schema.GroupKind]gcResource{},
		graph: newDependencyGraph(func(key string) { queued = append(queued, key) }), absent: lru.New(absentOwners),
		orphanSlots: make(chan struct{}, maxOrphanPatches), aggregated: map[string]bool{},
	}
	for kind, at := range of {
		g.kinds[schema.GroupKind{Kind: kind}] = at
	}
	for _, o := range objects {
		g.graph.update(newGraphObject(of[o.Kind], o))
	}
	return g, &queued
}

// TestGarbageCollectorStartsWithoutAggregatedAPIs: only a failure of discovery in a built-in group delays the start.
func TestGarbageCollectorStartsWithoutAggregatedAPIs(t *testing.T) {
	t.Parallel()
	failed := func(groups ...schema.GroupVersion) error {
		out := &discovery.ErrGroupDiscoveryFailed{Groups: map[schema.GroupVersion]error{}}
		for _, gv := range groups {
			out.Groups[gv] = errors.New("stale")
		}
		return out
	}
	wardle := schema.GroupVersion{Group: "wardle.example.com", Version: "v1"}
	for name, row := range map[string]struct {
		err  error
		want bool
	}{
		"extension API server": {failed(wardle), true},
		"both":                 {failed(wardle, appsv1.SchemeGroupVersion), false},
		"built-in group":       {failed(appsv1.SchemeGroupVersion), false},
		"other error":          {errors.New("connection refused"), false},
	} {
		if got := onlyAggregated(row.err); got != row.want {
			t.Errorf("%s: got %t, want %t", name, got, row.want)
		}
	}
}
