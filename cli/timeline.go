package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"berth/nodeapi"

	"github.com/spf13/cobra"
)

func (c *factory) timeline() *cobra.Command {
	return podView[nodeapi.Timeline]{
		use:   "timeline POD",
		short: "Show the actions executed for a pod with start, duration and reason",
		fetch: func(ctx context.Context, client *nodeapi.Client, t target) (nodeapi.Timeline, error) {
			return client.Timeline(ctx, t.namespace, t.name)
		},
		text: func(_ target, s screen, l nodeapi.Timeline) (string, error) { return timelineText(l, s, c.now()), nil },
	}.command(c)
}

// nested is a span with its depth in the tree of spans.
type nested struct {
	nodeapi.Span
	depth int
}

// nest orders spans as a tree, each parent before its children and siblings by start. A span
// without a known parent, or in a cycle, is at the top level.
func nest(spans []nodeapi.Span) []nested {
	known := map[int]bool{}
	for _, s := range spans {
		known[s.ID] = true
	}
	children := map[int][]nodeapi.Span{}
	for _, s := range spans {
		parent := s.Parent
		if !known[parent] || parent == s.ID {
			parent = 0
		}
		children[parent] = append(children[parent], s)
	}
	var tree []nested
	placed := map[int]bool{}
	var place func(s nodeapi.Span, depth int)
	place = func(s nodeapi.Span, depth int) {
		if placed[s.ID] {
			return
		}
		placed[s.ID] = true
		tree = append(tree, nested{Span: s, depth: depth})
		for _, child := range byStart(children[s.ID]) {
			place(child, depth+1)
		}
	}
	for _, s := range byStart(children[0]) {
		place(s, 0)
	}
	for _, s := range byStart(spans) { // spans in a cycle of parents
		place(s, 0)
	}
	return tree
}

func byStart(spans []nodeapi.Span) []nodeapi.Span {
	return slices.SortedStableFunc(slices.Values(spans), func(a, b nodeapi.Span) int {
		return cmp.Or(a.Start.Compare(b.Start), cmp.Compare(a.ID, b.ID))
	})
}

// frame is the time interval of a bar chart.
type frame struct{ from, to time.Time }

// minPause is the minimum pause between two periods.
const minPause = 2 * time.Second

// periods splits the spans where a pause is longer than all activity since the previous pause. Each
// period has its own scale. Otherwise the start of a pod would be invisible next to actions of the
// next day.
func periods(tree []nested, now time.Time) (out []frame, of []int) {
	for _, s := range tree {
		end := endOf(s.Span, now)
		last := len(out) - 1
		if last < 0 || s.depth == 0 && s.Start.Sub(out[last].to) >= max(minPause, out[last].to.Sub(out[last].from)) {
			out, last = append(out, frame{s.Start, end}), last+1
		}
		if end.After(out[last].to) {
			out[last].to = end
		}
		of = append(of, last)
	}
	return out, of
}

func frameOf(l nodeapi.Timeline, now time.Time) frame {
	f := frame{from: l.Spans[0].Start, to: l.Spans[0].Start}
	for _, s := range l.Spans {
		if s.Start.Before(f.from) {
			f.from = s.Start
		}
		if e := endOf(s, now); e.After(f.to) {
			f.to = e
		}
	}
	return f
}

func endOf(s nodeapi.Span, now time.Time) time.Time {
	switch {
	case s.End.IsZero() && now.After(s.Start):
		return now
	case s.End.Before(s.Start):
		return s.Start
	default:
		return s.End
	}
}

// bar draws [start, end] in a field of width cells. At least one cell is drawn.
func (f frame) bar(start, end time.Time, width int, mark string) string {
	whole := max(f.to.Sub(f.from), 1)
	cell := func(t time.Time) int {
		return int(float64(width) * (float64(t.Sub(f.from)) / float64(whole)))
	}
	first := min(cell(start), width-1)
	last := min(max(cell(end), first+1), width)
	return strings.Repeat(" ", first) + strings.Repeat(mark, last-first) + strings.Repeat(" ", width-last)
}

