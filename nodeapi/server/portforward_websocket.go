package server

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// maxForwards limits the number of ports per WebSocket. A port uses two channels.
const maxForwards = 64

// forwardProtocols are the subprotocols of clients that forward over WebSocket channels, such as
// the client libraries of other languages: one connection per port, opened with the request.
var forwardProtocols = []string{"v4.channel.k8s.io", "v4.base64.channel.k8s.io"}

// forwardChannels connects pairs of channels of a WebSocket, data and error, to ports of the pod.
func (s *server) forwardChannels(ctx context.Context, w http.ResponseWriter, r *http.Request, pod PodRef) {
	ports, err := portsOf(r)
	if err != nil {
		writeError(w, err)
		return
	}
	conn, err := upgradeWebSocket(w, r, forwardProtocols)
	if err != nil {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := newChannelConn(conn, cancel)
	defer c.watchIdle(s.StreamIdleTimeout)()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	var all sync.WaitGroup
	begin := make(chan struct{})
	for i, port := range ports {
		data, fail := byte(2*i), byte(2*i+1)
		in := c.input(data, true)
		all.Go(func() {
			<-begin
			s.forwardChannel(ctx, pod, port, in, c.output(data), c.output(fail))
		})
	}
	reading := make(chan struct{})
	go func() {
		defer close(reading)
		defer cancel()
		c.read()
	}()
	close(begin)
	all.Wait()
	c.end(reading)
}

func portsOf(r *http.Request) (ports []uint16, err error) {
	v := r.URL.Query()
	for _, list := range append(v["ports"], v["port"]...) {
		for text := range strings.SplitSeq(list, ",") {
			n, err := strconv.ParseUint(text, 10, 16)
			if err != nil || n == 0 {
				return nil, apierrors.NewBadRequest(fmt.Sprintf("port %q must be a number between 1 and 65535", text))
			}
			ports = append(ports, uint16(n))
		}
	}
	if len(ports) == 0 || len(ports) > maxForwards {
		return nil, apierrors.NewBadRequest(
			fmt.Sprintf("query parameter \"port\" is required, maximum %d", maxForwards),
		)
	}
	return ports, nil
}

// forwardChannel serves one connection. Each channel starts with its port number.
func (s *server) forwardChannel(ctx context.Context, pod PodRef, port uint16, in *io.PipeReader, out, fail io.Writer) {
	defer func() { _ = in.Close() }()
	name := binary.LittleEndian.AppendUint16(nil, port)
	if _, err := out.Write(name); err != nil {
		return
	}
	if _, err := fail.Write(name); err != nil {
		return
	}
	dialing, dialed := context.WithTimeout(ctx, dialTimeout)
	conn, err := s.h.DialPort(dialing, pod, port)
	dialed()
	if err != nil {
		_, _ = fmt.Fprintf(fail, "error forwarding port %d to pod %s: %v", port, pod.Name, err)
		return
	}
	defer func() { _ = conn.Close() }()
	shut := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer shut()
	up := make(chan struct{})
	go func() {
		defer close(up)
		_, _ = io.Copy(conn, in)
		_ = conn.CloseWrite()
	}()
	_, _ = io.Copy(out, conn)
	_ = in.Close() // one channel cannot be half-closed: close the other direction as well
	<-up
}
