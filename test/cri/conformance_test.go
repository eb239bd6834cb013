package cri_test

import (
	"context"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
	"berth/cri"
	"berth/cri/criconfig"
	"berth/cri/crifake"
	"berth/test/hosts"
	"berth/test/images"
)

// host is a runtime under test.
type host struct {
	endpoint string
	dir      string // for logs and other files
	cgroup   string
	old      bool               // containerd 1.6: no events, no RuntimeConfig
	kill     func(t *testing.T) // kills the runtime, not its pods
	start    func(t *testing.T) // restarts the runtime after kill

	client *cri.Client
	raw    runtimeapi.RuntimeServiceClient
	image  plan.Image
}

// TestFakeConforms runs the suite on the in-memory runtime, over a socket, as
// containerd 2.4 and 1.6.
func TestFakeConforms(t *testing.T) {
	for name, old := range map[string]bool{"2.4": false, "1.6": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			fake := crifake.New(crifake.Options{Containerd16: old, WriteFiles: true})
			t.Cleanup(fake.Close)
			fake.AddImage(images.TestboxRef)
			socket := filepath.Join(dir, "sock")
			var stop func() error
			start := func(t *testing.T) {
				l, err := net.Listen("unix", socket)
				if err != nil {
					t.Fatal(err)
				}
				stop = fake.Serve(l)
			}
			start(t)
			t.Cleanup(func() {
				if err := stop(); err != nil {
					t.Error(err)
				}
			})
			conformance(t, &host{
				endpoint: "unix://" + socket, dir: dir, cgroup: "/test", old: old, start: start,
				kill: func(t *testing.T) {
					if err := stop(); err != nil {
						t.Error(err)
					}
				},
			})
		})
	}
}

// TestContainerdConforms runs the suite on real containerds, one per test.
func TestContainerdConforms(t *testing.T) {
	for _, version := range hosts.Versions() {
		t.Run(string(version), func(t *testing.T) {
			t.Parallel()
			p, err := hosts.Start(t.Context(), hosts.Options{Version: version, CNI: true, Images: []string{testbox(t)}})
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
			conformance(t, &host{
				endpoint: p.Endpoint, dir: t.TempDir(), cgroup: p.CgroupRoot, old: version == hosts.Version16,
				kill: func(t *testing.T) {
					if err := p.Kill(); err != nil {
						t.Fatal(err)
					}
				},
				start: func(t *testing.T) {
					if err := p.Restart(t.Context()); err != nil {
						t.Fatal(err)
					}
				},
			})
		})
	}
}

// testbox returns the image archive of the test program.
func testbox(t *testing.T) string {
	t.Helper()
	cache, err := images.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	archive, err := images.Testbox(t.Context(), cache)
	if err != nil {
		t.Fatal(err)
	}
	return archive.Path
}

// waitTimeout bounds the waits for what happens at once on an idle machine.
const waitTimeout = 6 * time.Minute

// eventually waits for a condition, for at most waitTimeout.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(waitTimeout); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("timeout: %s", what)
		}
	}
}

// conformance runs the suite: the behavior of a runtime that package cri relies on, and the behavior of
// package cri that a runtime relies on.
func conformance(t *testing.T, h *host) {
	h.client = h.dial(t)
	conn, err := grpc.NewClient("unix://"+strings.TrimPrefix(h.endpoint, "unix://"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	h.raw = runtimeapi.NewRuntimeServiceClient(conn)
	eventually(t, "the image is present", func() bool {
		resp, err := h.client.ImageService().ImageStatus(t.Context(),
			&runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: images.TestboxRef}})
		h.image = plan.Image{ID: resp.GetImage().GetId(), Ref: resp.GetImage().GetId()}
		return err == nil && h.image.ID != ""
	})
	t.Run("parallel", func(t *testing.T) {
		for name, test := range map[string]func(*testing.T, *host){
			"version and status are reported":                                           testStatus,
			"lifecycle of a sandbox":                                                    testSandbox,
			"a sandbox with its own network has an address and a namespace":             testNetwork,
			"lifecycle of a container":                                                  testContainer,
			"exit code of a container":                                                  testExit,
			"a container that ignores the stop signal is killed after its grace period": testKill,
			"the termination message is read from the file or the log":                  testMessage,
			"a missing image is distinguished from a missing sandbox":                   testMissing,
			"a missing command fails the start and leaves an exited container":          testNoCommand,
			"repeated calls create nothing twice":                                       testRepeat,
			"interrupted calls create nothing twice":                                    testInterrupted,
			"an interrupted start is recognized":                                        testInterruptedStarts,
			"an existing container that was never started is replaced":                  testExistingContainer,
			"an earlier instance that failed to start is returned with its error":       testFailedEarlier,
			"foreign objects are ignored":                                               testForeign,
			"all pods are listed with what their termination needs":                     testPods,
			"a command runs in a container":                                             testExec,
			"streams have a URL":                                                        testStreams,
			"events are reported, or unsupported":                                       testEvents,
			"polling reports changes":                                                   testPoll,
			"resources and log files of a running container can be changed":             testUpdate,
		} {
			t.Run(name, func(t *testing.T) { t.Parallel(); test(t, h) })
		}
	})
	// Not in parallel, because it interrupts the other tests.
	t.Run("objects survive a kill and restart of the runtime", func(t *testing.T) { testRestart(t, h) })
}

