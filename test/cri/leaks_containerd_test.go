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

// TestLeakedTasksOfBerthAreDeleted deletes a real containerd's records of sandboxes: of berth, with and without
// a bundle, and of another agent.
func TestLeakedTasksOfBerthAreDeleted(t *testing.T) { // R7
	for _, version := range hosts.Versions() {
		t.Run(string(version), func(t *testing.T) {
			t.Parallel()
			p, err := hosts.Start(t.Context(), hosts.Options{Version: version, CNI: true})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("containerd log:\n%s", p.Log())
				}
				if err := p.Stop(); err != nil {
					t.Error(err)
				}
			})
			logs := t.TempDir()
			c := (&host{endpoint: p.Endpoint}).dial(t)
			run := func(name, cgroup, logs string) string {
				sb, err := c.RunSandbox(t.Context(), newNamedPod(name),
					plan.SandboxConfig{CgroupParent: p.CgroupRoot + cgroup, LogDir: filepath.Join(logs, name)})
				if err != nil {
					t.Fatal(err)
				}
				return sb.ID
			}
			recreated := run("recreated", "/kubepods/podrecreated", logs)
			withBundle := run("with-bundle", "/kubepods/podwithbundle", logs)
			withoutBundle := run("without-bundle", "/kubepods/podwithoutbundle", logs)
			listed := run("listed", "/kubepods/podlisted", logs)
			foreign := run("foreign", "/foreign/x", t.TempDir())
			otherLogDir := run("other-log-dir", "/kubepods/podotherlogdir", t.TempDir())
			containerService := containersClient(t, p.Endpoint)
			record, err := containerService.Get(withCRINamespace(t), &containers.GetContainerRequest{ID: recreated})
			if err != nil {
				t.Fatal(err)
			}
			if err := p.DeleteRecords(t.Context(), withBundle, withoutBundle, recreated, foreign,
				otherLogDir); err != nil {
				t.Fatal(err)
			}
			// The CRI plugin reads the records only when it starts, so it does not list this one.
			if _, err := containerService.Create(withCRINamespace(t),
				&containers.CreateContainerRequest{Container: record.Container}); err != nil {
				t.Fatal(err)
			}
			layout, ok, err := c.Layout(t.Context())
			if err != nil || !ok || layout.Address != p.Socket {
				t.Fatalf("layout %+v %v %v", layout, ok, err)
			}
			dropBundle(t, filepath.Join(layout.TaskDir, withoutBundle))

			search := cri.LeakSearch{
				Known: func(string) bool { return false }, LogDir: logs, ScanProcesses: true,
				OwnsCgroup: func(cgroup string) bool { return strings.HasPrefix(cgroup, p.CgroupRoot+"/kubepods/pod") },
			}
			leaked := func(s cri.LeakSearch) (ids []string) {
				found, err := c.LeakedTasks(t.Context(), s)
				if err != nil {
					t.Fatal(err)
				}
				for _, f := range found {
					ids = append(ids, f.ID)
					if !f.Owned || len(f.Shims) != 1 || (f.Bundle == "") != (f.ID == withoutBundle) {
						t.Errorf("%+v", f)
					}
				}
				return ids
			}
			want := []string{withBundle, withoutBundle, recreated}
			slices.Sort(want)
			if got := leaked(search); !slices.Equal(got, want) {
				t.Fatalf("found %v, want %v", got, want)
			}
			withoutScan := search
			withoutScan.ScanProcesses = false
			if got := leaked(withoutScan); !slices.Equal(got, want) {
				t.Errorf("search without process scan: found %v, want %v", got, want)
			}
			found, err := c.LeakedTasks(t.Context(), search)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range append(found, found...) { // twice, because deletion may be repeated
				if err := c.DeleteLeakedTask(t.Context(), f); err != nil {
					t.Fatal(err)
				}
			}
			if err := c.DeleteLeakedTask(t.Context(), cri.LeakedTask{ID: listed,
				Bundle: filepath.Join(layout.TaskDir, listed), Owned: true}); err != nil {
				t.Fatal(err)
			}
			for id, want := range map[string]bool{withBundle: false, withoutBundle: false, recreated: false,
				listed: true, foreign: true, otherLogDir: true} {
				if !want { // a killed process remains until its new parent reaps it
					eventually(t, "all traces of "+id+" are removed", func() bool { return len(tracesOf(t, id)) == 0 })
				} else if len(tracesOf(t, id)) == 0 {
					t.Errorf("sandbox %s was removed", id)
				}
			}
			if _, err := containerService.Get(withCRINamespace(t),
				&containers.GetContainerRequest{ID: recreated}); status.Code(err) != codes.NotFound {
				t.Errorf("record that the CRI plugin does not list: got %v, want NotFound", err)
			}
			checkAbortedCreate(t, c, layout, search)
			st, err := p.Runtime.PodSandboxStatus(t.Context(),
				&runtimeapi.PodSandboxStatusRequest{PodSandboxId: listed})
			if err != nil || st.GetStatus().GetState() != runtimeapi.PodSandboxState_SANDBOX_READY {
				t.Errorf("listed sandbox: %v %v", st.GetStatus().GetState(), err)
			}
		})
	}
}

// checkAbortedCreate checks that the runc state directory of an old interrupted create is found and deleted, and
// that a new one is kept.
func checkAbortedCreate(t *testing.T, c *cri.Client, layout cri.Layout, search cri.LeakSearch) {
	t.Helper()
	own := slices.IndexFunc(layout.RuncRoots, func(root string) bool {
		return strings.HasPrefix(root,
			"/run/berth-hosts/")
	})
	if own < 0 {
		t.Fatalf("runc root of this containerd not found in %v", layout.RuncRoots)
	}
	dirs := map[string]string{}
	for id, age := range map[string]time.Duration{strings.Repeat("01d1", 16): time.Hour,
		strings.Repeat("9e31", 16): 0} {
		dirs[id] = filepath.Join(layout.RuncRoots[own], "k8s.io", id)
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

func newNamedPod(name string) *corev1.Pod {
	pod := newPod()
	pod.Name, pod.UID = name, types.UID(name)
	return pod
}

// containersClient returns a client of containerd's containers service.
func containersClient(t *testing.T, endpoint string) containers.ContainersClient {
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

// dropBundle removes the bundle of a task, as containerd does when it considers a
// shim dead.
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

// tracesOf returns the mounts and processes that mention an ID.
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
