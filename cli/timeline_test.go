package cli

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"berth/nodeapi"
)

func TestTimelineFitsScreen(t *testing.T) {
	l := timelineOf("default", "web")
	l.Spans = append(
		l.Spans,
		nodeapi.Span{
			ID:     9,
			Name:   "stop",
			Target: strings.Repeat("long-name-", 12) + "(attempt 7)",
			Start:  now.Add(-1234 * time.Millisecond),
			End:    now,
		},
	)
	for _, width := range []int{60, 80, 120, 200} {
		for line := range strings.Lines(timelineText(l, screen{width: width}, now)) {
			if i := strings.LastIndex(line, "|"); i >= 0 && utf8.RuneCountInString(line[:i+1]) > width {
				t.Errorf("at %d columns the bar ends at %d: %s", width, utf8.RuneCountInString(line[:i+1]), line)
			}
		}
	}
	if text := timelineText(l, screen{width: 80}, now); !strings.Contains(text, "stop ") ||
		!strings.Contains(text, "(attempt 7)") {
		t.Errorf("the ends of a long name are missing:\n%s", text)
	}
}

// TestTimelinePeriodsHaveOwnScale covers a pod with an action an hour after its start.
func TestTimelinePeriodsHaveOwnScale(t *testing.T) {
	t.Parallel()
	span := func(id, parent int, name string, from, to time.Duration) nodeapi.Span {
		return nodeapi.Span{ID: id, Parent: parent, Name: name, Start: now.Add(from), End: now.Add(to)}
	}
	text := timelineText(nodeapi.Timeline{Namespace: "default", Name: "web", Spans: []nodeapi.Span{
		span(1, 0, "start", 0, time.Second),
		span(2, 1, "first", 0, 500*time.Millisecond),
		span(3, 0, "soon", 2500*time.Millisecond, 3*time.Second),
		span(4, 0, "resize", time.Hour, time.Hour+time.Millisecond),
		span(5, 4, "call", time.Hour+time.Millisecond, time.Hour+2*time.Millisecond),
	}}, screen{width: 100}, now)
	cells := map[string]int{}
	for line := range strings.Lines(text) {
		if strings.Contains(line, "|") {
			cells[strings.Fields(line)[0]] = strings.Count(line, "█")
		}
	}
	whole := cells["resize"] + cells["call"]
	if cells["start"] < whole/4 || cells["first"] < whole/8 || cells["resize"] < whole/3 || cells["call"] < whole/3 {
		t.Errorf("cells %v in\n%s", cells, text)
	}
	if strings.Count(text, "later:\n") != 1 || !strings.Contains(text, "59m57s later:\n") {
		t.Errorf("the pause is not shown exactly once:\n%s", text)
	}
}
