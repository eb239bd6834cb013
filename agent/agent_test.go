package agent

import (
	"cmp"
	"context"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/admission"
	"berth/agent/allocator"
	"berth/agent/checkpoint"
	"berth/agent/hostfake"
	"berth/agent/plan"
	"berth/agent/pod"
	"berth/agent/source"
	"berth/agent/status"
	"berth/agent/status/events"
)

const observeFailed = pod.ObserveFailed

// Short names, for tests with a variable named pod.
type (
	runtimeEvent = pod.RuntimeEvent
	listing      = pod.Listing
	podMetrics   = pod.Metrics
)

// testHost is a fake host with the settings of the agents that a test starts on it.
type testHost struct {
	*hostfake.Host
	boot       string      // ID of the running kernel
	standalone bool        // the node has no API server
	slots      int         // pods that start at the same time; zero: 10
	prober     *fakeProber // nil: no probes run
	owner      PodOwner    // nil: the agent owns all pods
	adopter    Adopter     // nil: the agent adopts no foreign pods
}

func newTestHost() *testHost { return &testHost{Host: hostfake.NewHost()} }

func (h *testHost) stages() *pod.Stages {
	return &pod.Stages{
		Prepare:   pod.Prepare{Runtime: h, Host: h, Cgroups: h.Cgroups(), Images: h.Images(), Network: h.Network},
		Configure: pod.Configure{Dirs: h, Volumes: h, Cgroups: h.Cgroups()},
		Cleanup:   pod.Cleanup{Containers: h, Sandboxes: h, Host: h, Hooks: h, Cgroups: h.Cgroups()},
		BuildRun: pod.BuildRun{
			Images: h.Images(), Runtime: h, Mounts: h, Hooks: h, CgroupParent: func(*corev1.Pod) string { return "" },
			LogDir: func(*corev1.Pod) string { return "/logs" }, Allocatable: func() corev1.ResourceList { return nil },
		},
	}
}

// agentFixture is one run of an agent on a fake host.
type agentFixture struct {
	t             *testing.T
	host          *testHost
	agent         *Agent
	mu            sync.Mutex
	send          map[string]func(source.Snapshot) // by source, once it runs
	event         func(types.UID, runtimeEvent)
	stop          func() // stops the agent and waits
	divergences   atomic.Int64
	hostListDelay time.Duration // duration of listing the pods on the host
	hostPods      []types.UID
	records       map[types.UID]checkpoint.Record // content of the store after stop
}

type fakeSource struct {
	l    *agentFixture
	name string
}

func (s fakeSource) Run(ctx context.Context, emit func(source.Snapshot)) error {
	s.l.mu.Lock()
	s.l.send[s.name] = emit
	s.l.mu.Unlock()
	<-ctx.Done()
	return nil
}

type fakeRuntime struct{ l *agentFixture }

func (r fakeRuntime) Pods(context.Context) (map[types.UID]RuntimePod, error) {
	h := r.l.host
	h.Mu.Lock()
	defer h.Mu.Unlock()
	if h.ListError != nil {
		return nil, h.ListError
	}
	out := map[types.UID]RuntimePod{}
	for uid, p := range h.AllPods {
		if f, ok := h.adopter.(*fakeAdopter); ok && f.hides(uid) {
			continue
		}
		if len(p.Sandboxes)+len(p.Containers) > 0 {
			out[uid] = RuntimePod{Pod: p.Pod, Sandboxes: slices.Clone(p.Sandboxes),
				Containers: slices.Clone(p.Containers)}
		}
	}
	return out, nil
}

func (r fakeRuntime) List(ctx context.Context) (map[types.UID]RuntimePod, error) { return r.Pods(ctx) }

func (r fakeRuntime) Watch(ctx context.Context, emit func(types.UID, runtimeEvent)) error {
	emit("", runtimeEvent{Incomplete: true})
	r.l.event = emit
	<-ctx.Done()
	return nil
}

type fakeHostPods struct{ l *agentFixture }

func (f fakeHostPods) Pods(ctx context.Context) ([]types.UID, error) {
	select {
	case <-time.After(f.l.hostListDelay):
	case <-ctx.Done():
	}
	return f.l.hostPods, ctx.Err()
}

