package control

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"berth/control"
	"berth/test/hosts"
)

// TestServiceAccountKeyRotation checks that the server signs new tokens with the new key, publishes both
// keys, and accepts tokens of the previous key until its file is removed.
func TestServiceAccountKeyRotation(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	withDataDir := func(c *control.Config) { c.DataDir = dir }
	first := Start(t, withDataDir)
	waitForOutput(t, first, "default", "-n", "default", "get", "sa", "default", "-o", "jsonpath={.metadata.name}")
	token := func(s *Server) string { return strings.TrimSpace(s.Kubectl(t, "create", "token", "default")) }
	published := func(s *Server) int {
		return strings.Count(s.Kubectl(t, "get", "--raw", "/openid/v1/jwks"), `"kid"`)
	}
	before := token(first)
	first.Stop(t)
	previousKeyFile := rotateKey(t, dir)
	second := Start(t, withDataDir)
	after := token(second)
	if tokenHeader(before) == tokenHeader(after) {
		t.Error("tokens before and after the rotation have the same key ID")
	}
	for what, one := range map[string]string{"the previous key": before, "the new key": after} {
		waitForResult(t, "status for a token of "+what, func() string {
			return fmt.Sprint(statusCode(t, second.clientWithToken(t,
				one)))
		},
			fmt.Sprint(http.StatusOK))
	}
	if n := published(second); n != 2 {
		t.Errorf("got %d published keys, want 2", n)
	}
	second.Stop(t)
	if err := os.Remove(previousKeyFile); err != nil {
		t.Fatal(err)
	}
	third := Start(t, withDataDir)
	waitForResult(t, "status for a token of the new key", func() string {
		return fmt.Sprint(statusCode(t, third.clientWithToken(t,
			after)))
	},
		fmt.Sprint(http.StatusOK))
	if code := statusCode(t, third.clientWithToken(t, before)); code != http.StatusUnauthorized {
		t.Errorf("token of a removed key: got status %d, want 401", code)
	}
	if n := published(third); n != 1 {
		t.Errorf("got %d published keys, want 1", n)
	}
}

// rotateKey runs rotate-account-key on a data directory and returns the file of the previous key.
func rotateKey(t *testing.T, dir string) string {
	t.Helper()
	program, err := hosts.BuildControl(t.Context(), hosts.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), program, "rotate-account-key", "--data-dir", dir).CombinedOutput()
	if err != nil {
		t.Fatalf("rotate-account-key: %v: %s", err, out)
	}
	previousKeyFile, rest, _ := strings.Cut(string(out), "\n")
	if filepath.Dir(previousKeyFile) != filepath.Join(dir, "pki") || !strings.Contains(rest, "Restart the server") {
		t.Errorf("rotate-account-key: got output %s", out)
	}
	return previousKeyFile
}

// tokenHeader returns the header of a JWT, which contains the key ID.
func tokenHeader(token string) string { return strings.SplitN(token, ".", 2)[0] }