// dial returns a client that reports warnings as test errors.
func (h *host) dial(t *testing.T, interceptors ...grpc.UnaryClientInterceptor) *cri.Client {
	t.Helper()
	c, err := cri.Dial(t.Context(), cri.Options{
		RuntimeEndpoint: h.endpoint, LogLinkDir: filepath.Join(h.dir, "links"),
		Node: func() criconfig.Node { return criconfig.Node{Name: "node", ClusterDomain: "cluster.local"} },
		Warn: func(err error) { t.Errorf("warning: %v", err) }, UnaryInterceptors: interceptors,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// pod returns a pod with one container per entry of steps. Each container executes its steps.
func (h *host) pod(t *testing.T, steps ...string) *corev1.Pod {
	name := strings.ToLower(strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, filepath.Base(t.Name())))
	p := &corev1.Pod{}
	p.Name, p.Namespace = name[:min(len(name), 50)], "default"
	p.UID = types.UID("uid-" + p.Name)
	p.Spec.HostNetwork = true
	grace := int64(7)
	p.Spec.TerminationGracePeriodSeconds = &grace
	for i, s := range steps {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{
			Name: string(rune('a' + i)), Image: images.TestboxRef, Args: strings.Fields(s),
			TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: corev1.TerminationMessageReadFile,
		})
	}
	t.Cleanup(func() { h.removePod(t, p.UID) })
	return p
}

// removePod removes all objects of a pod.
func (h *host) removePod(t *testing.T, uid types.UID) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 30*time.Second)
	defer cancel()
	observed, err := h.client.Pod(ctx, uid)
	if err != nil {
		t.Errorf("list remaining objects: %v", err)
	}
	for _, s := range observed.Sandboxes {
		if err := h.client.StopSandbox(ctx, s.ID); err != nil {
			t.Error(err)
		}
		if err := h.client.RemoveSandbox(ctx, s.ID); err != nil {
			t.Error(err)
		}
	}
}

func (h *host) logs(pod *corev1.Pod) string { return filepath.Join(h.dir, "logs", string(pod.UID)) }

func (h *host) sandboxConfig(pod *corev1.Pod, attempt uint32) plan.SandboxConfig {
	return plan.SandboxConfig{Attempt: attempt, CgroupParent: h.cgroup, LogDir: h.logs(pod)}
}

func (h *host) containerConfig(pod *corev1.Pod, s plan.Sandbox, attempt uint32) plan.ContainerConfig {
	return plan.ContainerConfig{Attempt: attempt, Sandbox: s, CgroupParent: h.cgroup, LogDir: h.logs(pod),
		Image: h.image}
}

