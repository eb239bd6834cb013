package server

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"
	upgrader "k8s.io/streaming/pkg/httpstream/spdy"

	"berth/nodeapi"
)

// forwarded returns a server with pods whose ports are those of the test host, and the set of deleted pods.
func forwarded(t *testing.T, idle time.Duration) (*testServer, *sync.Map) {
	t.Helper()
	deleted := &sync.Map{} // deleted pods
	return serve(t, func(o *Options) {
		o.StreamIdleTimeout = idle
		o.Handlers = Handlers{
			CheckReachable: func(_ context.Context, p PodRef) error {
				if _, is := deleted.Load(p.Name); is {
					return errors.New("pod deleted")
				}
				return nil
			},
			DialPort: func(ctx context.Context, _ PodRef, port uint16) (nodeapi.Stream, error) {
				conn, err := new(net.Dialer).DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
				if err != nil {
					return nil, err
				}
				return conn.(*net.TCPConn), nil
			},
		}
	}), deleted
}

// echo starts a server that reads until EOF and returns the data in upper case. It returns the
// port.
func echo(t *testing.T) int {
	t.Helper()
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer conn.Close()
				data, _ := io.ReadAll(conn)
				_, _ = conn.Write(bytes.ToUpper(data))
			})
		}
	})
	t.Cleanup(func() { _ = ln.Close(); all.Wait() })
	return ln.Addr().(*net.TCPAddr).Port
}

// closedPort returns a port without a listener.
func closedPort(t *testing.T) int {
	t.Helper()
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr).Port
}

// exchange sends text through a local port, closes the direction, and returns the response.
func exchange(t *testing.T, port uint16, text string) (string, error) {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := io.WriteString(conn, text); err != nil {
		return "", err
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(conn)
	return string(answer), err
}

// forward runs client-go's port forwarder, over SPDY or over SPDY in a WebSocket.
func forward(
	t *testing.T,
	c *rest.Config,
	target string,
	tunnel bool,
	ports ...string,
) (fw *portforward.PortForwarder, stopped chan error) {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	stop, ready := make(chan struct{}), make(chan struct{})
	if tunnel {
		dialer, err2 := portforward.NewSPDYOverWebsocketDialer(u, c)
		if err2 != nil {
			t.Fatal(err2)
		}
		fw, err = portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, ports, stop, ready, io.Discard, io.Discard)
	} else {
		rt, up, err2 := spdy.RoundTripperFor(c)
		if err2 != nil {
			t.Fatal(err2)
		}
		dialer := spdy.NewDialer(up, &http.Client{Transport: rt}, http.MethodPost, u)
		fw, err = portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, ports, stop, ready, io.Discard, io.Discard)
	}
	if err != nil {
		t.Fatal(err)
	}
	stopped = make(chan error, 1)
	done := make(chan struct{})
	go func() { defer close(done); stopped <- fw.ForwardPorts() }()
	t.Cleanup(func() { close(stop); <-done })
	select {
	case <-ready:
	case err := <-stopped:
		t.Fatal(err)
	}
	return fw, stopped
}

