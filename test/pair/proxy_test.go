package pair

import (
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// serverProxy is a TCP proxy between a node and its server. disconnect closes all connections and makes
// the server unreachable until connect is called.
type serverProxy struct {
	t                *testing.T
	backend, address string

	mu    sync.Mutex
	wg    sync.WaitGroup
	l     net.Listener
	conns map[net.Conn]bool
}

// newServerProxy starts a proxy to a server. The test's Cleanup stops it.
func newServerProxy(t *testing.T, to string) *serverProxy {
	t.Helper()
	w := &serverProxy{t: t, backend: to, address: "127.0.0.1:0", conns: map[net.Conn]bool{}}
	w.connect()
	t.Cleanup(w.disconnect)
	return w
}

// connect listens and forwards connections.
func (w *serverProxy) connect() {
	w.t.Helper()
	l, err := net.Listen("tcp", w.address)
	if err != nil {
		w.t.Fatal(err)
	}
	w.l, w.address = l, l.Addr().String()
	w.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			w.wg.Go(func() { w.forward(c) })
		}
	})
}

// forward copies data between a client and the server until one of them closes the connection.
func (w *serverProxy) forward(c net.Conn) {
	upstream, err := net.Dial("tcp", w.backend)
	if err != nil {
		c.Close()
		return
	}
	w.mu.Lock()
	w.conns[c], w.conns[upstream] = true, true
	w.mu.Unlock()
	var copying sync.WaitGroup
	for _, p := range [][2]net.Conn{{c, upstream}, {upstream, c}} {
		copying.Go(func() {
			_, _ = io.Copy(p[0], p[1])
			p[0].Close()
			p[1].Close()
		})
	}
	copying.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.conns, c)
	delete(w.conns, upstream)
}

// disconnect stops listening and closes all connections.
func (w *serverProxy) disconnect() {
	w.l.Close()
	w.mu.Lock()
	for c := range w.conns {
		c.Close()
	}
	w.mu.Unlock()
	w.wg.Wait()
}

// kubeconfig writes a copy of a kubeconfig that uses the proxy, and returns its path.
func (w *serverProxy) kubeconfig(from string) string {
	text, err := os.ReadFile(from)
	if err != nil {
		w.t.Fatal(err)
	}
	path := filepath.Join(w.t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(string(text), "https://"+w.backend, "https://"+w.address)),
		0o600); err != nil {
		w.t.Fatal(err)
	}
	return path
}

// hostOf returns the host and port of a URL.
func hostOf(t *testing.T, server string) string {
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}
