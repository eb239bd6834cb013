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
	"berth/agent/plan"
	"berth/agent/source"
	"berth/agent/status"
	"berth/agent/status/events"
)

// life is one life of an agent on a fake host.
type life struct {
	t       *testing.T
	h       *fakeHost
	a       *Agent
	mu      sync.Mutex
	tell    map[string]func(source.Snapshot) // by source, once it runs
	hints   func(types.UID, RuntimeEvent)
	leaving func() // ends this life and waits
	lost    atomic.Int64
	hostIn  time.Duration // how long the host's leftovers take to list
	onHost  []types.UID
	records map[types.UID]checkpoint.Record // what the store has after leaving
}

type fakeSource struct {
	l    *life
	name string
}

func (s fakeSource) Run(ctx context.Context, tell func(source.Snapshot)) error {
	s.l.mu.Lock()
	s.l.tell[s.name] = tell
	s.l.mu.Unlock()
	<-ctx.Done()
	return nil
}

type fakeRuntime struct{ l *life }

func (r fakeRuntime) Pods(context.Context) (map[types.UID]RuntimePod, error) {
	h := r.l.h
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.down != nil {
		return nil, h.down
	}
	out := map[types.UID]RuntimePod{}
	for uid, p := range h.pods {
		if len(p.sandboxes)+len(p.containers) > 0 {
			out[uid] = RuntimePod{Pod: p.pod, Sandboxes: slices.Clone(p.sandboxes), Containers: slices.Clone(p.containers)}
		}
	}
	return out, nil
}

func (r fakeRuntime) List(ctx context.Context) (map[types.UID]RuntimePod, error) { return r.Pods(ctx) }

func (r fakeRuntime) Watch(ctx context.Context, tell func(types.UID, RuntimeEvent)) error {
	tell("", RuntimeEvent{Incomplete: true})
	r.l.hints = tell
	<-ctx.Done()
	return nil
}

type fakeLeft struct{ l *life }

func (f fakeLeft) Pods(ctx context.Context) ([]types.UID, error) {
	pause(ctx, f.l.hostIn)
	return f.l.onHost, ctx.Err()
}

// live begins a life: the node, the sources by name, and what the store had. It
// has adopted what the runtime has.
func live(t *testing.T, h *fakeHost, node admission.Node, records map[types.UID]checkpoint.Record, sources ...string) *life {
	t.Helper()
	l := begin(t, h, node, records, sources...)
	<-l.a.Ready()
	synctest.Wait()
	return l
}

func begin(t *testing.T, h *fakeHost, node admission.Node, records map[types.UID]checkpoint.Record, sources ...string) *life {
	t.Helper()
	store, _, err := checkpoint.Open(checkpoint.Options{Path: filepath.Join(t.TempDir(), "store.db"), PreallocateBytes: -1})
	if err != nil {
		t.Fatal(err)
	}
	l := &life{t: t, h: h, tell: map[string]func(source.Snapshot){}}
	var all []Source
	for _, s := range sources {
		all = append(all, fakeSource{l, s})
	}
	limits := simLimits
	limits.ReturnBase, limits.ReturnMax = time.Minute, 10*time.Minute
	var prober Prober
	if h.prober != nil {
		prober, limits.Probing = h.prober, true
	}
	l.a = New(Config{
		Stages: h.stages(), Limits: limits, Prober: prober, Allocator: allocator.Config{Node: node, Slots: cmp.Or(h.slots, 10), Alone: h.alone}, Runtime: fakeRuntime{l}, Host: fakeLeft{l},
		Sources: all, Store: store, Records: records, BootID: h.boot, Events: events.NewEvents(events.EventsOptions{}),
		Metrics: Metrics{Divergence: func() { l.lost.Add(1) }},
	})
	ctx, cancel := context.WithCancel(t.Context())
	storeCtx, closeStore := context.WithCancel(context.Background())
	var wg, storing sync.WaitGroup
	storing.Go(func() { _ = store.Run(storeCtx) })
	wg.Go(func() { _ = l.a.Run(ctx) })
	var once sync.Once
	l.leaving = func() {
		once.Do(func() {
			cancel()
			wg.Wait()
			closeStore()
			storing.Wait()
			l.records, _ = store.Load()
			_ = store.Close()
		})
	}
	t.Cleanup(l.leaving)
	synctest.Wait()
	return l
}

