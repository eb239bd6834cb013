package events

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// clock is a manual clock.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func newClock() *clock { return &clock{now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)} }

var web = PodRef{Namespace: "default", Name: "web", UID: "u1"}

func TestRecorderCountsRepetitions(t *testing.T) { // R2
	c := newClock()
	e := NewRecorder(RecorderOptions{Now: c.Now, Host: "n1"})
	back := Event{Type: corev1.EventTypeWarning, Reason: "BackOff", Message: "Back-off restarting failed container a",
		Container: "a"}
	e.Record(web, back)
	c.add(time.Minute)
	e.Record(web, Event{Reason: "Pulled", Message: "Image is present", Container: "a"})
	c.add(time.Minute)
	e.Record(web, back)
	other := back
	other.Container, other.Init = "b", true
	e.Record(web, other)

	list := e.List("u1")
	if len(list) != 3 {
		t.Fatalf("%d events, want 3", len(list))
	}
	got := list[1]
	if got.Reason != "BackOff" || got.Count != 2 || got.LastTimestamp.Sub(got.FirstTimestamp.Time) != 2*time.Minute {
		t.Errorf("got %s ×%d over %s", got.Reason, got.Count, got.LastTimestamp.Sub(got.FirstTimestamp.Time))
	}
	if p := got.InvolvedObject.FieldPath; p != "spec.containers{a}" {
		t.Errorf("field path %s", p)
	}
	if p := list[2].InvolvedObject.FieldPath; p != "spec.initContainers{b}" {
		t.Errorf("field path %s", p)
	}
	if list[0].Type != corev1.EventTypeNormal || list[0].Source.Host != "n1" || list[0].InvolvedObject.UID != "u1" {
		t.Errorf("got %+v", list[0])
	}
}

// TestRecorderIgnoresRuntimeIDs records the same failure with different runtime IDs, also after a
// restart.
func TestRecorderIgnoresRuntimeIDs(t *testing.T) { // R2
	fails := func(id int, program string) Event {
		return Event{Type: corev1.EventTypeWarning, Reason: "Unhealthy", Container: "a",
			Message: fmt.Sprintf("failed to start exec %q: exec: %q: executable file not found",
				fmt.Sprintf("%064x", id),
				program)}
	}
	e := NewRecorder(RecorderOptions{Now: newClock().Now})
	for i := range 200 {
		e.Record(web, fails(i, "nothing"))
	}
	e.Record(web, fails(7, "none"))
	saved, err := e.Save("u1")
	if err != nil {
		t.Fatal(err)
	}
	e = NewRecorder(RecorderOptions{Now: newClock().Now})
	if err := e.Restore(web, saved); err != nil {
		t.Fatal(err)
	}
	e.Record(web, fails(201, "nothing"))
	list := e.List("u1")
	if len(list) != 2 || list[0].Message != fails(7, "none").Message || list[1].Count != 201 ||
		list[1].Message != fails(201, "nothing").Message {
		t.Errorf("%d events: %+v", len(list), list)
	}
	e.Record(web, Event{Reason: "Killing", Message: "deadbeef"})
	e.Record(web, Event{Reason: "Killing", Message: "deadbeee"})
	if n := len(e.List("u1")); n != 4 {
		t.Errorf("%d events: short hexadecimal words are not IDs", n)
	}
}

func TestEventNameStableVersionIncreases(t *testing.T) {
	e := NewRecorder(RecorderOptions{Now: newClock().Now})
	e.Record(web, Event{Reason: "A"})
	first := e.List("u1")[0]
	e.Record(web, Event{Reason: "A"})
	second := e.List("u1")[0]
	if first.Name != second.Name || first.ResourceVersion == second.ResourceVersion {
		t.Errorf("names %s %s, versions %s %s", first.Name, second.Name, first.ResourceVersion, second.ResourceVersion)
	}
	e.Record(PodRef{Namespace: "default", Name: "web", UID: "u2"}, Event{Reason: "A"})
	if n := e.List("u2")[0].Name; n == first.Name {
		t.Errorf("two pods of one name share event name %s", n)
	}
}

func TestRecorderLimitsEventsPerPod(t *testing.T) { // R1
	e := NewRecorder(RecorderOptions{Now: newClock().Now})
	for i := range 1000 {
		e.Record(web, Event{Reason: "R", Message: fmt.Sprint(i)})
	}
	list := e.List("u1")
	if len(list) != DefaultMaxPerPod || list[0].Message != "900" || list[99].Message != "999" {
		t.Errorf("%d events from %s", len(list), list[0].Message)
	}
	for i := range 1000 {
		e.Record(web, Event{Reason: "R", Message: fmt.Sprint(i) + strings.Repeat("é", 1<<12)})
	}
	bytes := 0
	for _, ev := range e.List("u1") {
		bytes += len(ev.Message)
		if len(ev.Message) > MaxMessageBytes || !strings.HasSuffix(ev.Message, "é…") {
			t.Fatalf("a message of %d bytes that ends in %q", len(ev.Message), ev.Message[len(ev.Message)-8:])
		}
	}
	if bytes > DefaultMaxBytesPerPod || bytes < DefaultMaxBytesPerPod/2 {
		t.Errorf("%d bytes kept", bytes)
	}
}

