package server

import (
	"bytes"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Types of a family of figures.
const (
	counter = "counter"
	gauge   = "gauge"
)

// label is a name and a value of a sample.
type label struct{ name, value string }

// exposition is a page of figures in Prometheus' text form. It is written straight
// from what was measured: the figures of a full node are many.
type exposition struct {
	page bytes.Buffer
	name string // of the family
	head string // of the family, until it has a sample
}

func newExposition() *exposition { return &exposition{} }

// family begins a family. One without samples is left out.
func (e *exposition) family(name, kind, help string) {
	e.name = name
	e.head = "# HELP " + name + " " + help + "\n# TYPE " + name + " " + kind + "\n"
}

// sample adds one with the time it was measured at; nothing if it was not.
func (e *exposition) sample(labels []label, value float64, at time.Time) {
	if !at.IsZero() {
		e.line(labels, value, at)
	}
}

// plain adds a sample of now, without labels.
func (e *exposition) plain(value float64) { e.line(nil, value, time.Time{}) }

var escapeLabel = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)

func (e *exposition) line(labels []label, value float64, at time.Time) {
	e.page.WriteString(e.head)
	e.head = ""
	e.page.WriteString(e.name)
	for i, l := range labels {
		e.page.WriteByte("{,"[min(i, 1)])
		e.page.WriteString(l.name)
		e.page.WriteString(`="`)
		_, _ = escapeLabel.WriteString(&e.page, l.value)
		e.page.WriteByte('"')
	}
	if len(labels) > 0 {
		e.page.WriteByte('}')
	}
	e.page.WriteByte(' ')
	e.page.Write(appendValue(e.page.AvailableBuffer(), value))
	if !at.IsZero() {
		e.page.WriteByte(' ')
		e.page.Write(strconv.AppendInt(e.page.AvailableBuffer(), at.UnixMilli(), 10))
	}
	e.page.WriteByte('\n')
}

// appendValue writes whole numbers as such, which is what most figures are.
func appendValue(b []byte, v float64) []byte {
	if v == math.Trunc(v) && math.Abs(v) < 1<<53 {
		return strconv.AppendInt(b, int64(v), 10)
	}
	return strconv.AppendFloat(b, v, 'g', -1, 64)
}

// send answers with the page.
func (e *exposition) send(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(e.page.Len()))
	_, _ = e.page.WriteTo(w)
}

// seconds is a moment as figures have it; 0: there was none.
func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixNano()) / 1e9
}