func inLife(t *testing.T, f func(t *testing.T, h *fakeHost)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := newFakeHost()
		f(t, h)
		for _, b := range h.broken {
			t.Error(b)
		}
	})
}

// want tells what a source wants.
func (l *life) want(src string, pods ...*corev1.Pod) {
	l.tell[src](source.Snapshot{Source: src, Ready: true, Pods: pods})
	synctest.Wait()
}

func (l *life) until(bound time.Duration, what string, ok func() bool) {
	l.t.Helper()
	for end := time.Now().Add(bound); ; time.Sleep(time.Millisecond) {
		synctest.Wait()
		if ok() {
			return
		}
		if time.Now().After(end) {
			l.t.Fatalf("not within %v: %s\n%+v", bound, what, l.h.calls)
		}
	}
}

func (l *life) runs(pods ...*corev1.Pod) func() bool {
	return func() bool {
		return !slices.ContainsFunc(pods, func(pod *corev1.Pod) bool {
			s, ok := l.a.StatusCache.Get(pod.UID)
			return !ok || s.Status.Phase != corev1.PodRunning || len(l.h.running(pod.UID)) == 0
		})
	}
}

func (l *life) gone(uid types.UID) func() bool {
	return func() bool { _, ok := l.a.StatusCache.Get(uid); return !ok && l.h.left(uid) == "" }
}

// another is a pod of the same name with a UID of its own.
func another(pod *corev1.Pod, uid string) *corev1.Pod {
	p := pod.DeepCopy()
	p.UID = types.UID(uid)
	return p
}

func TestScenario02_AHangingPodDelaysNoOther(t *testing.T) {
	inLife(t, func(t *testing.T, h *fakeHost) {
		h.takes = takes(map[string]time.Duration{"stop uid-bad": time.Hour, "look uid-bad": time.Hour, "removeCgroup uid-bad": time.Hour})
		l := live(t, h, roomyNode(), nil, "file")
		bad, good := podOf("bad", "a"), podOf("good", "a")
		l.want("file", bad, good)
		l.until(time.Second, "both run", l.runs(bad, good))
		l.hints(bad.UID, RuntimeEvent{Incomplete: true})
		l.want("file", good)
		late := podOf("late", "a")
		l.want("file", good, late)
		l.until(50*time.Millisecond, "the late one runs", l.runs(late))
		l.want("file", late)
		l.until(50*time.Millisecond, "the good one is gone", l.gone(good.UID))
		if _, still := l.a.StatusCache.Get(bad.UID); !still {
			t.Error("the bad one is gone")
		}
	})
}

func TestLostHintIsFoundByTheAuditAndCounted(t *testing.T) {
	inLife(t, func(t *testing.T, h *fakeHost) {
		l := live(t, h, roomyNode(), nil, "file")
		pod, idle := podOf("p", "a"), podOf("idle", "a")
		l.want("file", pod, idle)
		l.until(time.Second, "run", l.runs(pod, idle))
		time.Sleep(10 * time.Minute)
		if l.lost.Load() != 0 {
			t.Fatalf("%d divergences in peace", l.lost.Load())
		}
		h.kill(pod.UID, "a", 1, true)
		l.until(46*time.Second, "started again", func() bool { return h.happened("start uid-p") == 2 })
		time.Sleep(10 * time.Minute)
		if l.lost.Load() != 1 || h.happened("look uid-idle") != 0 {
			t.Errorf("%d divergences, %d looks at the idle pod", l.lost.Load(), h.happened("look uid-idle"))
		}
	})
}

func TestAuditFindsWhatHappensBesideALongPull(t *testing.T) {
	inLife(t, func(t *testing.T, h *fakeHost) {
		h.takes = takes(map[string]time.Duration{"pull uid-p/b": time.Hour})
		l := live(t, h, roomyNode(), nil, "file")
		pod := podOf("p", "a", "b")
		l.want("file", pod)
		l.until(time.Second, "a runs", func() bool { return len(h.running(pod.UID)) == 1 })
		time.Sleep(time.Minute)
		h.kill(pod.UID, "a", 1, true)
		l.until(46*time.Second, "started again", func() bool { return h.happened("start uid-p/a") == 2 })
	})
}

