package nodeconfig

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAddServer(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"nothing": "",
		"one document": "# mine\napiVersion: kubelet.config.k8s.io/v1beta1\nkind: " +
			"KubeletConfiguration\nmaxPods: 7\n",
		"both documents": "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n---\napiVersion: " +
			"berth.dev/v1alpha1\nkind: BerthConfiguration\nnodeName: n\n",
		"its own clients": "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nauthentication: " +
			"{webhook: {enabled: true}}\n",
		"its certificate": "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ntlsCertFile: " +
			"/c\ntlsPrivateKeyFile: /k\n",
		"none wanted": "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: " +
			"KubeletConfiguration\nserverTLSBootstrap: false\n",
		"berth's own only": "kind: BerthConfiguration\napiVersion: berth.dev/v1alpha1\n",
	} {
		file := filepath.Join(t.TempDir(), "config.yaml")
		if text != "" {
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 { // the second call changes nothing
			c, err := AddServer(file, JoinSettings{"/k", "/b", "/ca.crt"})
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if got := c.Server.ClientCAFile != ""; got != (name != "its own clients") {
				t.Fatalf("%s: client CA set: %v", name, got)
			}
		}
		got, err := os.ReadFile(file)
		if err != nil || strings.Count(string(got), "kubeconfig: /k") != 1 ||
			strings.Contains(text, "# mine") && !strings.Contains(string(got), "# mine") {
			t.Errorf("%s: %v\n%s", name, err, got)
		}
		bootstrap := name != "its certificate" && name != "none wanted"
		if strings.Contains(string(got), "serverTLSBootstrap: true\n") != bootstrap {
			t.Errorf("%s: want serverTLSBootstrap %v\n%s", name, bootstrap, got)
		}
		if st, err := os.Stat(file); text != "" && (err != nil || st.Mode().Perm() != 0o600) {
			t.Errorf("%s: mode of the file is %v, %v", name, st.Mode(), err)
		}
		if _, err := AddServer(file, JoinSettings{"/other", "/b", "/ca.crt"}); err == nil ||
			!strings.Contains(err.Error(), "has another kubeconfig") {
			t.Errorf("%s: another server: %v", name, err)
		}
	}
}
