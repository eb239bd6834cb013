package criruntime

import (
	"context"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"berth/agent"
	"berth/agent/plan"
	"berth/agent/pod"
	"berth/cri"
)

// pollInterval is the interval of polling a runtime without events.
const pollInterval = time.Second

// Runtime implements agent.Runtime and the runtime of pod.Prepare. Every field is required.
type Runtime struct {
	Client *cri.Client
	// Verify is called before pods are adopted. After an error nothing is adopted.
	Verify func(context.Context) error
	// Adopted is called with each pod found at startup.
	Adopted func(types.UID, agent.RuntimePod)
	Log     *slog.Logger
}

// Pod returns the sandboxes and containers of one pod.
func (r *Runtime) Pod(ctx context.Context, uid types.UID) ([]plan.Sandbox, []plan.Container, error) {
	p, err := r.Client.Pod(ctx, uid)
	return p.Sandboxes, p.Containers, err
}

// Container returns the details of one container.
func (r *Runtime) Container(ctx context.Context, id string) (plan.Container, error) {
	return r.Client.Container(ctx, id)
}

// Pods returns every pod created by berth with full details, for adoption at startup.
func (r *Runtime) Pods(ctx context.Context) (map[types.UID]agent.RuntimePod, error) {
	if err := r.Verify(ctx); err != nil {
		return nil, err
	}
	listed, err := r.Client.Pods(ctx)
	if err != nil {
		return nil, err
	}
	out := make(map[types.UID]agent.RuntimePod, len(listed))
	for uid, meta := range listed {
		full, err := r.Client.Pod(ctx, uid)
		if err != nil {
			return nil, err
		}
		out[uid] = agent.RuntimePod{Pod: meta.Restore(), Sandboxes: full.Sandboxes, Containers: full.Containers}
		r.Adopted(uid, out[uid])
	}
	return out, nil
}

// List returns every pod created by berth, with existence and state only.
func (r *Runtime) List(ctx context.Context) (map[types.UID]agent.RuntimePod, error) {
	listed, err := r.Client.Pods(ctx)
	if err != nil {
		return nil, err
	}
	out := make(map[types.UID]agent.RuntimePod, len(listed))
	for uid, meta := range listed {
		out[uid] = agent.RuntimePod{Pod: meta.Restore(), Sandboxes: meta.Sandboxes, Containers: meta.Containers}
	}
	return out, nil
}

// Watch forwards the runtime's events, or polls a runtime without events.
func (r *Runtime) Watch(ctx context.Context, handle func(types.UID, pod.RuntimeEvent)) error {
	forward := func(e cri.Event) { handle(e.UID, runtimeEvent(e)) }
	err := r.Client.Events(ctx, forward)
	if plan.KindOf(err) != plan.Unsupported {
		return err
	}
	r.Log.Info("runtime events unavailable, polling", "interval", pollInterval)
	return r.Client.Poll(ctx, pollInterval, forward)
}

func runtimeEvent(e cri.Event) pod.RuntimeEvent {
	out := pod.RuntimeEvent{Sandbox: e.Sandbox, Containers: e.Containers, Incomplete: e.Hint}
	if e.Listed != nil {
		out.Listed = &pod.Listing{Sandboxes: e.Listed.Sandboxes, Containers: e.Listed.Containers}
	}
	return out
}
