package events

import (
	"context"
	"errors"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestWatchSendsMatchingEvents(t *testing.T) {
	t.Parallel()
	r := NewRecorder(RecorderOptions{})
	other := PodRef{Namespace: "default", Name: "other", UID: "u2"}
	r.Record(web, Event{Reason: "Pulled"})
	r.Record(other, Event{Reason: "Pulled"})
	ofWeb := func(e *corev1.Event) bool { return e.InvolvedObject.Name == web.Name }
	if got := r.Matching(ofWeb); len(got) != 1 || got[0].InvolvedObject.Name != web.Name {
		t.Errorf("got %+v", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var got []string
	err := r.Watch(ctx, ofWeb, func(e *corev1.Event) error {
		got = append(got, e.Reason)
		switch len(got) {
		case 1:
			r.Record(other, Event{Reason: "Created"})
			r.Record(web, Event{Reason: "Started"})
		case 2:
			cancel()
		}
		return nil
	}, func(int) error { return errors.New("missed events") })
	if err != nil || !slices.Equal(got, []string{"Pulled", "Started"}) {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestWatchReportsMissedEvents(t *testing.T) {
	t.Parallel()
	r := NewRecorder(RecorderOptions{})
	r.Record(web, Event{Reason: "first"})
	all, full := func(*corev1.Event) bool { return true }, errors.New("watch ends")
	lost := 0
	err := r.Watch(t.Context(), all, func(e *corev1.Event) error {
		if e.Reason != "first" {
			return full
		}
		for range watchBuffer + 3 {
			r.Record(web, Event{Reason: "next", Message: "same"})
		}
		return nil
	}, func(n int) error { lost += n; return nil })
	if !errors.Is(err, full) || lost != 3 {
		t.Errorf("got error %v, %d missed events", err, lost)
	}
}
