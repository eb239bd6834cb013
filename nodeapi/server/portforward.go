package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"berth/nodeapi"
)

const (
	forwardProtocol = "portforward.k8s.io"
	// tunnelProtocol is SPDY with forwardProtocol, tunneled through a WebSocket.
	tunnelProtocol = "SPDY/3.1+" + forwardProtocol
	// pairTimeout limits how long the first stream of a connection waits for the second.
	pairTimeout = 30 * time.Second
	// dialTimeout limits the time to connect to a port of a pod.
	dialTimeout = 30 * time.Second
)

// portForward connects the client to ports of a pod.
func (s *server) portForward(w http.ResponseWriter, r *http.Request) {
	pod := podOf(r)
	ws := websocket.IsWebSocketUpgrade(r)
	if !ws && !httpstream.IsUpgradeRequest(r) {
		writeError(w, apierrors.NewBadRequest("Upgrade request required"))
		return
	}
	if err := s.h.CheckReachable(r.Context(), pod); err != nil {
		writeError(w, err)
		return
	}
	ctx, done := s.streaming(r)
	defer done()
	f := &forwarder{s: s, pod: pod, pairs: map[string]*pair{}}
	switch {
	case ws && len(websocket.Subprotocols(r)) > 0 && websocket.Subprotocols(r)[0] == tunnelProtocol:
		f.tunnel(ctx, w, r)
	case ws:
		s.forwardChannels(ctx, w, r, pod)
	default:
		f.spdy(ctx, w, r)
	}
}

// forwarder serves the connections of one client to one pod. Each connection is a pair of streams.
type forwarder struct {
	s   *server
	pod PodRef
	ctx context.Context // context of the request

	mu      sync.Mutex
	stopped bool
	pairs   map[string]*pair // incomplete pairs by the client's request ID
	wg      sync.WaitGroup
}

// pair is one connection: its data stream and its error stream.
type pair struct {
	data, fail httpstream.Stream
	port       uint16
	replied    []<-chan struct{}
	late       *time.Timer
}

// spdy serves a client that uses SPDY.
func (f *forwarder) spdy(ctx context.Context, w http.ResponseWriter, r *http.Request) {
	if _, err := httpstream.Handshake(r, w, []string{forwardProtocol}); err != nil {
		return // the response has been written
	}
	f.ctx = ctx
	ready := make(chan struct{})
	hijacked := &hijackedConn{ResponseWriter: w}
	accept := func(st httpstream.Stream, replied <-chan struct{}) error {
		<-ready
		return f.accept(st, replied)
	}
	conn := spdy.NewResponseUpgrader().UpgradeResponse(hijacked, r, accept)
	if conn == nil {
		close(ready)
		return
	}
	close(ready)
	defer closeAfterEnd(ctx, hijacked.conn)()
	f.serve(ctx, conn)
}

// hijackedConn keeps the connection that a library has taken over.
type hijackedConn struct {
	http.ResponseWriter
	conn net.Conn
}

func (h *hijackedConn) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(h.ResponseWriter).Hijack()
	h.conn = conn
	return conn, buffered, err
}

// tunnel serves a client that uses SPDY through a WebSocket.
func (f *forwarder) tunnel(ctx context.Context, w http.ResponseWriter, r *http.Request) {
	ws, err := upgradeWebSocket(w, r, []string{tunnelProtocol})
	if err != nil {
		return
	}
	f.ctx = ctx
	conn, err := spdy.NewServerConnection(portforward.NewTunnelingConnection("node", ws), f.accept)
	if err != nil {
		_ = ws.Close()
		return
	}
	defer closeAfterEnd(ctx, ws)()
	f.serve(ctx, conn)
}

// serve waits until the client disconnects, the connection is idle for too long, or ctx ends.
func (f *forwarder) serve(ctx context.Context, conn httpstream.Connection) {
	if f.s.StreamIdleTimeout > 0 {
		conn.SetIdleTimeout(f.s.StreamIdleTimeout)
	}
	select {
	case <-conn.CloseChan():
	case <-ctx.Done():
	}
	_ = conn.Close()
	f.mu.Lock()
	f.stopped = true
	for _, p := range f.pairs {
		p.late.Stop()
	}
	f.mu.Unlock()
	f.wg.Wait()
}

