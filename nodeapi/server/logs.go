package server

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The log streams that can be requested.
const (
	streamAll = "All"
	streamOut = "Stdout"
	streamErr = "Stderr"
)

// logRequestOf parses a log request. An error names the parameter and has the code 422, like the
// kubelet's.
func logRequestOf(r *http.Request) (req LogRequest, stream string, err error) {
	v := r.URL.Query()
	req.Namespace, req.Pod, req.Container = r.PathValue("namespace"), r.PathValue("pod"), r.PathValue("container")
	stream = streamAll
	var seconds *int64
	var errs []error
	for name, take := range map[string]func(string) error{
		"follow":       into(&req.Follow, flag),
		"previous":     into(&req.Previous, flag),
		"timestamps":   into(&req.Timestamps, flag),
		"tailLines":    into(&req.Tail, atLeast(0)),
		"limitBytes":   into(&req.LimitBytes, atLeast(1)),
		"sinceSeconds": into(&seconds, atLeast(1)),
		"sinceTime": into(&req.SinceTime, func(s string) (time.Time, error) {
			return time.Parse(time.RFC3339Nano, s)
		}),
		"stream": into(&stream, streamName),
	} {
		if text := v.Get(name); text != "" {
			if err := take(text); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", name, err))
			}
		}
	}
	if seconds != nil {
		req.Since = time.Duration(*seconds) * time.Second
		if !req.SinceTime.IsZero() {
			errs = append(errs, errors.New("at most one of `sinceTime` or `sinceSeconds` may be specified"))
		}
	}
	if len(errs) > 0 {
		return req, stream, unprocessable(errors.Join(errs...))
	}
	return req, stream, nil
}

func unprocessable(err error) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid,
		Message: err.Error(),
	}}
}

func into[T any](to *T, parse func(string) (T, error)) func(string) error {
	return func(text string) (err error) {
		*to, err = parse(text)
		return err
	}
}

// flag parses a boolean as API servers write it: 1 or true.
func flag(text string) (bool, error) { return strconv.ParseBool(text) }

func atLeast(least int64) func(string) (*int64, error) {
	return func(text string) (*int64, error) {
		n, err := strconv.ParseInt(text, 10, 64)
		if err == nil && n < least {
			err = fmt.Errorf("must be greater than or equal to %d", least)
		}
		return &n, err
	}
}

func streamName(text string) (string, error) {
	switch text {
	case streamAll, streamOut, streamErr:
		return text, nil
	}
	return "", fmt.Errorf("%q must be one of %s, %s, %s", text, streamAll, streamOut, streamErr)
}

// logs writes a container's log, and new output if it is followed.
func (s *server) logs(w http.ResponseWriter, r *http.Request) {
	req, stream, err := logRequestOf(r)
	if err != nil {
		writeError(w, err)
		return
	}
	ctx, done := s.streaming(r)
	defer done()
	out := &logWriter{w: w, follow: req.Follow}
	var stdout, stderr io.Writer = out, out
	switch stream {
	case streamOut:
		stderr = nil
	case streamErr:
		stdout = nil
	}
	err = s.h.Logs(ctx, req, stdout, stderr)
	switch {
	case err == nil, ctx.Err() != nil:
		out.begin()
	case !out.started():
		writeError(w, err)
	default:
		s.Log.Debug("log stream interrupted", "pod", req.Namespace+"/"+req.Pod, "err", err)
		panic(http.ErrAbortHandler) // a regular end would look like the complete log
	}
}

// logWriter writes a log to the response and flushes it if the log is followed.
type logWriter struct {
	w      http.ResponseWriter
	follow bool

	mu    sync.Mutex
	wrote bool
}

func (l *logWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.start()
	n, err := l.w.Write(b)
	if err == nil && l.follow {
		err = http.NewResponseController(l.w).Flush()
	}
	return n, err
}

func (l *logWriter) start() {
	if !l.wrote {
		l.wrote = true
		l.w.Header().Set("Content-Type", "text/plain")
	}
}

func (l *logWriter) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.start()
}

func (l *logWriter) started() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.wrote
}
