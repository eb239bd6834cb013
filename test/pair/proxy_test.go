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

// wire proxies the connection from a node to its server. cut closes all connections and makes the
// server unreachable.
type wire struct {
	t      *testing.T
	to, at string

	mu    sync.Mutex
	wg    sync.WaitGroup
	l     net.Listener
	conns map[net.Conn]bool
}

func newWire(t *testing.T, to string) *wire {
	t.Helper()
	w := &wire{t: t, to: to, at: "127.0.0.1:0", conns: map[net.Conn]bool{}}
	w.join()
	t.Cleanup(w.cut)
	return w
}

// join forwards connections.
func (w *wire) join() {
	w.t.Helper()
	l, err := net.Listen("tcp", w.at)
	if err != nil {
		w.t.Fatal(err)
	}
	w.l, w.at = l, l.Addr().String()
	w.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			w.wg.Go(func() { w.pass(c) })
		}
	})
}

func (w *wire) pass(c net.Conn) {
	up, err := net.Dial("tcp", w.to)
	if err != nil {
		c.Close()
		return
	}
	w.mu.Lock()
	w.conns[c], w.conns[up] = true, true
	w.mu.Unlock()
	var both sync.WaitGroup
	for _, p := range [][2]net.Conn{{c, up}, {up, c}} {
		both.Go(func() {
			_, _ = io.Copy(p[0], p[1])
			p[0].Close()
			p[1].Close()
		})
	}
	both.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.conns, c)
	delete(w.conns, up)
}

// cut closes all connections and forwards none.
func (w *wire) cut() {
	w.l.Close()
	w.mu.Lock()
	for c := range w.conns {
		c.Close()
	}
	w.mu.Unlock()
	w.wg.Wait()
}

// kubeconfig returns a kubeconfig that uses the proxy.
func (w *wire) kubeconfig(from string) string {
	text, err := os.ReadFile(from)
	if err != nil {
		w.t.Fatal(err)
	}
	path := filepath.Join(w.t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(string(text), "https://"+w.to, "https://"+w.at)),
		0o600); err != nil {
		w.t.Fatal(err)
	}
	return path
}

// hostOf returns the address of a server.
func hostOf(t *testing.T, server string) string {
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}
