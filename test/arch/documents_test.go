package arch

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// sourcePath is a file or folder of the source in a document, such as `agent/plan/decide.go` or
// `probes/`.
var sourcePath = regexp.MustCompile("`((?:\\w+/)+(?:\\w+\\.go)?)`")

func TestPathsInArchitectureExist(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(root, "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	paths := sourcePath.FindAllStringSubmatch(string(text), -1)
	if len(paths) < 30 {
		t.Fatalf("found only %d paths", len(paths))
	}
	for _, p := range paths {
		if _, err := os.Stat(filepath.Join(root, p[1])); err != nil {
			t.Errorf("ARCHITECTURE.md: %v", err)
		}
	}
}
