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

// TestServiceAccountKeyRotation: tokens of the previous key are valid until its file is removed.
// New tokens are signed by the new key. Both keys are published.
func TestServiceAccountKeyRotation(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := func(c *control.Config) { c.DataDir = dir }
	first := Start(t, at)
	waitForOutput(t, first, "default", "-n", "default", "get", "sa", "default", "-o", "jsonpath={.metadata.name}")
	token := func(s *Server) string { return strings.TrimSpace(s.Kubectl(t, "create", "token", "default")) }
	published := func(s *Server) int {
		return strings.Count(s.Kubectl(t, "get", "--raw", "/openid/v1/jwks"), `"kid"`)
	}
	before := token(first)
	first.Stop(t)
	previousKeyFile := rotateKey(t, dir)
	second := Start(t, at)
	after := token(second)
	if tokenHeader(before) == tokenHeader(after) {
		t.Error("both tokens have the same key ID")
	}
	for what, one := range map[string]string{"the old key": before, "the new key": after} {
		waitForResult(t, "a token of "+what, func() string {
			return fmt.Sprint(statusCode(t, second.clientWithToken(t,
				one)))
		},
			fmt.Sprint(http.StatusOK))
	}
	if n := published(second); n != 2 {
		t.Errorf("got %d published keys", n)
	}
	second.Stop(t)
	if err := os.Remove(previousKeyFile); err != nil {
		t.Fatal(err)
	}
	third := Start(t, at)
	waitForResult(t, "a token of the new key", func() string {
		return fmt.Sprint(statusCode(t, third.clientWithToken(t,
			after)))
	},
		fmt.Sprint(http.StatusOK))
	if code := statusCode(t, third.clientWithToken(t, before)); code != http.StatusUnauthorized {
		t.Errorf("token of a removed key: got status %d", code)
	}
	if n := published(third); n != 1 {
		t.Errorf("got %d published keys", n)
	}
}

// rotateKey runs the command on a data directory and returns the file of the previous key.
func rotateKey(t *testing.T, dir string) string {
	t.Helper()
	program, err := hosts.BuildControl(t.Context(), hosts.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), program, "rotate-account-key", "--data-dir", dir).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	previousKeyFile, rest, _ := strings.Cut(string(out), "\n")
	if filepath.Dir(previousKeyFile) != filepath.Join(dir, "pki") || !strings.Contains(rest, "Restart the server") {
		t.Errorf("got %s", out)
	}
	return previousKeyFile
}

// head returns the header of a token, which contains the key ID.
func tokenHeader(token string) string { return strings.SplitN(token, ".", 2)[0] }
