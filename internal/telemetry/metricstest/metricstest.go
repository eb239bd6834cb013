// Package metricstest compares metrics with their documentation.
package metricstest

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// descPattern finds the name, the constant labels and the variable labels in the text of a prometheus.Desc.
var descPattern = regexp.MustCompile(`fqName: "([^"]*)".*constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}`)

// CheckReference compares the tables in sections of docs/reference/metrics.md with the metrics of c, in
// both directions, with their labels. It is for packages two directories below the root of the module.
func CheckReference(t *testing.T, c prometheus.Collector, sections ...string) {
	t.Helper()
	docs, code := documented(t, sections), described(t, c)
	for name, labels := range code {
		if strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") {
			continue // documented as a group
		}
		got, is := docs[name]
		slices.Sort(labels)
		slices.Sort(got)
		switch {
		case !is:
			t.Errorf("%s is not documented", name)
		case !slices.Equal(got, labels):
			t.Errorf("%s: documented labels %v, actual labels %v", name, got, labels)
		}
	}
	for name := range docs {
		if _, is := code[name]; !is {
			t.Errorf("%s is documented and does not exist", name)
		}
	}
}

// documented returns the labels of the metrics in the tables of sections.
func documented(t *testing.T, sections []string) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("../../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]string{}
	for _, section := range sections {
		_, rest, found := strings.Cut(string(text), "\n## "+section+"\n")
		if !found {
			t.Fatalf("no section %s", section)
		}
		rest, _, _ = strings.Cut(rest, "\n## ")
		for _, row := range strings.Split(rest, "\n| `")[1:] {
			cells := strings.Split(row, "|")
			name := strings.Trim(cells[0], " `")
			if _, twice := out[name]; twice {
				t.Errorf("%s is documented twice", name)
			}
			out[name] = splitLabels(cells[2])
		}
	}
	return out
}

// described returns the labels of the metrics of c.
func described(t *testing.T, c prometheus.Collector) map[string][]string {
	t.Helper()
	descs := make(chan *prometheus.Desc)
	go func() {
		defer close(descs)
		c.Describe(descs)
	}()
	out := map[string][]string{}
	for d := range descs {
		parts := descPattern.FindStringSubmatch(d.String())
		if parts == nil {
			t.Errorf("unreadable description %s", d)
			continue
		}
		out[parts[1]] = splitLabels(parts[2] + "," + parts[3])
	}
	return out
}

// splitLabels returns the names in a list such as "`a`, `b`" or `a="constant",b`.
func splitLabels(list string) []string {
	var out []string
	for label := range strings.SplitSeq(list, ",") {
		label, _, _ = strings.Cut(label, "=")
		if label = strings.Trim(label, " `"); label != "" {
			out = append(out, label)
		}
	}
	return out
}
