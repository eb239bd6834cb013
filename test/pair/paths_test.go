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

// paths tries path traversal: the server rejects paths in requests, the node rejects the targets,
// and neither returns a file of the host.
func (p *Pair) paths() {
	t := p.t
	volume := func(mount, source string) string {
		return p.pod("sly", "volumeMounts: [{name: v, mountPath: /v"+mount+"}]", "sleep") + "  volumes: [{name: v, " +
			source + "}]\n"
	}
	p.Apply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: baseline, labels: "+
		"{pod-security.kubernetes.io/enforce: baseline}}\n")
	p.until("its default account", func() string {
		if out, err := p.TryKubectl(t, "", "get", "serviceaccount", "default", "-n", "baseline"); err != nil {
			return out
		}
		return ""
	})
	for _, row := range []struct{ what, manifest, want string }{
		{"a host path that leads up", volume("", "hostPath: {path: /var/../etc}"),
			"spec.volumes[0].hostPath.path: Invalid value"},
		{"a sub-path that leads up", volume(", subPath: ../../etc", "emptyDir: {}"),
			"spec.containers[0].volumeMounts[0].subPath: Invalid value"},
		{"a sub-path from the root", volume(", subPath: /etc", "emptyDir: {}"),
			"spec.containers[0].volumeMounts[0].subPath: Invalid value"},
		{"an item that leads up", volume("", "secret: {secretName: s, items: [{key: k, path: ../../out}]}"),
			"spec.volumes[0].secret.items[0].path: Invalid value"},
		{"a host path where none may be", strings.Replace(volume("", "hostPath: {path: /etc}"), "namespace: default",
			"namespace: baseline", 1), `violates PodSecurity "baseline:latest": hostPath volumes`},
	} {
		if out, err := p.TryKubectl(t, row.manifest, "create", "-f", "-"); err == nil || !strings.Contains(out, row.want) {
			t.Errorf("%s: %v %s", row.what, err, out)
		}
	}
	dir := t.TempDir()
	for name, to := range map[string]string{"out": "/etc", "up": "../../../etc"} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		p.Apply(t, volume(", subPath: "+name, "hostPath: {path: "+dir+"}"))
		p.waitForField("pod", "sly", ".status.containerStatuses[0].state.waiting.reason", "CreateContainerConfigError")
		p.Kubectl(t, "delete", "pod", "sly", "--timeout=60s")
	}
	p.logPaths()
}

// logPaths requests files outside of the log directory from the node, as a user with all
// permissions. Paths that clients would normalize must be rejected by the node.
func (p *Pair) logPaths() {
	t := p.t
	config, err := rest.TLSConfigFor(p.Config)
	if err != nil {
		t.Fatal(err)
	}
	config.InsecureSkipVerify = true // the node's certificate is not tested here
	for _, path := range []string{"", "../../etc/passwd", "%2e%2e/%2e%2e/etc/passwd", "..%2f..%2fetc%2fpasswd",
		"/etc/passwd", "%2fetc%2fpasswd", "pods/../../../etc/passwd"} {
		conn, err := (&tls.Dialer{Config: config}).DialContext(t.Context(), "tcp", net.JoinHostPort(p.Host.Gateway.String(),
			"10250"))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = fmt.Fprintf(conn, "GET /logs/%s HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n", path)
		answer, err := io.ReadAll(conn)
		conn.Close()
		var code int
		if _, scanned := fmt.Sscanf(string(answer), "HTTP/1.1 %d", &code); err != nil || scanned != nil {
			t.Fatalf("/logs/%s: %v %v %.200s", path, err, scanned, answer)
		}
		if path == "" {
			if code != http.StatusOK { // otherwise the requests below would not be rejected because of their paths
				t.Fatalf("log directory: %.300s", answer)
			}
			continue
		}
		if code < 300 || code == http.StatusUnauthorized || code == http.StatusForbidden || strings.Contains(string(answer),
			"root:") {
			t.Errorf("/logs/%s: %.300s", path, answer)
		}
	}
}
