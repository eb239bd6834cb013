package nodeapi

import (
	"context"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
)

// pipeListener accepts one end of a pipe.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	select {
	case <-l.closed:
	default:
		close(l.closed)
	}
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

// TestSlowRequestDoesNotFailShutdown ends a server while a request is active that takes longer than the grace.
func TestSlowRequestDoesNotFailShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &pipeListener{make(chan net.Conn), make(chan struct{})}
		active := make(chan struct{})
		ctx, stop := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() {
			served <- ServeUntil(ctx, l, &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				close(active)
				<-r.Context().Done() // the connection is closed
			})})
		}()
		client, server := net.Pipe()
		l.conns <- server
		if _, err := client.Write([]byte("GET / HTTP/1.1\r\nHost: node\r\n\r\n")); err != nil {
			t.Fatal(err)
		}
		<-active
		stop()
		if err := <-served; err != nil {
			t.Errorf("got error %v", err)
		}
		_ = client.Close()
	})
}