// accept adds a new stream to its pair, and starts the connection when the pair is complete.
func (f *forwarder) accept(st httpstream.Stream, replied <-chan struct{}) error {
	head := st.Headers()
	port, err := strconv.ParseUint(head.Get(corev1.PortHeader), 10, 16)
	if err != nil || port == 0 {
		return fmt.Errorf("invalid port %q", head.Get(corev1.PortHeader))
	}
	kind := head.Get(corev1.StreamType)
	if kind != corev1.StreamTypeData && kind != corev1.StreamTypeError {
		return fmt.Errorf("invalid stream type %q", kind)
	}
	id := head.Get(corev1.PortForwardRequestIDHeader)
	if id == "" { // old clients: the data stream follows the error stream
		n := st.Identifier()
		if kind == corev1.StreamTypeData {
			n -= 2
		}
		id = strconv.Itoa(int(n))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stopped {
		return errors.New("connection closed")
	}
	p, known := f.pairs[id]
	if !known {
		p = &pair{port: uint16(port)}
		p.late = time.AfterFunc(pairTimeout, func() { f.drop(id, p) })
		f.pairs[id] = p
	}
	switch {
	case kind == corev1.StreamTypeData && p.data == nil:
		p.data = st
	case kind == corev1.StreamTypeError && p.fail == nil:
		p.fail = st
	default:
		return fmt.Errorf("duplicate %s stream of connection %s", kind, id)
	}
	p.replied = append(p.replied, replied)
	if p.data != nil && p.fail != nil {
		delete(f.pairs, id)
		p.late.Stop()
		f.wg.Go(func() { f.forward(p) })
	}
	return nil
}

// drop discards a pair whose second stream is missing.
func (f *forwarder) drop(id string, p *pair) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pairs[id] != p {
		return
	}
	delete(f.pairs, id)
	for _, st := range []httpstream.Stream{p.data, p.fail} {
		if st != nil {
			_ = st.Reset()
		}
	}
}

// forward connects a pair to the pod. A failure is local to the connection: a refused port looks
// like it does inside the pod. kubectl reacts to an error message by closing all connections to the
// pod, so one is sent only if no port of the pod can be reached.
func (f *forwarder) forward(p *pair) {
	for _, replied := range p.replied {
		<-replied
	}
	defer func() { _ = p.fail.Close() }()
	dialing, dialed := context.WithTimeout(f.ctx, dialTimeout)
	pod, err := f.s.h.DialPort(dialing, f.pod, p.port)
	dialed()
	if err != nil {
		f.s.Log.Debug("port forwarding failed", "pod", f.pod.Namespace+"/"+f.pod.Name, "port", p.port, "err", err)
		if gone := f.s.h.CheckReachable(f.ctx, f.pod); gone != nil {
			_, _ = io.WriteString(
				p.fail,
				fmt.Sprintf("error forwarding port %d to pod %s: %v", p.port, f.pod.Name, gone),
			)
		}
		_ = p.data.Reset()
		return
	}
	shut := context.AfterFunc(f.ctx, func() { _ = pod.Close() })
	defer shut()
	copyBoth(p.data, pod)
}

// copyBoth copies in both directions until both have ended. The end of one direction is propagated
// and leaves the other open. A broken connection is reset.
func copyBoth(client httpstream.Stream, pod nodeapi.Stream) {
	defer func() { _ = pod.Close() }()
	up := make(chan struct{})
	go func() {
		defer close(up)
		if _, err := io.Copy(pod, client); err != nil {
			_ = pod.Close() // one side is disconnected
			return
		}
		_ = pod.CloseWrite()
	}()
	if _, err := io.Copy(client, pod); err != nil {
		_ = client.Reset() // ends the other direction too
	} else {
		_ = client.Close()
	}
	<-up
}