func TestScenario13_SuccessorOfTheSameNameWaits(t *testing.T) {
	inLife(t, func(t *testing.T, h *fakeHost) {
		h.takes = takes(map[string]time.Duration{"stop uid": 10 * time.Second})
		l := live(t, h, roomyNode(), nil, "file")
		one := podOf("web", "a")
		two, three := another(one, "uid-two"), another(one, "uid-three")
		l.want("file", one)
		l.until(time.Second, "runs", l.runs(one))
		l.want("file", two)
		time.Sleep(5 * time.Second)
		if n := h.happened("makeDirs uid-two"); n != 0 {
			t.Error("the successor did not wait")
		}
		if s, _ := l.a.StatusCache.Find("default", "web"); s == nil || s.Pod.UID != one.UID {
			t.Errorf("found %+v", s)
		}
		l.want("file", three) // edited once more meanwhile: the second is never seen
		l.until(6*time.Second, "the third runs", l.runs(three))
		if h.happened("makeDirs uid-two") != 0 || !l.gone(one.UID)() {
			t.Error("the second was begun, or the first is still there")
		}
		l.want("file", two)
		l.want("file") // a successor that is no longer wanted is not begun
		time.Sleep(time.Minute)
		if h.happened("makeDirs uid-two") != 0 || len(l.a.StatusCache.All()) != 0 {
			t.Errorf("left: %v", l.a.StatusCache.All())
		}
	})
}

func TestPodWantedAgainWhileItEndsStartsAfresh(t *testing.T) {
	inLife(t, func(t *testing.T, h *fakeHost) {
		h.takes = takes(map[string]time.Duration{"stop uid": 10 * time.Second})
		l := live(t, h, roomyNode(), nil, "file")
		pod := podOf("p", "a")
		l.want("file", pod)
		l.until(time.Second, "runs", l.runs(pod))
		l.want("file")
		time.Sleep(time.Second)
		l.want("file", pod)
		l.until(10*time.Second, "runs afresh", func() bool { return h.happened("runSandbox") == 2 && l.runs(pod)() })
		l.want("file")
		time.Sleep(time.Second)
		l.leaving() // while it ends

		l = live(t, h, roomyNode(), l.records, "file")
		l.want("file", pod) // wanted again by the next life
		l.until(20*time.Second, "runs afresh", func() bool { return h.happened("runSandbox") == 3 && l.runs(pod)() })
	})
}

func TestScenario09_RestartKeepsVerdicts(t *testing.T) {
	inLife(t, func(t *testing.T, h *fakeHost) {
		l := live(t, h, nodeOf("2", "10"), nil, "file")
		a, b := needs("a", "1"), needs("b", "1")
		picky := podOf("picky", "a")
		picky.Spec.NodeSelector = map[string]string{"disk": "ssd"}
		l.want("file", a, b, picky)
		l.until(time.Second, "run", l.runs(a, b))
		for range 20 {
			l.leaving()
			small := nodeOf("1", "1") // fuller than full
			small.Labels = map[string]string{"disk": "ssd"}
			l = live(t, h, small, l.records, "file")
			l.want("file", needs("new", "1"), picky, a, b)
			time.Sleep(time.Second)
			synctest.Wait()
			if !l.runs(a, b)() {
				t.Fatal("a running pod was harmed")
			}
			if s, _ := l.a.StatusCache.Get(picky.UID); s.Status.Phase != corev1.PodFailed {
				t.Fatalf("picky: %+v", s.Status)
			}
			if s, _ := l.a.StatusCache.Get("uid-new"); s.Status.Phase == corev1.PodRunning {
				t.Fatal("a new pod got in before those that run")
			}
			c, _ := l.a.AllocatorState(t.Context())
			if c.Admitted != 2 {
				t.Fatalf("%+v", c)
			}
		}
		if n, m := h.happened("start"), h.happened("stop"); n != 2 || m != 0 {
			t.Errorf("%d starts, %d stops", n, m)
		}
	})
}

