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
	channelClose  = 255 // of v5: the byte after names the channel that has ended
)

// channelProtocols are spoken here. Those without a version are the oldest: a command's
// end is told by words, and only if it failed.
var channelProtocols = []string{"v5.channel.k8s.io", "v4.channel.k8s.io", "v4.base64.channel.k8s.io", "channel.k8s.io", "base64.channel.k8s.io"}

// channelProtocol is the client's first choice of them. A client that names none
// speaks the oldest one, which had no name once.
func channelProtocol(r *http.Request) (protocol string, ok bool) {
	asked := websocket.Subprotocols(r)
	if len(asked) == 0 {
		return "", true
	}
	i := slices.IndexFunc(asked, func(p string) bool { return slices.Contains(channelProtocols, p) })
	if i < 0 {
		return "", false
	}
	return asked[i], true
}

const (
	wsControl  = 10 * time.Second // for a control message to be written
	wsFarewell = 5 * time.Second  // for the client to close what has ended
)

// upgradeWebSocket takes the connection over. The error has been answered.
func upgradeWebSocket(w http.ResponseWriter, r *http.Request, protocols []string) (*websocket.Conn, error) {
	up := websocket.Upgrader{
		Subprotocols: protocols, HandshakeTimeout: headerBound, ReadBufferSize: 4 << 10, WriteBufferSize: 4 << 10,
		// Who asks is known by certificate or token, never by what a browser sends by itself;
		// API servers hand on the Origin that their clients sent them.
		CheckOrigin: func(*http.Request) bool { return true },
		Error: func(w http.ResponseWriter, _ *http.Request, status int, reason error) {
			http.Error(w, reason.Error(), status)
		},
	}
	return up.Upgrade(w, r, nil)
}

// channels joins the channels of a WebSocket to the streams at target.
func (s *server) channels(ctx context.Context, w http.ResponseWriter, r *http.Request, req StreamRequest, target string) {
	protocol, _ := channelProtocol(r)
	conn, err := upgradeWebSocket(w, r, []string{protocol})
	if err != nil {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := newSocket(conn, cancel)
	defer c.idle(s.StreamIdleTimeout)()
	in, out := c.input(channelIn, req.Stdin), remotecommand.StreamOptions{Tty: req.TTY}
	size := c.input(channelSize, req.TTY)
	if req.Stdin {
		out.Stdin = in
	}
	if req.TTY {
		out.TerminalSizeQueue = sizes{json.NewDecoder(size)}
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
		defer cancel() // the client is gone
		c.read()
	}()
	// Clients wait for a first message before they take the stream as made.
	first := byte(channelStatus)
	switch {
	case req.Stdout:
		first = channelOut
	case req.Stderr:
		first = channelErr
	}
	_, err = c.output(first).Write(nil)
	if err == nil {
		err = joinRuntime(ctx, target, out)
		c.tell(statusOf(err))
	}
	c.end(reading)
}

// tell sends how a command has ended, as the client's protocol has it.
func (c *socket) tell(s metav1.Status) {
	text := []byte(s.Message)
	if !c.words {
		var err error
		if text, err = json.Marshal(s); err != nil {
			return
		}
	}
	if len(text) > 0 {
		_, _ = c.output(channelStatus).Write(text)
	}
}

// statusOf tells how a command has ended, in the form that clients decode.
func statusOf(err error) metav1.Status {
	if err == nil || errors.Is(err, io.EOF) {
		return metav1.Status{Status: metav1.StatusSuccess}
	}
	if code, ok := errors.AsType[exec.CodeExitError](err); ok {
		return metav1.Status{
			Status: metav1.StatusFailure, Reason: "NonZeroExitCode", // as upstream's remotecommand
			Message: fmt.Sprintf("command terminated with exit code %d", code.Code),
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: "ExitCode", Message: fmt.Sprint(code.Code)}}},
		}
	}
	return metav1.Status{
		Status: metav1.StatusFailure, Reason: metav1.StatusReasonInternalError, Code: http.StatusInternalServerError,
		Message: err.Error(),
	}
}

// sizes reads the sizes of the client's terminal.
type sizes struct{ from *json.Decoder }

func (s sizes) Next() *remotecommand.TerminalSize {
	var size remotecommand.TerminalSize
	if s.from.Decode(&size) != nil {
		return nil
	}
	return &size
}

// socket is a WebSocket whose messages belong to channels.
type socket struct {
	conn   *websocket.Conn
	base64 bool
	close  bool // channels can end by themselves (v5)
	words  bool // a command's end is told by words, and only if it failed (before v4)
	leave  func()
	moved  func()

	in      map[byte]*io.PipeWriter // channels that are read from
	writing sync.Mutex
}

func newSocket(conn *websocket.Conn, leave func()) *socket {
	protocol := conn.Subprotocol()
	return &socket{
		conn: conn, leave: leave, moved: func() {}, in: map[byte]*io.PipeWriter{},
		base64: strings.Contains(protocol, "base64."), close: strings.HasPrefix(protocol, "v5."), words: !strings.HasPrefix(protocol, "v"),
	}
}

// idle ends the stream when nothing, not even a ping, has moved for so long. It
// returns what stops the watch.
func (c *socket) idle(bound time.Duration) (done func()) {
	c.moved, done = watchIdle(bound, func() { c.leave(); _ = c.conn.Close() })
	pong := c.conn.PingHandler()
	c.conn.SetPingHandler(func(data string) error { c.moved(); return pong(data) })
	return done
}

// input is the reading end of a channel. Before read.
func (c *socket) input(channel byte, wanted bool) *io.PipeReader {
	r, w := io.Pipe()
	if wanted {
		c.in[channel] = w
	}
	return r
}

// read takes messages until the client is gone, and ends the channels.
func (c *socket) read() {
	var err error
	for err == nil {
		var message io.Reader
		if _, message, err = c.conn.NextReader(); err == nil {
			c.moved()
			err = c.take(message)
		}
	}
	for _, w := range c.in {
		_ = w.CloseWithError(io.EOF)
	}
}

// take hands a message to its channel. What is for a channel that nobody reads is
// dropped.
func (c *socket) take(message io.Reader) error {
	var channel [1]byte
	if _, err := io.ReadFull(message, channel[:]); err != nil {
		return ignoreEOF(err)
	}
	if c.base64 {
		channel[0] -= '0'
		message = base64.NewDecoder(base64.StdEncoding, message)
	}
	if channel[0] == channelClose && c.close {
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
	if errors.Is(err, io.ErrClosedPipe) { // nobody reads it any more
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

// output is the writing end of a channel.
func (c *socket) output(channel byte) io.Writer { return channelWriter{c, channel} }

type channelWriter struct {
	c       *socket
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
	c.moved()
	return len(b), nil
}

// end says that all has been sent, and gives the client a while to close.
func (c *socket) end(reading <-chan struct{}) {
	c.writing.Lock()
	_ = c.conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""), time.Now().Add(wsControl))
	c.writing.Unlock()
	for _, w := range c.in { // the command reads no more: what still comes is dropped
		_ = w.Close()
	}
	late := time.AfterFunc(wsFarewell, func() { _ = c.conn.Close() })
	<-reading
	late.Stop()
	_ = c.conn.Close()
}