// TestFailedForwardedConnectionDoesNotAffectOthers (K4): a forwarded connection that fails does not affect
// other connections.
func TestFailedForwardedConnectionDoesNotAffectOthers(t *testing.T) {
	t.Parallel()
	for name, tunnel := range map[string]bool{"SPDY": false, "SPDY in a WebSocket": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, deleted := forwarded(t, 0)
			open, closed := echo(t), closedPort(t)
			fw, stopped := forward(
				t,
				w.config(t),
				w.url+"/portForward/ns/p",
				tunnel,
				fmt.Sprintf("0:%d", open),
				fmt.Sprintf("0:%d", closed),
			)
			ports, err := fw.GetPorts()
			if err != nil {
				t.Fatal(err)
			}
			earlier, err := new(net.Dialer).DialContext(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", ports[0].Local))
			if err != nil {
				t.Fatal(err)
			}
			defer earlier.Close()
			if _, err := io.WriteString(earlier, "earlier "); err != nil {
				t.Fatal(err)
			}
			for i := range 5 {
				if answer, _ := exchange(t, ports[1].Local, "x"); answer != "" {
					t.Errorf("response of a closed port: %q", answer)
				}
				text := fmt.Sprintf("hello %d ", i) + strings.Repeat("z", 100<<10)
				if answer, err := exchange(t, ports[0].Local, text); answer != strings.ToUpper(text) || err != nil {
					t.Errorf("after a failure: %d bytes, %v", len(answer), err)
				}
			}
			_ = earlier.SetDeadline(time.Now().Add(30 * time.Second))
			_, _ = io.WriteString(earlier, "on")
			_ = earlier.(*net.TCPConn).CloseWrite()
			if answer, err := io.ReadAll(earlier); string(answer) != "EARLIER ON" || err != nil {
				t.Errorf("earlier connection: %q, %v", answer, err)
			}
			select {
			case err := <-stopped:
				t.Errorf("port forwarding stopped: %v", err)
				stopped <- err
			default:
			}
			deleted.Store("p", true)
			_, _ = exchange(t, ports[1].Local, "x")
			if err := <-stopped; err == nil {
				t.Error("port forwarding stopped without error after the pod was deleted")
			}
		})
	}
}

func TestPortForwardOverWebSocketChannels(t *testing.T) {
	t.Parallel()
	w, _ := forwarded(t, 0)
	open, closed := echo(t), closedPort(t)
	ws := dialWS(t, w, fmt.Sprintf("/portForward/ns/p?ports=%d&ports=%d", open, closed), "v4.channel.k8s.io")
	if err := ws.WriteMessage(websocket.BinaryMessage, []byte("\x00hello")); err != nil {
		t.Fatal(err)
	}
	channelPorts := map[byte]uint16{}
	for len(channelPorts) < 4 {
		_, m, err := ws.ReadMessage()
		if err != nil {
			t.Fatal(err)
		}
		if len(m) == 3 {
			channelPorts[m[0]] = binary.LittleEndian.Uint16(m[1:])
		} else if m[0] != 3 || !strings.Contains(string(m), "connection refused") {
			t.Errorf("got %q", m)
		}
	}
	if channelPorts[0] != uint16(open) || channelPorts[1] != uint16(open) ||
		channelPorts[2] != uint16(closed) || channelPorts[3] != uint16(closed) {
		t.Errorf("ports of the channels: %v", channelPorts)
	}
}

func dialWS(t *testing.T, w *testServer, path string, protocols ...string) *websocket.Conn {
	t.Helper()
	ws, code, err := tryWS(t, w, path, protocols...)
	if err != nil {
		t.Fatal(code, err)
	}
	return ws
}

func tryWS(t *testing.T, w *testServer, path string, protocols ...string) (*websocket.Conn, int, error) {
	t.Helper()
	tr := w.master(t).Transport.(bearer).next.(*http.Transport)
	d := websocket.Dialer{TLSClientConfig: tr.TLSClientConfig, Subprotocols: protocols}
	// API servers forward the Origin of their clients.
	origin := http.Header{"Origin": {"http://elsewhere.example"}}
	ws, resp, err := d.DialContext(t.Context(), strings.Replace(w.url, "https", "wss", 1)+path, origin)
	code := 0
	if resp != nil {
		code = resp.StatusCode
		_ = resp.Body.Close()
	}
	if err == nil {
		t.Cleanup(func() { _ = ws.Close() })
		_ = ws.SetReadDeadline(time.Now().Add(30 * time.Second))
	}
	return ws, code, err
}

