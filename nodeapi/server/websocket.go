package server

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
)

// Channels of a command over a WebSocket: the first byte of each message.
const (
	channelIn     = 0
	channelOut    = 1
	channelErr    = 2
	channelStatus = 3
	channelSize   = 4
	channelClose  = 255 // v5: the next byte is the channel that is closed
)

// channelProtocols are the supported subprotocols. Those without a version are the oldest: they
// report only a failed command, as plain text.
var channelProtocols = []string{
	"v5.channel.k8s.io",
	"v4.channel.k8s.io",
	"v4.base64.channel.k8s.io",
	"channel.k8s.io",
	"base64.channel.k8s.io",
}

// channelProtocol negotiates the subprotocol: the first choice of the client that is supported. A
// client that requests none uses the oldest one.
func channelProtocol(r *http.Request) (protocol string, ok bool) {
	requested := websocket.Subprotocols(r)
	if len(requested) == 0 {
		return "", true
	}
	i := slices.IndexFunc(requested, func(p string) bool { return slices.Contains(channelProtocols, p) })
	if i < 0 {
		return "", false
	}
	return requested[i], true
}

const (
	wsControlTimeout = 10 * time.Second // to write a control message
	wsCloseTimeout   = 5 * time.Second  // for the client to close the connection after the end
)

// upgradeWebSocket upgrades the connection. On error the response has been written.
func upgradeWebSocket(w http.ResponseWriter, r *http.Request, protocols []string) (*websocket.Conn, error) {
	up := websocket.Upgrader{
		Subprotocols: protocols, HandshakeTimeout: headerTimeout, ReadBufferSize: 4 << 10, WriteBufferSize: 4 << 10,
		// Clients authenticate with a certificate or a token, never with credentials that a
		// browser sends automatically. API servers forward the Origin of their clients.
		CheckOrigin: func(*http.Request) bool { return true },
		Error: func(w http.ResponseWriter, _ *http.Request, status int, reason error) {
			http.Error(w, reason.Error(), status)
		},
	}
	return up.Upgrade(w, r, nil)
}

