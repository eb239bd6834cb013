package crilog

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// tree lists the files below a directory.
func tree(t *testing.T, root string) string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(root, func(p string, e os.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			out = append(out, strings.TrimPrefix(p, root+"/"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func TestCollectorRemovesOnlyUnownedLogs(t *testing.T) { // L6
	t.Parallel()
	root, links := filepath.Join(t.TempDir(), "pods"), filepath.Join(t.TempDir(), "links")
	put := func(file string, age time.Duration) {
		t.Helper()
		path := filepath.Join(root, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, path, "0123456789", day(2).Add(-age))
		for dir := filepath.Dir(path); dir != root; dir = filepath.Dir(dir) {
			if err := os.Chtimes(dir, day(1), day(1)); err != nil {
				t.Fatal(err)
			}
		}
	}
	link := func(name, target string) {
		t.Helper()
		if err := os.MkdirAll(links, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, filepath.Join(links, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{
		"ns_gone_u1/c/0.log", "ns_gone_u1/c/0.log.20260101-000000.gz", // no owner: removed
		"ns_kubelet_u5/c/0.log",                                       // deleted, but not created by berth
		"ns_foreign_u2/c/0.log",                                       // another owner
		"ns_ours_u3/c/0.log", "ns_ours_u3/c/0.log.20260101-000000.gz", // removed instance
		"ns_ours_u3/c/1.log", "ns_ours_u3/c/2.log", // an owned one, the newest one
		"ns_ours_u3/c/notes.txt", "ns_ours_u3/other/4.log", // not a log; the only log of its container
		"lost+found/x", "one_two/x", "a_b_c_d/x", // not in the expected layout
	} {
		put(f, time.Hour)
	}
	put("ns_young_u4/c/0.log", time.Second)
	link("dead", filepath.Join(root, "ns_gone_u1/c/0.log"))
	link("kubelet", filepath.Join(root, "ns_kubelet_u5/c/1.log"))
	link("alive", filepath.Join(root, "ns_ours_u3/c/2.log"))
	link("elsewhere", "/nonexistent/0.log")
	owns := func(uid string) bool { return uid != "u2" && uid != "u5" }
	c := &Collector{
		PodLogsDir: root, LinkDir: links, MinAge: time.Minute, Now: func() time.Time { return day(2) },
		Owners: func(context.Context) (Owners, error) {
			return Owners{
				Owns: owns, Pods: map[string]bool{"u2": true, "u3": true},
				Logs: map[string]map[string]bool{"u3": {filepath.Join(root, "ns_ours_u3/c/1.log"): true}},
			}, nil
		},
	}
	// The modification time of links cannot be set, so they are checked at a later time below.
	g, err := c.RunOnce(t.Context())
	if err != nil || g != (Collected{PodDirs: 1, Logs: 1, Bytes: 40}) {
		t.Errorf("collected %+v: %v", g, err)
	}
	want := "a_b_c_d/x lost+found/x ns_foreign_u2/c/0.log ns_kubelet_u5/c/0.log ns_ours_u3/c/1.log " +
		"ns_ours_u3/c/2.log ns_ours_u3/c/notes.txt ns_ours_u3/other/4.log ns_young_u4/c/0.log one_two/x"
	if got := tree(t, root); got != want {
		t.Errorf("remaining:\n%s\nwant:\n%s", got, want)
	}
	c.Now, c.MinAge = func() time.Time { return time.Now().Add(time.Hour) }, 1000000*time.Hour
	if g, err = c.RunOnce(t.Context()); err != nil || g != (Collected{}) {
		t.Errorf("a young link: %+v, %v", g, err)
	}
	c.MinAge = time.Minute
	c.Owners = func(context.Context) (Owners, error) {
		return Owners{Owns: owns, Pods: map[string]bool{"u2": true, "u3": true, "u4": true}}, nil
	}
	if g, err = c.RunOnce(t.Context()); err != nil || g != (Collected{Links: 1}) {
		t.Errorf("links: %+v, %v", g, err)
	}
	if got := tree(t, links); got != "alive elsewhere kubelet" {
		t.Errorf("remaining links: %s", got)
	}
}

func TestCollectorKeepsLogsWhenOwnersUnknown(t *testing.T) { // L6
	t.Parallel()
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "a_b_c"), 0o755); err != nil {
		t.Fatal(err)
	}
	c := &Collector{PodLogsDir: root, Now: time.Now, Owners: func(context.Context) (Owners, error) {
		return Owners{},
			errors.New("runtime unavailable")
	}}
	if _, err := c.RunOnce(t.Context()); err == nil || !strings.Contains(err.Error(), "runtime unavailable") {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(root, "a_b_c")); err != nil {
		t.Error(err)
	}
}
