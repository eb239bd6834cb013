package shutdown

import (
	"context"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/status"
	nodeshutdown "berth/node/shutdown"
)

// KillSlack is how long the Manager waits beyond the period of a group. The termination of
// containers killed at the end of the period still has to be observed.
const KillSlack = time.Second

// Options configures a Manager. Every field but FlushStatus is required.
type Options struct {
	Groups       []nodeshutdown.Group // in order; empty: pods are not terminated
	Statuses     *status.Board
	TerminatePod func(ctx context.Context, uid types.UID, grace time.Duration) bool
	OnStarted    func()                    // called once before pods are terminated; the node admits no more pods
	FlushStatus  func(ctx context.Context) // called after the last pod, waits until the status is reported; may be nil
	Log          *slog.Logger
}

// Result is the outcome of a shutdown.
type Result struct {
	Pods     int      // terminated pods
	Overdue  []string // pods not terminated in time, as namespace/name
	Duration time.Duration
	Groups   int
}

// Manager terminates the pods of one node before it shuts down. It is safe for concurrent use.
type Manager struct {
	o       Options
	mu      sync.Mutex
	started bool
	done    chan struct{}
	result  Result
}

// New returns a Manager that has not started.
func New(o Options) *Manager { return &Manager{o: o, done: make(chan struct{})} }

// ShuttingDown reports whether the node is shutting down.
func (d *Manager) ShuttingDown() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.started
}

// Run terminates the pods and returns when they have terminated or their time is up. When ctx ends,
// only the wait ends. The shutdown itself continues until the context until ends.
func (d *Manager) Run(ctx, until context.Context) (Result, error) {
	d.mu.Lock()
	over, first := d.done, !d.started
	d.started = true
	d.mu.Unlock()
	if first {
		go d.run(until, over)
	}
	select {
	case <-over:
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.result, nil
	case <-ctx.Done():
		return Result{}, ctx.Err()
	}
}

// Cancel records that the node does not shut down after all. Terminated pods stay terminated. The
// next Run starts another shutdown. It has no effect while a shutdown is in progress.
func (d *Manager) Cancel() {
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-d.done:
		d.started, d.done = false, make(chan struct{})
	default:
	}
}

func (d *Manager) run(ctx context.Context, over chan struct{}) {
	defer close(over)
	var got Result
	began := time.Now()
	d.o.Log.Info("graceful shutdown started", "period", nodeshutdown.TotalGracePeriod(d.o.Groups))
	d.o.OnStarted()
	var pods []*corev1.Pod
	for _, s := range d.o.Statuses.All() {
		if !hasTerminated(s) && s.Verdict.Reason != "NodeShutdown" { // rejected, starts after the next boot
			pods = append(pods, s.Pod)
		}
	}
	steps := nodeshutdown.Steps(pods, d.o.Groups)
	got.Groups = len(steps)
	for _, s := range steps {
		d.terminateGroup(ctx, s, &got)
	}
	if d.o.FlushStatus != nil {
		d.o.FlushStatus(ctx)
	}
	got.Duration = time.Since(began)
	d.o.Log.Info("graceful shutdown finished", "pods", got.Pods, "overdue", got.Overdue, "duration", got.Duration)
	d.mu.Lock()
	d.result = got
	d.mu.Unlock()
}

// terminateGroup terminates the pods of one group.
func (d *Manager) terminateGroup(ctx context.Context, s nodeshutdown.Step, got *Result) {
	changed, stop := d.o.Statuses.Changes()
	defer stop()
	left := map[types.UID]string{}
	for _, p := range s.Pods {
		if d.o.TerminatePod(ctx, p.UID, p.GracePeriod) {
			left[p.UID] = p.Namespace + "/" + p.Name
		}
	}
	got.Pods += len(left)
	d.o.Log.Info("terminating pod group", "priority", s.Priority, "period", s.Group.GracePeriod, "pods", len(left))
	bound := time.NewTimer(s.Group.GracePeriod + KillSlack)
	defer bound.Stop()
	for {
		for uid := range left {
			if snap, ok := d.o.Statuses.Get(uid); !ok || hasTerminated(snap) {
				delete(left, uid)
			}
		}
		if len(left) == 0 {
			return
		}
		select {
		case <-changed:
		case <-bound.C:
			for _, name := range left {
				got.Overdue = append(got.Overdue, name)
			}
			return
		case <-ctx.Done():
			return
		}
	}
}

// hasTerminated reports whether the pod has a final phase and no running container.
func hasTerminated(s *status.Snapshot) bool {
	if s.Status.Phase != corev1.PodSucceeded && s.Status.Phase != corev1.PodFailed {
		return false
	}
	for _, k := range s.Seen.Containers {
		if k.Live() {
			return false
		}
	}
	return true
}