func TestOrphansEndOnceAllSourcesAreReady(t *testing.T) {
	inLife(t, func(t *testing.T, h *fakeHost) {
		l := live(t, h, roomyNode(), nil, "file")
		kept, recorded, unknown, old := podOf("kept", "a"), podOf("recorded", "a"), podOf("unknown", "a"), podOf("web", "a")
		l.want("file", kept, recorded, unknown, old)
		l.until(time.Second, "run", l.runs(kept, recorded, unknown, old))
		l.leaving()
		records := l.records
		delete(records, unknown.UID)
		h.of("uid-left").dirs = true

		l = live(t, h, roomyNode(), records, "file", "api")
		l.onHost, l.hostIn = []types.UID{"uid-left", kept.UID}, 5*time.Second
		successor := another(old, "uid-successor")
		l.want("file", successor)
		time.Sleep(10 * time.Minute) // audits come and go
		if n := h.happened("stop"); n != 0 {
			t.Fatalf("%d stops before all sources are ready", n)
		}
		if h.happened("makeDirs uid-successor") != 0 {
			t.Error("a successor began beside its predecessor from an earlier life")
		}
		l.want("api", kept)
		late := podOf("late", "a") // the host's slow list holds nobody up
		l.want("file", successor, late)
		l.until(100*time.Millisecond, "the others are gone", func() bool {
			return l.gone(recorded.UID)() && l.gone(unknown.UID)() && l.gone(old.UID)() && l.runs(successor, kept, late)()
		})
		l.until(6*time.Second, "leftovers are gone", l.gone("uid-left"))
		if n := h.happened("start uid-kept"); n != 1 {
			t.Errorf("the kept one was started %d times", n)
		}
	})
}

func TestPodOfNobodyIsFoundByTheAudit(t *testing.T) {
	inLife(t, func(t *testing.T, h *fakeHost) {
		l := live(t, h, roomyNode(), nil, "file")
		l.want("file")
		stray := podOf("stray", "a")
		h.mu.Lock()
		p := h.of(stray.UID)
		p.pod, p.sandboxes = stray, []plan.Sandbox{{ID: "sbx", Ready: true}}
		p.containers = []plan.Container{{ID: "kx", Name: "a", SandboxID: "sbx", State: plan.Running}}
		h.mu.Unlock()
		l.until(50*time.Second, "ended", l.gone(stray.UID))
		if h.happened("stop uid-stray/kx") != 1 {
			t.Error("its container was not stopped")
		}
	})
}

// A call that was cut off may be carried out long after: what it makes again on
// the host is taken away without a restart.
func TestWhatComesBackOnTheHostIsFoundByTheAudit(t *testing.T) {
	inLife(t, func(t *testing.T, h *fakeHost) {
		l := live(t, h, roomyNode(), nil, "file")
		pod := podOf("web", "a")
		l.want("file", pod)
		l.until(time.Second, "runs", l.runs(pod))
		l.want("file")
		l.until(time.Minute, "gone", l.gone(pod.UID))
		h.mu.Lock()
		h.of(pod.UID).cgroup = true
		h.mu.Unlock()
		l.onHost = []types.UID{pod.UID}
		l.until(2*time.Minute, "its cgroup is gone again", func() bool { return h.left(pod.UID) == "" })
	})
}

func TestAdoptedPodOfALateSourceIsLookedAtFirst(t *testing.T) {
	inLife(t, func(t *testing.T, h *fakeHost) {
		l := live(t, h, roomyNode(), nil, "file")
		pod := podOf("p", "a")
		l.want("file", pod)
		l.until(time.Second, "runs", l.runs(pod))
		l.leaving()
		l = live(t, h, roomyNode(), l.records, "file")
		time.Sleep(10 * time.Second)
		h.kill(pod.UID, "a", 7, true)
		l.want("file", pod)
		l.until(50*time.Millisecond, "started again", func() bool { return h.happened("start") == 2 && l.runs(pod)() })
		if l.lost.Load() != 0 {
			t.Errorf("%d divergences", l.lost.Load())
		}
	})
}

