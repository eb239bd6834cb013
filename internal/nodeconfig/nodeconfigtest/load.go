package nodeconfigtest

import (
	"os"
	"path/filepath"
	"testing"

	"berth/internal/nodeconfig"
)

// Load loads the configuration of node n from a file with the given content. The test fails if it is invalid.
func Load(t testing.TB, content string) *nodeconfig.Config {
	t.Helper()
	file := filepath.Join(t.TempDir(), "node.yaml")
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	c, _, err := nodeconfig.Load(&nodeconfig.Flags{Config: file, HostnameOverride: "n"})
	if err != nil {
		t.Fatal(err)
	}
	return c
}