// serveWebSocket connects the channels of a WebSocket to the streams at target.
func (s *server) serveWebSocket(
	ctx context.Context,
	w http.ResponseWriter,
	r *http.Request,
	req StreamRequest,
	target string,
) {
	protocol, _ := channelProtocol(r)
	conn, err := upgradeWebSocket(w, r, []string{protocol})
	if err != nil {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer closeAfterEnd(ctx, conn)()
	c := newChannelConn(conn, cancel)
	defer c.watchIdle(s.StreamIdleTimeout)()
	in, out := c.input(channelIn, req.Stdin), remotecommand.StreamOptions{Tty: req.TTY}
	size := c.input(channelSize, req.TTY)
	if req.Stdin {
		out.Stdin = in
	}
	if req.TTY {
		out.TerminalSizeQueue = terminalSizes{json.NewDecoder(size)}
	}
	if req.Stdout {
		out.Stdout = c.output(channelOut)
	}
	if req.Stderr {
		out.Stderr = c.output(channelErr)
	}
	reading := make(chan struct{})
	go func() {
		defer close(reading)
		defer cancel() // the client is disconnected
		c.read()
	}()
	// Clients wait for a first message before they consider the stream established.
	first := byte(channelStatus)
	switch {
	case req.Stdout:
		first = channelOut
	case req.Stderr:
		first = channelErr
	}
	_, err = c.output(first).Write(nil)
	if err == nil {
		err = streamToRuntime(ctx, target, out)
		c.writeStatus(statusOf(err))
	}
	c.end(reading)
}

// writeStatus reports the end of a command in the format of the negotiated protocol.
func (c *channelConn) writeStatus(s metav1.Status) {
	text := []byte(s.Message)
	if !c.plainStatus {
		var err error
		if text, err = json.Marshal(s); err != nil {
			return
		}
	}
	if len(text) > 0 {
		_, _ = c.output(channelStatus).Write(text)
	}
}

// statusOf converts the end of a command to the Status that clients decode.
func statusOf(err error) metav1.Status {
	if err == nil || errors.Is(err, io.EOF) {
		return metav1.Status{Status: metav1.StatusSuccess}
	}
	if code, ok := errors.AsType[exec.CodeExitError](err); ok {
		return metav1.Status{
			Status: metav1.StatusFailure, Reason: "NonZeroExitCode", // as upstream's remotecommand
			Message: fmt.Sprintf("command terminated with exit code %d", code.Code),
			Details: &metav1.StatusDetails{
				Causes: []metav1.StatusCause{{Type: "ExitCode", Message: fmt.Sprint(code.Code)}},
			},
		}
	}
	return metav1.Status{
		Status: metav1.StatusFailure, Reason: metav1.StatusReasonInternalError, Code: http.StatusInternalServerError,
		Message: err.Error(),
	}
}

// terminalSizes decodes the sizes of the client's terminal.
type terminalSizes struct{ from *json.Decoder }

func (s terminalSizes) Next() *remotecommand.TerminalSize {
	var size remotecommand.TerminalSize
	if s.from.Decode(&size) != nil {
		return nil
	}
	return &size
}

// channelConn is a WebSocket whose messages belong to channels.
type channelConn struct {
	conn        *websocket.Conn
	base64      bool
	canClose    bool // the protocol can close single channels (v5)
	plainStatus bool // a failure is reported as text, and success not at all (before v4)
	cancel      func()
	active      func()

	in      map[byte]*io.PipeWriter // input channels
	writing sync.Mutex
}

func newChannelConn(conn *websocket.Conn, leave func()) *channelConn {
	protocol := conn.Subprotocol()
	return &channelConn{
		conn: conn, cancel: leave, active: func() {}, in: map[byte]*io.PipeWriter{},
		base64: strings.Contains(
			protocol,
			"base64.",
		), canClose: strings.HasPrefix(protocol, "v5."), plainStatus: !strings.HasPrefix(protocol, "v"),
	}
}

// watchIdle closes the stream after a time without any message, pings included. It returns a
// function that stops the watch.
func (c *channelConn) watchIdle(bound time.Duration) (done func()) {
	c.active, done = watchIdle(bound, func() { c.cancel(); _ = c.conn.Close() })
	pong := c.conn.PingHandler()
	c.conn.SetPingHandler(func(data string) error { c.active(); return pong(data) })
	return done
}

// input returns the reader of an input channel. It must be called before read.
func (c *channelConn) input(channel byte, wanted bool) *io.PipeReader {
	r, w := io.Pipe()
	if wanted {
		c.in[channel] = w
	}
	return r
}

// read dispatches messages until the client disconnects, and then closes the channels.
func (c *channelConn) read() {
	var err error
	for err == nil {
		var message io.Reader
		if _, message, err = c.conn.NextReader(); err == nil {
			c.active()
			err = c.dispatch(message)
		}
	}
	for _, w := range c.in {
		_ = w.CloseWithError(io.EOF)
	}
}

// dispatch writes a message to its channel. A message for an unknown channel is dropped.
func (c *channelConn) dispatch(message io.Reader) error {
	var channel [1]byte
	if _, err := io.ReadFull(message, channel[:]); err != nil {
		return ignoreEOF(err)
	}
	if c.base64 {
		channel[0] -= '0'
		message = base64.NewDecoder(base64.StdEncoding, message)
	}
	if channel[0] == channelClose && c.canClose {
		if _, err := io.ReadFull(message, channel[:]); err != nil {
			return ignoreEOF(err)
		}
		if w, ok := c.in[channel[0]]; ok {
			_ = w.Close()
		}
		return nil
	}
	w, ok := c.in[channel[0]]
	if !ok {
		return nil
	}
	_, err := io.Copy(w, message)
	if errors.Is(err, io.ErrClosedPipe) { // the channel is no longer read
		return nil
	}
	return err
}

func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// output returns the writer of an output channel.
func (c *channelConn) output(channel byte) io.Writer { return channelWriter{c, channel} }

type channelWriter struct {
	c       *channelConn
	channel byte
}

// Write sends one message.
func (w channelWriter) Write(b []byte) (int, error) {
	c := w.c
	c.writing.Lock()
	defer c.writing.Unlock()
	kind, lead := websocket.BinaryMessage, w.channel
	if c.base64 {
		kind, lead = websocket.TextMessage, '0'+w.channel
	}
	m, err := c.conn.NextWriter(kind)
	if err != nil {
		return 0, err
	}
	_, err = m.Write([]byte{lead})
	if err == nil && c.base64 {
		enc := base64.NewEncoder(base64.StdEncoding, m)
		_, err = enc.Write(b)
		err = errors.Join(err, enc.Close())
	} else if err == nil {
		_, err = m.Write(b)
	}
	if err = errors.Join(err, m.Close()); err != nil {
		return 0, err
	}
	c.active()
	return len(b), nil
}

// end sends the close message and waits a limited time for the client to close.
func (c *channelConn) end(reading <-chan struct{}) {
	c.writing.Lock()
	_ = c.conn.WriteControl(
		websocket.CloseMessage,
		websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""),
		time.Now().Add(wsControlTimeout),
	)
	c.writing.Unlock()
	for _, w := range c.in { // the command no longer reads: discard further input
		_ = w.Close()
	}
	late := time.AfterFunc(wsCloseTimeout, func() { _ = c.conn.Close() })
	<-reading
	late.Stop()
	_ = c.conn.Close()
}
