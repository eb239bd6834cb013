package hosts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/images"
)

// testbox returns the path of the archive with the test program.
func testbox(t *testing.T) string {
	t.Helper()
	dir, err := images.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	a, err := images.Testbox(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	return a.Path
}

// start creates a host, stops it at the end of the test and checks that nothing is left.
func start(t *testing.T, o Options) *Host {
	t.Helper()
	h, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stopAndCheck(t, h) })
	return h
}

func stopAndCheck(t *testing.T, h *Host) {
	t.Helper()
	if t.Failed() {
		t.Logf("containerd log:\n%s", h.Log())
	}
	if err := h.Stop(); err != nil {
		t.Error(err)
	}
	if left := h.Leaks(); len(left) > 0 {
		t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
}

// pod is a sandbox with one container, created by plain CRI calls.
type pod struct {
	config  *runtimeapi.PodSandboxConfig
	sandbox string
	ip      string
}

func runPod(t *testing.T, h *Host, name string, hostPort int32) *pod {
	t.Helper()
	p := &pod{config: &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "default", Uid: name},
		LogDirectory: t.TempDir(),
		Linux:        &runtimeapi.LinuxPodSandboxConfig{CgroupParent: h.CgroupRoot + "/kubepods/pod" + name},
	}}
	if hostPort != 0 {
		p.config.PortMappings = []*runtimeapi.PortMapping{{ContainerPort: 8080, HostPort: hostPort}}
	}
	sb, err := h.Runtime.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: p.config})
	if err != nil {
		t.Fatalf("run sandbox: %v", err)
	}
	p.sandbox = sb.PodSandboxId
	st, err := h.Runtime.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.sandbox})
	if err != nil {
		t.Fatal(err)
	}
	p.ip = st.Status.GetNetwork().GetIp()
	c, err := h.Runtime.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{
		PodSandboxId: p.sandbox, SandboxConfig: p.config,
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "web"},
			Image:    &runtimeapi.ImageSpec{Image: images.TestboxRef},
			Args:     []string{"serve", "8080"},
			LogPath:  "web.log",
			Linux:    &runtimeapi.LinuxContainerConfig{},
		},
	})
	if err != nil {
		t.Fatalf("create container: %v", err)
	}
	if _, err := h.Runtime.StartContainer(t.Context(),
		&runtimeapi.StartContainerRequest{ContainerId: c.ContainerId}); err != nil {
		t.Fatalf("start container: %v", err)
	}
	return p
}

