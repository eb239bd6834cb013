package ui

import (
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// maxAssets is the maximum size of all compressed assets in bytes.
const maxAssets = 300 << 10

// TestAssetsMatchSources compares the hash of the sources with the one that the build of the assets has recorded.
// `make lint` also builds the assets again and compares them.
func TestAssetsMatchSources(t *testing.T) {
	t.Parallel()
	names, err := filepath.Glob("src/*")
	if err != nil {
		t.Fatal(err)
	}
	names = append(names, "build.mjs", "package-lock.json", "package.json", "tsconfig.json")
	slices.Sort(names)
	hash := sha256.New()
	for _, name := range names {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(hash, "%s %d\n", name, len(content))
		hash.Write(content)
	}
	recorded, err := os.ReadFile("dist/sources.sha256")
	if err != nil {
		t.Fatal(err)
	}
	if got := hex.EncodeToString(hash.Sum(nil)); got != strings.TrimSpace(string(recorded)) {
		t.Error("ui/dist was built from other sources: run make ui")
	}
}

// TestAssetsMatchRecordedHashes compares the hash of each asset before compression with the recorded one.
func TestAssetsMatchRecordedHashes(t *testing.T) {
	t.Parallel()
	recorded, err := os.ReadFile("dist/assets.sha256")
	if err != nil {
		t.Fatal(err)
	}
	files, err := Files.ReadDir("dist")
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for _, f := range files { // sorted by name
		content, err := Files.Open("dist/" + f.Name())
		if err != nil {
			t.Fatal(err)
		}
		plain, err := gzip.NewReader(content)
		if err != nil {
			t.Fatalf("%s: %v", f.Name(), err)
		}
		hash := sha256.New()
		if _, err := io.Copy(hash, plain); err != nil { //nolint:gosec // our own files
			t.Fatalf("%s: %v", f.Name(), err)
		}
		fmt.Fprintf(&got, "%x  %s\n", hash.Sum(nil), strings.TrimSuffix(f.Name(), ".gz"))
	}
	if got.String() != string(recorded) {
		t.Errorf("ui/dist was changed after its build: run make ui\n%s", got.String())
	}
}

// TestSourcesDoNotSetHTML forbids what could make markup or scripts of text from objects, events and logs.
func TestSourcesDoNotSetHTML(t *testing.T) {
	t.Parallel()
	names, err := filepath.Glob("src/*.ts*")
	if err != nil || len(names) < 10 {
		t.Fatalf("found %d files: %v", len(names), err)
	}
	for _, name := range names {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, word := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(",
			"new Function", "javascript:", "DOMParser", "srcdoc"} {
			if strings.Contains(string(content), word) {
				t.Errorf("%s contains %q", name, word)
			}
		}
	}
}

func TestAssetsAreSmall(t *testing.T) {
	t.Parallel()
	files, err := Files.ReadDir("dist")
	if err != nil {
		t.Fatal(err)
	}
	var total int64
	for _, f := range files {
		info, err := f.Info()
		if err != nil {
			t.Fatal(err)
		}
		total += info.Size()
	}
	if total == 0 || total > maxAssets {
		t.Errorf("the assets have %d bytes, at most %d are allowed", total, maxAssets)
	}
}
