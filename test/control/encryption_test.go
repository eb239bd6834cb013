package control

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/control"
)

// encryptionKey returns a key for an EncryptionConfiguration, which is derived from its name.
func encryptionKey(name string) string {
	sum := sha256.Sum256([]byte(name))
	return fmt.Sprintf("{name: %s, secret: %s}", name, base64.StdEncoding.EncodeToString(sum[:]))
}

// storedValue returns the value of a key in etcd.
func (s *Server) storedValue(t *testing.T, key string) string {
	t.Helper()
	got, err := s.EtcdClient.Get(t.Context(), key)
	if err != nil || len(got.Kvs) != 1 {
		t.Fatalf("get %s from etcd: got %v, %v", key, got, err)
	}
	return string(got.Kvs[0].Value)
}

// TestEncryptionOfGroupsAndAllResources checks which resources are encrypted with wildcards in the
// configuration.
func TestEncryptionOfGroupsAndAllResources(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		resources string
		encrypted map[string]bool // by etcd key
	}{
		{"*.*", map[string]bool{"/registry/secrets/default/hidden": true, "/registry/configmaps/default/plain": true,
			"/registry/roles/default/r": true}},
		{"*.", map[string]bool{"/registry/secrets/default/hidden": true, "/registry/configmaps/default/plain": true,
			"/registry/roles/default/r": false}},
		{"*.rbac.authorization.k8s.io", map[string]bool{"/registry/secrets/default/hidden": false,
			"/registry/roles/default/r": true}},
	} {
		t.Run(row.resources, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "encryption.yaml")
			text := fmt.Sprintf("apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- "+
				"resources: [%q]\n  providers: [{secretbox: {keys: [%s]}}]\n",
				row.resources, encryptionKey("one"))
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			s := Start(t, func(c *control.Config) { c.EncryptionConfig = path })
			s.Kubectl(t, "create", "secret", "generic", "hidden", "--from-literal=word=sesame-open")
			s.Kubectl(t, "create", "configmap", "plain", "--from-literal=word=sesame-open")
			s.Kubectl(t, "create", "role", "r", "--verb=get", "--resource=pods", "--resource-name=sesame-open")
			for key, encrypted := range row.encrypted {
				if value := s.storedValue(t, key); strings.Contains(value, "sesame-open") == encrypted ||
					strings.HasPrefix(value,
						"k8s:enc:secretbox:v1:one:") != encrypted {
					t.Errorf("%s: got stored value %.40q", key, value)
				}
			}
			if got := s.Kubectl(t, "get", "secret", "hidden", "-o",
				"jsonpath={.data.word}"); got != "c2VzYW1lLW9wZW4=" {
				t.Errorf("got secret data %q", got)
			}
		})
	}
}

// TestEncryptionKeyRotation follows the steps in the comments of the key file. It rotates to another
// key, and then to a key of another type.
func TestEncryptionKeyRotation(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "pki", "encryption.yaml")
	change := func(old, now string) {
		t.Helper()
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Count(string(text), old) != 1 {
			t.Fatalf("%q does not occur exactly once in:\n%s", old, text)
		}
		if err := os.WriteFile(path, []byte(strings.Replace(string(text), old, now, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	withDataDir := func(c *control.Config) { c.DataDir = dir }
	first := Start(t, withDataDir)
	first.Kubectl(t, "create", "secret", "generic", "kept", "--from-literal=a=b")
	first.Stop(t)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, ownKey, _ := strings.Cut(string(text), "      - name: first\n")
	ownKey, _, _ = strings.Cut(ownKey, "\n")
	oldKey := "      - name: first\n" + ownKey + "\n"
	for _, step := range []struct{ old, now, prefix string }{
		{"      keys:\n", "      keys:\n      - " + encryptionKey("second") + "\n", "k8s:enc:secretbox:v1:second:"},
		{oldKey, "", "k8s:enc:secretbox:v1:second:"},
		{"  providers:\n", "  providers:\n  - aescbc: {keys: [" + encryptionKey("third") + "]}\n",
			"k8s:enc:aescbc:v1:third:"},
		{"  - secretbox:\n      keys:\n      - " + encryptionKey("second") + "\n", "", "k8s:enc:aescbc:v1:third:"},
	} {
		change(step.old, step.now)
		s := Start(t, withDataDir)
		if got := s.Kubectl(t, "get", "secret", "kept", "-o", "jsonpath={.data.a}"); got != "Yg==" {
			t.Errorf("got secret data %q", got)
		}
		// Rewrite the existing objects with the new key.
		secrets := s.Kubectl(t, "get", "secrets", "-A", "-o", "json")
		if out, err := s.TryKubectl(t, secrets, "replace", "--validate=false", "-f", "-"); err != nil {
			t.Fatalf("rewrite all secrets: %v\n%s", err, out)
		}
		if value := s.storedValue(t, "/registry/secrets/default/kept"); !strings.HasPrefix(value, step.prefix) {
			t.Errorf("got stored value %.40q, want %s", value, step.prefix)
		}
		s.Stop(t)
	}
}
