package nodeapi

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// LogRequest asks for the log of one container.
type LogRequest struct {
	Namespace  string
	Pod        string
	Container  string        // never empty: chosen by the client
	Follow     bool          // continue with new output
	Previous   bool          // of the previous instance
	Timestamps bool          // prefix each line with its timestamp
	Tail       *int64        // number of lines from the end; nil: all
	Since      time.Duration // only lines newer than this; 0: all
	SinceTime  time.Time     // only lines since this time; zero: all
	LimitBytes *int64        // maximum number of bytes; nil: no limit
}

func (q LogRequest) values() url.Values {
	v := url.Values{"container": {q.Container}}
	for name, on := range map[string]bool{"follow": q.Follow, "previous": q.Previous, "timestamps": q.Timestamps} {
		if on {
			v.Set(name, "true")
		}
	}
	if q.Tail != nil {
		v.Set("tail", strconv.FormatInt(*q.Tail, 10))
	}
	if q.LimitBytes != nil {
		v.Set("limitBytes", strconv.FormatInt(*q.LimitBytes, 10))
	}
	if q.Since != 0 {
		v.Set("since", q.Since.String())
	}
	if !q.SinceTime.IsZero() {
		v.Set("sinceTime", q.SinceTime.Format(time.RFC3339Nano))
	}
	return v
}

// logRequestOf parses a request. An error names the invalid parameter.
func logRequestOf(r *http.Request) (LogRequest, error) {
	v := r.URL.Query()
	q := LogRequest{Namespace: r.PathValue("namespace"), Pod: r.PathValue("name"), Container: v.Get("container")}
	if q.Container == "" {
		return q, apierrors.NewBadRequest("container: required")
	}
	for _, p := range []struct {
		name string
		read func(text string) error
	}{
		{"follow", readInto(&q.Follow, strconv.ParseBool)},
		{"previous", readInto(&q.Previous, strconv.ParseBool)},
		{"timestamps", readInto(&q.Timestamps, strconv.ParseBool)},
		{"tail", readInto(&q.Tail, count)},
		{"limitBytes", readInto(&q.LimitBytes, count)},
		{"since", readInto(&q.Since, time.ParseDuration)},
		{"sinceTime", readInto(&q.SinceTime, parseTime)},
	} {
		text := v.Get(p.name)
		if text == "" {
			continue
		}
		if err := p.read(text); err != nil {
			return q, apierrors.NewBadRequest(fmt.Sprintf("%s: %v", p.name, err))
		}
	}
	return q, nil
}

func readInto[T any](to *T, parse func(string) (T, error)) func(string) error {
	return func(text string) (err error) {
		*to, err = parse(text)
		return err
	}
}

func count(text string) (*int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err == nil && n < 0 {
		err = fmt.Errorf("%d is negative", n)
	}
	return &n, err
}

func parseTime(text string) (time.Time, error) { return time.Parse(time.RFC3339Nano, text) }

func (s *server) logs(w http.ResponseWriter, r *http.Request) {
	req, err := logRequestOf(r)
	if err != nil {
		writeError(w, err)
		return
	}
	ctx, cancel := s.streaming(r)
	defer cancel()
	f := newFrameWriter(w, req.Follow)
	err = s.h.Logs(ctx, req, f.stream(frameStdout), f.stream(frameStderr))
	if ctx.Err() != nil {
		err = nil // the stream was canceled on purpose
	}
	f.end(err)
}

// Logs writes the log that req asks for to stdout and stderr. With Follow it returns when the
// container stops, or nil when ctx ends.
func (c *Client) Logs(ctx context.Context, req LogRequest, stdout, stderr io.Writer) error {
	resp, err := c.do(ctx, request{method: http.MethodGet,
		path: podPath(req.Namespace, req.Pod, "/log"), query: req.values()})
	if err != nil {
		return endOf(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }()
	return endOf(ctx, readFrames(resp.Body, stdout, stderr))
}