// silent is a runtime that accepts streams and sends nothing. Closed reports that its client has
// disconnected.
func silent(t *testing.T) (target string, closed chan struct{}) {
	t.Helper()
	closed = make(chan struct{}, 8)
	var all sync.WaitGroup
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := httpstream.Handshake(r, w, []string{"v4.channel.k8s.io"}); err != nil {
			return
		}
		conn := upgrader.NewResponseUpgrader().UpgradeResponse(w, r, httpstream.NoOpNewStreamHandler)
		if conn == nil {
			return
		}
		all.Go(func() {
			<-conn.CloseChan()
			_ = conn.Close()
			closed <- struct{}{}
		})
	}))
	t.Cleanup(func() { s.Close(); all.Wait() })
	return s.URL + "/exec/token", closed
}

// upgrade sends an SPDY upgrade request and returns the connection.
func upgrade(t *testing.T, w *testServer, path string) net.Conn {
	t.Helper()
	conn := upgradeTLS(t, w)
	_, _ = fmt.Fprintf(
		conn,
		"POST %s HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: "+
			"v4.channel.k8s.io\r\nX-Stream-Protocol-Version: portforward.k8s.io\r\n\r\n",
		path,
	)
	return conn
}

// upgradeTLS is an HTTP/1.1 connection of a member of system:masters.
func upgradeTLS(t *testing.T, w *testServer) net.Conn {
	t.Helper()
	tr := w.master(t).Transport.(bearer).next.(*http.Transport)
	config := tr.TLSClientConfig.Clone()
	config.NextProtos = []string{"http/1.1"}
	conn, err := newTLS(t, strings.TrimPrefix(w.url, "https://"), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	return conn
}

// TestIdleStreamEnds (K5): an idle stream is closed after its timeout.
func TestIdleStreamEnds(t *testing.T) {
	t.Parallel()
	target, closed := silent(t)
	const idle = 300 * time.Millisecond
	w := serve(t, func(o *Options) {
		o.StreamIdleTimeout = idle
		o.Handlers = Handlers{
			Exec: func(context.Context, StreamRequest) (string, error) { return target, nil },
			DialPort: func(context.Context, PodRef, uint16) (nodeapi.Stream, error) {
				return nil, errors.New("no")
			},
			CheckReachable: func(context.Context, PodRef) error { return nil },
		}
	})
	for _, path := range []string{"/exec/ns/p/c?command=x&output=1", "/portForward/ns/p"} {
		start := time.Now()
		all, err := io.ReadAll(upgrade(t, w, path))
		if elapsed := time.Since(start); elapsed < idle || elapsed > 20*time.Second ||
			!strings.Contains(string(all), "101 Switching") {
			t.Errorf("%s stopped after %s (%v): %q", path, elapsed, err, all)
		}
	}
	<-closed // the runtime's side is closed as well
	ws := dialWS(t, w, "/exec/ns/p/c?command=x&output=1", "v4.channel.k8s.io")
	for {
		if _, _, err := ws.ReadMessage(); err != nil {
			if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
				t.Error("WebSocket was not closed")
			}
			break
		}
	}
	<-closed
}

// TestStreamsEndWithServer (K5): all streams are closed when the server stops.
func TestStreamsEndWithServer(t *testing.T) {
	t.Parallel()
	target, closed := silent(t)
	w := serve(t, func(o *Options) {
		o.Handlers = Handlers{
			Exec: func(context.Context, StreamRequest) (string, error) { return target, nil },
			Logs: func(ctx context.Context, _ LogRequest, out, _ io.Writer) error {
				_, _ = io.WriteString(out, "a line\n")
				<-ctx.Done()
				return ctx.Err()
			},
		}
	})
	conn := upgrade(t, w, "/exec/ns/p/c?command=x&output=1")
	head := make([]byte, 12)
	if _, err := io.ReadFull(conn, head); err != nil || string(head) != "HTTP/1.1 101" {
		t.Fatal(string(head), err)
	}
	ws := dialWS(t, w, "/exec/ns/p/c?command=x&output=1", "v5.channel.k8s.io")
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+"/containerLogs/ns/p/c?follow=true", nil)
	resp, err := w.master(t).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	w.stop()
	if _, err := io.ReadAll(conn); err != nil {
		t.Errorf("exec: %v", err)
	}
	for {
		if _, _, err := ws.ReadMessage(); err != nil {
			break
		}
	}
	if text, _ := io.ReadAll(resp.Body); string(text) != "a line\n" {
		t.Errorf("log: %q", text)
	}
	<-closed
	<-closed
}