func TestDeletedPodEventsExpire(t *testing.T) { // R4
	c := newClock()
	e := NewRecorder(RecorderOptions{Now: c.Now, MaxDeletedPods: 3})
	e.Record(web, Event{Reason: "Killing"})
	e.PodDeleted("u1")
	c.add(59 * time.Minute)
	e.Record(web, Event{Reason: "Late"})
	if n := len(e.List("u1")); n != 2 {
		t.Errorf("%d events within the retention, want 2", n)
	}
	c.add(time.Minute)
	if n := len(e.List("u1")); n != 0 {
		t.Errorf("%d events after the retention", n)
	}
	for i := range 10 {
		r := PodRef{Namespace: "default", Name: "p", UID: types.UID(fmt.Sprint("g", i))}
		e.Record(r, Event{Reason: "Killing"})
		e.PodDeleted(r.UID)
		c.add(time.Second)
	}
	e.Record(web, Event{Reason: "Started"})
	all := e.All()
	if len(all) != 4 || all[0].InvolvedObject.UID != "g7" {
		t.Errorf("%d pods kept, the first is %s, want the last 3 and the live one", len(all), all[0].InvolvedObject.UID)
	}
}

func TestEventsOfPodCreatedAgainAreKept(t *testing.T) { // R4
	c := newClock()
	e := NewRecorder(RecorderOptions{Now: c.Now, MaxDeletedPods: 1})
	e.PodCreated("u1")
	e.Record(web, Event{Reason: "Killing"})
	e.PodDeleted("u1")
	c.add(time.Minute)
	e.PodCreated("u1")
	for i := range 3 { // more deleted pods than are kept
		r := PodRef{Namespace: "default", Name: "p", UID: types.UID(fmt.Sprint("g", i))}
		e.Record(r, Event{Reason: "Killing"})
		e.PodDeleted(r.UID)
	}
	c.add(2 * time.Hour)
	if all := e.All(); len(all) != 1 || all[0].InvolvedObject.UID != "u1" {
		t.Errorf("events %v, want that of the pod that exists", all)
	}
	e.PodDeleted("u1")
	c.add(2 * time.Hour)
	if n := len(e.All()); n != 0 {
		t.Errorf("%d events after the retention", n)
	}
}

func TestRecorderAllOrdered(t *testing.T) {
	e := NewRecorder(RecorderOptions{Now: newClock().Now})
	for i := range 20 {
		e.Record(PodRef{Namespace: "default", Name: "p", UID: types.UID(fmt.Sprint(i % 3))},
			Event{Reason: "R", Message: fmt.Sprint(i)})
	}
	for i, ev := range e.All() {
		if ev.Message != fmt.Sprint(i) {
			t.Fatalf("event %d is %s", i, ev.Message)
		}
	}
}

func TestSlowSubscriberDropsOldest(t *testing.T) { // R3
	e := NewRecorder(RecorderOptions{Now: newClock().Now})
	e.Record(web, Event{Reason: "Before"})
	known, s := e.Subscribe(2)
	defer s.Close()
	if len(known) != 1 || known[0].Reason != "Before" {
		t.Fatalf("known: %v", known)
	}
	for i := range 5 {
		e.Record(web, Event{Reason: "R", Message: fmt.Sprint(i)})
	}
	if a, b := (<-s.C).Message, (<-s.C).Message; a != "3" || b != "4" {
		t.Errorf("got %s and %s, want 3 and 4", a, b)
	}
	if n := s.Dropped(); n != 3 {
		t.Errorf("dropped %d, want 3", n)
	}
	s.Close()
	e.Record(web, Event{Reason: "After"})
	if _, open := <-s.C; open {
		t.Error("an event after Close")
	}
}

func TestRecorderConcurrent(t *testing.T) {
	e := NewRecorder(RecorderOptions{})
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			uid := types.UID(fmt.Sprint(i % 2))
			for j := range 500 {
				e.Record(PodRef{Namespace: "default", Name: "p", UID: uid},
					Event{Reason: "R", Message: fmt.Sprint(i, j)})
				if j%50 == 0 {
					_, s := e.Subscribe(1)
					e.All()
					s.Close()
					e.PodDeleted(uid)
				}
			}
		})
	}
	wg.Wait()
	if n := len(e.All()); n > 2*DefaultMaxPerPod {
		t.Errorf("%d events kept", n)
	}
}
