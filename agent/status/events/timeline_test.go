package events

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestTimelineSpans(t *testing.T) {
	c := newClock()
	tl := NewTimeline(TimelineOptions{Now: c.Now})
	stage := tl.Begin(Span{Name: "build-run", Stage: "build-run", Cause: "pod added"})
	c.add(time.Second)
	call := tl.Begin(Span{Name: "RunSandbox", Parent: stage, Attempt: 1})
	c.add(time.Second)
	tl.End(call, errors.New("no network"))
	tl.End(call, nil) // has ended already
	tl.End(99, nil)
	t0 := newClock().now
	want := []Span{
		{ID: 1, Name: "build-run", Stage: "build-run", Cause: "pod added", Start: t0},
		{ID: 2, Parent: 1, Name: "RunSandbox", Attempt: 1, Start: t0.Add(time.Second), End: t0.Add(2 * time.Second),
			Err: "no network"},
	}
	got, dropped := tl.Spans()
	if d := cmp.Diff(want, got); d != "" || dropped != 0 {
		t.Errorf("dropped %d\n%s", dropped, d)
	}
}

func TestFullTimelineKeepsStartAndNewest(t *testing.T) { // R5
	tl := NewTimeline(TimelineOptions{Now: newClock().Now, MaxSpans: 8})
	first := tl.Begin(Span{Name: "0"})
	for i := 1; i < 100; i++ {
		tl.Begin(Span{Name: fmt.Sprint(i)})
	}
	tl.End(first, nil)
	spans, dropped := tl.Spans()
	var names []string
	for _, s := range spans {
		names = append(names, s.Name)
	}
	if got := strings.Join(names, " "); got != "0 1 94 95 96 97 98 99" || dropped != 92 {
		t.Errorf("kept %s, dropped %d", got, dropped)
	}
	if spans[0].End.IsZero() {
		t.Error("the first span was not ended")
	}
}

func TestTimelineKeepsStartOfManyContainers(t *testing.T) {
	const containers = 20
	o := OptionsForContainers(containers, func() {})
	o.Now = newClock().Now
	tl := NewTimeline(o)
	var starts []SpanID
	for i := range containers {
		stage := tl.Begin(Span{Name: fmt.Sprintf("start c%d", i), Stage: "build-run", Cause: "c, first start"})
		starts = append(starts, stage)
		for _, call := range []string{"CreateContainer", "StartContainer"} {
			tl.End(tl.Begin(Span{Name: call, Parent: stage}), nil)
		}
		tl.End(stage, nil)
	}
	for range 1000 {
		observe := tl.Begin(Span{Name: "observe", Stage: "prepare"})
		tl.End(tl.Begin(Span{Name: "ListContainers", Parent: observe}), nil)
		tl.End(observe, nil)
	}
	kept := map[SpanID]int{}
	spans, dropped := tl.Spans()
	for i, s := range spans {
		kept[s.ID]++
		if s.Parent == 0 {
			continue
		}
		if kept[s.Parent]++; kept[s.Parent] == 1 {
			t.Errorf("span %d of %d, %s, is kept without its stage", i, len(spans), s.Name)
		}
	}
	for i, id := range starts {
		if kept[id] != 3 {
			t.Errorf("start of container %d: %d of 3 spans", i, kept[id])
		}
	}
	if len(spans) > o.MaxSpans || len(spans)+dropped != 3*containers+2000 ||
		spans[len(spans)-1].Name != "ListContainers" {
		t.Errorf("%d spans, %d dropped, the last is %q", len(spans), dropped, spans[len(spans)-1].Name)
	}
}

func TestTimelineJSON(t *testing.T) {
	c := newClock()
	tl := NewTimeline(TimelineOptions{Now: c.Now})
	tl.End(tl.Begin(Span{Name: "a", Cause: "x"}), errors.New("y"))
	tl.Begin(Span{Name: "b"})
	b, err := json.Marshal(tl)
	if err != nil {
		t.Fatal(err)
	}
	const golden = `{"version":1,"spans":[` +
		`{"id":1,"name":"a","start":"2026-01-02T03:04:05Z","end":"2026-01-02T03:04:05Z","cause":"x","error":"y"},` +
		`{"id":2,"name":"b","start":"2026-01-02T03:04:05Z"}]}`
	if string(b) != golden {
		t.Errorf("got  %s\nwant %s", b, golden)
	}
	next := NewTimeline(TimelineOptions{Now: c.Now})
	if err := json.Unmarshal(b, next); err != nil {
		t.Fatal(err)
	}
	if id := next.Begin(Span{Name: "c"}); id != 3 {
		t.Errorf("the next span has ID %d, want 3", id)
	}
	var invalid Timeline
	for _, in := range []string{`{"version":2}`, `[]`, `{"version":1,"spans":[{"id":-1}]}`} {
		if json.Unmarshal([]byte(in), &invalid) == nil {
			t.Errorf("%s was accepted", in)
		}
	}
	var empty Timeline
	if err := json.Unmarshal([]byte(golden), &empty); err != nil {
		t.Fatal(err)
	}
	if id := empty.Begin(Span{Name: "d"}); id != 3 {
		t.Errorf("a timeline from JSON continues with %d", id)
	}
}

func TestTimelineSize(t *testing.T) { // R1
	for _, tt := range []struct {
		name, cause string
		most        uint64
	}{
		{"an ordinary pod", "image is present", 8 << 10},
		{"a pod with long texts", strings.Repeat("long", 1000), 10 << 10},
	} {
		t.Run(tt.name, func(t *testing.T) {
			const pods = 200
			keep := make([]*Timeline, pods)
			before := heap()
			for i := range keep {
				tl := NewTimeline(TimelineOptions{})
				for j := range 500 {
					tl.End(tl.Begin(Span{Name: fmt.Sprint("StartContainer c", j), Stage: "build-run", Cause: tt.cause}),
						errors.New("it failed"))
				}
				keep[i] = tl
			}
			if each := (heap() - before) / pods; each > tt.most {
				t.Errorf("%d bytes for the timeline of one pod, want at most %d", each, tt.most)
			}
			for _, tl := range keep {
				b, err := json.Marshal(tl)
				if err != nil || len(b) > 10<<10 {
					t.Fatalf("%d bytes of JSON, %v", len(b), err)
				}
			}
		})
	}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC() // frees the objects pooled by other tests
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
