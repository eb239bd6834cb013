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

// EventsRequest says which events are asked for.
type EventsRequest struct {
	Namespace string // empty: all
	Pod       string // empty: all
	Selector  string // labels of pods that are there; empty: all
}

func (q EventsRequest) values() url.Values {
	return url.Values{"namespace": {q.Namespace}, "pod": {q.Pod}, "labelSelector": {q.Selector}}
}

// Matches reports whether an event is one of those asked for, as far as the event
// itself tells: it does not know the labels of its pod.
func (q EventsRequest) Matches(e *corev1.Event) bool {
	of := &e.InvolvedObject
	return (q.Namespace == "" || of.Namespace == q.Namespace) && (q.Pod == "" || of.Name == q.Pod)
}

// EventNotification is one step of following events: an event that was told, or that
// some were lost because the follower was too slow.
type EventNotification struct {
	Event  *corev1.Event `json:"event,omitempty"`
	Missed int           `json:"missed,omitempty"`
}

// labelled picks the events of pods by the pods' labels. What is known of a pod
// it keeps, so that the events of its end are taken too.
type labelled struct {
	choice
	all   bool
	pods  func(context.Context) (*corev1.PodList, error)
	known map[types.UID]bool
}

func (s *server) labelled(r *http.Request) (*labelled, error) {
	c, err := choiceOf(r)
	if err != nil {
		return nil, err
	}
	l := &labelled{choice: c, all: c.selector.Empty(), pods: s.h.Pods, known: map[types.UID]bool{}}
	return l, l.look(r.Context())
}

// look learns which pods there are.
func (l *labelled) look(ctx context.Context) error {
	if l.all {
		return nil
	}
	pods, err := l.pods(ctx)
	if err != nil {
		return err
	}
	for i := range pods.Items {
		l.known[pods.Items[i].UID] = l.takes(&pods.Items[i])
	}
	return nil
}

func (l *labelled) takesEvent(ctx context.Context, e *corev1.Event) (bool, error) {
	if l.all {
		return true, nil
	}
	uid := e.InvolvedObject.UID
	if _, known := l.known[uid]; !known {
		if err := l.look(ctx); err != nil {
			return false, err
		}
	}
	return l.known[uid], nil
}

func (s *server) events(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	of, err := s.labelled(r)
	if err != nil {
		writeError(w, err)
		return
	}
	l, err := s.h.Events(r.Context(), EventsRequest{Namespace: q.Get("namespace"), Pod: q.Get("pod")})
	if err == nil && !of.all { // a list of its own: what the agent returned may be shared
		some := *l
		some.Items = slices.DeleteFunc(slices.Clone(l.Items), func(e corev1.Event) bool { return !of.known[e.InvolvedObject.UID] })
		l = &some
	}
	reply(w, l, err)
}

// Events asks for the events kept on this node, oldest first.
func (c *Client) Events(ctx context.Context, req EventsRequest) (*corev1.EventList, error) {
	return fetch[*corev1.EventList](ctx, c, question{method: http.MethodGet, path: "/v1/events",
		query: req.values()})
}

const toldEvent PodEventType = "EVENT" // on the wire only

func (s *server) watchEvents(w http.ResponseWriter, r *http.Request) {
	of, err := s.labelled(r)
	if err != nil {
		writeError(w, err)
		return
	}
	ctx, cancel := s.streaming(r)
	defer cancel()
	q := r.URL.Query()
	out := &lineWriter{w: w, enc: json.NewEncoder(w), flush: http.NewResponseController(w)}
	err = s.h.WatchEvents(ctx, EventsRequest{Namespace: q.Get("namespace"), Pod: q.Get("pod")}, func(n EventNotification) error {
		if n.Event != nil {
			if takes, err := of.takesEvent(ctx, n.Event); err != nil || !takes {
				return err
			}
		}
		body, err := json.Marshal(n)
		if err != nil {
			return fmt.Errorf("encode an event: %w", err)
		}
		return out.line(watchLine{Type: toldEvent, Object: body})
	})
	if err != nil && ctx.Err() == nil {
		out.fail(err)
	}
}

// WatchEvents calls each with the events that are known, oldest first, and then
// with those that are told, until ctx ends (then it returns nil), the agent ends
// (nil as well), the connection breaks, or each returns an error.
func (c *Client) WatchEvents(ctx context.Context, req EventsRequest, each func(EventNotification) error) error {
	resp, err := c.ask(ctx, question{method: http.MethodGet, path: "/v1/watch/events", query: req.values()})
	if err != nil {
		return endOf(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }()
	for dec := json.NewDecoder(resp.Body); ; {
		var line watchLine
		if err := dec.Decode(&line); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return endOf(ctx, fmt.Errorf("the watch broke off: %w", err))
		}
		if line.Type == failed {
			_, err := line.event()
			return err
		}
		var n EventNotification
		if err := json.Unmarshal(line.Object, &n); err != nil {
			return fmt.Errorf("read an event of a watch: %w", err)
		}
		if err := each(n); err != nil {
			return err
		}
	}
}