// startAgent starts an agent with a node, sources by name and the records of the
// store. It returns after the adoption.
func startAgent(t *testing.T, h *testHost, node admission.Node, records map[types.UID]checkpoint.Record,
	sources ...string) *agentFixture {
	t.Helper()
	l := startAgentUnadopted(t, h, node, records, sources...)
	<-l.agent.Ready()
	synctest.Wait()
	return l
}

func startAgentUnadopted(t *testing.T, h *testHost, node admission.Node, records map[types.UID]checkpoint.Record,
	sources ...string) *agentFixture {
	t.Helper()
	store, _, err := checkpoint.Open(checkpoint.Options{
		Path: filepath.Join(t.TempDir(), "store.db"), PreallocateBytes: -1,
	})
	if err != nil {
		t.Fatal(err)
	}
	l := &agentFixture{t: t, host: h, send: map[string]func(source.Snapshot){}}
	var all []Source
	for _, s := range sources {
		all = append(all, fakeSource{l, s})
	}
	limits := hostfake.Limits
	limits.RecreateBase, limits.RecreateMax = time.Minute, 10*time.Minute
	var prober pod.Prober
	if h.prober != nil {
		prober, limits.Probing = h.prober, true
	}
	l.agent = New(Config{
		Stages: h.stages(), Limits: limits, Prober: prober, Allocator: allocator.Config{
			Node: node, StartSlots: cmp.Or(h.slots, 10), Standalone: h.standalone,
		}, Runtime: fakeRuntime{l}, Host: fakeHostPods{l}, Owner: h.owner, Adopter: h.adopter,
		Sources: all, Store: store, Records: records, BootID: h.boot,
		Events:  events.NewRecorder(events.RecorderOptions{}),
		Metrics: Metrics{Pods: pod.Metrics{Divergence: func() { l.divergences.Add(1) }}},
	})
	ctx, cancel := context.WithCancel(t.Context())
	storeCtx, closeStore := context.WithCancel(context.Background())
	var wg, storing sync.WaitGroup
	storing.Go(func() { _ = store.Run(storeCtx) })
	wg.Go(func() { _ = l.agent.Run(ctx) })
	var once sync.Once
	l.stop = func() {
		once.Do(func() {
			cancel()
			wg.Wait()
			closeStore()
			storing.Wait()
			l.records, _ = store.Load()
			_ = store.Close()
		})
	}
	t.Cleanup(l.stop)
	synctest.Wait()
	return l
}

// withHost runs a test with a fake host in a synctest bubble.
func withHost(t *testing.T, f func(t *testing.T, h *testHost)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := newTestHost()
		f(t, h)
		for _, b := range h.Violations {
			t.Error(b)
		}
	})
}

// desire sends the desired pods of a source.
func (l *agentFixture) desire(src string, pods ...*corev1.Pod) {
	l.send[src](source.Snapshot{Source: src, Ready: true, Pods: pods})
	synctest.Wait()
}

// until advances the time until the condition holds, and fails after the timeout.
func (l *agentFixture) until(timeout time.Duration, what string, ok func() bool) {
	l.t.Helper()
	for end := time.Now().Add(timeout); ; time.Sleep(time.Millisecond) {
		synctest.Wait()
		if ok() {
			return
		}
		if time.Now().After(end) {
			l.t.Fatalf("timeout after %v: %s\n%+v", timeout, what, l.host.Calls)
		}
	}
}

func (l *agentFixture) isRunning(pods ...*corev1.Pod) func() bool {
	return func() bool {
		return !slices.ContainsFunc(pods, func(pod *corev1.Pod) bool {
			s, ok := l.agent.StatusCache.Get(pod.UID)
			return !ok || s.Status.Phase != corev1.PodRunning || len(l.host.RunningContainers(pod.UID)) == 0
		})
	}
}

func (l *agentFixture) isDeleted(uid types.UID) func() bool {
	return func() bool { _, ok := l.agent.StatusCache.Get(uid); return !ok && l.host.Remaining(uid) == "" }
}

// withUID returns a copy of the pod with another UID.
func withUID(pod *corev1.Pod, uid string) *corev1.Pod {
	p := pod.DeepCopy()
	p.UID = types.UID(uid)
	return p
}

