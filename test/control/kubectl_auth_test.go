package control

import (
	"strings"
	"testing"
	"time"
)

// TestKubectlAuthCommands runs kubectl auth as the administrator and as users with role bindings.
func TestKubectlAuthCommands(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	if got := s.Kubectl(t, "auth", "whoami"); !strings.Contains(got, "kubeadm:cluster-admins") ||
		strings.Contains(got, "system:masters") {
		t.Errorf("whoami: got %q", got)
	}
	s.Kubectl(t, "create", "rolebinding", "ann-edits", "--clusterrole=edit", "--user=ann")
	s.Kubectl(t, "create", "clusterrolebinding", "bob-views", "--clusterrole=view", "--user=bob")
	for _, row := range []struct{ want, question string }{
		{"yes", "delete nodes"},
		{"yes", "create deployments --as=ann -n shop"},
		{"yes", "create pods/exec --as=ann -n shop"},
		{"yes", "get secrets --as=ann -n shop"},
		{"yes", "list pods --as=ann -n shop"}, // the role edit includes view
		{"no", "create rolebindings --as=ann -n shop"},
		{"no", "get pods --as=ann -n default"},
		{"yes", "get pods --as=bob -n shop"},
		{"yes", "get pods/log --as=bob -n shop"},
		{"no", "get secrets --as=bob -n shop"},
		{"no", "create pods --as=bob -n shop"},
		{"no", "get nodes --as=bob"},
		{"yes", "get /version --as=bob"},
		{"no", "get /metrics --as=bob"},
		{"yes", "create selfsubjectaccessreviews --as=stranger"},
		{"no", "list namespaces --as=stranger"},
		{"yes", "create certificatesigningrequests --as=system:bootstrap:abcdef " +
			"--as-group=system:bootstrappers:kubeadm:default-node-token"},
		{"yes", "impersonate serviceaccounts --as=ann -n shop"},
	} {
		waitForResult(t, row.question, func() string {
			out, _ := s.TryKubectl(t, "",
				append([]string{"auth", "can-i"}, strings.Fields(strings.ReplaceAll(row.question,
					"shop", s.Namespace))...)...)
			return lastLine(out)
		}, row.want)
	}
	if got := s.Kubectl(t, "auth", "can-i", "--list", "--as=bob"); !strings.Contains(got,
		"selfsubjectaccessreviews.authorization.k8s.io") || !strings.Contains(got, "pods") {
		t.Errorf("can-i --list: got %q", got)
	}
}

func lastLine(out string) string {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}

// waitForResult calls get until it returns want, for at most two minutes. Results that depend on caches
// of the server change with a delay.
func waitForResult(t *testing.T, what string, get func() string, want string) {
	t.Helper()
	waitForResultWithin(t, 2*time.Minute, what, get, want)
}

// waitForResultWithin is like waitForResult with another timeout.
func waitForResultWithin(t *testing.T, timeout time.Duration, what string, get func() string, want string) {
	t.Helper()
	got := ""
	for end := time.Now().Add(timeout); time.Now().Before(end); <-time.After(50 * time.Millisecond) {
		if got = get(); got == want {
			return
		}
	}
	t.Errorf("%s: got %q, want %q", what, got, want)
}
