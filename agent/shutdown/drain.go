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

// KillSlack is how much longer than its group's time a step is waited for: what is killed
// at the end of it has yet to be seen to end.
const KillSlack = time.Second

// Options are what a drain needs. Every field is needed but Flush.
type Options struct {
	Groups       []nodeshutdown.Group // in order; none: nothing is ended
	Statuses     *status.Board
	TerminatePod func(ctx context.Context, uid types.UID, grace time.Duration) bool
	OnStarted    func()                    // told once, before any pod: the node takes no more
	FlushStatus  func(ctx context.Context) // after the last pod: waits until others know; nil: nobody has to
	Log          *slog.Logger
}

// Result is what a drain has come to.
type Result struct {
	Pods     int      // that were told to end
	Overdue  []string // of them those that had not ended in their time, as namespace/name
	Duration time.Duration
	Groups   int
}

// Manager is the drain of one node.
type Manager struct {
	o       Options
	mu      sync.Mutex
	started bool
	done    chan struct{}
	result  Result
}

// New returns a drain that has not begun.
func New(o Options) *Manager { return &Manager{o: o, done: make(chan struct{})} }

// ShuttingDown reports whether the node is going down.
func (d *Manager) ShuttingDown() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.started
}

// Run ends the pods and returns when they have ended, or their time has. The drain
// goes on when ctx ends: only the waiting does not. Until is the context that ends the
// drain itself.
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

// Cancel says that the node stays after all. What has ended stays ended; the next
// Run is another drain. It is for whoever has waited for the end of this one.
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
	d.o.Log.Info("the node goes down: its pods are ended", "within", nodeshutdown.TotalGracePeriod(d.o.Groups))
	d.o.OnStarted()
	var pods []*corev1.Pod
	for _, s := range d.o.Statuses.All() {
		if !hasTerminated(s) && s.Verdict.Reason != "NodeShutdown" { // that one waits for the boot
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
	d.o.Log.Info("the node's pods have been ended", "pods", got.Pods, "late", got.Overdue, "took", got.Duration)
	d.mu.Lock()
	d.result = got
	d.mu.Unlock()
}

// terminateGroup ends one group.
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
	d.o.Log.Info("pods of a group are ended", "priority", s.Priority, "within", s.Group.GracePeriod, "pods", len(left))
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

// hasTerminated reports whether nothing of a pod runs any more and that is its status.
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