// TestServerEndsWithClientThatDoesNotRead (K5): the server ends although clients do not read the output of their
// commands and ports.
func TestServerEndsWithClientThatDoesNotRead(t *testing.T) {
	t.Parallel()
	blocked := make(chan struct{}, 4)
	flood := func(out io.Writer) {
		var once sync.Once
		timer := time.AfterFunc(time.Minute, func() { once.Do(func() { blocked <- struct{}{} }) })
		defer timer.Stop()
		var err error
		for block := make([]byte, 64<<10); err == nil; _, err = out.Write(block) {
			timer.Reset(500 * time.Millisecond) // no write takes this long while the client reads
		}
	}
	target := fakeCommand(t, 0, flood)
	w := serve(t, func(o *Options) {
		o.Handlers = Handlers{
			Exec:           func(context.Context, StreamRequest) (string, error) { return target, nil },
			CheckReachable: func(context.Context, PodRef) error { return nil },
			DialPort: func(context.Context, PodRef, uint16) (nodeapi.Stream, error) {
				return floodingPort(t, flood), nil
			},
		}
	})
	_ = dialWS(t, w, "/exec/ns/p/c?command=x&output=1", "v5.channel.k8s.io")
	_ = dialWS(t, w, "/portForward/ns/p?port=80", "v4.channel.k8s.io")
	for _, tunnel := range []bool{false, true} {
		fw, _ := forward(t, w.config(t), w.url+"/portForward/ns/p", tunnel, "0:80")
		ports, err := fw.GetPorts()
		if err != nil {
			t.Fatal(err)
		}
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", ports[0].Local))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	for range 4 {
		<-blocked
	}
	w.stop()
	if err := <-w.stopped; err != nil {
		t.Errorf("Serve: %v", err)
	}
	w.stopped <- nil
}

// floodingPort is a connection to a port that writes.
func floodingPort(t *testing.T, flood func(io.Writer)) nodeapi.Stream {
	t.Helper()
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Error(err)
		return nil
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		if conn, err := ln.Accept(); err == nil {
			flood(conn)
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() { _ = ln.Close(); <-served })
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", ln.Addr().String())
	if err != nil {
		t.Error(err)
		return nil
	}
	return conn.(*net.TCPConn)
}

func TestInvalidStreamRequestsAreRejected(t *testing.T) {
	t.Parallel()
	w := serve(t, func(o *Options) { o.Handlers = everything(t) })
	for path, want := range map[string]string{
		"/exec/ns/p/c?command=x":                     "you must specify at least 1 of stdin, stdout, stderr",
		"/exec/ns/p/c?output=1":                      "command: required",
		"/exec/ns/p/c?command=x&output=maybe":        "output: ",
		"/exec/ns/p/c?command=x&output=1":            "Upgrade request required",
		"/exec/ns/p/c?command=x&error=true&tty=true": "you must specify at least 1 of stdin, stdout, stderr",
		"/attach/ns/p/c":                             "you must specify at least 1 of stdin, stdout, stderr",
		"/run/ns/p/c":                                "cmd: required",
		"/portForward/ns/p":                          "Upgrade request required",
	} {
		if code, body := request(t, w.master(t), "POST", w.url+path); code != 400 || !strings.Contains(body, want) {
			t.Errorf("%s: %d %q, want %q", path, code, body, want)
		}
	}
	if _, code, err := tryWS(t, w, "/exec/ns/p/c?command=x&output=1", "v9.channel.k8s.io"); err == nil || code != 400 {
		t.Errorf("unknown protocol: %d, %v", code, err)
	}
}