func TestStoreTellsWhatChanged(t *testing.T) {
	file := func(name, image, hash string) *corev1.Pod {
		pod := podOf(name, "a")
		pod.Spec.Containers[0].Image = image
		pod.Annotations = map[string]string{"berth.dev/config.content": hash}
		return pod
	}
	s := newDesiredPods()
	names := func(c change) (run []string, gone []types.UID) {
		for _, pod := range c.run {
			run = append(run, pod.Name)
		}
		return run, c.gone
	}
	for _, step := range []struct {
		what  string
		snap  source.Snapshot
		run   []string
		gone  []types.UID
		ready bool
	}{
		{"new pods", source.Snapshot{Source: "x", Pods: []*corev1.Pod{file("a", "1", "h"), file("b", "1", "h")}}, []string{"a", "b"}, nil, false},
		{"the same again", source.Snapshot{Source: "x", Ready: true, Pods: []*corev1.Pod{file("a", "1", "h"), file("b", "1", "h")}}, nil, nil, false},
		{"another source wants nothing of it", source.Snapshot{Source: "y", Ready: true}, nil, nil, true},
		{"a new image is the same pod", source.Snapshot{Source: "x", Pods: []*corev1.Pod{file("a", "2", "h"), file("b", "1", "h")}}, []string{"a"}, nil, true},
		{"one is gone", source.Snapshot{Source: "x", Pods: []*corev1.Pod{file("a", "2", "h")}}, nil, []types.UID{"uid-b"}, true},
		{"all are gone", source.Snapshot{Source: "x"}, nil, []types.UID{"uid-a"}, true},
	} {
		run, gone := names(s.apply(&step.snap))
		if !slices.Equal(run, step.run) || !slices.Equal(gone, step.gone) || s.allReady(2) != step.ready {
			t.Errorf("%s: run %v, gone %v, ready %v", step.what, run, gone, s.allReady(2))
		}
	}
	if newDesiredPods().allReady(0) {
		t.Error("a node without sources knows what is not wanted")
	}
}

func TestObjectsAreReplacedAtOnce(t *testing.T) {
	o := newDesiredPods().objects
	key := func(n string) source.ObjectKey {
		return source.ObjectKey{Kind: plan.ConfigMap, NamespacedName: types.NamespacedName{Namespace: "default", Name: n}}
	}
	snap := func(v string) *source.Snapshot {
		obj := plan.Object{Version: plan.Version{Version: v}}
		return &source.Snapshot{Source: "x", Objects: map[source.ObjectKey]plan.Object{key("c1"): obj, key("c2"): obj}}
	}
	pod := withConfigMap(podOf("p", "a"), "c1")
	vol := corev1.Volume{Name: "more"}
	vol.ConfigMap = &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "c2"}}
	pod.Spec.Volumes = append(pod.Spec.Volumes, vol)
	if !o.replace(snap("0")) || o.replace(snap("0")) {
		t.Error("change is not told right")
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
				vs := slices.Collect(maps.Values(ObjectVersions(o.Of(pod))))
				if len(vs) != 2 || vs[0] != vs[1] || vs[0].Missing {
					t.Errorf("of two moments: %v", vs)
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
	if vs := ObjectVersions(o.Of(pod)); !vs[plan.Ref{Kind: plan.ConfigMap, Name: "c1"}].Missing {
		t.Errorf("%v", vs)
	}
}

func TestBoardFindsTheWishedIncarnationAndRings(t *testing.T) {
	b := status.New()
	changed, stop := b.Changes()
	rang := func() bool {
		select {
		case <-changed:
			return true
		default:
			return false
		}
	}
	old := podOf("p", "a")
	b.Put(&Snapshot{Pod: old, Passes: 1, End: &plan.End{Forget: true}})
	if s, ok := b.Find("default", "p"); !ok || s.Pod != old || !rang() {
		t.Error("the only one is not found, or nothing rang")
	}
	for _, uid := range []string{"0-before", "z-after"} {
		now := another(old, uid)
		b.Put(&Snapshot{Pod: now, Passes: 1})
		if s, _ := b.Find("default", "p"); s.Pod != now || !rang() {
			t.Errorf("%s is not found, or nothing rang", uid)
		}
		b.Put(&Snapshot{Pod: now, Passes: 2})
		if s, _ := b.Get(now.UID); s.Passes != 2 || rang() {
			t.Error("the newest is not there, or it rang for nothing")
		}
		b.Remove(now.UID)
		if !rang() {
			t.Error("a pod that has gone rang nobody")
		}
	}
	stop()
	b.Remove(old.UID)
	if rang() || len(b.All()) != 0 {
		t.Error("rang after it was given back")
	}
}
