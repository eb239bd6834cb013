package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"github.com/gorilla/websocket"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
)

// streamRequestOf parses the requested streams from upstream's query parameters.
func streamRequestOf(r *http.Request) (StreamRequest, error) {
	v := r.URL.Query()
	req := StreamRequest{PodRef: podOf(r), Container: r.PathValue("container"), Command: v["command"]}
	for name, to := range map[string]*bool{
		"input": &req.Stdin, "output": &req.Stdout, "error": &req.Stderr, "tty": &req.TTY,
	} {
		text := v.Get(name)
		if text == "" {
			continue
		}
		on, err := flag(text)
		if err != nil {
			return req, apierrors.NewBadRequest(fmt.Sprintf("%s: %v", name, err))
		}
		*to = on
	}
	if req.TTY {
		req.Stderr = false // a terminal has one output stream
	}
	if !req.Stdin && !req.Stdout && !req.Stderr {
		return req, apierrors.NewBadRequest("you must specify at least 1 of stdin, stdout, stderr")
	}
	return req, nil
}

// exec runs a command in a container.
func (s *server) exec(w http.ResponseWriter, r *http.Request) {
	req, err := streamRequestOf(r)
	if err == nil && len(req.Command) == 0 {
		err = apierrors.NewBadRequest("command: required")
	}
	if err != nil {
		writeError(w, err)
		return
	}
	s.stream(w, r, req, s.h.Exec)
}

// attach attaches to the main process of a container.
func (s *server) attach(w http.ResponseWriter, r *http.Request) {
	req, err := streamRequestOf(r)
	if err != nil {
		writeError(w, err)
		return
	}
	s.stream(w, r, req, s.h.Attach)
}

// stream connects the client's streams to those that prepare creates.
func (s *server) stream(
	w http.ResponseWriter,
	r *http.Request,
	req StreamRequest,
	prepare func(context.Context, StreamRequest) (string, error),
) {
	ws := websocket.IsWebSocketUpgrade(r)
	if _, spoken := channelProtocol(r); ws && !spoken {
		writeError(
			w,
			apierrors.NewBadRequest(
				"no supported WebSocket protocol requested, supported: "+strings.Join(channelProtocols, ", "),
			),
		)
		return
	}
	if !ws && !httpstream.IsUpgradeRequest(r) {
		writeError(w, apierrors.NewBadRequest("Upgrade request required"))
		return
	}
	target, err := prepare(r.Context(), req)
	if err != nil {
		writeError(w, err)
		return
	}
	ctx, done := s.streaming(r)
	defer done()
	if ws {
		s.serveWebSocket(ctx, w, r, req, target)
	} else {
		s.proxyToRuntime(ctx, w, r, target)
	}
}

// maxRun limits the output of a /run command.
const maxRun = 4 << 20

// run runs a command and returns its output when it has exited.
func (s *server) run(w http.ResponseWriter, r *http.Request) {
	v := r.URL.Query()
	req := StreamRequest{
		PodRef:    podOf(r),
		Container: r.PathValue("container"),
		Command:   v["command"],
		Stdout:    true,
		Stderr:    true,
	}
	if cmd := v.Get("cmd"); len(req.Command) == 0 && cmd != "" {
		req.Command = strings.Split(cmd, " ")
	}
	if len(req.Command) == 0 {
		writeError(w, apierrors.NewBadRequest("cmd: required"))
		return
	}
	target, err := s.h.Exec(r.Context(), req)
	if err != nil {
		writeError(w, err)
		return
	}
	ctx, done := s.streaming(r)
	defer done()
	out := &limitedBuffer{max: maxRun}
	err = streamToRuntime(ctx, target, remotecommand.StreamOptions{Stdout: out, Stderr: out})
	switch text := out.text(); {
	case out.full:
		writeError(w, fmt.Errorf("the command wrote more than %d MiB: use exec", maxRun>>20))
	case err != nil:
		writeError(w, fmt.Errorf("command '%s' failed: %w: %s", strings.Join(req.Command, " "), err, text))
	default:
		w.Header().Set("Content-Type", "text/plain")
		_, _ = w.Write(text)
	}
}

// limitedBuffer is a buffer whose writes fail beyond a maximum size.
type limitedBuffer struct {
	max int

	mu   sync.Mutex
	buf  bytes.Buffer
	full bool
}

var errFull = errors.New("too much output")

func (b *limitedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.buf.Len()+len(p) > b.max {
		b.full = true
		return 0, errFull
	}
	return b.buf.Write(p)
}

func (b *limitedBuffer) text() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Bytes()
}
