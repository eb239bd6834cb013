package server

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"k8s.io/client-go/tools/remotecommand"

	"berth/nodeapi"
)

// runtimeBound bounds the way to the first byte from the runtime's server.
const runtimeBound = 30 * time.Second

// joinRuntime joins streams to the runtime's streaming server at target until the
// command ends.
func joinRuntime(ctx context.Context, target string, o remotecommand.StreamOptions) error {
	runtime, err := nodeapi.NewRuntimeExecutor(target)
	if err != nil {
		return err
	}
	return runtime.StreamWithContext(ctx, o)
}

// dialRuntime opens a connection to the runtime's streaming server.
func dialRuntime(ctx context.Context, u *url.URL) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, runtimeBound)
	defer cancel()
	host, port := u.Hostname(), u.Port()
	if u.Scheme == "https" {
		if port == "" {
			port = "443"
		}
		d := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // its own, which nobody could check: see nodeapi.RuntimeStreams
		return d.DialContext(ctx, "tcp", net.JoinHostPort(host, port))
	}
	if port == "" {
		port = "80"
	}
	return new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(host, port))
}

// pass hands a SPDY request on to the runtime, and then the bytes of both sides:
// what runs through them is between the client and the runtime.
func (s *server) pass(ctx context.Context, w http.ResponseWriter, r *http.Request, target string) {
	u, err := url.Parse(target)
	if err != nil {
		complain(w, fmt.Errorf("the streaming URL of the runtime: %w", err))
		return
	}
	runtime, err := dialRuntime(ctx, u)
	if err != nil {
		complain(w, fmt.Errorf("the streaming server of the runtime: %w", err))
		return
	}
	defer func() { _ = runtime.Close() }()
	answer, rest, err := askRuntime(runtime, u, r.Header)
	if err != nil {
		complain(w, fmt.Errorf("the streaming server of the runtime: %w", err))
		return
	}
	if answer.StatusCode != http.StatusSwitchingProtocols {
		defer func() { _ = answer.Body.Close() }()
		w.Header().Set("Content-Type", answer.Header.Get("Content-Type"))
		w.WriteHeader(answer.StatusCode)
		_, _ = io.Copy(w, io.LimitReader(answer.Body, 64<<10))
		return
	}
	client, early, err := http.NewResponseController(w).Hijack()
	if err != nil {
		complain(w, fmt.Errorf("take the connection over: %w", err))
		return
	}
	defer func() { _ = client.Close() }()
	if _, err := fmt.Fprintf(client, "HTTP/1.1 %s\r\n", answer.Status); err != nil {
		return
	}
	if err := errors.Join(answer.Header.Write(client), writeString(client, "\r\n")); err != nil {
		return
	}
	both(ctx, s.StreamIdleTimeout, ahead{client, early.Reader}, ahead{runtime, rest})
}

// askRuntime asks for the upgrade that the client has asked for.
func askRuntime(conn net.Conn, u *url.URL, asked http.Header) (*http.Response, *bufio.Reader, error) {
	_ = conn.SetDeadline(time.Now().Add(runtimeBound))
	req := &http.Request{Method: http.MethodPost, URL: u, Host: u.Host, Header: http.Header{}}
	for _, name := range []string{"Connection", "Upgrade", "X-Stream-Protocol-Version"} {
		req.Header[name] = asked[name]
	}
	if err := req.Write(conn); err != nil {
		return nil, nil, err
	}
	rest := bufio.NewReader(conn)
	answer, err := http.ReadResponse(rest, req)
	if err != nil {
		return nil, nil, err
	}
	return answer, rest, conn.SetDeadline(time.Time{})
}

func writeString(w io.Writer, text string) error {
	_, err := io.WriteString(w, text)
	return err
}

// ahead is a connection of which some has been read already.
type ahead struct {
	net.Conn
	r *bufio.Reader
}

func (a ahead) Read(b []byte) (int, error) { return a.r.Read(b) }

// both copies both ways until either side ends, nothing has moved for idle, or
// ctx ends, and closes both.
func both(ctx context.Context, idle time.Duration, a, b net.Conn) {
	shut := func() { _ = errors.Join(a.Close(), b.Close()) }
	stop := context.AfterFunc(ctx, shut)
	defer stop()
	moved, done := watchIdle(idle, shut)
	defer done()
	var ways sync.WaitGroup
	one := func(to, from net.Conn) {
		defer shut()
		_, _ = io.Copy(to, tapped{from, moved})
	}
	ways.Go(func() { one(a, b) })
	ways.Go(func() { one(b, a) })
	ways.Wait()
}

// watchIdle calls end when moved has not been called for idle; 0: never.
func watchIdle(idle time.Duration, end func()) (moved, done func()) {
	if idle <= 0 {
		return func() {}, func() {}
	}
	timer := time.AfterFunc(idle, end)
	return func() { timer.Reset(idle) }, func() { timer.Stop() }
}

// tapped tells when something was read.
type tapped struct {
	io.Reader
	moved func()
}

func (t tapped) Read(b []byte) (int, error) {
	n, err := t.Reader.Read(b)
	if n > 0 {
		t.moved()
	}
	return n, err
}
