package nodeapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// PodEventType is the type of a watch event, as in the Kubernetes API.
type PodEventType string

const (
	Added      PodEventType = "ADDED"
	Modified   PodEventType = "MODIFIED"
	Deleted    PodEventType = "DELETED"
	Synced     PodEventType = "BOOKMARK" // the initial list is complete; has no pod
	watchError PodEventType = "ERROR"    // on the wire only
)

// PodEvent is one event of a watch. Pod is nil for Synced.
type PodEvent struct {
	Type PodEventType
	Pod  *corev1.Pod
}

// watchLine is a watch event on the wire: one line of JSON.
type watchLine struct {
	Type   PodEventType    `json:"type"`
	Object json.RawMessage `json:"object,omitempty"` // a Pod, or a Status for an error
}

func (s *server) watchPods(w http.ResponseWriter, r *http.Request) {
	c, err := podSelectorOf(r)
	if err != nil {
		writeError(w, err)
		return
	}
	ctx, cancel := s.streaming(r)
	defer cancel()
	out := &lineWriter{w: w, enc: json.NewEncoder(w), flush: http.NewResponseController(w)}
	sent := map[types.UID]bool{}
	err = s.h.WatchPods(ctx, func(e PodEvent) error {
		e, want := c.filter(e, sent)
		if !want {
			return nil
		}
		return out.event(e)
	})
	// A watch that was canceled by either side is not an error.
	if err != nil && ctx.Err() == nil {
		out.fail(err)
	}
}

// filter converts an event for a watcher with this selector: a pod that no longer matches is sent
// as deleted. sent contains the pods that the watcher knows.
func (c podSelector) filter(e PodEvent, sent map[types.UID]bool) (PodEvent, bool) {
	if e.Pod == nil {
		return e, true
	}
	had, takes := sent[e.Pod.UID], c.matches(e.Pod)
	switch {
	case e.Type == Deleted || !takes:
		delete(sent, e.Pod.UID)
		return PodEvent{Type: Deleted, Pod: e.Pod}, had
	case !had:
		sent[e.Pod.UID] = true
		return PodEvent{Type: Added, Pod: e.Pod}, true
	default:
		return e, true
	}
}

// lineWriter sends JSON lines and flushes each of them.
type lineWriter struct {
	w       http.ResponseWriter
	enc     *json.Encoder
	flush   *http.ResponseController
	started bool
}

func (l *lineWriter) event(e PodEvent) error {
	line := watchLine{Type: e.Type}
	if e.Pod != nil {
		body, err := json.Marshal(typed(*e.Pod))
		if err != nil {
			return fmt.Errorf("encode pod %s/%s: %w", e.Pod.Namespace, e.Pod.Name, err)
		}
		line.Object = body
	}
	return l.line(line)
}

func (l *lineWriter) line(line watchLine) error {
	if !l.started {
		l.w.Header().Set("Content-Type", "application/jsonl")
		l.started = true
	}
	if err := l.enc.Encode(line); err != nil {
		return err
	}
	return l.flush.Flush()
}

// fail sends the error as an error response, or as a watch event if the response has started.
func (l *lineWriter) fail(err error) {
	if !l.started {
		writeError(l.w, err)
		return
	}
	body, encErr := json.Marshal(statusOf(err))
	if encErr != nil {
		return
	}
	_ = l.line(watchLine{Type: watchError, Object: body}) // fails only if the client is disconnected
}

// WatchPods calls each with every event. It returns nil when ctx or the agent ends, and an error
// when the connection breaks or each returns one.
func (c *Client) WatchPods(ctx context.Context, req PodsRequest, each func(PodEvent) error) error {
	resp, err := c.do(ctx, request{method: http.MethodGet, path: "/v1/watch/pods", query: req.values()})
	if err != nil {
		return endOf(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }()
	dec := json.NewDecoder(resp.Body)
	for {
		var line watchLine
		if err := dec.Decode(&line); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return endOf(ctx, fmt.Errorf("watch interrupted: %w", err))
		}
		e, err := line.event()
		if err != nil {
			return err
		}
		if err := each(e); err != nil {
			return err
		}
	}
}

// endOf returns err, or nil if ctx has ended.
func endOf(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil //nolint:nilerr // see above
	}
	return err
}

func (l watchLine) event() (PodEvent, error) {
	if l.Type == watchError {
		var st metav1.Status
		if err := json.Unmarshal(l.Object, &st); err != nil {
			return PodEvent{}, fmt.Errorf("decode error of a watch: %w", err)
		}
		return PodEvent{}, &apierrors.StatusError{ErrStatus: st}
	}
	e := PodEvent{Type: l.Type}
	if len(l.Object) > 0 {
		e.Pod = &corev1.Pod{}
		if err := json.Unmarshal(l.Object, e.Pod); err != nil {
			return PodEvent{}, fmt.Errorf("decode pod of a watch: %w", err)
		}
	}
	return e, nil
}
