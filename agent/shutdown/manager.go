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

// killSlack is how long the Manager waits beyond the period of a group. The termination of
// containers killed at the end of the period still has to be observed.
const killSlack = time.Second

// Options configures a Manager. Every field but FlushStatus is required.
type Options struct {
	Groups       []nodeshutdown.Group // in order; empty: pods are not terminated
	Statuses     *status.Cache
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
func (m *Manager) ShuttingDown() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.started
}

// Run terminates the pods and returns when they have terminated or their time is up. When ctx ends,
// only the wait ends. The shutdown itself continues until the context until ends.
func (m *Manager) Run(ctx, until context.Context) (Result, error) {
	m.mu.Lock()
	done, first := m.done, !m.started
	m.started = true
	m.mu.Unlock()
	if first {
		go m.run(until, done)
	}
	select {
	case <-done:
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.result, nil
	case <-ctx.Done():
		return Result{}, ctx.Err()
	}
}

// Cancel records that the node does not shut down after all. Terminated pods stay terminated. The
// next Run starts another shutdown. It has no effect while a shutdown is in progress.
func (m *Manager) Cancel() {
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-m.done:
		m.started, m.done = false, make(chan struct{})
	default:
	}
}

func (m *Manager) run(ctx context.Context, done chan struct{}) {
	defer close(done)
	var result Result
	start := time.Now()
	m.o.Log.Info("graceful shutdown started", "period", nodeshutdown.TotalGracePeriod(m.o.Groups))
	m.o.OnStarted()
	var pods []*corev1.Pod
	for _, s := range m.o.Statuses.List() {
		if !hasTerminated(s) && s.Verdict.Reason != "NodeShutdown" { // rejected, starts after the next boot
			pods = append(pods, s.Pod)
		}
	}
	steps := nodeshutdown.Steps(pods, m.o.Groups)
	result.Groups = len(steps)
	for _, s := range steps {
		m.terminateGroup(ctx, s, &result)
	}
	if m.o.FlushStatus != nil {
		m.o.FlushStatus(ctx)
	}
	result.Duration = time.Since(start)
	m.o.Log.Info("graceful shutdown finished", "pods", result.Pods, "overdue", result.Overdue,
		"took", result.Duration)
	m.mu.Lock()
	m.result = result
	m.mu.Unlock()
}

// terminateGroup terminates the pods of one group.
func (m *Manager) terminateGroup(ctx context.Context, s nodeshutdown.Step, result *Result) {
	changed, stop := m.o.Statuses.Subscribe()
	defer stop()
	pending := map[types.UID]string{}
	for _, p := range s.Pods {
		if m.o.TerminatePod(ctx, p.UID, p.GracePeriod) {
			pending[p.UID] = p.Namespace + "/" + p.Name
		}
	}
	result.Pods += len(pending)
	m.o.Log.Info("terminating pod group", "priority", s.Priority, "period", s.Group.GracePeriod, "pods", len(pending))
	bound := time.NewTimer(s.Group.GracePeriod + killSlack)
	defer bound.Stop()
	for {
		for uid := range pending {
			if snap, ok := m.o.Statuses.Get(uid); !ok || hasTerminated(snap) {
				delete(pending, uid)
			}
		}
		if len(pending) == 0 {
			return
		}
		select {
		case <-changed:
		case <-bound.C:
			for _, name := range pending {
				result.Overdue = append(result.Overdue, name)
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
	for _, k := range s.Observed.Containers {
		if k.Live() {
			return false
		}
	}
	return true
}

const (
	// reportTimeout is the time for reports after the last pod has terminated.
	reportTimeout      = 3 * time.Second
	reportPollInterval = 50 * time.Millisecond
)

// DelayNeeded is how long a system shutdown has to wait for the groups.
func DelayNeeded(groups []nodeshutdown.Group) time.Duration {
	return nodeshutdown.TotalGracePeriod(groups) + time.Duration(len(groups))*killSlack + reportTimeout
}

// AwaitReported waits until done reports that the final statuses were sent, with a timeout. The rest
// is sent after the reboot.
func AwaitReported(ctx context.Context, done func() bool) {
	for end := time.Now().Add(reportTimeout); !done() && time.Now().Before(end); {
		select {
		case <-ctx.Done():
			return
		case <-time.After(reportPollInterval):
		}
	}
}