func (h *host) sandbox(t *testing.T, pod *corev1.Pod) plan.Sandbox {
	t.Helper()
	s, err := h.client.RunSandbox(t.Context(), pod, h.sandboxConfig(pod, 0))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (h *host) container(t *testing.T, pod *corev1.Pod, name string, s plan.ContainerConfig) plan.Container {
	t.Helper()
	c, err := h.client.StartContainer(t.Context(), pod, name, s)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// waitExited waits until the container has exited.
func (h *host) waitExited(t *testing.T, id string) (c plan.Container) {
	t.Helper()
	eventually(t, "container has exited", func() bool {
		var err error
		if c, err = h.client.Container(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		return c.State == plan.Exited
	})
	return c
}

// links returns the log links of a container.
func (h *host) links(t *testing.T, id string) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(h.dir, "links", "*-"+id+".log"))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func testStatus(t *testing.T, h *host) {
	name, version, err := h.client.Version(t.Context())
	if err != nil || name != "containerd" || version == "" {
		t.Errorf("version: %q %q %v", name, version, err)
	}
	s, err := h.client.Status(t.Context())
	if err != nil || !s.Ready || !s.NetworkReady {
		t.Errorf("status: %+v %v", s, err)
	}
	if _, ok := s.Handlers[""]; ok == h.old || (s.CgroupDriver == "") != h.old {
		t.Errorf("features of the runtime (old: %v): %+v", h.old, s)
	}
	info, err := h.client.StatusInfo(t.Context())
	if err != nil || info["config"] == nil {
		t.Errorf("status info: %v, config is missing: %v", err, info["config"] == nil)
	}
}

func testSandbox(t *testing.T, h *host) {
	pod := h.pod(t)
	s, err := h.client.RunSandbox(t.Context(), pod, h.sandboxConfig(pod, 3))
	if err != nil {
		t.Fatal(err)
	}
	if s.ID == "" || !s.Ready || s.Attempt != 3 || time.Since(s.CreatedAt) > time.Minute || len(s.IPs) != 0 {
		t.Errorf("sandbox on the host network: %+v", s)
	}
	if path, err := h.client.NetNS(t.Context(), s.ID); err != nil || path != "" {
		t.Errorf("network namespace on the host network: %q %v", path, err)
	}
	if err := h.client.StopSandbox(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	observed, err := h.client.Pod(t.Context(), pod.UID)
	if err != nil || len(observed.Sandboxes) != 1 || observed.Sandboxes[0].Ready || observed.Sandboxes[0].ID != s.ID {
		t.Errorf("stopped: %+v %v", observed, err)
	}
	for range 2 { // a missing object is not an error: R3 in package cri
		if err := h.client.RemoveSandbox(t.Context(), s.ID); err != nil {
			t.Fatal(err)
		}
		if err := h.client.StopSandbox(t.Context(), s.ID); err != nil {
			t.Fatal(err)
		}
	}
	if observed, err := h.client.Pod(t.Context(), pod.UID); err != nil || len(observed.Sandboxes) != 0 {
		t.Errorf("removed: %+v %v", observed, err)
	}
}

func testNetwork(t *testing.T, h *host) {
	pod := h.pod(t)
	pod.Spec.HostNetwork = false
	s := h.sandbox(t, pod)
	if len(s.IPs) != 1 || net.ParseIP(s.IPs[0]) == nil {
		t.Errorf("sandbox with a network: %+v", s)
	}
	path, err := h.client.NetNS(t.Context(), s.ID)
	if err != nil || !filepath.IsAbs(path) {
		t.Errorf("network namespace: %q %v", path, err)
	}
	// Another client gets the same result.
	other := h.dial(t)
	observed, err := other.Pod(t.Context(), pod.UID)
	if err != nil || len(observed.Sandboxes) != 1 || !slices.Equal(observed.Sandboxes[0].IPs, s.IPs) {
		t.Errorf("second client: %+v %v, want %+v", observed.Sandboxes, err, s)
	}
	if again, err := other.NetNS(t.Context(), s.ID); err != nil || again != path {
		t.Errorf("network namespace, second client: %q %v, want %q", again, err, path)
	}
}

func testRestart(t *testing.T, h *host) {
	pod := h.pod(t, "sleep")
	s := h.sandbox(t, pod)
	c := h.container(t, pod, "a", h.containerConfig(pod, s, 0))
	h.kill(t)
	if _, err := h.client.Pods(t.Context()); plan.KindOf(err) != plan.Unavailable {
		t.Errorf("list while the runtime is down: kind %v: %v", plan.KindOf(err), err)
	}
	if _, err := h.client.RunSandbox(t.Context(), pod, h.sandboxConfig(pod, 1)); plan.KindOf(err) != plan.Unavailable {
		t.Errorf("run while the runtime is down: kind %v: %v", plan.KindOf(err), err)
	}
	h.start(t)
	eventually(t, "the runtime is available again", func() bool {
		observed, err := h.client.Pod(t.Context(), pod.UID)
		if err != nil {
			return false
		}
		if len(observed.Sandboxes) != 1 || len(observed.Containers) != 1 {
			t.Fatalf("lost: %+v", observed)
		}
		return observed.Sandboxes[0].Ready && observed.Sandboxes[0].ID == s.ID && observed.Containers[0].ID == c.ID &&
			observed.Containers[0].State == plan.Running
	})
}

// reasonOf returns the reason of the first *plan.Error in the chain.
func reasonOf(err error) string {
	for err != nil {
		if e, ok := err.(*plan.Error); ok { //nolint:errorlint // every error in the chain is checked
			return e.Reason
		}
		u, ok := err.(interface{ Unwrap() error })
		if !ok {
			return ""
		}
		err = u.Unwrap()
	}
	return ""
}
