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

// streamRequestOf reads which streams are wanted, by upstream's names.
func streamRequestOf(r *http.Request) (StreamRequest, error) {
	v := r.URL.Query()
	req := StreamRequest{PodRef: podOf(r), Container: r.PathValue("container"), Command: v["command"]}
	for name, to := range map[string]*bool{"input": &req.Stdin, "output": &req.Stdout, "error": &req.Stderr, "tty": &req.TTY} {
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
		req.Stderr = false // a terminal has one output
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
		err = apierrors.NewBadRequest("command: there must be one")
	}
	if err != nil {
		complain(w, err)
		return
	}
	s.stream(w, r, req, s.h.Exec)
}

// attach joins a container's own process.
func (s *server) attach(w http.ResponseWriter, r *http.Request) {
	req, err := streamRequestOf(r)
	if err != nil {
		complain(w, err)
		return
	}
	s.stream(w, r, req, s.h.Attach)
}

// stream joins the client's streams to those that prepare makes.
func (s *server) stream(w http.ResponseWriter, r *http.Request, req StreamRequest, prepare func(context.Context, StreamRequest) (string, error)) {
	ws := websocket.IsWebSocketUpgrade(r)
	if _, spoken := channelProtocol(r); ws && !spoken {
		complain(w, apierrors.NewBadRequest("none of the WebSocket protocols asked for is spoken here: "+strings.Join(channelProtocols, ", ")))
		return
	}
	if !ws && !httpstream.IsUpgradeRequest(r) {
		complain(w, apierrors.NewBadRequest("Upgrade request required"))
		return
	}
	target, err := prepare(r.Context(), req)
	if err != nil {
		complain(w, err)
		return
	}
	ctx, done := s.streaming(r)
	defer done()
	if ws {
		s.channels(ctx, w, r, req, target)
	} else {
		s.pass(ctx, w, r, target)
	}
}

// maxRun bounds the output of a command of /run.
const maxRun = 4 << 20

// run runs a command and answers with its output when it has ended.
func (s *server) run(w http.ResponseWriter, r *http.Request) {
	v := r.URL.Query()
	req := StreamRequest{PodRef: podOf(r), Container: r.PathValue("container"), Command: v["command"], Stdout: true, Stderr: true}
	if cmd := v.Get("cmd"); len(req.Command) == 0 && cmd != "" {
		req.Command = strings.Split(cmd, " ")
	}
	if len(req.Command) == 0 {
		complain(w, apierrors.NewBadRequest("cmd: there must be a command"))
		return
	}
	target, err := s.h.Exec(r.Context(), req)
	if err != nil {
		complain(w, err)
		return
	}
	ctx, done := s.streaming(r)
	defer done()
	out := &bounded{most: maxRun}
	err = joinRuntime(ctx, target, remotecommand.StreamOptions{Stdout: out, Stderr: out})
	switch text := out.text(); {
	case out.full:
		complain(w, fmt.Errorf("the command wrote more than %d MiB: use exec", maxRun>>20))
	case err != nil:
		complain(w, fmt.Errorf("command '%s' failed: %w: %s", strings.Join(req.Command, " "), err, text))
	default:
		w.Header().Set("Content-Type", "text/plain")
		_, _ = w.Write(text)
	}
}

// bounded keeps what is written to it, up to a bound at which it fails.
type bounded struct {
	most int

	mu   sync.Mutex
	buf  bytes.Buffer
	full bool
}

var errFull = errors.New("too much output")

func (b *bounded) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.buf.Len()+len(p) > b.most {
		b.full = true
		return 0, errFull
	}
	return b.buf.Write(p)
}

func (b *bounded) text() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Bytes()
}