func TestScenario02_HangingPodDelaysNoOther(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		h.Latency = hostfake.LatencyByCall(map[string]time.Duration{
			"stop uid-bad": time.Hour, "observe uid-bad": time.Hour, "removeCgroup uid-bad": time.Hour,
		})
		l := startAgent(t, h, hostfake.LargeNode(), nil, "file")
		bad, good := hostfake.PodOf("bad", "a"), hostfake.PodOf("good", "a")
		l.desire("file", bad, good)
		l.until(time.Second, "both run", l.isRunning(bad, good))
		l.event(bad.UID, runtimeEvent{Incomplete: true})
		l.desire("file", good)
		late := hostfake.PodOf("late", "a")
		l.desire("file", good, late)
		l.until(50*time.Millisecond, "the later pod runs", l.isRunning(late))
		l.desire("file", late)
		l.until(50*time.Millisecond, "the good pod is deleted", l.isDeleted(good.UID))
		if _, ok := l.agent.StatusCache.Get(bad.UID); !ok {
			t.Error("the hanging pod is deleted")
		}
	})
}

func TestAuditFindsAndCountsLostEvent(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		l := startAgent(t, h, hostfake.LargeNode(), nil, "file")
		pod, idle := hostfake.PodOf("p", "a"), hostfake.PodOf("idle", "a")
		l.desire("file", pod, idle)
		l.until(time.Second, "run", l.isRunning(pod, idle))
		time.Sleep(10 * time.Minute)
		if l.divergences.Load() != 0 {
			t.Fatalf("got %d divergences without a change, want 0", l.divergences.Load())
		}
		h.Kill(pod.UID, "a", 1, true)
		l.until(46*time.Second, "started again", func() bool { return h.CallCount("start uid-p") == 2 })
		time.Sleep(10 * time.Minute)
		if l.divergences.Load() != 1 || h.CallCount("observe uid-idle") != 0 {
			t.Errorf("got %d divergences and %d observations of the idle pod, want 1 and 0", l.divergences.Load(),
				h.CallCount("observe uid-idle"))
		}
	})
}

func TestAuditFindsExitDuringLongPull(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		h.Latency = hostfake.LatencyByCall(map[string]time.Duration{"pull uid-p/b": time.Hour})
		l := startAgent(t, h, hostfake.LargeNode(), nil, "file")
		pod := hostfake.PodOf("p", "a", "b")
		l.desire("file", pod)
		l.until(time.Second, "a runs", func() bool { return len(h.RunningContainers(pod.UID)) == 1 })
		time.Sleep(time.Minute)
		h.Kill(pod.UID, "a", 1, true)
		l.until(46*time.Second, "started again", func() bool { return h.CallCount("start uid-p/a") == 2 })
	})
}

func TestScenario13_SuccessorOfTheSameNameWaits(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		h.Latency = hostfake.LatencyByCall(map[string]time.Duration{"stop uid": 10 * time.Second})
		l := startAgent(t, h, hostfake.LargeNode(), nil, "file")
		one := hostfake.PodOf("web", "a")
		two, three := withUID(one, "uid-two"), withUID(one, "uid-three")
		l.desire("file", one)
		l.until(time.Second, "runs", l.isRunning(one))
		l.desire("file", two)
		time.Sleep(5 * time.Second)
		if n := h.CallCount("createDirs uid-two"); n != 0 {
			t.Error("the successor started before the deletion of its predecessor")
		}
		if s, _ := l.agent.StatusCache.Find("default", "web"); s == nil || s.Pod.UID != one.UID {
			t.Errorf("got %+v, want the terminating pod", s)
		}
		l.desire("file", three) // edited again: the second version never starts
		l.until(6*time.Second, "the third pod runs", l.isRunning(three))
		if h.CallCount("createDirs uid-two") != 0 || !l.isDeleted(one.UID)() {
			t.Error("the second pod started, or the first one still exists")
		}
		l.desire("file", two)
		l.desire("file") // a removed successor does not start
		time.Sleep(time.Minute)
		if h.CallCount("createDirs uid-two") != 0 || len(l.agent.StatusCache.List()) != 0 {
			t.Errorf("pods in the status cache: %v, want none", l.agent.StatusCache.List())
		}
	})
}

