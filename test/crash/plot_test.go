package crash

import (
	"encoding/xml"
	"errors"
	"fmt"
	"html"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

// point is a point of a line. A negative value is a gap.
type point struct {
	at    time.Duration
	value float64
}

// line is a line or a set of dots in a chartPanel.
type line struct {
	name   string
	points []point
	dots   bool // single points, not joined
}

// chartPanel is a plot over time. Ticks mark the times of faults.
type chartPanel struct {
	title string
	lines []line
	ticks []time.Duration
}

const (
	plotWidth, panelHeight         = 1000, 190
	marginLeft, marginRight        = 60, 20
	marginTop, marginBottom        = 34, 26
	innerWidth, innerHeight        = plotWidth - marginLeft - marginRight, panelHeight - marginTop - marginBottom
	tickColor, gridColor           = "#d9a3a3", "#dddddd"
	background, foreground, family = "#ffffff", "#333333", "sans-serif"
)

var colors = []string{"#1f6fb4", "#c8641e", "#2f8f4e", "#7a4fa3"}

// draw returns an SVG of panels, one below the other, with the same time axis.
func draw(duration time.Duration, panels []chartPanel) string {
	var b strings.Builder
	height := panelHeight * len(panels)
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" `+
		`font-family="%s" font-size="12" fill="%s">`+"\n",
		plotWidth, height, plotWidth, height, family, foreground)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="%s"/>`+"\n", plotWidth, height, background)
	for i, p := range panels {
		fmt.Fprintf(&b, `<g transform="translate(0 %d)">`+"\n", i*panelHeight)
		p.draw(&b, duration)
		b.WriteString("</g>\n")
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func (p *chartPanel) draw(b *strings.Builder, duration time.Duration) {
	maxValue := 1.0
	for _, l := range p.lines {
		for _, at := range l.points {
			maxValue = max(maxValue, at.value)
		}
	}
	step := niceStep(maxValue / 4)
	maxValue = math.Ceil(maxValue/step) * step
	x := func(at time.Duration) float64 {
		return marginLeft + innerWidth*float64(at)/float64(max(duration, time.Second))
	}
	y := func(v float64) float64 { return marginTop + innerHeight*(1-v/maxValue) }

	fmt.Fprintf(b, `<text x="%d" y="18" font-weight="bold">%s</text>`+"\n", marginLeft, html.EscapeString(p.title))
	for v := 0.0; v <= maxValue+step/2; v += step {
		fmt.Fprintf(b, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="%s"/>`, marginLeft, plotWidth-marginRight,
			y(v), y(v), gridColor)
		fmt.Fprintf(b, `<text x="%d" y="%.1f" text-anchor="end">%g</text>`+"\n", marginLeft-6, y(v)+4, v)
	}
	for _, at := range p.ticks {
		fmt.Fprintf(b, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="%s"/>`+"\n", x(at), x(at), marginTop,
			marginTop+innerHeight, tickColor)
	}
	unit, name := time.Minute, "min"
	if duration < 5*time.Minute {
		unit, name = time.Second, "s"
	}
	every := niceStep(float64(duration/unit) / 8)
	for v := 0.0; v <= float64(duration)/float64(unit); v += every {
		fmt.Fprintf(b, `<text x="%.1f" y="%d" text-anchor="middle">%g %s</text>`+"\n",
			x(time.Duration(v*float64(unit))), panelHeight-8, v, name)
	}
	legend := marginLeft + 8*len(p.title) + 20
	for i, l := range p.lines {
		color := colors[i%len(colors)]
		fmt.Fprintf(b, `<rect x="%d" y="9" width="12" height="10" fill="%s"/><text x="%d" y="18">%s</text>`+"\n",
			legend, color, legend+17, html.EscapeString(l.name))
		legend += 8*len(l.name) + 40
		l.draw(b, color, x, y)
	}
}

func (l *line) draw(b *strings.Builder, color string, x func(time.Duration) float64, y func(float64) float64) {
	if l.dots {
		for _, p := range l.points {
			fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="4" fill="%s"/>`+"\n", x(p.at), y(p.value), color)
		}
		return
	}
	for rest := l.points; len(rest) > 0; {
		if rest[0].value < 0 {
			rest = rest[1:]
			continue
		}
		end := slices.IndexFunc(rest, func(p point) bool { return p.value < 0 })
		if end < 0 {
			end = len(rest)
		}
		fmt.Fprintf(b, `<polyline fill="none" stroke="%s" stroke-width="1.5" points="`, color)
		for _, p := range rest[:end] {
			fmt.Fprintf(b, "%.1f,%.1f ", x(p.at), y(p.value))
		}
		b.WriteString(`"/>` + "\n")
		rest = rest[end:]
	}
}

// niceStep returns the smallest of 1, 2, 5, 10, 20 and so on that is not less than least.
func niceStep(least float64) float64 {
	for step := 1.0; ; step *= 10 {
		for _, m := range []float64{1, 2, 5} {
			if m*step >= least {
				return m * step
			}
		}
	}
}

// TestPlotIsWellFormed: the SVG is well-formed, all points are inside the panel, and a gap interrupts its
// line.
func TestPlotIsWellFormed(t *testing.T) {
	t.Parallel()
	text := draw(time.Hour, []chartPanel{
		{title: "a < b & c", lines: []line{
			{name: "joined", points: []point{{0, 0}, {time.Minute, 40}, {2 * time.Minute, -1}, {3 * time.Minute, 130},
				{time.Hour, 7}}},
			{name: "single", dots: true, points: []point{{time.Hour, 130}}},
		}, ticks: []time.Duration{time.Minute}},
		{title: "empty"},
	})
	count, d := map[string]int{}, xml.NewDecoder(strings.NewReader(text))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		e, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		count[e.Name.Local]++
		for _, a := range e.Attr {
			if a.Name.Local != "points" {
				continue
			}
			for pair := range strings.FieldsSeq(a.Value) {
				var x, y float64
				if _, err := fmt.Sscanf(pair, "%g,%g", &x, &y); err != nil || x < marginLeft ||
					x > plotWidth-marginRight || y < marginTop || y > marginTop+innerHeight {
					t.Errorf("point outside of the panel: %s, %v", pair, err)
				}
			}
		}
	}
	if count["polyline"] != 2 || count["circle"] != 1 || count["g"] != 2 ||
		!strings.Contains(text, "a &lt; b &amp; c") {
		t.Errorf("unexpected element counts %v in\n%s", count, text)
	}
}
