package cgroups

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
)

// onHost returns Cgroups with a temporary root on this host.
func onHost(t *testing.T, o Options) *Cgroups {
	t.Helper()
	o.Root = fmt.Sprintf("/%s-%d", strings.ReplaceAll(t.Name(), "/", "."), os.Getpid())
	o.Driver = driverCgroupfs
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.Background()
		if err := killAndRemove(ctx, c.find(c.layout.root)); err != nil {
			t.Errorf("clean up: %v", err)
		}
		if left := c.find(c.layout.root); len(left) > 0 {
			t.Errorf("cgroups left: %v", left)
		}
	})
	return c
}

// value returns the content of a file of the pod's cgroup in the hierarchy of a controller.
func value(t *testing.T, c *Cgroups, controller string, names []string, file string) string {
	t.Helper()
	for _, h := range c.hierarchies {
		if h.has(controller) {
			text, err := os.ReadFile(filepath.Join(h.mount, c.layout.dir(names), file))
			if err != nil {
				t.Fatal(err)
			}
			return strings.TrimSpace(string(text))
		}
	}
	t.Fatalf("no controller %s", controller)
	return ""
}

// startInPod starts a program in the pod's cgroup in every hierarchy.
func startInPod(t *testing.T, c *Cgroups, pod *corev1.Pod, script string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sh", "-c", "read line; "+script)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	dir := c.layout.dir(append(c.names(pod), "container"))
	for _, h := range c.hierarchies {
		if err := h.create(dir); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(h.mount, dir, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)),
			0); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := in.Write([]byte("go\n")); err != nil {
		t.Fatal(err)
	}
	return cmd
}

func killed(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	err := cmd.Wait()
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok || exit.Sys().(interface{ Signal() unix.Signal }).Signal() != unix.SIGKILL {
		t.Errorf("process ended with %v, want SIGKILL", err)
	}
}

