package cri_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/api/services/containers/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
	"berth/cri"
	"berth/test/hosts"
)

// TestR7LeakedTasksOfBerthAreDeleted has a real containerd forget
// sandboxes: of berth, whole and without a bundle, and of another agent.
func TestR7LeakedTasksOfBerthAreDeleted(t *testing.T) {
	for _, version := range hosts.Versions() {
		t.Run(string(version), func(t *testing.T) {
			t.Parallel()
			p, err := hosts.Start(t.Context(), hosts.Options{Version: version, CNI: true})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("containerd said at last:\n%s", p.Log())
				}
				if err := p.Stop(); err != nil {
					t.Error(err)
				}
			})
			logs := t.TempDir()
			c := (&host{endpoint: p.Endpoint}).dial(t)
			run := func(name, cgroup, logs string) string {
				sb, err := c.RunSandbox(t.Context(), podNamed(name), plan.SandboxSetup{CgroupParent: p.CgroupRoot + cgroup,
					LogDir: filepath.Join(logs, name)})
				if err != nil {
					t.Fatal(err)
				}
				return sb.ID
			}
			struck := run("struck", "/kubepods/podstruck", logs)
			whole, torn, alive := run("whole", "/kubepods/podwhole", logs), run("torn", "/kubepods/podtorn",
				logs), run("alive", "/kubepods/podalive", logs)
			foreign, elsewhere := run("foreign", "/foreign/x", t.TempDir()), run("elsewhere", "/kubepods/podelsewhere",
				t.TempDir())
			books := containersOf(t, p.Endpoint)
			record, err := books.Get(withCRINamespace(t), &containers.GetContainerRequest{ID: struck})
			if err != nil {
				t.Fatal(err)
			}
			if err := p.Forget(t.Context(), whole, torn, struck, foreign, elsewhere); err != nil {
				t.Fatal(err)
			}
			// CRI reads them at its start
			if _, err := books.Create(withCRINamespace(t),
				&containers.CreateContainerRequest{Container: record.Container}); err != nil {
				t.Fatal(err)
			}
			facts, ok, err := c.Layout(t.Context())
			if err != nil || !ok || facts.Address != p.Socket {
				t.Fatalf("facts %+v %v %v", facts, ok, err)
			}
			dropBundle(t, filepath.Join(facts.TaskDir, torn))

			search := cri.LeakSearch{
				Known: func(string) bool { return false }, LogDir: logs, ScanProcesses: true,
				OwnsCgroup: func(cgroup string) bool { return strings.HasPrefix(cgroup, p.CgroupRoot+"/kubepods/pod") },
			}
			forgotten := func(s cri.LeakSearch) (ids []string) {
				found, err := c.LeakedTasks(t.Context(), s)
				if err != nil {
					t.Fatal(err)
				}
				for _, f := range found {
					ids = append(ids, f.ID)
					if !f.Owned || len(f.Shims) != 1 || (f.Bundle == "") != (f.ID == torn) {
						t.Errorf("%+v", f)
					}
				}
				return ids
			}
			want := []string{whole, torn, struck}
			slices.Sort(want)
			if got := forgotten(search); !slices.Equal(got, want) {
				t.Fatalf("found %v, forgotten were %v", got, want)
			}
			shallow := search
			shallow.ScanProcesses = false
			if got := forgotten(shallow); !slices.Equal(got, want) {
				t.Errorf("a cheap look found %v", got)
			}
			found, err := c.LeakedTasks(t.Context(), search)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range append(found, found...) { // twice: it may be repeated
				if err := c.DeleteLeakedTask(t.Context(), f); err != nil {
					t.Fatal(err)
				}
			}
			if err := c.DeleteLeakedTask(t.Context(), cri.LeakedTask{ID: alive, Bundle: filepath.Join(facts.TaskDir, alive),
				Owned: true}); err != nil {
				t.Fatal(err)
			}
			for id, want := range map[string]bool{whole: false, torn: false, struck: false, alive: true, foreign: true,
				elsewhere: true} {
				if !want { // who was killed is gone when its new parent has noticed
					eventually(t, "nothing of "+id+" to be left", func() bool { return len(tracesOf(t, id)) == 0 })
				} else if len(tracesOf(t, id)) == 0 {
					t.Errorf("nothing is left of %s", id)
				}
			}
			if _, err := books.Get(withCRINamespace(t),
				&containers.GetContainerRequest{ID: struck}); status.Code(err) != codes.NotFound {
				t.Errorf("the record that CRI has lost: %v", err)
			}
			isAbortedCreate(t, c, facts, search)
			st, err := p.Runtime.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: alive})
			if err != nil || st.GetStatus().GetState() != runtimeapi.PodSandboxState_SANDBOX_READY {
				t.Errorf("the one that is listed: %v %v", st.GetStatus().GetState(), err)
			}
		})
	}
}

// isAbortedCreate has a runc of this containerd leave what it had begun, a while ago and
// just now.
func isAbortedCreate(t *testing.T, c *cri.Client, facts cri.Layout, search cri.LeakSearch) {
	t.Helper()
	own := slices.IndexFunc(facts.RuncRoots, func(root string) bool {
		return strings.HasPrefix(root,
			"/run/berth-hosts/")
	})
	if own < 0 {
		t.Fatalf("runc's own books of this containerd are not among %v", facts.RuncRoots)
	}
	dirs := map[string]string{}
	for id, age := range map[string]time.Duration{strings.Repeat("01d1", 16): time.Hour, strings.Repeat("9e31", 16): 0} {
		dirs[id] = filepath.Join(facts.RuncRoots[own], "k8s.io", id)
		at := time.Now().Add(-age)
		if err := errors.Join(os.MkdirAll(dirs[id], 0o711), os.Chtimes(dirs[id], at, at)); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(dirs[id])
	}
	found, err := c.LeakedTasks(t.Context(), search)
	if err != nil || len(found) != 1 || found[0].ID[:2] != "01" || found[0].Owned {
		t.Fatalf("%+v, %v", found, err)
	}
	if err := c.DeleteLeakedTask(t.Context(), found[0]); err != nil {
		t.Fatal(err)
	}
	for id, dir := range dirs {
		if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) != (id == found[0].ID) {
			t.Errorf("%s: %v", dir, err)
		}
	}
}

func podNamed(name string) *corev1.Pod {
	pod := smallPod()
	pod.Name, pod.UID = name, types.UID(name)
	return pod
}

// containersOf is containerd's own service.
func containersOf(t *testing.T, endpoint string) containers.ContainersClient {
	t.Helper()
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return containers.NewContainersClient(conn)
}

func withCRINamespace(t *testing.T) context.Context {
	return metadata.AppendToOutgoingContext(t.Context(), "containerd-namespace", "k8s.io")
}

// dropBundle takes a task's directory away, as containerd does when it gives a
// shim up for dead.
func dropBundle(t *testing.T, bundle string) {
	t.Helper()
	_ = unix.Unmount(filepath.Join(bundle, "rootfs"), unix.MNT_DETACH) // containerd may have done so
	work, err := os.Readlink(filepath.Join(bundle, "work"))
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{bundle, work} {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
}

// tracesOf names the mounts and processes that bear an ID.
func tracesOf(t *testing.T, id string) (out []string) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "/"+id+"/") {
			out = append(out, "mount "+strings.Fields(line)[4])
		}
	}
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		for _, name := range []string{f, filepath.Join(filepath.Dir(f), "cgroup")} {
			if text, err := os.ReadFile(name); err == nil && strings.Contains(string(text), id) {
				out = append(out, name)
			}
		}
	}
	return out
}
