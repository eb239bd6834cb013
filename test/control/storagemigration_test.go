package control

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/control"
)

// startMigration creates a StorageVersionMigration.
func (s *Server) startMigration(t *testing.T, name, group, resource string) {
	t.Helper()
	one := &storagemigrationv1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{Name: name}}
	one.Spec.Resource = metav1.GroupResource{Group: group, Resource: resource}
	if _, err := s.Client.StoragemigrationV1().StorageVersionMigrations().Create(t.Context(), one,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// waitForMigration waits for the end of a StorageVersionMigration. The test fails unless it ends with a condition.
func (s *Server) waitForMigration(t *testing.T, name string, end storagemigrationv1.MigrationConditionType) {
	t.Helper()
	var conditions []metav1.Condition
	eventually(t, "the end of the migration "+name, func() (bool, string) {
		one, err := s.Client.StoragemigrationV1().StorageVersionMigrations().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		conditions = one.Status.Conditions
		return meta.IsStatusConditionFalse(conditions, string(storagemigrationv1.MigrationRunning)),
			fmt.Sprintf("%+v", one.Status)
	})
	if !meta.IsStatusConditionTrue(conditions, string(end)) {
		t.Errorf("migration %s: got %+v, want %s", name, conditions, end)
	}
}

// TestStorageVersionMigrationOfCustomResources changes the storage version of a definition with more objects than a
// page has, migrates them, and removes the former version.
func TestStorageVersionMigrationOfCustomResources(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	const group, objects = "migration.example.com", 520
	defineGadgets(t, s, group, gadgetDefinition)
	var list strings.Builder
	for i := range objects {
		list.WriteString("---\n" + gadget(group, fmt.Sprint("g", i), "{}"))
	}
	if out, err := s.TryKubectl(t, list.String(), "create", "--validate=false", "-f", "-"); err != nil {
		t.Fatalf("kubectl create: %v\n%.2000s", err, out)
	}
	stored := func(version string) (n int) {
		t.Helper()
		got, err := s.EtcdClient.Get(t.Context(), "/registry/"+group+"/gadgets/", clientv3.WithPrefix())
		if err != nil {
			t.Fatal(err)
		}
		for _, kv := range got.Kvs {
			if bytes.Contains(kv.Value, fmt.Appendf(nil, `"apiVersion":"%s/%s"`, group, version)) {
				n++
			}
		}
		return n
	}
	if n := stored("v1"); n != objects {
		t.Fatalf("%d objects are stored as v1, want %d", n, objects)
	}
	other := strings.NewReplacer("storage: true", "storage: false", "storage: false", "storage: true").Replace(
		gadgetDefinition)
	s.Apply(t, strings.ReplaceAll(other, "GROUP", group))
	versions := func() string {
		return s.Kubectl(t, "get", "crd", "gadgets."+group, "-o", "jsonpath={.status.storedVersions}")
	}
	eventually(t, "both versions to be stored versions", func() (bool, string) {
		out := versions()
		return out == `["v1","v1beta1"]`, out
	})
	eventually(t, "the new storage version", func() (bool, string) {
		s.Kubectl(t, "label", "--overwrite", "gadgets."+group, "g0", "try="+fmt.Sprint(stored("v1beta1")))
		return stored("v1beta1") > 0, "none"
	})
	s.startMigration(t, "gadgets", group, "gadgets")
	s.waitForMigration(t, "gadgets", storagemigrationv1.MigrationSucceeded)
	if n := stored("v1beta1"); n != objects {
		t.Errorf("%d objects are stored as v1beta1, want %d", n, objects)
	}
	if out := versions(); out != `["v1beta1"]` {
		t.Errorf("got stored versions %s", out)
	}
	if out := s.Kubectl(t, "get", "crd", "gadgets."+group, "-o",
		`jsonpath={.status.conditions[?(@.type=="StorageMigrating")].reason}`); out != "MigrationSucceeded" {
		t.Errorf("got reason %q in the definition", out)
	}
	s.Kubectl(t, "delete", "crd", "gadgets."+group, "--timeout=4m")
	s.Kubectl(t, "delete", "storageversionmigration", "gadgets")
}

// TestStorageVersionMigrationOfBuiltInKinds writes all objects of all kinds of a new server.
func TestStorageVersionMigrationOfBuiltInKinds(t *testing.T) {
	t.Parallel()
	s := Start(t)
	lists, err := s.Client.Discovery().ServerPreferredResources()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, list := range lists {
		group, _, found := strings.Cut(list.GroupVersion, "/")
		if !found {
			group = ""
		}
		for _, r := range list.APIResources {
			if !slices.Contains(r.Verbs, "patch") || strings.Contains(r.Name, "/") {
				continue
			}
			names = append(names, strings.Trim(r.Name+"."+group, "."))
			s.startMigration(t, names[len(names)-1], group, r.Name)
		}
	}
	s.startMigration(t, "reviews", "authentication.k8s.io", "tokenreviews")
	for _, name := range names {
		s.waitForMigration(t, name, storagemigrationv1.MigrationSucceeded)
	}
	if len(names) < 40 {
		t.Errorf("%d resources were migrated", len(names))
	}
	s.waitForMigration(t, "reviews", storagemigrationv1.MigrationFailed) // they are not stored
}

// TestStorageVersionMigrationEncryptsSecrets changes the encryption key. Secrets are stored with the new one after the
// migration.
func TestStorageVersionMigrationEncryptsSecrets(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "encryption.yaml")
	start := func(keys ...string) *Server {
		t.Helper()
		for i := range keys {
			keys[i] = encryptionKey(keys[i])
		}
		text := "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\n" +
			"resources:\n- resources: [secrets]\n" +
			"  providers: [{secretbox: {keys: [" + strings.Join(keys, ", ") + "]}}]\n"
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return Start(t, func(c *control.Config) { c.DataDir, c.EncryptionConfig = filepath.Join(dir, "data"), path })
	}
	s := start("one")
	s.Kubectl(t, "create", "secret", "generic", "hidden", "--from-literal=word=sesame-open")
	s.Stop(t)
	s = start("two", "one")
	s.startMigration(t, "secrets", "", "secrets")
	s.waitForMigration(t, "secrets", storagemigrationv1.MigrationSucceeded)
	if value := s.storedValue(t, "/registry/secrets/default/hidden"); !strings.HasPrefix(value,
		"k8s:enc:secretbox:v1:two:") {
		t.Errorf("got stored value %.40q", value)
	}
	s.Stop(t)
	s = start("two")
	if got := s.Kubectl(t, "get", "secret", "hidden", "-o", "jsonpath={.data.word}"); got != "c2VzYW1lLW9wZW4=" {
		t.Errorf("got secret data %q", got)
	}
}
