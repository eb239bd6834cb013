package nodeapi

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// upgradeTo is the protocol of a forwarded connection: after the upgrade, the connection carries
// the raw bytes in both directions.
const upgradeTo = "berth-stream"

// forwardTimeout limits the time to establish a forwarded connection.
const forwardTimeout = 30 * time.Second

// Stream is a connection whose directions can be closed separately.
type Stream interface {
	net.Conn
	CloseRead() error
	CloseWrite() error
}

// forward connects one connection of the client to a port of the pod. Every connection is a
// separate request, so that a failure does not affect others.
func (s *server) forward(w http.ResponseWriter, r *http.Request) {
	port, err := strconv.ParseUint(r.URL.Query().Get("port"), 10, 16)
	if err != nil || port == 0 {
		writeError(w, apierrors.NewBadRequest("port: must be a number between 1 and 65535"))
		return
	}
	if !strings.EqualFold(r.Header.Get("Upgrade"), upgradeTo) {
		writeError(w, apierrors.NewBadRequest("Upgrade request required: "+upgradeTo))
		return
	}
	s.streams.Add(1) // the HTTP server does not wait for hijacked connections
	defer s.streams.Done()
	ctx, cancel := s.streaming(r)
	defer cancel()
	dialing, dialed := context.WithTimeout(ctx, forwardTimeout)
	pod, err := s.h.DialPort(dialing, r.PathValue("namespace"), r.PathValue("name"), uint16(port))
	dialed()
	if err != nil {
		writeError(w, err)
		return
	}
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		writeError(w, errors.Join(fmt.Errorf("hijack connection: %w", err), pod.Close()))
		return
	}
	client, ok := conn.(Stream)
	if !ok {
		_ = errors.Join(conn.Close(), pod.Close())
		return
	}
	_, err = io.WriteString(
		client,
		"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+upgradeTo+"\r\n\r\n",
	)
	if err != nil {
		_ = errors.Join(client.Close(), pod.Close())
		return
	}
	ProxyStreams(ctx, unread(client, buffered.Reader), pod)
}

// ProxyStreams copies between two connections in both directions until both directions have ended
// or ctx ends, and closes both connections. The end of one direction is propagated and leaves the
// other open, so that a response that continues after the end of the request arrives completely.
func ProxyStreams(ctx context.Context, a, b Stream) {
	shut := context.AfterFunc(ctx, func() { _ = errors.Join(a.Close(), b.Close()) })
	defer func() {
		shut()
		_ = errors.Join(a.Close(), b.Close()) // may already be closed
	}()
	one := func(to, from Stream) {
		_, _ = io.Copy(to, from) // an error ends this direction like EOF
		_ = errors.Join(to.CloseWrite(), from.CloseRead())
	}
	var both sync.WaitGroup
	both.Go(func() { one(a, b) })
	both.Go(func() { one(b, a) })
	both.Wait()
}

// unread returns a connection that first returns what r has already buffered.
func unread(conn Stream, r *bufio.Reader) Stream {
	if r.Buffered() == 0 {
		return conn
	}
	return &prefixedStream{Stream: conn, first: io.LimitReader(r, int64(r.Buffered()))}
}

type prefixedStream struct {
	Stream
	first io.Reader
}

func (c *prefixedStream) Read(b []byte) (int, error) {
	if n, err := c.first.Read(b); n > 0 || !errors.Is(err, io.EOF) {
		return n, err
	}
	return c.Stream.Read(b)
}

// PortForward opens a connection to a port of the pod, in the network namespace of the pod.
func (c *Client) PortForward(ctx context.Context, namespace, pod string, port uint16) (Stream, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", c.socket)
	if err != nil {
		return nil, &dialError{socket: c.socket, err: err}
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	s, err := upgrade(conn, podPath(namespace, pod, "/portforward?port="+strconv.Itoa(int(port))))
	if err != nil {
		return nil, errors.Join(err, ignoreClosed(conn.Close()))
	}
	return s, nil
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func upgrade(conn net.Conn, path string) (Stream, error) {
	stream, ok := conn.(Stream)
	if !ok {
		return nil, fmt.Errorf("connection of type %T does not support half-close", conn)
	}
	u, err := url.Parse("http://berth" + path)
	if err != nil {
		return nil, err
	}
	req := &http.Request{
		Method: http.MethodPost,
		URL:    u,
		Host:   u.Host,
		Header: http.Header{"Connection": {"Upgrade"}, "Upgrade": {upgradeTo}},
	}
	if err := req.Write(conn); err != nil {
		return nil, fmt.Errorf("request to the agent: %w", err)
	}
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, req)
	if err != nil {
		return nil, fmt.Errorf("response of the agent: %w", err)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		defer func() { _ = resp.Body.Close() }()
		return nil, readError(resp)
	}
	return unread(stream, r), nil
}
