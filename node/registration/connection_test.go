package registration

import (
	"encoding/pem"
	"net"
	"net/http/httptest"
	"sync"
	"testing"

	"k8s.io/client-go/rest"

	"berth/internal/apiclient"
)

// proxy is a proxy to an HTTP/2 server that can silently drop all data of its connections.
type proxy struct {
	t    *testing.T
	http *httptest.Server
	l    net.Listener
	wg   sync.WaitGroup

	mu    sync.Mutex
	conns []*proxiedConn
}

// proxiedConn is a connection and its upstream connection.
type proxiedConn struct {
	down, up   net.Conn
	blackholed chan struct{} // closed when data is dropped
}

func newProxy(t *testing.T, s *server) *proxy {
	t.Helper()
	w := &proxy{t: t, http: httptest.NewUnstartedServer(s)}
	w.http.EnableHTTP2 = true
	w.http.StartTLS()
	var err error
	if w.l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	w.wg.Go(w.serve)
	t.Cleanup(w.close)
	return w
}

func (w *proxy) serve() {
	for {
		down, err := w.l.Accept()
		if err != nil {
			return
		}
		up, err := net.Dial("tcp", w.http.Listener.Addr().String())
		if err != nil {
			down.Close()
			continue
		}
		p := &proxiedConn{down, up, make(chan struct{})}
		w.mu.Lock()
		w.conns = append(w.conns, p)
		w.mu.Unlock()
		w.wg.Go(func() { p.copy(down, up) })
		w.wg.Go(func() { p.copy(up, down) })
	}
}

// copy copies the data of one side to the other.
func (p *proxiedConn) copy(from, to net.Conn) {
	buffer := make([]byte, 4096)
	for {
		n, err := from.Read(buffer)
		select {
		case <-p.blackholed:
			if err != nil {
				return // dropped silently
			}
			continue
		default:
		}
		if err == nil {
			_, err = to.Write(buffer[:n])
		}
		if err != nil {
			p.down.Close()
			p.up.Close()
			return
		}
	}
}

// blackhole silently drops all further data of the existing connections.
func (w *proxy) blackhole() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.conns {
		select {
		case <-p.blackholed:
		default:
			close(p.blackholed)
		}
	}
}

// connectionCount returns the total number of connections.
func (w *proxy) connectionCount() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.conns)
}

func (w *proxy) client() *apiclient.Client {
	w.t.Helper()
	config := &rest.Config{Host: "https://" + w.l.Addr().String()}
	config.CAData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: w.http.Certificate().Raw})
	c, err := apiclient.New(apiclient.Options{Config: config, UserAgent: "test"})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(c.Close)
	return c
}

func (w *proxy) close() {
	w.l.Close()
	w.mu.Lock()
	for _, p := range w.conns {
		p.down.Close()
		p.up.Close()
	}
	w.mu.Unlock()
	w.wg.Wait()
	w.http.CloseClientConnections()
	w.http.Close()
}