func TestEnsureAndRemoveAgain(t *testing.T) { // G1
	t.Parallel()
	c := onHost(t, Options{PodPidsLimit: 77, CPUQuota: true})
	pod := podOf("g1-uid", nil, list("cpu", "500m", "memory", "64Mi"))
	if ok, err := c.Exists(t.Context(), pod); ok || err != nil {
		t.Fatalf("before Ensure: got %t, %v", ok, err)
	}
	for range 2 {
		if err := c.Ensure(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		if ok, err := c.Exists(t.Context(), pod); !ok || err != nil {
			t.Fatalf("after Ensure: got %t, %v", ok, err)
		}
		for _, row := range []struct{ controller, file, want string }{
			{"cpu", "cpu.shares", "512"},
			{"cpu", "cpu.cfs_quota_us", "50000"},
			{"memory", "memory.limit_in_bytes", "67108864"},
			{"pids", "pids.max", "77"},
			{"cpuset", "cpuset.cpus", value(t, c, "cpuset", nil, "cpuset.cpus")},
			{"cpuset", "cpuset.mems", value(t, c, "cpuset", nil, "cpuset.mems")},
		} {
			if got := value(t, c, row.controller, c.names(pod), row.file); got != row.want || got == "" {
				t.Errorf("%s: got %q, want %q", row.file, got, row.want)
			}
		}
	}
	for range 2 {
		if err := c.Remove(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		if ok, err := c.Exists(t.Context(), pod); ok || err != nil {
			t.Fatalf("after Remove: %t, %v", ok, err)
		}
	}
}

func TestEnsureRepairsAndUpdates(t *testing.T) {
	t.Parallel()
	c := onHost(t, Options{CPUQuota: true})
	pod := podOf("u", nil, list("cpu", "1", "memory", "64Mi"))
	if err := c.Ensure(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if err := c.find(c.names(pod))[0].remove(); err != nil {
		t.Fatal(err)
	}
	if ok, err := c.Exists(t.Context(), pod); !ok || err != nil || len(c.find(c.names(pod))) != len(c.hierarchies) {
		t.Errorf("with a missing hierarchy: got %t, %v, %v", ok, err, c.find(c.names(pod)))
	}
	pod = podOf("u", nil, list("cpu", "2", "memory", "32Mi"))
	if err := c.Ensure(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if got := value(t, c, "memory", c.names(pod), "memory.limit_in_bytes"); got != "33554432" {
		t.Error(got)
	}
	if got := value(t, c, "cpu", c.names(pod), "cpu.cfs_quota_us"); got != "200000" {
		t.Error(got)
	}
}

func TestRemoveKillsOnlyProcessesOfPod(t *testing.T) { // G2
	t.Parallel()
	c := onHost(t, Options{})
	one, other := podOf("one", nil, nil), podOf("other", nil, nil)
	for _, pod := range []*corev1.Pod{one, other} {
		if err := c.Ensure(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
	victim, otherProcess := startInPod(
		t,
		c,
		one,
		"trap '' TERM; while :; do sleep 300; done",
	), startInPod(
		t,
		c,
		other,
		"exec sleep 300",
	)
	if err := c.Remove(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	killed(t, victim)
	if err := otherProcess.Process.Signal(unix.Signal(0)); err != nil {
		t.Errorf("process of another pod: %v", err)
	}
	if ok, err := c.Exists(t.Context(), other); !ok || err != nil {
		t.Errorf("cgroup of another pod: got %t, %v", ok, err)
	}
}

func TestRemoveFrozen(t *testing.T) {
	t.Parallel()
	c := onHost(t, Options{})
	pod := podOf("u", nil, nil)
	if err := c.Ensure(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	cmd := startInPod(t, c, pod, "exec sleep 300")
	for _, h := range c.hierarchies {
		if h.has("freezer") {
			file := filepath.Join(h.mount, c.layout.dir(c.names(pod)), "freezer.state")
			if err := os.WriteFile(file, []byte("FROZEN"), 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := c.Remove(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	killed(t, cmd)
}

// The unified hierarchy uses cgroup.kill; in v1 processes are killed one by one.
func TestSweepOfOneHierarchy(t *testing.T) {
	t.Parallel()
	for _, unified := range []bool{true, false} {
		t.Run(fmt.Sprintf("unified-%t", unified), func(t *testing.T) {
			t.Parallel()
			c := onHost(t, Options{})
			at := slices.IndexFunc(c.hierarchies, func(h hierarchy) bool { return h.unified == unified })
			if at < 0 {
				t.Fatal("no such hierarchy on this host")
			}
			c.hierarchies = c.hierarchies[at : at+1]
			pod := podOf("u", nil, nil)
			if err := c.Ensure(t.Context(), pod); err != nil {
				t.Fatal(err)
			}
			cmd := startInPod(t, c, pod, "while :; do sleep 300 & sleep 0.01; done")
			if err := c.Remove(t.Context(), pod); err != nil {
				t.Fatal(err)
			}
			killed(t, cmd)
		})
	}
}

func TestRemoveOrphan(t *testing.T) { // G3
	t.Parallel()
	c := onHost(t, Options{})
	for _, pod := range []*corev1.Pod{
		podOf("best", nil, nil), podOf("burst", list("cpu", "1"), nil),
		podOf("guaranteed", nil, list("cpu", "1", "memory", "1Gi")),
	} {
		if err := c.Ensure(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
	uids, err := c.Pods(t.Context())
	if want := []types.UID{"best", "burst", "guaranteed"}; err != nil || !slices.Equal(uids, want) {
		t.Fatalf("%v, %v", uids, err)
	}
	for _, uid := range uids {
		orphan := &corev1.Pod{}
		orphan.UID = uid
		// The state after an interrupted Remove.
		if err := c.find(c.layout.pod(tierOfOrphan(c, uid), uid))[0].remove(); err != nil {
			t.Error(err)
		}
		if ok, err := c.Exists(t.Context(), orphan); !ok || err != nil {
			t.Errorf("orphaned cgroups of %s were not found: got %t, %v", uid, ok, err)
		}
		if err := c.Remove(t.Context(), orphan); err != nil {
			t.Error(err)
		}
	}
	if uids, err := c.Pods(t.Context()); err != nil || len(uids) > 0 {
		t.Errorf("left: %v, %v", uids, err)
	}
}

// tierOfOrphan returns the QoS tier of a pod's cgroup.
func tierOfOrphan(c *Cgroups, uid types.UID) string {
	tiers := tiers()
	return tiers[slices.IndexFunc(tiers, func(tier string) bool { return len(c.find(c.layout.pod(tier, uid))) > 0 })]
}

func TestTierShare(t *testing.T) { // G4
	t.Parallel()
	c := onHost(t, Options{})
	share := func() string { return value(t, c, "cpu", c.layout.tier(burstable), "cpu.shares") }
	one, two := podOf("one", list("cpu", "500m"), nil), podOf("two", list("cpu", "1"), nil)
	for _, pod := range []*corev1.Pod{one, two, podOf("best", nil, nil)} {
		if err := c.Ensure(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
	if got := share(); got != "1536" {
		t.Errorf("two Burstable pods: got shares %s", got)
	}
	if got := value(t, c, "cpu", c.layout.tier(besteffort), "cpu.shares"); got != "2" {
		t.Errorf("with a BestEffort pod: got shares %s", got)
	}
	// After a restart the agent observes its pods one after another.
	again, err := New(Options{Root: c.layout.parent(c.layout.root), Driver: driverCgroupfs})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := again.Exists(t.Context(), one); err != nil || share() != "1536" {
		t.Errorf("one pod known after the restart: got shares %s, %v", share(), err)
	}
	if err := again.Ensure(t.Context(), podOf("three", list("cpu", "2"), nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := again.Exists(t.Context(), two); err != nil || share() != "3584" {
		t.Errorf("all pods known after the restart: got shares %s, %v", share(), err)
	}
	if err := again.Remove(t.Context(), two); err != nil || share() != "2560" {
		t.Errorf("one pod removed: got shares %s, %v", share(), err)
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	c := onHost(t, Options{})
	for _, uid := range []types.UID{"", "../x", "a/b", "a b"} {
		if err := c.Ensure(t.Context(), podOf(uid, nil, nil)); plan.KindOf(err) != plan.Invalid {
			t.Errorf("uid %q: %v", uid, err)
		}
		if err := c.Remove(t.Context(), podOf(uid, nil, nil)); plan.KindOf(err) != plan.Invalid {
			t.Errorf("uid %q: %v", uid, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Ensure(ctx, podOf("u", nil, nil)); plan.KindOf(err) != plan.Canceled {
		t.Errorf("canceled: %v", err)
	}
	e, ok := errors.AsType[*plan.Error](c.Ensure(ctx, podOf("u", nil, nil)))
	if !ok || e.Reason != "FailedCreatePodContainer" {
		t.Errorf("reason: %+v", e)
	}
}

func TestThisHost(t *testing.T) {
	t.Parallel()
	c := onHost(t, Options{})
	var fs unix.Statfs_t
	if err := unix.Statfs("/sys/fs/cgroup", &fs); err != nil {
		t.Fatal(err)
	}
	if c.V2() != (fs.Type == unix.CGROUP2_SUPER_MAGIC) {
		t.Errorf("V2: %t", c.V2())
	}
	if c.Driver() != driverCgroupfs {
		t.Error(c.Driver())
	}
	if want := exists("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes"); !c.V2() && c.SwapLimits() != want {
		t.Errorf("swap limits: %t", c.SwapLimits())
	}
}

func BenchmarkEnsureAndRemove(b *testing.B) {
	c, err := New(Options{Root: fmt.Sprintf("/berth-bench-%d", os.Getpid()), Driver: driverCgroupfs})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = killAndRemove(context.Background(), c.find(c.layout.root)) })
	pod := podOf("u", list("cpu", "1"), nil)
	for b.Loop() {
		start := time.Now()
		if err := errors.Join(c.Ensure(b.Context(), pod), c.Remove(b.Context(), pod)); err != nil {
			b.Fatal(err, time.Since(start))
		}
	}
}
