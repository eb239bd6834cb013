package pods

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	clientspdy "k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

const (
	// forwardProtocol is the protocol of forwarded connections, as in kubectl port-forward.
	forwardProtocol = "portforward.k8s.io"
	// forwardPingPeriod is how often an idle forwarded connection is checked.
	forwardPingPeriod = 5 * time.Second
	// failureTimeout limits how long the reader of a connection without data waits for the node's error message.
	failureTimeout = time.Second
	// maxFailureBytes limits the length of the node's error message.
	maxFailureBytes = 4096
)

// Dialer connects the server to pods. On a host that is a node, it uses the pod network. Elsewhere, it forwards
// connections through the API of the pod's node, as kubectl port-forward does. Addresses of other than pods, and
// of pods in the network of their node, are dialed directly.
type Dialer struct {
	Pods     corelisters.PodLister
	Nodes    corelisters.NodeLister
	Kubelets *KubeletTransports
	// HostAddresses returns the addresses of the server's host, by default those of its network interfaces.
	HostAddresses func() ([]net.Addr, error)
}

// DialContext opens a connection to ADDRESS:PORT. Its signature is that of net.Dialer. Only TCP is forwarded.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if to, err := netip.ParseAddrPort(address); err == nil {
		pod, err := d.forwardedPod(to.Addr().Unmap())
		if err != nil {
			return nil, err
		}
		if pod != nil {
			return d.forward(ctx, pod, to.Port())
		}
	}
	return directDialer().DialContext(ctx, network, address)
}

// forwardedPod returns the pod with an address if connections to it are forwarded, or nil.
func (d *Dialer) forwardedPod(address netip.Addr) (*corev1.Pod, error) {
	nodes, err := d.Nodes.List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	addresses := d.HostAddresses
	if addresses == nil {
		addresses = net.InterfaceAddrs
	}
	host, err := addresses()
	if err != nil {
		return nil, fmt.Errorf("addresses of the host: %w", err)
	}
	if isNode(host, nodes) {
		return nil, nil
	}
	all, err := d.Pods.List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	return podWithAddress(all, address), nil
}

// podWithAddress returns the pod that runs on a node and has an address of its own, or nil.
func podWithAddress(all []*corev1.Pod, address netip.Addr) *corev1.Pod {
	text := address.String()
	for _, p := range all {
		if p.Spec.HostNetwork || p.Spec.NodeName == "" || p.Status.Phase == corev1.PodSucceeded ||
			p.Status.Phase == corev1.PodFailed {
			continue
		}
		if p.Status.PodIP == text {
			return p
		}
		for _, ip := range p.Status.PodIPs {
			if ip.IP == text {
				return p
			}
		}
	}
	return nil
}

// isNode reports whether a host with these addresses is one of the nodes.
func isNode(host []net.Addr, nodes []*corev1.Node) bool {
	own := map[string]bool{}
	for _, a := range host {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil {
			own[prefix.Addr().Unmap().String()] = true
		}
	}
	for _, n := range nodes {
		for _, a := range n.Status.Addresses {
			if (a.Type == corev1.NodeInternalIP || a.Type == corev1.NodeExternalIP) && own[a.Address] {
				return true
			}
		}
	}
	return false
}

// forward opens a connection to a port of a pod through the API of its node.
func (d *Dialer) forward(ctx context.Context, pod *corev1.Pod, port uint16) (net.Conn, error) {
	target := fmt.Sprintf("port %d of pod %s/%s through node %s", port, pod.Namespace, pod.Name, pod.Spec.NodeName)
	node, err := d.Nodes.Get(pod.Spec.NodeName)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", target, err)
	}
	to, err := KubeletURL(node)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", target, err)
	}
	to.Path = fmt.Sprintf("/portForward/%s/%s", pod.Namespace, pod.Name)
	connection, err := upgrade(ctx, d.Kubelets.transportTo(node.Name), to.String())
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", target, err)
	}
	out, err := newForwardedConn(connection, port, target)
	if err != nil {
		_ = connection.Close()
		return nil, fmt.Errorf("connect to %s: %w", target, err)
	}
	return out, nil
}

