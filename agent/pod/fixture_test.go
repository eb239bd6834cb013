package pod

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/allocator"
	"berth/agent/hostfake"
	"berth/agent/plan"
	"berth/agent/status"
	"berth/agent/status/events"
	"berth/podspec"
)

// workerFixture runs workers on a fake host and implements Agent for them.
type workerFixture struct {
	t            *testing.T
	host         *hostfake.Host
	allocator    *allocator.Allocator
	statuses     *status.Cache
	startedCount atomic.Int64 // pods reported as started
	divergences  atomic.Int64
	overhead     atomic.Int64 // of the last started pod
	pulling      atomic.Int64 // pull time of the last started pod
	recreated    atomic.Int64 // requests to recreate the pod
	polled       atomic.Bool
	flush        func(context.Context) error // nil: succeeds immediately
	ctx          context.Context
	wg           sync.WaitGroup
	mu           sync.Mutex
	workers      map[types.UID]*Worker
	finished     map[types.UID]chan bool // results of Run
	reported     []plan.Reason
	configMaps   map[string]string // versions by name
}

func (r *workerFixture) Objects(pod *corev1.Pod) plan.Objects {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := plan.Objects{}
	for _, x := range podspec.References(pod) {
		ref := plan.Ref{Kind: plan.RefKind(x.Kind), Name: x.Name}
		version, known := r.configMaps[x.Name]
		if known = known && ref.Kind == plan.ConfigMap; known {
			out[ref] = plan.Object{Version: plan.Version{Version: version}, ConfigMap: &corev1.ConfigMap{}}
		} else {
			out[ref] = plan.Object{Version: plan.Version{Missing: true}}
		}
	}
	return out
}

func (r *workerFixture) Save(Record) {}

func (r *workerFixture) Flush(ctx context.Context) error {
	if r.flush != nil {
		return r.flush(ctx)
	}
	return nil
}

func (r *workerFixture) Publish(s *status.Snapshot) { r.statuses.Put(s) }

func (r *workerFixture) Report(_ *corev1.Pod, why plan.Reason) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reported = append(r.reported, why)
}

func (r *workerFixture) RuntimePolled() bool { return r.polled.Load() }

func (r *workerFixture) Recreate(context.Context, RecreateCause) { r.recreated.Add(1) }

// stagesOf returns the stages of a node with a fake host as adapters.
func stagesOf(h *hostfake.Host, a *allocator.Allocator) *Stages {
	return &Stages{
		Prepare:   Prepare{Runtime: h, Host: h, Cgroups: h.Cgroups(), Images: h.Images(), Network: h.Network},
		Admit:     Admit{Allocator: a},
		Configure: Configure{Dirs: h, Volumes: h, Cgroups: h.Cgroups()},
		Cleanup:   Cleanup{Containers: h, Sandboxes: h, Host: h, Hooks: h, Cgroups: h.Cgroups()},
		BuildRun: BuildRun{
			Images: h.Images(), Runtime: h, Mounts: h, Hooks: h, CgroupParent: func(*corev1.Pod) string { return "" },
			LogDir: func(*corev1.Pod) string { return "/logs" }, Allocatable: func() corev1.ResourceList { return nil },
		},
	}
}

// withWorkers runs a test in a synctest bubble: time is virtual, and every goroutine
// must have ended when the test returns.
func withWorkers(t *testing.T, f func(t *testing.T, r *workerFixture)) {
	t.Helper()
	withWorkersAndSlots(t, 100, f)
}

