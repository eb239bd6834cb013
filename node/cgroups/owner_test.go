package cgroups

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// owners owns the pods in the map.
type owners map[types.UID]bool

var errForeign = errors.New("foreign")

func (o owners) Owns(uid types.UID) bool { return o[uid] }

func (o owners) Claim(uid types.UID) error {
	if !o[uid] {
		return errForeign
	}
	return nil
}

// snapshot returns the content of all files below a directory.
func snapshot(t *testing.T, dir string) string {
	t.Helper()
	var all string
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			all += path + "\n"
			return err
		}
		text, err := os.ReadFile(path)
		all += path + " " + string(text) + "\n"
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestForeignCgroupIsNotChanged(t *testing.T) {
	t.Parallel()
	m := fakeCgroupfs(t, "cpu io memory pids")
	limit := Options{CPUQuota: true, PodsLimit: list("cpu", "8", "memory", "1Gi")}
	kubelet, err := newCgroups(m, limit)
	if err != nil {
		t.Fatal(err)
	}
	foreign := podOf("foreign", list("cpu", "1"), nil)
	if err := kubelet.Ensure(t.Context(), foreign); err != nil {
		t.Fatal(err)
	}
	limit.Owner, limit.PodsLimit = owners{"own": true}, list("cpu", "1", "memory", "1Mi")
	c, err := newCgroups(m, limit)
	if err != nil {
		t.Fatal(err)
	}
	before := snapshot(t, m.hierarchies[0].mount)
	for name, call := range map[string]func(context.Context) error{
		"exists": func(ctx context.Context) error {
			is, err := c.Exists(ctx, foreign)
			if is {
				t.Error("a foreign cgroup counts as that of the pod")
			}
			return err
		},
		"remove":      func(ctx context.Context) error { return c.Remove(ctx, foreign) },
		"remove root": c.RemoveRoot,
	} {
		if err := call(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := c.Ensure(t.Context(), foreign); !errors.Is(err, errForeign) {
		t.Errorf("ensure: got %v", err)
	}
	if after := snapshot(t, m.hierarchies[0].mount); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}

	own := podOf("own", list("cpu", "2"), nil)
	if err := c.Ensure(t.Context(), own); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"kubepods/memory.max":               "1073741824", // as set by the other owner
		"kubepods/burstable/cpu.weight":     "100",        // likewise
		"kubepods/burstable/podown/cpu.max": "max",
	} {
		if got := read(t, m, path); got != want {
			t.Errorf("%s: got %s, want %s", path, got, want)
		}
	}
	gotOwn, gotForeign, err := c.pods(t.Context())
	if err != nil || !slices.Equal(gotOwn, []types.UID{"own"}) || !slices.Equal(gotForeign, []types.UID{"foreign"}) {
		t.Errorf("got %v %v %v", gotOwn, gotForeign, err)
	}
}

func TestRemoveKillsNoForeignProcess(t *testing.T) {
	t.Parallel()
	c := onHost(t, Options{Owner: owners{"own": true, "foreign": true}})
	pods := map[string]*corev1.Pod{"own": podOf("own"), "foreign": podOf("foreign")}
	for _, p := range pods {
		if err := c.Ensure(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	process := startInPod(t, c, pods["foreign"], "read line")
	c.owner = owners{"own": true}
	for _, p := range pods {
		if err := c.Remove(t.Context(), p); err != nil {
			t.Error(err)
		}
	}
	pid := strconv.Itoa(process.Process.Pid)
	if got := c.Processes("foreign"); !slices.Contains(got, pid) || !c.InUse("foreign") || c.InUse("own") {
		t.Errorf("got processes %v of the foreign pod, want %s", got, pid)
	}
	c.owner = nil
	if err := c.Remove(t.Context(), pods["foreign"]); err != nil {
		t.Error(err)
	}
	if c.InUse("foreign") {
		t.Error("own processes are not killed")
	}
}