// waitHTTP waits until a web server responds with status 200.
func waitHTTP(t *testing.T, address string) {
	t.Helper()
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	err := WaitFor(t.Context(), "a response from "+address, func() (bool, error) {
		r, err := client.Get("http://" + address + "/")
		if err != nil {
			return false, nil
		}
		defer r.Body.Close()
		_, err = io.Copy(io.Discard, r.Body)
		return r.StatusCode == 200 && err == nil, nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// checkCPUWeight checks that a host has less weight than the tests.
func checkCPUWeight(t *testing.T, h *Host) {
	t.Helper()
	v1, v2, err := hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, hierarchy := range append(v1, v2...) {
		for name, want := range cpuWeights {
			got, err := os.ReadFile(filepath.Join(hierarchy, h.slot.name(), name))
			if err != nil {
				continue // another controller, or another version of cgroups
			}
			found = true
			if strings.TrimSpace(string(got)) != want {
				t.Errorf("%s of the host: got %s, want %s", name, got, want)
			}
		}
	}
	if !found {
		t.Error("the host has no cgroup with the CPU controller")
	}
}

func TestContainerdVersionsRunPodsWithoutLeaks(t *testing.T) {
	t.Parallel()
	for _, v := range Versions() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			h := start(t, Options{Version: v, CNI: true, Images: []string{testbox(t)}})
			version, err := h.Runtime.Version(t.Context(), &runtimeapi.VersionRequest{})
			if err != nil {
				t.Fatal(err)
			}
			if major := map[Version]string{Version16: "1.6.",
				Version2: "2."}[v]; !strings.HasPrefix(strings.TrimPrefix(version.RuntimeVersion, "v"), major) {
				t.Errorf("containerd is %s, want %s", version.RuntimeVersion, major)
			}
			if left := h.PodResources(); len(left) > 0 {
				t.Errorf("PodResources of a host without pods: %v", left)
			}
			checkCPUWeight(t, h)
			hostPort := 20000 + int32(h.Number)*10
			p := runPod(t, h, "web", hostPort)
			if ip := net.ParseIP(p.ip); ip == nil ||
				!strings.HasPrefix(p.ip, strings.TrimSuffix(h.PodCIDR.Masked().Addr().String(), "0")) {
				t.Errorf("address %q is not in %s", p.ip, h.PodCIDR)
			}
			waitHTTP(t, p.ip+":8080")
			waitHTTP(t, h.Gateway.String()+":"+strconv.Itoa(int(hostPort)))

			if err := h.Kill(); err != nil {
				t.Fatal(err)
			}
			waitHTTP(t, p.ip+":8080")
			if err := h.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
			waitHTTP(t, p.ip+":8080")
			kinds := map[string]bool{}
			for _, l := range h.PodResources() {
				kinds[strings.Fields(l)[0]] = true
			}
			for _, want := range []string{"process", "mount", "rule", "address", "cgroup", "link"} {
				if !kinds[want] {
					t.Errorf("PodResources does not list the %s of the running pod", want)
				}
			}
			if v == Version2 {
				return // the cleanup tests Stop with a running pod
			}
			if _, err := h.Runtime.RemovePodSandbox(t.Context(),
				&runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.sandbox}); err != nil {
				t.Fatal(err)
			}
			// The agent removes the cgroup of a pod. This test has no agent.
			dirs, _ := h.cgroupDirs()
			for _, d := range dirs {
				if filepath.Base(d) == "podweb" {
					os.Remove(d)
				}
			}
			if err := WaitFor(t.Context(), "the pod to be removed", func() (bool, error) {
				return len(h.PodResources()) == 0, nil
			}); err != nil {
				t.Errorf("%v: %v", err, h.PodResources())
			}
		})
	}
}

func TestNetworkNotReadyWithoutCNI(t *testing.T) {
	t.Parallel()
	h := start(t, Options{})
	ready := func() bool {
		st, err := h.Runtime.Status(t.Context(), &runtimeapi.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(st.Status.Conditions, func(c *runtimeapi.RuntimeCondition) bool {
			return c.Type == runtimeapi.NetworkReady && c.Status
		})
	}
	if ready() {
		t.Error("NetworkReady is true without a CNI configuration")
	}
	if err := h.WriteCNI(); err != nil {
		t.Fatal(err)
	}
	if err := WaitFor(t.Context(), "the network", func() (bool, error) { return ready(), nil }); err != nil {
		t.Error(err)
	}
	if err := h.RemoveCNI(); err != nil {
		t.Error(err)
	}
}

// TestSweepRemovesHostOfDeadProcess runs this test program as a process that creates a host with a
// pod and dies.
func TestSweepRemovesHostOfDeadProcess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestHelperProcess$", "-test.count=1")
	// the dead process does not remove its own directory
	cmd.Env = append(os.Environ(), "HOSTS_TEST_DIE_IN="+dir, "TMPDIR="+dir)
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "about to die") {
		t.Fatalf("helper process: got %v, want exit after the host was started\n%s", err, out)
	}
	// A parallel test may have removed it already.
	if err := Sweep(); err != nil {
		t.Fatal(err)
	}
	number, err := os.ReadFile(filepath.Join(dir, "number"))
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(string(number))
	if err != nil {
		t.Fatal(err)
	}
	h := &Host{slot: &slot{record: record{Number: n, Owner: cmd.Process.Pid, Dir: filepath.Join(dir, "host")}}}
	if r, err := readRecord(n); err == nil && r.Owner == cmd.Process.Pid {
		t.Error("slot of the dead process is still in use")
	}
	if left, err := os.ReadDir(h.record.Dir); err != nil || len(left) > 0 {
		t.Errorf("files remain: %v %v", left, err)
	}
	if m := h.mounts(); len(m) > 0 && !slotReused(&h.record) {
		t.Errorf("mounts remain: %v", m)
	}
}