func TestPodDesiredAgainDuringTerminationStartsAgain(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		h.Latency = hostfake.LatencyByCall(map[string]time.Duration{"stop uid": 10 * time.Second})
		l := startAgent(t, h, hostfake.LargeNode(), nil, "file")
		pod := hostfake.PodOf("p", "a")
		l.desire("file", pod)
		l.until(time.Second, "runs", l.isRunning(pod))
		l.desire("file")
		time.Sleep(time.Second)
		l.desire("file", pod)
		l.until(10*time.Second, "the pod runs again", func() bool {
			return h.CallCount("runSandbox") == 2 && l.isRunning(pod)()
		})
		l.desire("file")
		time.Sleep(time.Second)
		l.stop() // during the termination

		l = startAgent(t, h, hostfake.LargeNode(), l.records, "file")
		l.desire("file", pod) // desired again by the next run
		l.until(20*time.Second, "the pod runs again", func() bool {
			return h.CallCount("runSandbox") == 3 && l.isRunning(pod)()
		})
	})
}

func TestScenario09_RestartKeepsVerdicts(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		l := startAgent(t, h, hostfake.NodeOf("2", "10"), nil, "file")
		a, b := hostfake.PodRequesting("a", "1"), hostfake.PodRequesting("b", "1")
		picky := hostfake.PodOf("picky", "a")
		picky.Spec.NodeSelector = map[string]string{"disk": "ssd"}
		l.desire("file", a, b, picky)
		l.until(time.Second, "run", l.isRunning(a, b))
		for range 20 {
			l.stop()
			small := hostfake.NodeOf("1", "1") // too small for the running pods
			small.Labels = map[string]string{"disk": "ssd"}
			l = startAgent(t, h, small, l.records, "file")
			l.desire("file", hostfake.PodRequesting("new", "1"), picky, a, b)
			time.Sleep(time.Second)
			synctest.Wait()
			if !l.isRunning(a, b)() {
				t.Fatal("a running pod was stopped")
			}
			if s, _ := l.agent.StatusCache.Get(picky.UID); s.Status.Phase != corev1.PodFailed {
				t.Fatalf("the rejected pod has %+v, want Failed", s.Status)
			}
			if s, _ := l.agent.StatusCache.Get("uid-new"); s.Status.Phase == corev1.PodRunning {
				t.Fatal("a new pod was admitted in place of a running one")
			}
			c, _ := l.agent.AllocatorState(t.Context())
			if c.Admitted != 2 {
				t.Fatalf("got %+v, want 2 admitted pods", c)
			}
		}
		if n, m := h.CallCount("start"), h.CallCount("stop"); n != 2 || m != 0 {
			t.Errorf("got %d starts and %d stops, want 2 and 0", n, m)
		}
	})
}

func TestOrphansAreTerminatedWhenAllSourcesAreReady(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		l := startAgent(t, h, hostfake.LargeNode(), nil, "file")
		kept, recorded, unknown, old := hostfake.PodOf("kept", "a"), hostfake.PodOf("recorded", "a"),
			hostfake.PodOf("unknown", "a"), hostfake.PodOf("web", "a")
		l.desire("file", kept, recorded, unknown, old)
		l.until(time.Second, "run", l.isRunning(kept, recorded, unknown, old))
		l.stop()
		records := l.records
		delete(records, unknown.UID)
		h.StateOf("uid-left").Dirs = true

		l = startAgent(t, h, hostfake.LargeNode(), records, "file", "api")
		l.hostPods, l.hostListDelay = []types.UID{"uid-left", kept.UID}, 5*time.Second
		successor := withUID(old, "uid-successor")
		l.desire("file", successor)
		time.Sleep(10 * time.Minute) // several audits
		if n := h.CallCount("stop"); n != 0 {
			t.Fatalf("got %d stops before all sources were ready, want 0", n)
		}
		if h.CallCount("createDirs uid-successor") != 0 {
			t.Error("a successor started before the deletion of its predecessor of the previous run")
		}
		l.desire("api", kept)
		late := hostfake.PodOf("late", "a") // not delayed by the slow host list
		l.desire("file", successor, late)
		l.until(100*time.Millisecond, "the orphans are deleted", func() bool {
			return l.isDeleted(recorded.UID)() && l.isDeleted(unknown.UID)() && l.isDeleted(old.UID)() &&
				l.isRunning(successor, kept, late)()
		})
		l.until(6*time.Second, "the remaining objects are deleted", l.isDeleted("uid-left"))
		if n := h.CallCount("start uid-kept"); n != 1 {
			t.Errorf("the remaining pod was started %d times, want 1", n)
		}
	})
}

