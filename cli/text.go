package cli

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/duration"
)

const (
	none    = "<none>"
	unknown = "<unknown>"
)

// clean removes control characters and line breaks from external text.
func clean(text string) string {
	if strings.IndexFunc(text, unicode.IsControl) < 0 && utf8.ValidString(text) {
		return text
	}
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			return ' '
		case unicode.IsControl(r):
			return utf8.RuneError
		}
		return r
	}, strings.ToValidUTF8(text, string(utf8.RuneError)))
}

func orNone(text string) string {
	if text == "" {
		return none
	}
	return text
}

// ago is the time from t to now in the format of kubectl: 5m, 3h12m, 7d.
func ago(now, t time.Time) string {
	if t.IsZero() {
		return unknown
	}
	return duration.HumanDuration(now.Sub(t))
}

// short formats a duration with about three digits: 310µs, 84ms, 1.24s, 2m5s.
func short(d time.Duration) string {
	for _, unit := range []time.Duration{time.Microsecond, time.Millisecond, time.Second} {
		if d < 10*unit {
			return d.Round(max(unit/100, 1)).String()
		}
		if d < 1000*unit && unit < time.Second {
			return d.Round(unit).String()
		}
	}
	if d < time.Minute {
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

// table prints rows in columns. Later rows keep the column widths of earlier ones, so that the
// columns of a watch stay aligned.
type table struct {
	w      io.Writer
	indent string
	widths []int
	floor  map[string]int // minimum widths by header, for later rows
	bare   bool           // omit the first row, which is the header
}

// least sets the minimum width of the column with that header.
func (t *table) least(header string, width int) {
	if t.floor == nil {
		t.floor = map[string]int{}
	}
	t.floor[header] = width
}

const columnGap = 3

func (t *table) print(rows ...[]string) error {
	for _, row := range rows {
		for i, cell := range row {
			row[i] = clean(cell)
			if i == len(t.widths) {
				t.widths = append(t.widths, 0)
			}
			t.widths[i] = max(t.widths[i], utf8.RuneCountInString(row[i]), t.floor[row[i]])
		}
	}
	if t.bare && len(rows) > 0 {
		t.bare, rows = false, rows[1:]
	}
	var b strings.Builder
	for _, row := range rows {
		var line strings.Builder
		line.WriteString(t.indent)
		for i, cell := range row {
			line.WriteString(cell)
			if i < len(row)-1 {
				line.WriteString(strings.Repeat(" ", t.widths[i]-utf8.RuneCountInString(cell)+columnGap))
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	_, err := io.WriteString(t.w, b.String())
	return err
}

// field is a line "key: value" with more values in the same column and nested fields below. A field
// without a key is just the value.
type field struct {
	key, value string
	more       []string
	under      []field
}

// writeFields prints fields with adjacent values aligned.
func writeFields(b *strings.Builder, indent string, fields []field) {
	width := 0
	for _, f := range fields {
		if f.value != "" && f.key != "" {
			width = max(width, utf8.RuneCountInString(clean(f.key)))
		}
	}
	for _, f := range fields {
		line := indent + clean(f.value)
		if f.key != "" {
			pad := strings.Repeat(" ", max(width-utf8.RuneCountInString(clean(f.key)), 0))
			line = fmt.Sprintf("%s%s:%s  %s", indent, clean(f.key), pad, clean(f.value))
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
		for _, v := range f.more {
			b.WriteString(indent + strings.Repeat(" ", width+3) + clean(v) + "\n")
		}
		writeFields(b, indent+"  ", f.under)
	}
}
