package cri

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"berth/agent/plan"
)

const (
	statusPeriod     = 5 * time.Second
	statusFastPeriod = 250 * time.Millisecond // while a condition is not ready
	cniReloadTime    = 2 * time.Second        // for the runtime to load a changed network configuration
)

// StatusWatcherOptions configures a StatusWatcher. Every field is required.
type StatusWatcherOptions struct {
	Status func(context.Context) (Status, error)
	// VerifyDriver verifies the cgroup driver, see DriverVerification.
	VerifyDriver func(context.Context) error
	// NetworkProblem returns a more specific reason than the runtime's why the network is not ready.
	// Empty: there is none.
	NetworkProblem func() string

	OnStatus           func(Status)             // called with each status
	OnNetworkChanged   func(plan.NetworkStatus) // called when the network status has changed
	OnReadinessChanged func()                   // called when NotReady has changed
	Log                *slog.Logger
}

// StatusWatcher polls the status of the runtime. All methods are safe for concurrent use.
type StatusWatcher struct {
	opt             StatusWatcherOptions
	status          atomic.Pointer[Status] // nil: not received yet
	connectionError atomic.Pointer[string] // the current connection error; nil: none
	recheck         chan struct{}          // capacity 1
}

// NewStatusWatcher returns a StatusWatcher. Run starts it.
func NewStatusWatcher(o StatusWatcherOptions) *StatusWatcher {
	return &StatusWatcher{opt: o, recheck: make(chan struct{}, 1)}
}

// Latest returns the last status, or nil if none was received yet.
func (w *StatusWatcher) Latest() *Status { return w.status.Load() }

// Recheck triggers a request, because the network configuration has changed.
func (w *StatusWatcher) Recheck() {
	select {
	case w.recheck <- struct{}{}:
	default:
	}
}

// Run requests the status until ctx ends, more often while it is not ready. It returns an error
// only if the cgroup driver has changed. It calls heartbeat before each request.
func (w *StatusWatcher) Run(ctx context.Context, heartbeat func()) error {
	var changed time.Time // of the network configuration
	lastReason := ""
	for ctx.Err() == nil {
		heartbeat()
		before := w.Network()
		wait, err := w.request(ctx, time.Since(changed) < cniReloadTime)
		if err != nil {
			return err
		}
		if now := w.Network(); now != before {
			w.opt.Log.Info("network status changed", "ready", now.Ready, "message", now.Message)
			w.opt.OnNetworkChanged(now)
		}
		if why := w.NotReady(); why != lastReason {
			lastReason = why
			w.opt.OnReadinessChanged()
		}
		select {
		case <-ctx.Done():
		case <-w.recheck:
			changed = time.Now()
		case <-time.After(wait):
		}
	}
	return nil
}

// request requests the status once. It returns the time until the next request.
func (w *StatusWatcher) request(ctx context.Context, networkChanged bool) (wait time.Duration, err error) {
	st, err := w.opt.Status(ctx)
	if err != nil {
		w.connectionError.Store(new(err.Error()))
		return statusFastPeriod, nil //nolint:nilerr // Problem reports the error
	}
	if err := w.opt.VerifyDriver(ctx); errors.Is(err, ErrCgroupDriverChanged) {
		return 0, err
	}
	w.connectionError.Store(nil)
	w.status.Store(&st)
	w.opt.OnStatus(st)
	if !st.Ready || !st.NetworkReady || networkChanged {
		return statusFastPeriod, nil
	}
	return statusPeriod, nil
}

// Network returns the network readiness of the runtime, with a more specific message if possible.
func (w *StatusWatcher) Network() plan.NetworkStatus {
	st := w.status.Load()
	switch {
	case st == nil:
		return plan.NetworkStatus{Message: "the container runtime has not reported its status yet"}
	case st.NetworkReady:
		return plan.NetworkStatus{Ready: true}
	}
	return plan.NetworkStatus{Message: cmp.Or(w.opt.NetworkProblem(), st.NetworkMessage)}
}

// Problem describes the problem of the container runtime; empty: none.
func (w *StatusWatcher) Problem() string {
	st := w.status.Load()
	switch down := w.connectionError.Load(); {
	case down != nil:
		return "container runtime is down: " + *down
	case st == nil:
		return "container runtime status check may not have completed yet"
	case !st.Ready:
		return "container runtime is not ready: " + cmp.Or(st.Reason, "no reason given")
	}
	return ""
}

// Healthy returns an error if the runtime cannot be reached or is not ready.
func (w *StatusWatcher) Healthy() error {
	if down := w.connectionError.Load(); down != nil {
		return errors.New(*down)
	}
	if st := w.status.Load(); st == nil || !st.Ready {
		return errors.New("container runtime is not ready")
	}
	return nil
}

// NotReady returns why the node is not ready; empty: it is ready.
func (w *StatusWatcher) NotReady() string {
	if why := w.Problem(); why != "" {
		return why
	}
	if n := w.Network(); !n.Ready {
		return "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:" +
			n.Message
	}
	return ""
}