// A source that is ready can desire pods that it has not sent, because it waits for their Secrets. They have no
// record if the store was lost, or if a crash followed their adoption.
func TestPendingPodIsNoOrphan(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		kept, dropped := hostfake.PodOf("kept", "a"), hostfake.PodOf("dropped", "a")
		l := startAgent(t, h, hostfake.LargeNode(), nil, "api")
		l.desire("api", kept, dropped)
		l.until(time.Minute, "both pods run", func() bool { return l.isRunning(kept)() && l.isRunning(dropped)() })
		l.stop()
		l = startAgent(t, h, hostfake.LargeNode(), nil, "api") // without records
		pending := map[types.UID]bool{kept.UID: true, dropped.UID: true}
		l.send["api"](source.Snapshot{Source: "api", Ready: true, Pending: pending})
		time.Sleep(2 * time.Minute) // with audits
		synctest.Wait()
		if n := h.CallCount("stop"); n > 0 {
			t.Fatalf("%d pods were stopped that the source desires", n)
		}
		l.desire("api", kept)
		l.until(time.Minute, "the pod to be taken over", l.isRunning(kept))
		l.until(time.Hour, "the dropped pod to be removed", func() bool { return h.Remaining(dropped.UID) == "" })
		if n := h.CallCount("runSandbox"); n != 2 {
			t.Errorf("got %d sandboxes created, want 2", n)
		}
		l.stop()
	})
}

func TestAuditFindsOrphan(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		l := startAgent(t, h, hostfake.LargeNode(), nil, "file")
		l.desire("file")
		orphan := hostfake.PodOf("orphan", "a")
		h.Mu.Lock()
		p := h.StateOf(orphan.UID)
		p.Pod, p.Sandboxes = orphan, []plan.Sandbox{{ID: "sbx", Ready: true}}
		p.Containers = []plan.Container{{ID: "kx", Name: "a", SandboxID: "sbx", State: plan.Running}}
		h.Mu.Unlock()
		l.until(50*time.Second, "ended", l.isDeleted(orphan.UID))
		if h.CallCount("stop uid-orphan/kx") != 1 {
			t.Error("the container of the orphan was not stopped")
		}
	})
}

// The runtime may complete an interrupted call late. What the call recreates on the host is
// removed without a restart.
func TestAuditFindsRecreatedCgroup(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		l := startAgent(t, h, hostfake.LargeNode(), nil, "file")
		pod := hostfake.PodOf("web", "a")
		l.desire("file", pod)
		l.until(time.Second, "runs", l.isRunning(pod))
		l.desire("file")
		l.until(time.Minute, "gone", l.isDeleted(pod.UID))
		h.Mu.Lock()
		h.StateOf(pod.UID).Cgroup = true
		h.Mu.Unlock()
		l.hostPods = []types.UID{pod.UID}
		l.until(2*time.Minute, "the recreated cgroup is removed", func() bool { return h.Remaining(pod.UID) == "" })
	})
}

func TestAdoptedPodOfLateSourceIsObservedFirst(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		l := startAgent(t, h, hostfake.LargeNode(), nil, "file")
		pod := hostfake.PodOf("p", "a")
		l.desire("file", pod)
		l.until(time.Second, "runs", l.isRunning(pod))
		l.stop()
		l = startAgent(t, h, hostfake.LargeNode(), l.records, "file")
		time.Sleep(10 * time.Second)
		h.Kill(pod.UID, "a", 7, true)
		l.desire("file", pod)
		l.until(50*time.Millisecond, "started again", func() bool {
			return h.CallCount("start") == 2 && l.isRunning(pod)()
		})
		if l.divergences.Load() != 0 {
			t.Errorf("%d divergences", l.divergences.Load())
		}
	})
}

