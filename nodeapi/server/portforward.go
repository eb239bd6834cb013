package server

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	// tunnelProtocol is SPDY with that protocol inside a WebSocket.
	tunnelProtocol = "SPDY/3.1+" + forwardProtocol
	// pairBound is how long the first stream of a connection waits for its second.
	pairBound = 30 * time.Second
	// dialBound bounds the way to a port of a pod.
	dialBound = 30 * time.Second
)

// portForward joins connections of the client's with ports of a pod.
func (s *server) portForward(w http.ResponseWriter, r *http.Request) {
	pod := podOf(r)
	ws := websocket.IsWebSocketUpgrade(r)
	if !ws && !httpstream.IsUpgradeRequest(r) {
		complain(w, apierrors.NewBadRequest("Upgrade request required"))
		return
	}
	if err := s.h.CheckReachable(r.Context(), pod); err != nil {
		complain(w, err)
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

// forwarder is one client's connections to one pod: each is a pair of streams.
type forwarder struct {
	s   *server
	pod PodRef
	ctx context.Context // of the request

	mu    sync.Mutex
	ended bool
	pairs map[string]*pair // that lack a stream, by the client's ID
	wg    sync.WaitGroup
}

// pair is one connection: its data, and how it failed.
type pair struct {
	data, fail httpstream.Stream
	port       uint16
	replied    []<-chan struct{}
	late       *time.Timer
}

// spdy serves a client that speaks SPDY.
func (f *forwarder) spdy(ctx context.Context, w http.ResponseWriter, r *http.Request) {
	if _, err := httpstream.Handshake(r, w, []string{forwardProtocol}); err != nil {
		return // it has been answered
	}
	f.ctx = ctx
	begun := make(chan struct{})
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(st httpstream.Stream, replied <-chan struct{}) error {
		<-begun
		return f.take(st, replied)
	})
	if conn == nil {
		close(begun)
		return
	}
	close(begun)
	f.serve(ctx, conn)
}

// tunnel serves a client that speaks SPDY inside a WebSocket.
func (f *forwarder) tunnel(ctx context.Context, w http.ResponseWriter, r *http.Request) {
	ws, err := upgradeWebSocket(w, r, []string{tunnelProtocol})
	if err != nil {
		return
	}
	f.ctx = ctx
	conn, err := spdy.NewServerConnection(portforward.NewTunnelingConnection("node", ws), f.take)
	if err != nil {
		_ = ws.Close()
		return
	}
	f.serve(ctx, conn)
}

// serve goes on until the client leaves, nothing has moved for too long, or ctx
// ends.
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
	f.ended = true
	for _, p := range f.pairs {
		p.late.Stop()
	}
	f.mu.Unlock()
	f.wg.Wait()
}

// take takes a new stream of the client's. When its pair is complete the
// connection begins.
func (f *forwarder) take(st httpstream.Stream, replied <-chan struct{}) error {
	head := st.Headers()
	port, err := strconv.ParseUint(head.Get(corev1.PortHeader), 10, 16)
	if err != nil || port == 0 {
		return fmt.Errorf("%q is not a port", head.Get(corev1.PortHeader))
	}
	kind := head.Get(corev1.StreamType)
	if kind != corev1.StreamTypeData && kind != corev1.StreamTypeError {
		return fmt.Errorf("%q is not a type of stream", kind)
	}
	id := head.Get(corev1.PortForwardRequestIDHeader)
	if id == "" { // of old clients: the data come right after the errors
		n := st.Identifier()
		if kind == corev1.StreamTypeData {
			n -= 2
		}
		id = strconv.Itoa(int(n))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		return errors.New("the connection has ended")
	}
	p, known := f.pairs[id]
	if !known {
		p = &pair{port: uint16(port)}
		p.late = time.AfterFunc(pairBound, func() { f.drop(id, p) })
		f.pairs[id] = p
	}
	switch {
	case kind == corev1.StreamTypeData && p.data == nil:
		p.data = st
	case kind == corev1.StreamTypeError && p.fail == nil:
		p.fail = st
	default:
		return fmt.Errorf("a second %s stream of connection %s", kind, id)
	}
	p.replied = append(p.replied, replied)
	if p.data != nil && p.fail != nil {
		delete(f.pairs, id)
		p.late.Stop()
		f.wg.Go(func() { f.join(p) })
	}
	return nil
}

// drop gives up a pair whose second stream has not come.
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

// join joins one connection with the pod's. What befalls it stays its own: a port
// that refuses looks as it would from inside the pod. An error message would have
// kubectl give up the pod with all its connections, so there is one only if no
// connection to this pod can come about.
func (f *forwarder) join(p *pair) {
	for _, replied := range p.replied {
		<-replied
	}
	defer func() { _ = p.fail.Close() }()
	dialing, dialed := context.WithTimeout(f.ctx, dialBound)
	pod, err := f.s.h.DialPort(dialing, f.pod, p.port)
	dialed()
	if err != nil {
		f.s.Log.Debug("node API: forward a port", "pod", f.pod.Namespace+"/"+f.pod.Name, "port", p.port, "err", err)
		if gone := f.s.h.CheckReachable(f.ctx, f.pod); gone != nil {
			_, _ = io.WriteString(p.fail, fmt.Sprintf("error forwarding port %d to pod %s: %v", p.port, f.pod.Name, gone))
		}
		_ = p.data.Reset()
		return
	}
	shut := context.AfterFunc(f.ctx, func() { _ = pod.Close() })
	defer shut()
	copyBoth(p.data, pod)
}

// copyBoth copies both ways until both directions have ended. The end of one is
// passed on and leaves the other open; a connection that broke is reset.
func copyBoth(client httpstream.Stream, pod nodeapi.Stream) {
	defer func() { _ = pod.Close() }()
	up := make(chan struct{})
	go func() {
		defer close(up)
		if _, err := io.Copy(pod, client); err != nil {
			_ = pod.Close() // either side is gone
			return
		}
		_ = pod.CloseWrite()
	}()
	if _, err := io.Copy(client, pod); err != nil {
		_ = client.Reset() // lets the other direction go too
	} else {
		_ = client.Close()
	}
	<-up
}
