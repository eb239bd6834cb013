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

// runtimeTimeout limits the time to establish a stream with the runtime's streaming server.
const runtimeTimeout = 30 * time.Second

// streamToRuntime connects streams to the runtime's streaming server at target until the command
// exits.
func streamToRuntime(ctx context.Context, target string, o remotecommand.StreamOptions) error {
	runtime, err := nodeapi.NewRuntimeExecutor(target)
	if err != nil {
		return err
	}
	return runtime.StreamWithContext(ctx, o)
}

// dialRuntime opens a connection to the runtime's streaming server.
func dialRuntime(ctx context.Context, u *url.URL) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, runtimeTimeout)
	defer cancel()
	host, port := u.Hostname(), u.Port()
	if u.Scheme == "https" {
		if port == "" {
			port = "443"
		}
		//nolint:gosec // self-signed by the runtime, see nodeapi.NewRuntimeExecutor
		d := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}
		return d.DialContext(ctx, "tcp", net.JoinHostPort(host, port))
	}
	if port == "" {
		port = "80"
	}
	return new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(host, port))
}

// proxyToRuntime forwards an SPDY request to the runtime's streaming server and then copies the
// bytes in both directions.
func (s *server) proxyToRuntime(ctx context.Context, w http.ResponseWriter, r *http.Request, target string) {
	u, err := url.Parse(target)
	if err != nil {
		writeError(w, fmt.Errorf("parse streaming URL of the runtime: %w", err))
		return
	}
	runtime, err := dialRuntime(ctx, u)
	if err != nil {
		writeError(w, fmt.Errorf("streaming server of the runtime: %w", err))
		return
	}
	defer func() { _ = runtime.Close() }()
	answer, rest, err := upgradeRuntime(runtime, u, r.Header)
	if err != nil {
		writeError(w, fmt.Errorf("streaming server of the runtime: %w", err))
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
		writeError(w, fmt.Errorf("hijack connection: %w", err))
		return
	}
	defer func() { _ = client.Close() }()
	if _, err := fmt.Fprintf(client, "HTTP/1.1 %s\r\n", answer.Status); err != nil {
		return
	}
	if err := errors.Join(answer.Header.Write(client), writeString(client, "\r\n")); err != nil {
		return
	}
	proxy(ctx, s.StreamIdleTimeout, bufferedConn{client, early.Reader}, bufferedConn{runtime, rest})
}

// upgradeRuntime sends the client's upgrade request to the runtime.
func upgradeRuntime(conn net.Conn, u *url.URL, clientHeader http.Header) (*http.Response, *bufio.Reader, error) {
	_ = conn.SetDeadline(time.Now().Add(runtimeTimeout))
	req := &http.Request{Method: http.MethodPost, URL: u, Host: u.Host, Header: http.Header{}}
	for _, name := range []string{"Connection", "Upgrade", "X-Stream-Protocol-Version"} {
		req.Header[name] = clientHeader[name]
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

// bufferedConn is a connection of which some data has been read already.
type bufferedConn struct {
	net.Conn
	r *bufio.Reader
}

func (a bufferedConn) Read(b []byte) (int, error) { return a.r.Read(b) }

// proxy copies in both directions until either side ends, no data was transferred for idle, or ctx
// ends, and closes both connections.
func proxy(ctx context.Context, idle time.Duration, a, b net.Conn) {
	shut := func() { _ = errors.Join(a.Close(), b.Close()) }
	stop := context.AfterFunc(ctx, shut)
	defer stop()
	moved, done := watchIdle(idle, shut)
	defer done()
	var ways sync.WaitGroup
	one := func(to, from net.Conn) {
		defer shut()
		_, _ = io.Copy(to, activityReader{from, moved})
	}
	ways.Go(func() { one(a, b) })
	ways.Go(func() { one(b, a) })
	ways.Wait()
}

// endTimeout limits how long a stream whose context has ended waits for a client that does not read.
const endTimeout = 5 * time.Second

// closeAfterEnd closes the connection of a stream endTimeout after ctx has ended. Until then, a write to a
// client that does not read blocks, with all that waits for it. stop ends the watch and waits for it.
func closeAfterEnd(ctx context.Context, conn io.Closer) (stop func()) {
	stopped := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-ctx.Done():
		case <-stopped:
			return
		}
		timer := time.NewTimer(endTimeout)
		defer timer.Stop()
		select {
		case <-timer.C:
			_ = conn.Close() // the stream reports the failed write
		case <-stopped:
		}
	})
	return func() { close(stopped); watch.Wait() }
}

// watchIdle calls end when active has not been called for idle. 0 disables it.
func watchIdle(idle time.Duration, end func()) (moved, done func()) {
	if idle <= 0 {
		return func() {}, func() {}
	}
	timer := time.AfterFunc(idle, end)
	return func() { timer.Reset(idle) }, func() { timer.Stop() }
}

// activityReader reports each read.
type activityReader struct {
	io.Reader
	active func()
}

func (t activityReader) Read(b []byte) (int, error) {
	n, err := t.Reader.Read(b)
	if n > 0 {
		t.active()
	}
	return n, err
}