func TestDesiredPodsReportChanges(t *testing.T) {
	file := func(name, image, hash string) *corev1.Pod {
		pod := hostfake.PodOf(name, "a")
		pod.Spec.Containers[0].Image = image
		pod.Annotations = map[string]string{"berth.dev/config.content": hash}
		return pod
	}
	s := newDesiredPods()
	names := func(c changes) (run []string, gone []types.UID) {
		for _, pod := range c.changed {
			run = append(run, pod.Name)
		}
		return run, c.removed
	}
	for _, step := range []struct {
		what  string
		snap  source.Snapshot
		run   []string
		gone  []types.UID
		ready bool
	}{
		{
			"new pods", source.Snapshot{Source: "x", Pods: []*corev1.Pod{file("a", "1", "h"), file("b", "1", "h")}},
			[]string{"a", "b"}, nil, false,
		},
		{
			"the same again",
			source.Snapshot{Source: "x", Ready: true, Pods: []*corev1.Pod{file("a", "1", "h"), file("b", "1", "h")}},
			nil, nil, false,
		},
		{"another source desires no pods", source.Snapshot{Source: "y", Ready: true}, nil, nil, true},
		{
			"a new image is the same pod",
			source.Snapshot{Source: "x", Pods: []*corev1.Pod{file("a", "2", "h"), file("b", "1", "h")}},
			[]string{"a"}, nil, true,
		},
		{
			"one pod is removed", source.Snapshot{Source: "x", Pods: []*corev1.Pod{file("a", "2", "h")}}, nil,
			[]types.UID{"uid-b"}, true,
		},
		{"all pods are removed", source.Snapshot{Source: "x"}, nil, []types.UID{"uid-a"}, true},
	} {
		run, gone := names(s.apply(&step.snap))
		if !slices.Equal(run, step.run) || !slices.Equal(gone, step.gone) || s.allReady(2) != step.ready {
			t.Errorf("%s: changed %v, removed %v, ready %v", step.what, run, gone, s.allReady(2))
		}
	}
	if newDesiredPods().allReady(0) {
		t.Error("allReady is true without sources")
	}
}

func TestObjectsAreReplacedAtomically(t *testing.T) {
	o := newObjects()
	key := func(n string) source.ObjectKey {
		return source.ObjectKey{Kind: plan.ConfigMap, NamespacedName: types.NamespacedName{Namespace: "default",
			Name: n}}
	}
	snap := func(v string) *source.Snapshot {
		obj := plan.Object{Version: plan.Version{Version: v}}
		return &source.Snapshot{Source: "x", Objects: map[source.ObjectKey]plan.Object{key("c1"): obj, key("c2"): obj}}
	}
	pod := hostfake.WithConfigMap(hostfake.PodOf("p", "a"), "c1")
	vol := corev1.Volume{Name: "more"}
	vol.ConfigMap = &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "c2"}}
	pod.Spec.Volumes = append(pod.Spec.Volumes, vol)
	if !o.replace(snap("0")) || o.replace(snap("0")) {
		t.Error("replace must return true only for a change")
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				vs := slices.Collect(maps.Values(o.Of(pod).Versions()))
				if len(vs) != 2 || vs[0] != vs[1] || vs[0].Missing {
					t.Errorf("objects of two snapshots: %v", vs)
					return
				}
			}
		})
	}
	for i := range 500 {
		o.replace(snap(string(rune('a' + i%20))))
	}
	close(stop)
	wg.Wait()
	o.replace(&source.Snapshot{Source: "x"})
	if vs := o.Of(pod).Versions(); !vs[plan.Ref{Kind: plan.ConfigMap, Name: "c1"}].Missing {
		t.Errorf("got %v, want c1 missing", vs)
	}
}

func TestStatusCacheFindsDesiredPodAndNotifies(t *testing.T) {
	b := status.New()
	changed, stop := b.Subscribe()
	notified := func() bool {
		select {
		case <-changed:
			return true
		default:
			return false
		}
	}
	old := hostfake.PodOf("p", "a")
	b.Put(&status.Snapshot{Pod: old, Syncs: 1, Termination: &plan.Termination{RemovePod: true}})
	if s, ok := b.Find("default", "p"); !ok || s.Pod != old || !notified() {
		t.Error("the pod was not found, or subscribers were not notified")
	}
	for _, uid := range []string{"0-before", "z-after"} {
		now := withUID(old, uid)
		b.Put(&status.Snapshot{Pod: now, Syncs: 1})
		if s, _ := b.Find("default", "p"); s.Pod != now || !notified() {
			t.Errorf("%s was not found, or subscribers were not notified", uid)
		}
		b.Put(&status.Snapshot{Pod: now, Syncs: 2})
		if s, _ := b.Get(now.UID); s.Syncs != 2 || notified() {
			t.Error("the newest snapshot was not found, or subscribers were notified without a change")
		}
		b.Remove(now.UID)
		if !notified() {
			t.Error("subscribers were not notified of a removal")
		}
	}
	stop()
	b.Remove(old.UID)
	if notified() || len(b.List()) != 0 {
		t.Error("notified after the end of the subscription")
	}
}