// withWorkersAndSlots is withWorkers with the given number of start slots.
func withWorkersAndSlots(t *testing.T, slots int, f func(t *testing.T, r *workerFixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		r := &workerFixture{
			t: t, host: hostfake.NewHost(), ctx: ctx, statuses: status.New(),
			workers: map[types.UID]*Worker{}, finished: map[types.UID]chan bool{},
			allocator: allocator.New(allocator.Config{Node: hostfake.LargeNode(), StartSlots: slots}),
		}
		r.host.Events = func(uid types.UID, sb *plan.Sandbox, ks []plan.Container) {
			r.mu.Lock()
			defer r.mu.Unlock()
			if w := r.workers[uid]; w != nil {
				w.Notify(RuntimeEvent{Sandbox: sb, Containers: ks})
			}
		}
		allocatorCtx, stopAllocator := context.WithCancel(context.Background())
		var allocatorDone sync.WaitGroup
		allocatorDone.Go(func() { r.allocator.Run(allocatorCtx) })
		defer func() {
			cancel()
			r.wg.Wait()
			stopAllocator()
			allocatorDone.Wait()
			for _, b := range r.host.Violations {
				t.Error(b)
			}
		}()
		f(t, r)
	})
}

// start runs a worker for the pod.
func (r *workerFixture) start(pod *corev1.Pod) *Worker {
	c := Config{
		Stages: stagesOf(r.host, r.allocator), Limits: hostfake.Limits,
		Metrics: Metrics{PodStarted: func(s Start) {
			r.startedCount.Add(1)
			r.overhead.Store(int64(s.Overhead))
			r.pulling.Store(int64(s.Pulling))
		}, Divergence: func() { r.divergences.Add(1) }},
	}
	timeline := events.NewTimeline(events.TimelineOptions{})
	w := New(c, r, Desired{Pod: pod}, Restored{Current: true}, timeline, slog.New(slog.DiscardHandler))
	finished := make(chan bool, 1)
	r.mu.Lock()
	r.workers[pod.UID], r.finished[pod.UID] = w, finished
	r.mu.Unlock()
	r.wg.Go(func() { finished <- w.Run(r.ctx) })
	return w
}

// terminate terminates the pod and requests its removal.
func (r *workerFixture) terminate(pod *corev1.Pod, grace time.Duration) {
	r.workers[pod.UID].Update(Desired{
		Pod:         pod,
		Termination: &plan.Termination{Reason: "Deleted", Grace: grace, RequestedAt: time.Now(), RemovePod: true},
	})
}

// isDone reports whether the pod's worker has ended because nothing of the pod is left.
func (r *workerFixture) isDone(pod *corev1.Pod) bool {
	synctest.Wait()
	select {
	case done := <-r.finished[pod.UID]:
		r.finished[pod.UID] <- done
		return done
	default:
		return false
	}
}

// until advances the time until the condition holds, and fails after the timeout.
func (r *workerFixture) until(timeout time.Duration, what string, ok func() bool) {
	r.t.Helper()
	for end := time.Now().Add(timeout); ; time.Sleep(time.Millisecond) {
		synctest.Wait()
		if ok() {
			return
		}
		if time.Now().After(end) {
			r.t.Fatalf("timeout after %v: %s\n%+v", timeout, what, r.host.Calls)
		}
	}
}

func (r *workerFixture) phase(pod *corev1.Pod) corev1.PodPhase {
	if s, ok := r.statuses.Get(pod.UID); ok {
		return s.Status.Phase
	}
	return ""
}

func (r *workerFixture) isRunning(pod *corev1.Pod) func() bool {
	return func() bool { return r.phase(pod) == corev1.PodRunning }
}

// reportedCount returns the number of reported reasons with the code.
func (r *workerFixture) reportedCount(code string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, why := range r.reported {
		if why.Code == code {
			n++
		}
	}
	return n
}

// setConfigMaps replaces all ConfigMaps. versions maps names to versions.
func (r *workerFixture) setConfigMaps(versions map[string]string) {
	r.mu.Lock()
	r.configMaps = versions
	r.mu.Unlock()
	for _, w := range r.workers {
		w.Sync()
	}
}

// intervals returns the durations between consecutive times, in whole seconds.
func intervals(at []time.Time) (d []time.Duration) {
	for i := range len(at) - 1 {
		d = append(d, at[i+1].Sub(at[i]).Round(time.Second))
	}
	return d
}
