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

// fault is what a proxy does to a call.
type fault int

const (
	hang fault = iota // the call does not return until the fault is taken away
	fail              // it fails and is not carried out
	cut               // it is carried out, and its answer is lost
)

// rule says which calls fare how. The runtime sees those that no rule is for.
type rule struct {
	verb  string // of the CRI; empty: every
	about string // what the request contains: a pod's name or UID, an ID
	fault fault
	times int // how often; 0: always
}

// proxy stands between an agent and its runtime.
type proxy struct {
	endpoint string
	server   *grpc.Server
	backend  *grpc.ClientConn

	mu      sync.Mutex
	rules   []*rule
	changed chan struct{} // closed when rules change
	hits    int
	held    int // calls that hang now
}

// bytesCodec hands messages on as they are.
type bytesCodec struct{}

func (bytesCodec) Name() string                       { return "proto" }
func (bytesCodec) Marshal(v any) ([]byte, error)      { return *v.(*[]byte), nil }
func (bytesCodec) Unmarshal(data []byte, v any) error { *v.(*[]byte) = bytes.Clone(data); return nil }

func newProxy(t *testing.T, endpoint string) *proxy {
	t.Helper()
	soon := backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.5, MaxDelay: 500 * time.Millisecond} // or it would hold up a runtime that is back
	backend, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: soon, MinConnectTimeout: 5 * time.Second}),
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
	p.server = grpc.NewServer(grpc.ForceServerCodec(bytesCodec{}), grpc.UnknownServiceHandler(p.handle), grpc.MaxRecvMsgSize(64<<20))
	var served sync.WaitGroup
	served.Go(func() { _ = p.server.Serve(l) }) // ends with Stop
	t.Cleanup(func() {
		p.set()
		p.server.Stop()
		served.Wait()
		backend.Close()
	})
	return p
}

// set replaces the rules.
func (p *proxy) set(rules ...*rule) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules, p.hits = rules, 0
	close(p.changed)
	p.changed = make(chan struct{})
}

// hit counts the calls that a rule was for since set.
func (p *proxy) hit() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hits
}

// isHolding reports whether a call hangs now.
func (p *proxy) isHolding() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held > 0
}

// hold keeps a call until the rules change; an error: its caller went away first.
func (p *proxy) hold(ctx context.Context, changed chan struct{}) error {
	count := func(by int) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.held += by
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

func (p *proxy) match(verb string, request []byte) (r *rule, changed chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, r := range p.rules {
		if (r.verb == "" || r.verb == verb) && bytes.Contains(request, []byte(r.about)) {
			p.hits++
			if r.times--; r.times == 0 {
				p.rules = append(p.rules[:i:i], p.rules[i+1:]...)
			}
			return r, p.changed
		}
	}
	return nil, nil
}

// handle serves every call: of the CRI all have one request and one or, for
// events, many answers.
func (p *proxy) handle(_ any, in grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(in)
	var request []byte
	if err := in.RecvMsg(&request); err != nil {
		return err
	}
	r, changed := p.match(method[strings.LastIndex(method, "/")+1:], request)
	ctx := in.Context()
	if told, ok := metadata.FromIncomingContext(ctx); ok { // for containerd's own services
		ctx = metadata.NewOutgoingContext(ctx, metadata.MD{"containerd-namespace": told.Get("containerd-namespace")})
	}
	switch {
	case r == nil:
	case r.fault == hang:
		if err := p.hold(ctx, changed); err != nil {
			return err
		}
	case r.fault == fail:
		return status.Error(codes.Unknown, "fails, as told")
	case r.fault == cut:
		ctx = context.WithoutCancel(ctx)
		var answer []byte
		if err := p.backend.Invoke(ctx, method, &request, &answer); err != nil {
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
		var answer []byte
		switch err := out.RecvMsg(&answer); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := in.SendMsg(&answer); err != nil {
			return err
		}
	}
}

// startWithProxy is a node whose agent talks to its runtime through a proxy.
func startWithProxy(t *testing.T, o options) (*node, *proxy) {
	t.Helper()
	o.noStart = true
	n := start(t, o)
	p := newProxy(t, n.host.Endpoint)
	o.agent.ExtraArgs = append(o.agent.ExtraArgs, "--container-runtime-endpoint", p.endpoint)
	n.startAgent(o.agent)
	return n, p
}
