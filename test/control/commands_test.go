package control

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"berth/test/hosts"
)

// runControl runs berth-control and returns its output.
func runControl(t *testing.T, args ...string) (string, error) {
	t.Helper()
	path, err := hosts.BuildControl(t.Context(), hosts.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), path, args...).CombinedOutput()
	return string(out), err
}

var joinCommand = regexp.MustCompile(
	`(?m)^berth join --server (https://\S+) --token ([a-z0-9]{6})\.([a-z0-9]{16}) ` +
		`--discovery-token-ca-cert-hash (sha256:[0-9a-f]{64})$`)

// TestTokenCommands creates a token, authenticates with it, and deletes it.
func TestTokenCommands(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	out, err := runControl(t, "token", "create", "--data-dir", s.DataDir, "--server",
		"https://control.example.com:6443",
		"--description", "rack 7")
	m := joinCommand.FindStringSubmatch(out)
	if err != nil || m == nil {
		t.Fatalf("token create: %v\n%s", err, out)
	}
	if m[1] != "https://control.example.com:6443" || m[4] != s.Authority.Hash() {
		t.Errorf("got join command %q, want CA hash %s", m[0], s.Authority.Hash())
	}
	// The kubeconfig must not contain a client certificate, because kubectl would prefer it.
	kubeconfig := filepath.Join(t.TempDir(), "open.kubeconfig")
	ca := filepath.Join(s.DataDir, "pki", "ca.crt")
	whoami := func() (string, error) {
		return RunKubectl(t, kubeconfig, "", "--server", s.Config.Host, "--certificate-authority", ca,
			"--token", m[2]+"."+m[3], "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}")
	}
	if err := os.WriteFile(kubeconfig, []byte("apiVersion: v1\nkind: Config\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if user, err := whoami(); err != nil || user != "system:bootstrap:"+m[2] {
		t.Errorf("with the token: got user %q, want system:bootstrap:%s, %v", user, m[2], err)
	}
	out, err = runControl(t, "token", "list", "--data-dir", s.DataDir)
	if err != nil || !strings.Contains(out, m[2]) || !strings.Contains(out, "rack 7") || strings.Contains(out, m[3]) {
		t.Errorf("token list: %v\n%s", err, out)
	}
	if out, err = runControl(t, "token", "delete", "--data-dir", s.DataDir, m[2]); err != nil {
		t.Errorf("token delete: %v\n%s", err, out)
	}
	waitForResult(t, "rejection of a deleted token", func() string {
		_, err := whoami()
		return fmt.Sprint(err != nil)
	}, "true")
}

// TestKubeconfigCommands prints kubeconfigs and uses them.
func TestKubeconfigCommands(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	for _, c := range []struct {
		args []string
		user string
	}{{nil, "berth-admin"}, {[]string{
		"--user", "jane", "--groups", "developers,testers", "--validity-period", "1h"}, "jane"}} {
		text, err := runControl(t, append([]string{"kubeconfig", "--data-dir", s.DataDir}, c.args...)...)
		if err != nil {
			t.Fatalf("kubeconfig %v: %v\n%s", c.args, err, text)
		}
		path := filepath.Join(t.TempDir(), "kubeconfig")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if user, err := RunKubectl(t, path, "", "auth", "whoami", "-o",
			"jsonpath={.status.userInfo.username}"); err != nil ||
			user != c.user {
			t.Errorf("kubeconfig %v: got user %q, want %q, %v", c.args, user, c.user, err)
		}
	}
	if out, err := runControl(t, "kubeconfig", "--data-dir", s.DataDir, "--user", "jane", "--groups",
		"system:masters"); err == nil || !strings.Contains(out, "super-admin.kubeconfig") {
		t.Errorf("kubeconfig with system:masters: got %v: %s", err, out)
	}
	if out, err := runControl(t, "kubeconfig", "--data-dir", t.TempDir()); err == nil || !strings.Contains(out,
		"contains no certificate authority") {
		t.Errorf("kubeconfig with an empty data directory: got %v: %s", err, out)
	}
}
