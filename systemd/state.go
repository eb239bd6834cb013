package systemd

import (
	"context"
	"time"
)

// statusInterval is the shortest time between two updates of the status text.
const statusInterval = time.Second

// StateReporter reports readiness, status and progress of a service to the service manager. Every
// field is required.
type StateReporter struct {
	Ready        <-chan struct{} // closed when the service is ready
	StartTimeout time.Duration   // maximum time to report the startup as in progress
	StartStatus  string          // status text until the service is ready
	Healthy      func() (ok bool, why string)
	Status       func() string // status text of the service
	// Subscribe returns a channel that is readable after a change of Status, and a function to
	// unsubscribe.
	Subscribe func() (<-chan struct{}, func())
	Notify    func(...State)
	// OnStartTimeout is called before an unfinished startup is reported as finished.
	OnStartTimeout func()
}

// Run reports the state until ctx ends. It does not report that the service stops.
func (r *StateReporter) Run(ctx context.Context) {
	r.Notify(Status(r.StartStatus))
	if !AwaitStart(ctx, r.Ready, r.StartTimeout, r.Healthy, r.Notify) && ctx.Err() == nil {
		r.OnStartTimeout()
		r.Notify(Ready)
	}
	select {
	case <-ctx.Done():
		return
	case <-r.Ready:
	}
	line := r.Status()
	r.Notify(Ready, Status(line))
	changed, stop := r.Subscribe()
	defer stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
		if now := r.Status(); now != line {
			line = now
			r.Notify(Status(line))
		}
		select { // limit updates on a busy node
		case <-ctx.Done():
			return
		case <-time.After(statusInterval):
		}
	}
}
