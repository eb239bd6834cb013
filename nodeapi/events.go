package nodeapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// EventsRequest selects events.
type EventsRequest struct {
	Namespace string // empty: all
	Pod       string // empty: all
	Selector  string // labels of known pods; empty: all
}

func (q EventsRequest) values() url.Values {
	return url.Values{"namespace": {q.Namespace}, "pod": {q.Pod}, "labelSelector": {q.Selector}}
}

// Matches reports whether the request selects an event by namespace and pod name. It does not
// evaluate Selector, because an event does not have the labels of its pod.
func (q EventsRequest) Matches(e *corev1.Event) bool {
	of := &e.InvolvedObject
	return (q.Namespace == "" || of.Namespace == q.Namespace) && (q.Pod == "" || of.Name == q.Pod)
}

// EventNotification is one message of an event watch: an event, or the number of events that were
// dropped because the watcher was too slow.
type EventNotification struct {
	Event  *corev1.Event `json:"event,omitempty"`
	Missed int           `json:"missed,omitempty"`
}

// eventSelector selects events by the labels of their pods. It remembers the result for each pod,
// so that events after the deletion of a pod are still selected.
type eventSelector struct {
	podSelector
	all   bool
	pods  func(context.Context) (*corev1.PodList, error)
	known map[types.UID]bool
}

func (s *server) eventSelector(r *http.Request) (*eventSelector, error) {
	c, err := podSelectorOf(r)
	if err != nil {
		return nil, err
	}
	l := &eventSelector{podSelector: c, all: c.selector.Empty(), pods: s.h.Pods, known: map[types.UID]bool{}}
	return l, l.refresh(r.Context())
}

// refresh evaluates the selector for the current pods.
func (l *eventSelector) refresh(ctx context.Context) error {
	if l.all {
		return nil
	}
	pods, err := l.pods(ctx)
	if err != nil {
		return err
	}
	for i := range pods.Items {
		l.known[pods.Items[i].UID] = l.matches(&pods.Items[i])
	}
	return nil
}

func (l *eventSelector) matchesEvent(ctx context.Context, e *corev1.Event) (bool, error) {
	if l.all {
		return true, nil
	}
	uid := e.InvolvedObject.UID
	if _, known := l.known[uid]; !known {
		if err := l.refresh(ctx); err != nil {
			return false, err
		}
	}
	return l.known[uid], nil
}

func (s *server) events(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	of, err := s.eventSelector(r)
	if err != nil {
		writeError(w, err)
		return
	}
	l, err := s.h.Events(r.Context(), EventsRequest{Namespace: q.Get("namespace"), Pod: q.Get("pod")})
	if err == nil && !of.all { // a copy, because the agent may share the list that it returned
		some := *l
		some.Items = slices.DeleteFunc(
			slices.Clone(l.Items),
			func(e corev1.Event) bool { return !of.known[e.InvolvedObject.UID] },
		)
		l = &some
	}
	reply(w, l, err)
}

// Events returns the events kept on this node, oldest first.
func (c *Client) Events(ctx context.Context, req EventsRequest) (*corev1.EventList, error) {
	return fetch[*corev1.EventList](ctx, c, request{method: http.MethodGet, path: "/v1/events",
		query: req.values()})
}

const eventLine PodEventType = "EVENT" // on the wire only

func (s *server) watchEvents(w http.ResponseWriter, r *http.Request) {
	of, err := s.eventSelector(r)
	if err != nil {
		writeError(w, err)
		return
	}
	ctx, cancel := s.streaming(r)
	defer cancel()
	q := r.URL.Query()
	out := &lineWriter{w: w, enc: json.NewEncoder(w), flush: http.NewResponseController(w)}
	err = s.h.WatchEvents(
		ctx,
		EventsRequest{Namespace: q.Get("namespace"), Pod: q.Get("pod")},
		func(n EventNotification) error {
			if n.Event != nil {
				if takes, err := of.matchesEvent(ctx, n.Event); err != nil || !takes {
					return err
				}
			}
			body, err := json.Marshal(n)
			if err != nil {
				return fmt.Errorf("encode an event: %w", err)
			}
			return out.line(watchLine{Type: eventLine, Object: body})
		},
	)
	if err != nil && ctx.Err() == nil {
		out.fail(err)
	}
}

// WatchEvents calls each with the known events, oldest first, and then with every new one. It
// returns nil when ctx or the agent ends, and an error when the connection breaks or each returns
// one.
func (c *Client) WatchEvents(ctx context.Context, req EventsRequest, each func(EventNotification) error) error {
	resp, err := c.do(ctx, request{method: http.MethodGet, path: "/v1/watch/events", query: req.values()})
	if err != nil {
		return endOf(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }()
	for dec := json.NewDecoder(resp.Body); ; {
		var line watchLine
		if err := dec.Decode(&line); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return endOf(ctx, fmt.Errorf("watch interrupted: %w", err))
		}
		if line.Type == watchError {
			_, err := line.event()
			return err
		}
		var n EventNotification
		if err := json.Unmarshal(line.Object, &n); err != nil {
			return fmt.Errorf("decode watch event: %w", err)
		}
		if err := each(n); err != nil {
			return err
		}
	}
}
