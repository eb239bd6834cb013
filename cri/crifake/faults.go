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

// FaultPhase is the phase of a call in which a fault applies.
type FaultPhase int

const (
	Before FaultPhase = iota // nothing was done
	// the name is reserved but the object does not exist yet (RunPodSandbox, CreateContainer), or
	// it cannot be removed (StartContainer)
	Midway
	After // the operation is complete and only the response is missing
)

// Fault is a failure to inject.
type Fault struct {
	RPC          string             // RPC name, for example RunPodSandbox; empty: any
	Match        func(req any) bool // selects requests; nil: all
	Phase        FaultPhase
	Times        int           // how often; zero: until it is lifted
	Delay        time.Duration // wait this long first
	Hang         bool          // do not respond until the caller cancels or the fault is lifted, then continue
	IgnoreCancel bool          // ignore that the caller has canceled, and complete
	Err          error         // fail with this error; Midway rolls back first
}

type fault struct {
	Fault
	remaining int
	lifted    chan struct{}
}

// Inject applies the fault until it has been applied Times times or lift is called, which also
// releases the calls that hang in it.
func (r *Runtime) Inject(f Fault) (lift func()) {
	in := &fault{Fault: f, remaining: f.Times, lifted: make(chan struct{})}
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

// MatchPod selects the requests whose message has the name of a pod.
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

// applyFault finds the fault for the request in this phase, counts it, and applies it. It returns
// the error of the call, or nil to continue.
func (r *Runtime) applyFault(ctx context.Context, rpc string, req any, when FaultPhase) error {
	f := r.matchFault(rpc, req, when)
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

func (r *Runtime) matchFault(rpc string, req any, when FaultPhase) *fault {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, f := range r.faults {
		if f.Phase != when || f.RPC != "" && f.RPC != rpc || f.Match != nil && !f.Match(req) {
			continue
		}
		if f.Times > 0 {
			if f.remaining--; f.remaining == 0 {
				r.faults = slices.Delete(r.faults, i, i+1)
			}
		}
		return f
	}
	return nil
}

// intercept wraps every unary call.
func (r *Runtime) intercept(ctx context.Context, req any, method *grpc.UnaryServerInfo,
	do grpc.UnaryHandler) (any, error) {
	rpc := rpcName(method.FullMethod)
	r.mu.Lock()
	r.calls[rpc]++
	down, cut := r.down, r.cut
	r.mu.Unlock()
	if down {
		return nil, status.Error(codes.Unavailable, "connection error: the fake runtime is down")
	}
	ctx, release := r.withCut(ctx, cut)
	defer release()
	resp, err := r.serveCall(ctx, rpc, req, do)
	if errors.Is(context.Cause(ctx), errCut) {
		return nil, errCut
	}
	return resp, err
}

// withCut returns a context that ends with cause errCut when the runtime is closed or its
// connections are cut.
func (r *Runtime) withCut(ctx context.Context, cut <-chan struct{}) (_ context.Context, release func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(r.ctx, func() { cancel(errCut) })
	r.goroutines.Go(func() {
		select {
		case <-ctx.Done():
		case <-cut:
			cancel(errCut)
		}
	})
	return ctx, func() { stop(); cancel(nil) }
}

var errCut = status.Error(codes.Unavailable, "error reading from server: EOF")

func (r *Runtime) serveCall(ctx context.Context, rpc string, req any, do grpc.UnaryHandler) (any, error) {
	if err := wait(ctx, r.opts.Latency[rpc]); err != nil {
		return nil, err
	}
	if err := r.applyFault(ctx, rpc, req, Before); err != nil {
		return nil, err
	}
	resp, err := do(ctx, req)
	if err != nil {
		return nil, err
	}
	if err := r.applyFault(ctx, rpc, req, After); err != nil {
		return nil, err
	}
	return resp, nil
}

// wait sleeps. Its error is a gRPC status.
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
