package source

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestWarningsAreLoggedOncePerFileVersion(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer // read after the source has stopped
	dir := t.TempDir()
	path := filepath.Join(dir, "a.yaml")
	put := func(image string) {
		t.Helper()
		next := filepath.Join(t.TempDir(), "next")
		text := "apiVersion: v1\nkind: Pod\nmetadata: {name: a, uid: x}\nspec: {containers: [{name: c, image: " +
			image + "}]}\n" +
			"---\napiVersion: apps/v1\nkind: ReplicaSet\nmetadata: {name: d}\n"
		if err := os.WriteFile(next, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(next, path); err != nil {
			t.Fatal(err)
		}
	}
	put("one")
	w := watch(
		t,
		DirectoryOptions{
			Path:           dir,
			RescanInterval: 10 * time.Millisecond,
			Log:            slog.New(slog.NewTextHandler(&log, nil)),
		},
	)
	has := func(image string) func(Snapshot) bool {
		return func(s Snapshot) bool { return len(s.Pods) == 1 && s.Pods[0].Spec.Containers[0].Image == image }
	}
	w.until("the first version", has("one"))
	put("two")
	w.until("the second version", has("two"))
	w.stop()
	for _, line := range []string{"ReplicaSet d is ignored", "metadata.uid is ignored"} {
		if n := strings.Count(log.String(), line); n != 2 {
			t.Errorf("%q %d times:\n%s", line, n, log.String())
		}
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 4 || !strings.Contains(log.String(), "file="+path) ||
		!strings.Contains(log.String(), "pod=default/a") {
		t.Errorf("%d warnings:\n%s", n, log.String())
	}
}
