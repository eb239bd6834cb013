package crifake

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// FaultPhase is the moment at which a fault strikes.
type FaultPhase int

const (
	Before FaultPhase = iota // nothing was done
	Midway                   // the name is held and nothing is seen yet (RunPodSandbox, CreateContainer), or it cannot be removed (StartContainer)
	After                    // all was done, only the answer is missing
)

// Fault is something that goes wrong.
type Fault struct {
	RPC          string             // RPC name, such as RunPodSandbox; empty: any
	Match        func(req any) bool // which requests; nil: all
	Phase        FaultPhase
	Times        int           // how often; zero: until it is lifted
	Delay        time.Duration // first wait that long
	Hang         bool          // do not answer until the caller leaves or the fault is lifted; then go on
	IgnoreCancel bool          // do not notice that the caller has left, and finish
	Err          error         // fail with this; Midway rolls back first
}

type fault struct {
	Fault
	left   int
	lifted chan struct{}
}

// Inject lets the fault strike until it has done so Times times or lift is
// called, which also frees the calls that hang in it.
func (r *Runtime) Inject(f Fault) (lift func()) {
	in := &fault{Fault: f, left: f.Times, lifted: make(chan struct{})}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults = append(r.faults, in)
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.faults = slices.DeleteFunc(r.faults, func(x *fault) bool { return x == in })
		select {
		case <-in.lifted:
		default:
			close(in.lifted)
		}
	}
}

// MatchPod selects the requests about a pod by its name: those that carry it.
func MatchPod(name string) func(any) bool {
	return func(req any) bool {
		switch q := req.(type) {
		case *runtimeapi.RunPodSandboxRequest:
			return q.GetConfig().GetMetadata().GetName() == name
		case *runtimeapi.CreateContainerRequest:
			return q.GetSandboxConfig().GetMetadata().GetName() == name
		}
		return false
	}
}

// strike finds the fault that hits the request now, counts it, and lets it act.
// It returns the error that the call ends with, nil to go on.
func (r *Runtime) strike(ctx context.Context, rpc string, req any, when FaultPhase) error {
	f := r.match(rpc, req, when)
	if f == nil {
		return nil
	}
	if f.IgnoreCancel {
		ctx = r.ctx
	}
	if f.Delay > 0 {
		if err := wait(ctx, f.Delay); err != nil {
			return err
		}
	}
	if f.Hang {
		select {
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-f.lifted:
		}
	}
	return f.Err
}

func (r *Runtime) match(rpc string, req any, when FaultPhase) *fault {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, f := range r.faults {
		if f.Phase != when || f.RPC != "" && f.RPC != rpc || f.Match != nil && !f.Match(req) {
			continue
		}
		if f.Times > 0 {
			if f.left--; f.left == 0 {
				r.faults = slices.Delete(r.faults, i, i+1)
			}
		}
		return f
	}
	return nil
}

// intercept stands around every unary call.
func (r *Runtime) intercept(ctx context.Context, req any, method *grpc.UnaryServerInfo, do grpc.UnaryHandler) (any, error) {
	rpc := rpcName(method.FullMethod)
	r.mu.Lock()
	r.calls[rpc]++
	down, cut := r.down, r.cut
	r.mu.Unlock()
	if down {
		return nil, status.Error(codes.Unavailable, "connection error: the fake runtime is down")
	}
	ctx, release := r.cuttable(ctx, cut)
	defer release()
	resp, err := r.answer(ctx, rpc, req, do)
	if errors.Is(context.Cause(ctx), errCut) {
		return nil, errCut
	}
	return resp, err
}

// cuttable gives a context that ends with the cause errCut when the runtime is
// closed or its connections are cut.
func (r *Runtime) cuttable(ctx context.Context, cut <-chan struct{}) (_ context.Context, release func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(r.ctx, func() { cancel(errCut) })
	r.work.Go(func() {
		select {
		case <-ctx.Done():
		case <-cut:
			cancel(errCut)
		}
	})
	return ctx, func() { stop(); cancel(nil) }
}

var errCut = status.Error(codes.Unavailable, "error reading from server: EOF")

func (r *Runtime) answer(ctx context.Context, rpc string, req any, do grpc.UnaryHandler) (any, error) {
	if err := wait(ctx, r.opts.Latency[rpc]); err != nil {
		return nil, err
	}
	if err := r.strike(ctx, rpc, req, Before); err != nil {
		return nil, err
	}
	resp, err := do(ctx, req)
	if err != nil {
		return nil, err
	}
	if err := r.strike(ctx, rpc, req, After); err != nil {
		return nil, err
	}
	return resp, nil
}

// wait lets time pass; its error is gRPC's.
func wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case <-t.C:
		return nil
	}
}
