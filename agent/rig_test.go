package agent

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/allocator"
	"berth/agent/plan"
	"berth/agent/source"
	"berth/agent/status"
	"berth/agent/status/events"
)

// workerFixture is workers on a fake host, in a bubble.
type workerFixture struct {
	t        *testing.T
	host        *Host
	allocator     *allocator.Room
	statuses    *Board
	objects  *objects
	startedCount  atomic.Int64 // times that a pod was metered as running
	divergences     atomic.Int64 // divergences
	overhead atomic.Int64 // of the last pod that was metered as running
	pulling  atomic.Int64 // likewise
	recreated    atomic.Int64 // times that the pod was to be made anew
	polled   atomic.Bool
	sync     func(context.Context) error
	ctx      context.Context
	wg       sync.WaitGroup
	mu       sync.Mutex
	workers  map[types.UID]*worker
	finished     map[types.UID]chan bool // what Run returned
	reported     []plan.Reason
}

// withWorkers runs a test with a rig in a bubble: time is virtual, and every
// goroutine must have ended when the test returns.
func withWorkers(t *testing.T, f func(t *testing.T, r *workerFixture)) {
	t.Helper()
	withWorkersAndSlots(t, 100, f)
}

// withWorkersAndSlots is inBubble with so many start slots.
func withWorkersAndSlots(t *testing.T, slots int, f func(t *testing.T, r *workerFixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		r := &workerFixture{
			t: t, host: NewHost(), ctx: ctx, statuses: status.New(), workers: map[types.UID]*worker{}, finished: map[types.UID]chan bool{},
			allocator:    allocator.New(allocator.Config{Node: LargeNode(), Slots: slots}),
			objects: newDesiredPods().objects,
		}
		r.host.Events = func(uid types.UID, h RuntimeEvent) {
			r.mu.Lock()
			defer r.mu.Unlock()
			if w := r.workers[uid]; w != nil {
				w.Notify(h)
			}
		}
		roomCtx, closeRoom := context.WithCancel(context.Background())
		var seats sync.WaitGroup
		seats.Go(func() { r.allocator.Run(roomCtx) })
		defer func() {
			cancel()
			r.wg.Wait()
			closeRoom()
			seats.Wait()
			for _, b := range r.host.Violations {
				t.Error(b)
			}
		}()
		f(t, r)
	})
}

// start runs a worker for the pod.
func (r *workerFixture) start(pod *corev1.Pod) *worker {
	w := &worker{
		stages: r.host.stages(), limits: Limits, room: r.allocator, objects: r.objects,
		keep: func(Desired, plan.Verdict, plan.Memory) {},
		sync: func(ctx context.Context, _ Desired, _ plan.Verdict, _ plan.Memory) error {
			if r.sync != nil {
				return r.sync(ctx)
			}
			return nil
		},
		publish: r.statuses.Put,
		tell: func(_ *corev1.Pod, why plan.Reason) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.reported = append(r.reported, why)
		},
		timeline: events.NewTimeline(events.TimelineOptions{}), log: slog.New(slog.DiscardHandler),
		again: func(context.Context, bool) { r.recreated.Add(1) },
		meters: Metrics{PodStarted: func(s PodStart) {
			r.startedCount.Add(1)
			r.overhead.Store(int64(s.Overhead))
			r.pulling.Store(int64(s.Pulling))
		}, Divergence: func() { r.divergences.Add(1) }},
		now: time.Now, fault: func(string, plan.Action) {}, polled: r.polled.Load, sandboxes: newSandboxCalls(),
		inbox: inbox{ready: make(chan struct{}, 1)}, state: newState(), cancels: map[plan.OpKey]context.CancelFunc{},
	}
	over := make(chan bool, 1)
	r.mu.Lock()
	r.workers[pod.UID], r.finished[pod.UID] = w, over
	r.mu.Unlock()
	w.Update(Desired{Pod: pod})
	r.wg.Go(func() { over <- w.Run(r.ctx) })
	return w
}

// terminate asks for the end of the pod for good.
func (r *workerFixture) terminate(pod *corev1.Pod, grace time.Duration) {
	r.workers[pod.UID].Update(Desired{Pod: pod, Termination: &plan.End{Reason: "Deleted", Grace: grace, At: time.Now(), Forget: true}})
}

// isDone reports whether the pod's worker has left because nothing is left.
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

// until advances time until ok, at most by the bound, and fails then.
func (r *workerFixture) until(bound time.Duration, what string, ok func() bool) {
	r.t.Helper()
	for end := time.Now().Add(bound); ; time.Sleep(time.Millisecond) {
		synctest.Wait()
		if ok() {
			return
		}
		if time.Now().After(end) {
			r.t.Fatalf("not within %v: %s\n%+v", bound, what, r.host.Calls)
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

// reportedCount counts what was told under a code.
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

// setConfigMaps replaces the objects that there are.
func (r *workerFixture) setConfigMaps(versions map[string]string) {
	objs := map[source.ObjectKey]plan.Object{}
	for name, v := range versions {
		key := source.ObjectKey{Kind: plan.ConfigMap, NamespacedName: types.NamespacedName{Namespace: "default", Name: name}}
		objs[key] = plan.Object{Version: plan.Version{Version: v}, ConfigMap: &corev1.ConfigMap{}}
	}
	r.objects.replace(&source.Snapshot{Source: "test", Objects: objs})
	for _, w := range r.workers {
		w.Sync()
	}
}

// PodOf makes a pod with containers of these names, each with an image of its own.
func PodOf(name string, containers ...string) *corev1.Pod {
	pod := &corev1.Pod{}
	pod.Name, pod.Namespace, pod.UID = name, "default", types.UID("uid-"+name)
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	for _, c := range containers {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: c, Image: name + "-" + c, ImagePullPolicy: corev1.PullIfNotPresent})
	}
	return pod
}

func PodRequesting(name, cpu string) *corev1.Pod {
	pod := PodOf(name, "a")
	pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
	return pod
}

// WithConfigMap mounts a ConfigMap into every container of the pod.
func WithConfigMap(pod *corev1.Pod, name string) *corev1.Pod {
	vol := corev1.Volume{Name: "conf"}
	vol.ConfigMap = &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}
	pod.Spec.Volumes = append(pod.Spec.Volumes, vol)
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "conf", MountPath: "/conf"})
	}
	return pod
}

func gaps(at []time.Time) (d []time.Duration) {
	for i := range len(at) - 1 {
		d = append(d, at[i+1].Sub(at[i]).Round(time.Second))
	}
	return d
}

func HasPrefix(call string, prefixes ...string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return len(call) >= len(p) && call[:len(p)] == p })
}
