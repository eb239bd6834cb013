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

// Late is how much longer than its group's time a step is waited for: what is killed
// at the end of it has yet to be seen to end.
const Late = time.Second

// Options are what a drain needs. Every field is needed but Flush.
type Options struct {
	Groups []nodeshutdown.Group // in order; none: nothing is ended
	Board  *status.Board
	End    func(ctx context.Context, uid types.UID, grace time.Duration) bool
	Began  func()                    // told once, before any pod: the node takes no more
	Flush  func(ctx context.Context) // after the last pod: waits until others know; nil: nobody has to
	Log    *slog.Logger
}

// Report is what a drain has come to.
type Report struct {
	Pods  int      // that were told to end
	Late  []string // of them those that had not ended in their time, as namespace/name
	Took  time.Duration
	Steps int
}

// Drain is the drain of one node.
type Drain struct {
	o     Options
	mu    sync.Mutex
	begun bool
	over  chan struct{}
	got   Report
}

// New returns a drain that has not begun.
func New(o Options) *Drain { return &Drain{o: o, over: make(chan struct{})} }

// Begun reports whether the node is going down.
func (d *Drain) Begun() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.begun
}

// Run ends the pods and returns when they have ended, or their time has. The drain
// goes on when ctx ends: only the waiting does not. Until is the context that ends the
// drain itself.
func (d *Drain) Run(ctx, until context.Context) (Report, error) {
	d.mu.Lock()
	over, first := d.over, !d.begun
	d.begun = true
	d.mu.Unlock()
	if first {
		go d.run(until, over)
	}
	select {
	case <-over:
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.got, nil
	case <-ctx.Done():
		return Report{}, ctx.Err()
	}
}

// CalledOff says that the node stays after all. What has ended stays ended; the next
// Run is another drain. It is for whoever has waited for the end of this one.
func (d *Drain) CalledOff() {
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-d.over:
		d.begun, d.over = false, make(chan struct{})
	default:
	}
}

func (d *Drain) run(ctx context.Context, over chan struct{}) {
	defer close(over)
	var got Report
	began := time.Now()
	d.o.Log.Info("the node goes down: its pods are ended", "within", nodeshutdown.Total(d.o.Groups))
	d.o.Began()
	var pods []*corev1.Pod
	for _, s := range d.o.Board.All() {
		if !ended(s) && s.Verdict.Reason != "NodeShutdown" { // that one waits for the boot
			pods = append(pods, s.Pod)
		}
	}
	steps := nodeshutdown.Order(pods, d.o.Groups)
	got.Steps = len(steps)
	for _, s := range steps {
		d.step(ctx, s, &got)
	}
	if d.o.Flush != nil {
		d.o.Flush(ctx)
	}
	got.Took = time.Since(began)
	d.o.Log.Info("the node's pods have been ended", "pods", got.Pods, "late", got.Late, "took", got.Took)
	d.mu.Lock()
	d.got = got
	d.mu.Unlock()
}

// step ends one group.
func (d *Drain) step(ctx context.Context, s nodeshutdown.Step, got *Report) {
	changed, stop := d.o.Board.Changes()
	defer stop()
	left := map[types.UID]string{}
	for _, p := range s.Pods {
		if d.o.End(ctx, p.UID, p.Grace) {
			left[p.UID] = p.Namespace + "/" + p.Name
		}
	}
	got.Pods += len(left)
	d.o.Log.Info("pods of a group are ended", "priority", s.Priority, "within", s.Group.Grace, "pods", len(left))
	bound := time.NewTimer(s.Group.Grace + Late)
	defer bound.Stop()
	for {
		for uid := range left {
			if snap, ok := d.o.Board.Get(uid); !ok || ended(snap) {
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
				got.Late = append(got.Late, name)
			}
			return
		case <-ctx.Done():
			return
		}
	}
}

// ended reports whether nothing of a pod runs any more and that is its status.
func ended(s *status.Snapshot) bool {
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
