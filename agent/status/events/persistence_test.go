package events

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/events-v1.json")

// recordedEvents returns a Recorder with events of web and another pod.
func recordedEvents(c *clock) *Recorder {
	e := NewRecorder(RecorderOptions{Now: c.Now, Host: "n1"})
	back := Event{Type: corev1.EventTypeWarning, Reason: "BackOff", Message: "Back-off restarting failed container a",
		Container: "a"}
	e.Record(web, Event{Reason: "Started", Message: "Started container a", Container: "a"})
	e.Record(PodRef{Namespace: "default", Name: "other", UID: "u2"}, back)
	for range 3 {
		c.add(time.Second)
		e.Record(web, back)
	}
	return e
}

func TestRecorderSaveRestore(t *testing.T) { // R6
	c := newClock()
	before := recordedEvents(c)
	saved, err := before.Save("u1")
	if err != nil {
		t.Fatal(err)
	}
	const golden = "testdata/events-v1.json"
	if *rewrite {
		if err := errors.Join(os.MkdirAll("testdata", 0o755), os.WriteFile(golden, saved, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	first, err := os.ReadFile(golden) // as written by the first release
	if err != nil {
		t.Fatal(err)
	}
	after := NewRecorder(RecorderOptions{Now: c.Now, Host: "n1"})
	after.Record(web, Event{Reason: "Early", Message: "recorded before the restore"})
	if err := after.Restore(web, first); err != nil {
		t.Fatal(err)
	}
	list := after.List("u1")
	if len(list) != 3 || list[2].Reason != "Early" {
		t.Fatalf("got %v", list)
	}
	if d := cmp.Diff(before.List("u1"), list[:2]); d != "" {
		t.Error(d)
	}
	back := list[1]
	after.Record(web, Event{Type: corev1.EventTypeWarning, Reason: back.Reason, Message: back.Message, Container: "a"})
	list = after.List("u1")
	if got := list[2]; got.Name != back.Name || got.Count != back.Count+1 || len(list) != 3 {
		t.Errorf("after a repetition %s ×%d, was %s ×%d", got.Name, got.Count, back.Name, back.Count)
	}
	if none, err := after.Save("nobody"); none != nil || err != nil {
		t.Errorf("events of an unknown pod: %s, %v", none, err)
	}
}

func TestRestoreInvalidEvents(t *testing.T) {
	for _, text := range []string{``, `[]`, `{"version":2,"events":[]}`, `{"version":1,"events":[{"id":-1}]}`} {
		e := NewRecorder(RecorderOptions{})
		if err := e.Restore(web, []byte(text)); err == nil || !strings.HasPrefix(err.Error(), "read events: ") {
			t.Errorf("%q: %v", text, err)
		}
		if len(e.All()) > 0 {
			t.Errorf("%q left events", text)
		}
	}
}

func TestRestoreLimitsEvents(t *testing.T) { // R1
	in := eventsJSON{Version: 1}
	for i := range 1000 {
		in.Events = append(in.Events,
			eventJSON{Reason: fmt.Sprint("R", i), Message: strings.Repeat("x", 1<<12), ID: uint64(i)})
	}
	b, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	e := NewRecorder(RecorderOptions{})
	if err := e.Restore(web, b); err != nil {
		t.Fatal(err)
	}
	list := e.List("u1")
	if len(list) > DefaultMaxPerPod || list[len(list)-1].Reason != "R999" || len(list[0].Message) > MaxMessageBytes {
		t.Errorf("%d events, the last is %s, messages of %d bytes", len(list), list[len(list)-1].Reason,
			len(list[0].Message))
	}
}

func TestTimelineResume(t *testing.T) { // R6
	c := newClock()
	line := NewTimeline(TimelineOptions{Now: c.Now})
	line.Begin(Span{Name: "start/a", Stage: "build-run", End: c.Now()})
	open := line.Begin(Span{Name: "start/b", Stage: "build-run"})
	c.add(time.Second)
	stopped := c.Now()
	for run := range 3 {
		saved, err := json.Marshal(line)
		if err != nil {
			t.Fatal(err)
		}
		changes := 0
		line = NewTimeline(TimelineOptions{Now: c.Now, OnChange: func() { changes++ }})
		if err := json.Unmarshal(saved, line); err != nil {
			t.Fatal(err)
		}
		c.add(time.Minute)
		line.Resume(Restart{StoppedAt: stopped, StartedAt: c.Now(), Cause: "killed"})
		stopped = c.Now()
		observe := line.Begin(Span{Name: "observe", Stage: "prepare"})
		line.End(observe, nil)
		if changes != 3 {
			t.Errorf("%d changes reported, want 3", changes)
		}
		spans, _ := line.Spans()
		if len(spans) != 4 {
			t.Fatalf("run %d: %d spans, want the two, one for the restarts, and the observation: %+v", run, len(spans),
				spans)
		}
		if s := spans[1]; s.ID != open || s.Err == "" || s.End.Sub(s.Start) != time.Second {
			t.Errorf("span in progress: %+v", s)
		}
		if s := spans[2]; s.Name != restartSpan || s.End.Sub(s.Start) != time.Minute || int(s.Attempt) != run+1 {
			t.Errorf("the restart: %+v", s)
		}
	}
	line.Begin(Span{Name: "stop/a", Stage: "cleanup", End: c.Now()})
	line.Resume(Restart{StartedAt: c.Now(), Cause: "stopped"})
	spans, _ := line.Spans()
	if len(spans) != 6 || spans[5].Attempt != 1 || spans[5].Cause != "stopped" {
		t.Errorf("after another action: %+v", spans)
	}
}