// upgrade opens a connection for streams to a kubelet. It returns when ctx ends or after dialTimeout.
func upgrade(ctx context.Context, base *http.Transport, to string) (httpstream.Connection, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	var unused func() bool // stops the closing of the connection at the end of ctx
	t := base.Clone()
	t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := base.DialContext(ctx, network, address)
		if err == nil {
			unused = context.AfterFunc(ctx, func() { _ = conn.Close() })
		}
		return conn, err
	}
	round, err := spdy.NewRoundTripperWithConfig(
		spdy.RoundTripperConfig{UpgradeTransport: t, PingPeriod: forwardPingPeriod})
	if err != nil {
		return nil, fmt.Errorf("create SPDY transport: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, to, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("create request: %w", err)
	}
	connection, _, err := clientspdy.NegotiateStreaming(clientspdy.NewUpgraderForStreaming(round),
		&http.Client{Transport: round, CheckRedirect: rejectRedirect}, request, forwardProtocol)
	if err != nil {
		return nil, err //nolint:wrapcheck // the caller names the target
	}
	if !unused() {
		_ = connection.Close()
		return nil, ctx.Err()
	}
	return connection, nil
}

// rejectRedirect makes a client return the redirect: a kubelet could send the server's request anywhere.
func rejectRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// forwardedConn is a connection that is forwarded through a node.
type forwardedConn struct {
	net.Conn // local end of a pipe

	connection httpstream.Connection
	target     string
	wg         sync.WaitGroup
	// received is set after the first byte of the pod.
	received atomic.Bool
	// failure has the node's error message, when it is closed.
	failure chan struct{}
	message []byte
}

// newForwardedConn creates the streams of a connection to a port, and owns connection from then on.
func newForwardedConn(connection httpstream.Connection, port uint16, target string) (*forwardedConn, error) {
	header := http.Header{}
	header.Set(corev1.StreamType, corev1.StreamTypeError)
	header.Set(corev1.PortHeader, strconv.Itoa(int(port)))
	header.Set(corev1.PortForwardRequestIDHeader, "0")
	failure, err := connection.CreateStream(header)
	if err != nil {
		return nil, fmt.Errorf("create error stream: %w", err)
	}
	_ = failure.Close() // only read
	header.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err := connection.CreateStream(header)
	if err != nil {
		return nil, fmt.Errorf("create data stream: %w", err)
	}
	local, remote := net.Pipe()
	c := &forwardedConn{Conn: local, connection: connection, target: target, failure: make(chan struct{})}
	c.wg.Go(func() {
		defer close(c.failure)
		c.message, _ = io.ReadAll(io.LimitReader(failure, maxFailureBytes)) // the end of the connection ends it
	})
	c.wg.Go(func() {
		defer func() { _ = remote.Close() }()
		_, _ = io.Copy(remote, firstByte{data, &c.received}) // an error ends the connection like EOF
		if !c.received.Load() {
			c.awaitFailure()
		}
	})
	c.wg.Go(func() {
		_, _ = io.Copy(data, remote)
		_ = data.Close()
	})
	return c, nil
}

// awaitFailure waits for the node's error message, which may arrive after the end of the data.
func (c *forwardedConn) awaitFailure() {
	timeout := time.NewTimer(failureTimeout)
	defer timeout.Stop()
	select {
	case <-c.failure:
	case <-timeout.C:
	}
}

// Read reads from the pod. It returns the cause if the connection ended before its first byte.
func (c *forwardedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	return n, c.cause(err)
}

// Write writes to the pod. It returns the cause if the connection ended before its first byte.
func (c *forwardedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	return n, c.cause(err)
}

// cause returns what to report for an error of the pipe.
func (c *forwardedConn) cause(err error) error {
	if err == nil || c.received.Load() || !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrClosedPipe) {
		return err
	}
	select {
	case <-c.failure:
		if len(c.message) > 0 {
			return fmt.Errorf("connect to %s: %s", c.target, c.message)
		}
	default:
	}
	return fmt.Errorf("connect to %s: connection refused, or closed without data", c.target)
}

// Close closes the connection and waits for its goroutines.
func (c *forwardedConn) Close() error {
	err := errors.Join(c.Conn.Close(), c.connection.Close())
	c.wg.Wait()
	return err
}

// firstByte sets received when the first byte was read.
type firstByte struct {
	io.Reader

	received *atomic.Bool
}

// Read reads and sets received.
func (f firstByte) Read(p []byte) (int, error) {
	n, err := f.Reader.Read(p)
	if n > 0 {
		f.received.Store(true)
	}
	return n, err
}
