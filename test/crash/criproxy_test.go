package crash

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// fault is an error that a proxy injects into a CRI call.
type fault int

const (
	hang         fault = iota // the call hangs until the rules change
	fail                      // the call returns an error without reaching the runtime
	dropResponse              // the runtime executes the call and the response is lost
)

// rule selects calls and the fault to inject into them. The proxy forwards calls that match no rule.
type rule struct {
	method   string // CRI method; empty: all
	contains string // substring of the request: a pod name, a UID, an ID
	fault    fault
	times    int // number of calls; 0: unlimited
}

// proxy forwards CRI calls from an agent to its runtime and injects faults.
type proxy struct {
	endpoint string
	server   *grpc.Server
	backend  *grpc.ClientConn

	mu      sync.Mutex
	rules   []*rule
	changed chan struct{} // closed when rules change
	hits    int
	hanging int // number of calls that hang now
}

// bytesCodec passes messages through without decoding them.
type bytesCodec struct{}

func (bytesCodec) Name() string                       { return "proto" }
func (bytesCodec) Marshal(v any) ([]byte, error)      { return *v.(*[]byte), nil }
func (bytesCodec) Unmarshal(data []byte, v any) error { *v.(*[]byte) = bytes.Clone(data); return nil }

func newProxy(t *testing.T, endpoint string) *proxy {
	t.Helper()
	// With the default backoff, the proxy would reconnect long after the runtime is back.
	reconnect := backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.5, MaxDelay: 500 * time.Millisecond}
	backend, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: 5 * time.Second}),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(bytesCodec{}), grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{endpoint: "unix://" + socket, backend: backend, changed: make(chan struct{})}
	p.server = grpc.NewServer(grpc.ForceServerCodec(bytesCodec{}), grpc.UnknownServiceHandler(p.handle),
		grpc.MaxRecvMsgSize(64<<20))
	var wg sync.WaitGroup
	wg.Go(func() { _ = p.server.Serve(l) }) // ends with Stop
	t.Cleanup(func() {
		p.set()
		p.server.Stop()
		wg.Wait()
		backend.Close()
	})
	return p
}

// set replaces the rules, releases calls that hang and resets the hit count.
func (p *proxy) set(rules ...*rule) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules, p.hits = rules, 0
	close(p.changed)
	p.changed = make(chan struct{})
}

// hitCount returns the number of calls that matched a rule since the last set.
func (p *proxy) hitCount() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hits
}

// isHanging reports whether a call hangs now.
func (p *proxy) isHanging() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hanging > 0
}

// waitForChange blocks a call until the rules change. It returns an error if the caller cancels first.
func (p *proxy) waitForChange(ctx context.Context, changed chan struct{}) error {
	count := func(by int) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.hanging += by
	}
	count(1)
	defer count(-1)
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

func (p *proxy) match(method string, request []byte) (r *rule, changed chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, r := range p.rules {
		if (r.method == "" || r.method == method) && bytes.Contains(request, []byte(r.contains)) {
			p.hits++
			if r.times--; r.times == 0 {
				p.rules = append(p.rules[:i:i], p.rules[i+1:]...)
			}
			return r, p.changed
		}
	}
	return nil, nil
}

// handle serves every call. CRI methods have one request and one response, except GetContainerEvents,
// which streams responses.
func (p *proxy) handle(_ any, in grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(in)
	var request []byte
	if err := in.RecvMsg(&request); err != nil {
		return err
	}
	r, changed := p.match(method[strings.LastIndex(method, "/")+1:], request)
	ctx := in.Context()
	if md, ok := metadata.FromIncomingContext(ctx); ok { // containerd's own services need the namespace
		ctx = metadata.NewOutgoingContext(ctx, metadata.MD{"containerd-namespace": md.Get("containerd-namespace")})
	}
	switch {
	case r == nil:
	case r.fault == hang:
		if err := p.waitForChange(ctx, changed); err != nil {
			return err
		}
	case r.fault == fail:
		return status.Error(codes.Unknown, "injected fault")
	case r.fault == dropResponse:
		ctx = context.WithoutCancel(ctx)
		var response []byte
		if err := p.backend.Invoke(ctx, method, &request, &response); err != nil {
			return err
		}
		return status.Error(codes.Unavailable, "error reading from server: EOF")
	}
	out, err := p.backend.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method)
	if err != nil {
		return err
	}
	if err := errors.Join(out.SendMsg(&request), out.CloseSend()); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	for {
		var response []byte
		switch err := out.RecvMsg(&response); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := in.SendMsg(&response); err != nil {
			return err
		}
	}
}

// startWithProxy starts a node whose agent reaches its runtime through a proxy.
func startWithProxy(t *testing.T, o options) (*node, *proxy) {
	t.Helper()
	o.noStart = true
	n := start(t, o)
	p := newProxy(t, n.host.Endpoint)
	o.agent.ExtraArgs = append(o.agent.ExtraArgs, "--container-runtime-endpoint", p.endpoint)
	n.startAgent(o.agent)
	return n, p
}
