package console

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"berth/nodeapi"
)

func TestBarsFitTheScreen(t *testing.T) {
	l := timelineOf("default", "web")
	l.Spans = append(l.Spans, nodeapi.Span{ID: 9, Name: "stop", On: strings.Repeat("long-name-", 12) + "(attempt 7)", Start: now.Add(-1234 * time.Millisecond), End: now})
	for _, width := range []int{60, 80, 120, 200} {
		for line := range strings.Lines(timelineText(l, screen{width: width}, now)) {
			if i := strings.LastIndex(line, "|"); i >= 0 && utf8.RuneCountInString(line[:i+1]) > width {
				t.Errorf("at %d columns the bar ends at %d: %s", width, utf8.RuneCountInString(line[:i+1]), line)
			}
		}
	}
	if text := timelineText(l, screen{width: 80}, now); !strings.Contains(text, "stop ") || !strings.Contains(text, "(attempt 7)") {
		t.Errorf("the ends of a long name are gone:\n%s", text)
	}
}
