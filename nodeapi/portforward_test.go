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

func say(t *testing.T, w Stream, what string) {
	t.Helper()
	if _, err := io.WriteString(w, what); err != nil {
		t.Error(err)
	}
	if err := w.CloseWrite(); err != nil {
		t.Error(err)
	}
}

func TestForwardedConnectionDirectionsCloseSeparately(t *testing.T) {
	near, far := pair(t)
	a := serving(t, Handlers{DialPort: func(_ context.Context, namespace, name string, port uint16) (Stream, error) {
		if namespace != "ns" || name != "web" || port != 80 {
			return nil, errors.New("asked otherwise")
		}
		return near, nil
	}})
	c, err := a.client.PortForward(t.Context(), "ns", "web", 80)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	say(t, c, "question") // and no more: the answer still comes
	if got := text(t, far); got != "question" {
		t.Errorf("the pod got %q", got)
	}
	answer := strings.Repeat("answer ", 100_000)
	say(t, far, answer)
	if got := text(t, c); got != answer {
		t.Errorf("%d bytes came of %d", len(got), len(answer))
	}
}

func TestForwardedConnectionReportsDialError(t *testing.T) {
	a := serving(
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

func TestN4ForwardedConnectionEndsWithServer(t *testing.T) {
	near, far := pair(t)
	a := serving(
		t,
		Handlers{DialPort: func(context.Context, string, string, uint16) (Stream, error) { return near, nil }},
	)
	c, err := a.client.PortForward(t.Context(), "ns", "web", 80)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	a.leave()
	<-a.ended // waits for it
	if _, err := far.Read(make([]byte, 1)); err == nil {
		t.Error("the pod's side is still open")
	}
}
