package telemetry

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// documented returns the labels of the metrics in the tables of the named sections of the reference.
func documented(t *testing.T, sections ...string) map[string][]string {
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
			out[name] = []string{}
			for label := range strings.SplitSeq(cells[2], ",") {
				if label = strings.Trim(label, " `"); label != "" {
					out[name] = append(out[name], label)
				}
			}
		}
	}
	return out
}

var descPattern = regexp.MustCompile(`fqName: "([^"]*)".*constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}`)

// described returns the labels of all registered metrics.
func described(t *testing.T, m *Metrics) map[string][]string {
	t.Helper()
	ch := make(chan *prometheus.Desc)
	go func() {
		defer close(ch)
		m.registry.Describe(ch)
	}()
	out := map[string][]string{}
	for d := range ch {
		parts := descPattern.FindStringSubmatch(d.String())
		if parts == nil {
			t.Fatalf("unreadable description %s", d)
		}
		out[parts[1]] = []string{}
		for label := range strings.SplitSeq(parts[2]+","+parts[3], ",") {
			if label, _, _ = strings.Cut(label, "="); label != "" {
				out[parts[1]] = append(out[parts[1]], label)
			}
		}
	}
	return out
}

// TestReferenceListsEveryMetric compares the tables of docs/reference/metrics.md with the collectors,
// in both directions, with their labels.
func TestReferenceListsEveryMetric(t *testing.T) {
	t.Parallel()
	m := NewMetrics("n1", Build{})
	m.RegisterState(func() State { return State{} })
	docs := documented(t, "Agent: upstream metrics", "Agent: berth metrics", "Probes")
	code := described(t, m)
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