func TestHelperProcess(t *testing.T) {
	dir := os.Getenv("HOSTS_TEST_DIE_IN")
	if dir == "" {
		return // only for TestSweepRemovesHostOfDeadProcess
	}
	if err := os.Mkdir(filepath.Join(dir, "host"), 0o755); err != nil {
		t.Fatal(err)
	}
	h, err := Start(context.Background(), Options{CNI: true, Dir: filepath.Join(dir, "host"),
		Images: []string{testbox(t)}})
	if err != nil {
		t.Fatal(err)
	}
	runPod(t, h, "orphan", 0)
	if err := os.WriteFile(filepath.Join(dir, "number"), []byte(strconv.Itoa(h.Number)), 0o644); err != nil {
		t.Fatal(err)
	}
	fmt.Println("about to die")
	os.Exit(3)
}

func TestSweepKeepsDetachedHost(t *testing.T) {
	t.Parallel()
	owner := t.TempDir() // a unique owner name
	h, err := Start(t.Context(), Options{Detached: true, Owner: owner, CNI: true})
	if err != nil {
		t.Fatal(err)
	}
	defer stopAndCheck(t, h)
	if err := Sweep(); err != nil {
		t.Fatal(err)
	}
	if err := h.WriteCNI(); err != nil {
		t.Errorf("Sweep removed the detached host: %v", err)
	}
	if others, err := OpenDetached(owner + "/other"); err != nil || len(others) > 0 {
		t.Errorf("another owner opens %d hosts: %v", len(others), err)
	}
	all, err := OpenDetached(owner)
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(all, func(o *Host) bool { return o.Name == h.Name })
	if at < 0 {
		t.Fatal("OpenDetached does not return the host")
	}
	if _, err := all[at].Runtime.Version(t.Context(), &runtimeapi.VersionRequest{}); err != nil {
		t.Error(err)
	}
	if err := all[at].Stop(); err != nil {
		t.Error(err)
	}
	if left := all[at].Leaks(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	other := &slot{record: record{Number: h.Number, Detached: true, For: owner, Dir: t.TempDir()}}
	if err := withRunDir(func() error {
		if _, err := readRecord(h.Number); err == nil {
			return nil // another host already has the number
		}
		return errors.Join(os.MkdirAll(other.run(), 0o711), other.write())
	}); err != nil {
		t.Fatal(err)
	}
	if err := h.Stop(); err != nil {
		t.Errorf("second Stop: %v", err)
	}
	if r, err := readRecord(h.Number); err != nil {
		t.Errorf("the second Stop removed the host that has the number now: %v", err)
	} else if r.Dir == other.Dir {
		if err := other.release(); err != nil {
			t.Error(err)
		}
	}
}

func TestWaitForErrorNamesCondition(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	calls := 0
	err := WaitFor(ctx, "a pod", func() (bool, error) { calls++; return false, nil })
	if err == nil || !strings.Contains(err.Error(), "wait for a pod: timed out after") || calls < 2 {
		t.Errorf("got %v after %d calls, want a timeout that names the condition after at least 2", err, calls)
	}
	err = WaitFor(ctx, "a container", func() (bool, error) { return false, os.ErrPermission })
	if err == nil || err.Error() != "wait for a container: permission denied" {
		t.Error(err)
	}
}
