package pair

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/client-go/rest"
)

// testPathTraversal tries path traversal in pods: the server rejects paths in manifests, and the node
// rejects symbolic links.
func (p *Pair) testPathTraversal() {
	t := p.t
	volume := func(mount, source string) string {
		return p.pod("sly", "volumeMounts: [{name: v, mountPath: /v"+mount+"}]", "sleep") + "  volumes: [{name: v, " +
			source + "}]\n"
	}
	p.Apply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: baseline, labels: "+
		"{pod-security.kubernetes.io/enforce: baseline}}\n")
	p.waitUntil("the default service account", func() string {
		if out, err := p.TryKubectl(t, "", "get", "serviceaccount", "default", "-n", "baseline"); err != nil {
			return out
		}
		return ""
	})
	for _, row := range []struct{ name, manifest, want string }{
		{"hostPath with ..", volume("", "hostPath: {path: /var/../etc}"),
			"spec.volumes[0].hostPath.path: Invalid value"},
		{"subPath with ..", volume(", subPath: ../../etc", "emptyDir: {}"),
			"spec.containers[0].volumeMounts[0].subPath: Invalid value"},
		{"absolute subPath", volume(", subPath: /etc", "emptyDir: {}"),
			"spec.containers[0].volumeMounts[0].subPath: Invalid value"},
		{"secret item with ..", volume("", "secret: {secretName: s, items: [{key: k, path: ../../out}]}"),
			"spec.volumes[0].secret.items[0].path: Invalid value"},
		{"hostPath in a baseline namespace", strings.Replace(volume("", "hostPath: {path: /etc}"), "namespace: default",
			"namespace: baseline", 1), `violates PodSecurity "baseline:latest": hostPath volumes`},
	} {
		if out, err := p.TryKubectl(t, row.manifest, "create", "-f", "-"); err == nil ||
			!strings.Contains(out, row.want) {
			t.Errorf("create pod with %s: got %v, want %q: %s", row.name, err, row.want, out)
		}
	}
	dir := t.TempDir()
	for name, to := range map[string]string{"out": "/etc", "up": "../../../etc"} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		p.Apply(t, volume(", subPath: "+name, "hostPath: {path: "+dir+"}"))
		p.waitForField("pod", "sly", ".status.containerStatuses[0].state.waiting.reason", "CreateContainerConfigError")
		p.Kubectl(t, "delete", "pod", "sly", "--timeout=4m")
	}
	p.testLogPathTraversal()
}

// testLogPathTraversal requests files outside of the log directory from the node, as a user with all
// permissions. It sends raw requests, because HTTP clients normalize paths.
func (p *Pair) testLogPathTraversal() {
	t := p.t
	config, err := rest.TLSConfigFor(p.Config)
	if err != nil {
		t.Fatal(err)
	}
	config.InsecureSkipVerify = true // this test does not cover the certificate
	for _, path := range []string{"", "../../etc/passwd", "%2e%2e/%2e%2e/etc/passwd", "..%2f..%2fetc%2fpasswd",
		"/etc/passwd", "%2fetc%2fpasswd", "pods/../../../etc/passwd"} {
		conn, err := (&tls.Dialer{Config: config}).DialContext(t.Context(), "tcp",
			net.JoinHostPort(p.Host.Gateway.String(),
				"10250"))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = fmt.Fprintf(conn, "GET /logs/%s HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n", path)
		response, err := io.ReadAll(conn)
		conn.Close()
		var code int
		if _, scanErr := fmt.Sscanf(string(response), "HTTP/1.1 %d", &code); err != nil || scanErr != nil {
			t.Fatalf("/logs/%s: %v %v %.200s", path, err, scanErr, response)
		}
		if path == "" {
			if code != http.StatusOK { // the requests below must be rejected because of their paths only
				t.Fatalf("log directory: %.300s", response)
			}
			continue
		}
		if code < 300 || code == http.StatusUnauthorized || code == http.StatusForbidden ||
			strings.Contains(string(response),
				"root:") {
			t.Errorf("/logs/%s: got %.300s, want an error", path, response)
		}
	}
}
