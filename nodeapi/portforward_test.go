package nodeapi

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// pair is a TCP connection with both of its ends.
func pair(t *testing.T) (near, far Stream) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, _ := ln.Accept()
		accepted <- c
	}()
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	a := <-accepted
	t.Cleanup(func() { c.Close(); a.Close() })
	return c.(*net.TCPConn), a.(*net.TCPConn)
}

func text(t *testing.T, r io.Reader) string {
	t.Helper()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Error(err)
	}
	return string(b)
}

func send(t *testing.T, w Stream, data string) {
	t.Helper()
	if _, err := io.WriteString(w, data); err != nil {
		t.Error(err)
	}
	if err := w.CloseWrite(); err != nil {
		t.Error(err)
	}
}

func TestForwardedConnectionDirectionsCloseSeparately(t *testing.T) {
	near, far := pair(t)
	a := startAgent(t, Handlers{DialPort: func(_ context.Context, namespace, name string, port uint16) (Stream, error) {
		if namespace != "ns" || name != "web" || port != 80 {
			return nil, errors.New("unexpected request")
		}
		return near, nil
	}})
	c, err := a.client.PortForward(t.Context(), "ns", "web", 80)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	send(t, c, "request") // closes this direction, the response still arrives
	if got := text(t, far); got != "request" {
		t.Errorf("pod: got %q", got)
	}
	response := strings.Repeat("response ", 100_000)
	send(t, far, response)
	if got := text(t, c); got != response {
		t.Errorf("got %d bytes, want %d", len(got), len(response))
	}
}

func TestForwardedConnectionReportsDialError(t *testing.T) {
	a := startAgent(
		t,
		Handlers{
			DialPort: func(context.Context, string, string, uint16) (Stream, error) { return nil, NotFound("web") },
		},
	)
	if _, err := a.client.PortForward(t.Context(), "ns", "web", 80); !apierrors.IsNotFound(err) {
		t.Error(err)
	}
	if _, err := a.client.PortForward(t.Context(), "ns", "web", 0); !apierrors.IsBadRequest(err) {
		t.Error(err)
	}
}

func TestForwardedConnectionEndsWithServer(t *testing.T) { // N4
	near, far := pair(t)
	a := startAgent(
		t,
		Handlers{DialPort: func(context.Context, string, string, uint16) (Stream, error) { return near, nil }},
	)
	c, err := a.client.PortForward(t.Context(), "ns", "web", 80)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	a.stop()
	<-a.stopped // waits for the connection
	if _, err := far.Read(make([]byte, 1)); err == nil {
		t.Error("connection to the pod is still open")
	}
}