const (
	minBar  = 12
	maxBar  = 80
	minName = 12
)

func timelineText(l nodeapi.Timeline, s screen, now time.Time) string {
	var b strings.Builder
	if len(l.Spans) == 0 {
		fmt.Fprintf(&b, "pod %s/%s: no actions yet\n", clean(l.Namespace), clean(l.Name))
		return b.String()
	}
	if !l.Now.IsZero() {
		now = l.Now.In(now.Location())
	}
	f := frameOf(l, now)
	fmt.Fprintf(
		&b,
		"pod %s/%s, %s from %s to %s\n",
		clean(l.Namespace),
		clean(l.Name),
		short(
			f.to.Sub(f.from),
		),
		f.from.In(now.Location()).Format("2006-01-02 15:04:05.000"),
		f.to.In(now.Location()).Format("15:04:05.000"),
	)
	if l.Dropped > 0 {
		fmt.Fprintf(&b, "(%d spans between the start and the newest spans are not available)\n", l.Dropped)
	}
	tree := nest(l.Spans)
	rows := rowsOf(tree, f, now)
	frames, act := periods(tree, now)
	names, starts, lengths := len("OPERATION"), len("START"), len("DURATION")
	for _, r := range rows {
		names = max(names, utf8.RuneCountInString(r.name))
		starts, lengths = max(starts, utf8.RuneCountInString(r.start)), max(lengths, utf8.RuneCountInString(r.length))
	}
	// The width without the name column: two columns of numbers, a bar, and gaps.
	names = min(names, max(s.width-starts-lengths-minBar-8, minName))
	free := s.width - names - starts - lengths - 8
	width := min(max(free*3/5, minBar), maxBar)
	fmt.Fprintf(
		&b,
		"\n%s  %s  %s  %s  REASON\n",
		pad("OPERATION", names),
		lead("START", starts),
		lead("DURATION", lengths),
		strings.Repeat(" ", width+2),
	)
	for i, r := range rows {
		if i > 0 && act[i] != act[i-1] {
			fmt.Fprintf(&b, "%s later:\n", short(frames[act[i]].from.Sub(frames[act[i-1]].to)))
		}
		bar := frames[act[i]].bar(r.span.Start, endOf(r.span.Span, now), width, r.mark)
		line := fmt.Sprintf(
			"%s  %s  %s  |%s|  %s",
			pad(cut(r.name, names), names),
			lead(r.start, starts),
			lead(r.length, lengths),
			s.paint(r.color, bar),
			s.paint(r.color, r.cause),
		)
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return b.String()
}

// timelineRow is one row before layout.
type timelineRow struct {
	span                              nested
	name, start, length, cause, color string
	mark                              string
}

func rowsOf(tree []nested, f frame, now time.Time) []timelineRow {
	rows := make([]timelineRow, 0, len(tree))
	for _, s := range tree {
		r := timelineRow{span: s, mark: "█", cause: clean(s.Cause)}
		r.name = strings.Repeat("  ", s.depth) + clean(spaced(s.Name, s.Target))
		r.start = "+" + short(s.Start.Sub(f.from))
		r.length = short(endOf(s.Span, now).Sub(s.Start))
		if s.Kind == nodeapi.SpanCall {
			r.mark = "▒"
		}
		if s.End.IsZero() {
			r.mark, r.color, r.length = "░", colorWarning, r.length+"…"
		}
		if s.Error != "" {
			r.color = colorError
			r.cause = strings.TrimPrefix(r.cause+"; failed: "+clean(s.Error), "; ")
		}
		rows = append(rows, r)
	}
	return rows
}

// cut shortens a text in the middle.
func cut(text string, width int) string {
	r := []rune(text)
	if len(r) <= width {
		return text
	}
	head := (width - 1) / 2
	return string(r[:head]) + "…" + string(r[len(r)-(width-1-head):])
}

func pad(text string, width int) string {
	return text + strings.Repeat(" ", max(width-utf8.RuneCountInString(text), 0))
}

func lead(text string, width int) string {
	return strings.Repeat(" ", max(width-utf8.RuneCountInString(text), 0)) + text
}
