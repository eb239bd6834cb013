package crifake

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Conn returns an in-process connection without a socket, suitable for testing/synctest.
func (r *Runtime) Conn() grpc.ClientConnInterface { return conn{r} }

type conn struct{ r *Runtime }

func services() []*grpc.ServiceDesc {
	return []*grpc.ServiceDesc{&runtimeapi.RuntimeService_ServiceDesc, &runtimeapi.ImageService_ServiceDesc}
}

func rpcName(method string) string { return method[strings.LastIndex(method, "/")+1:] }

// Invoke makes a unary call. As over a socket, it ends when ctx does, while the runtime may
// continue.
func (c conn) Invoke(ctx context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	handler := unaryHandler(method)
	if handler == nil {
		return status.Errorf(codes.Unimplemented, "unknown method %s", method)
	}
	if err := ctx.Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	type response struct {
		resp any
		err  error
	}
	responses := make(chan response, 1)
	//nolint:unparam // the signature is grpc's
	decode := func(into any) error { proto.Merge(into.(proto.Message), args.(proto.Message)); return nil }
	intercept := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, do grpc.UnaryHandler) (any, error) {
		return c.r.intercept(ctx, req, &grpc.UnaryServerInfo{FullMethod: method}, do)
	}
	c.r.goroutines.Go(func() {
		resp, err := handler(c.r, ctx, decode, intercept)
		responses <- response{resp, err}
	})
	select {
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case a := <-responses:
		if a.err != nil {
			return status.Convert(a.err).Err()
		}
		proto.Merge(reply.(proto.Message), a.resp.(proto.Message))
		return nil
	}
}

func unaryHandler(method string) grpc.MethodHandler {
	for _, s := range services() {
		if !strings.HasPrefix(method, "/"+s.ServiceName+"/") {
			continue
		}
		for _, m := range s.Methods {
			if m.MethodName == rpcName(method) {
				return m.Handler
			}
		}
	}
	return nil
}

// NewStream opens a stream on which the runtime sends.
func (c conn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string,
	_ ...grpc.CallOption) (grpc.ClientStream, error) {
	for _, s := range services() {
		for _, known := range s.Streams {
			if strings.HasPrefix(method, "/"+s.ServiceName+"/") && known.StreamName == desc.StreamName {
				return c.open(ctx, known, method), nil
			}
		}
	}
	return nil, status.Errorf(codes.Unimplemented, "unknown method %s", method)
}

func (c conn) open(ctx context.Context, desc grpc.StreamDesc, method string) *stream {
	s := &stream{ctx: ctx, requests: make(chan any, 1), responses: make(chan any), started: make(chan struct{}),
		ended: make(chan struct{})}
	c.r.goroutines.Go(func() {
		defer close(s.ended)
		info := &grpc.StreamServerInfo{FullMethod: method}
		s.err = c.r.interceptStream(c.r, serverStream{s}, info, desc.Handler)
	})
	return s
}

// stream is both ends of an in-process stream.
type stream struct {
	ctx       context.Context
	requests  chan any
	responses chan any
	started   chan struct{} // closed by the header
	once      sync.Once
	ended     chan struct{}
	err       error // valid after ended is closed
}

// Header waits for the header. Like that of a real stream, it is nil if the stream ended without one.
func (s *stream) Header() (metadata.MD, error) {
	select {
	case <-s.started:
		return metadata.MD{}, nil
	case <-s.ended:
		return nil, nil
	case <-s.ctx.Done():
		return nil, status.FromContextError(s.ctx.Err()).Err()
	}
}

func (s *stream) Trailer() metadata.MD     { return nil }
func (s *stream) Context() context.Context { return s.ctx }

// CloseSend waits until the runtime has started the stream, so that it covers everything that the
// caller does afterwards.
func (s *stream) CloseSend() error {
	select {
	case <-s.started:
	case <-s.ended:
	case <-s.ctx.Done():
	}
	return nil
}

func (s *stream) SendMsg(m any) error {
	s.requests <- proto.Clone(m.(proto.Message))
	return nil
}

func (s *stream) RecvMsg(m any) error {
	select {
	case <-s.ctx.Done():
		return status.FromContextError(s.ctx.Err()).Err()
	case msg := <-s.responses:
		proto.Merge(m.(proto.Message), msg.(proto.Message))
		return nil
	case <-s.ended:
		if s.err == nil {
			return io.EOF
		}
		return status.Convert(s.err).Err()
	}
}

type serverStream struct{ *stream }

func (serverStream) SetHeader(metadata.MD) error { return nil }
func (serverStream) SetTrailer(metadata.MD)      {}

func (s serverStream) SendHeader(metadata.MD) error {
	s.once.Do(func() { close(s.started) })
	return nil
}

func (s serverStream) SendMsg(m any) error {
	select {
	case <-s.ctx.Done():
		return s.ctx.Err()
	case s.responses <- proto.Clone(m.(proto.Message)):
		return nil
	}
}

func (s serverStream) RecvMsg(m any) error {
	select {
	case <-s.ctx.Done():
		return s.ctx.Err()
	case msg := <-s.requests:
		proto.Merge(m.(proto.Message), msg.(proto.Message))
		return nil
	}
}

// interceptStream wraps every stream.
func (r *Runtime) interceptStream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo,
	do grpc.StreamHandler) error {
	r.mu.Lock()
	r.calls[rpcName(info.FullMethod)]++
	down, cut := r.down, r.cut
	r.mu.Unlock()
	if down {
		return status.Error(codes.Unavailable, "connection error: the fake runtime is down")
	}
	ctx, release := r.withCut(ss.Context(), cut)
	defer release()
	if err := wait(ctx, r.opts.Latency[rpcName(info.FullMethod)]); err != nil {
		return err
	}
	err := do(srv, cutStream{ss, ctx})
	if errors.Is(context.Cause(ctx), errCut) {
		return errCut
	}
	return err
}

// cutStream is a stream that can be interrupted.
type cutStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s cutStream) Context() context.Context { return s.ctx }

// Serve serves the runtime on a listener until stop is called, which closes the listener and waits.
func (r *Runtime) Serve(l net.Listener) (stop func() error) {
	server := grpc.NewServer(grpc.UnaryInterceptor(r.intercept), grpc.StreamInterceptor(r.interceptStream),
		grpc.MaxRecvMsgSize(16<<20), grpc.MaxSendMsgSize(16<<20))
	runtimeapi.RegisterRuntimeServiceServer(server, r)
	runtimeapi.RegisterImageServiceServer(server, r)
	done := make(chan error, 1)
	r.goroutines.Go(func() { done <- server.Serve(l) })
	return func() error {
		server.Stop()
		if err := <-done; !errors.Is(err, grpc.ErrServerStopped) {
			return err
		}
		return nil
	}
}
