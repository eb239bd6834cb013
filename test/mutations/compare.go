package mutations

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// differences counts the differences between the answers of kube-apiserver and berth-control, in groups.
type differences struct {
	mu     sync.Mutex
	groups map[groupKey]*group
}

// groupKey is what the differences of a group have in common.
type groupKey struct {
	kind, verb string
	path       string // without indexes
	text       string // what differs
}

type group struct {
	count   int
	example string
}

// add adds a difference.
func (d *differences) add(key groupKey, example string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.groups == nil {
		d.groups = map[groupKey]*group{}
	}
	g := d.groups[key]
	if g == nil {
		g = &group{example: example}
		d.groups[key] = g
	}
	g.count++
	if len(example) < len(g.example) {
		g.example = example
	}
}

// anyIndex matches indexes and keys of a path.
var anyIndex = regexp.MustCompile(`\[[^\]]*\]`)

func withoutIndexes(path string) string { return shorten(anyIndex.ReplaceAllString(path, "[*]")) }

// verdict returns the part of an answer that is compared first.
func (j *judgement) verdict() string {
	if j.Code < http.StatusBadRequest {
		return "accepted"
	}
	return fmt.Sprintf("%d %s", j.Code, j.Reason)
}

// compare returns what differs between two answers.
func compare(oracle, tested *judgement) (out []groupKey) {
	if oracle.verdict() != tested.verdict() {
		at := ""
		for _, j := range []*judgement{oracle, tested} {
			if len(j.Causes) > 0 {
				at, _, _ = strings.Cut(j.Causes[0], " ")
			}
		}
		return []groupKey{{path: withoutIndexes(at),
			text: fmt.Sprintf("%s, berth: %s", explain(oracle), explain(tested))}}
	}
	if oracle.Code >= http.StatusBadRequest {
		for _, c := range oracle.Causes {
			if !slices.Contains(tested.Causes, c) {
				path, reason, _ := strings.Cut(c, " ")
				out = append(out, groupKey{path: withoutIndexes(path), text: "missing " + reason})
			}
		}
		for _, c := range tested.Causes {
			if !slices.Contains(oracle.Causes, c) {
				path, reason, _ := strings.Cut(c, " ")
				out = append(out, groupKey{path: withoutIndexes(path), text: "additional " + reason})
			}
		}
		return out
	}
	for _, c := range changes(nil, oracle.object, tested.object) {
		text := "other value"
		switch {
		case !c.has:
			text = "stored only by berth"
		case !c.have:
			text = "not stored by berth"
		}
		out = append(out, groupKey{path: withoutIndexes(pathText(c.path)), text: text})
	}
	return out
}

// explain is the verdict with the reasons of the causes.
func explain(j *judgement) string {
	if len(j.Causes) == 0 {
		return j.verdict()
	}
	var reasons []string
	for _, c := range j.Causes {
		_, reason, _ := strings.Cut(c, " ")
		reasons = append(reasons, reason)
	}
	slices.Sort(reasons)
	return j.verdict() + " (" + shorten(strings.Join(slices.Compact(reasons), ", ")) + ")"
}

// describe is an example of a difference.
func describe(m *mutation, oracle, tested *judgement) string {
	var out strings.Builder
	fmt.Fprintf(&out, "%s", m)
	for i, j := range []*judgement{oracle, tested} {
		if j.message != "" {
			fmt.Fprintf(&out, "\n      %s: %s", [...]string{"kube-apiserver", "berth-control"}[i],
				shortenTo(j.message, 600))
		}
	}
	if oracle.object != nil && tested.object != nil {
		for _, c := range changes(nil, oracle.object, tested.object) {
			was, _ := json.Marshal(c.was)
			now, _ := json.Marshal(c.now)
			fmt.Fprintf(&out, "\n      %s: %s, berth: %s", pathText(c.path), shorten(string(was)), shorten(string(now)))
		}
	}
	return out.String()
}

func shortenTo(s string, most int) string {
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}

// write writes a table of the differences, the most frequent first in each kind.
func (d *differences) write(w io.Writer, examples bool) {
	keys := make([]groupKey, 0, len(d.groups))
	for key := range d.groups {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b groupKey) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(d.groups[b].count, d.groups[a].count),
			cmp.Compare(a.path, b.path), cmp.Compare(a.text, b.text), cmp.Compare(a.verb, b.verb))
	})
	for _, key := range keys {
		g := d.groups[key]
		fmt.Fprintf(w, "%5d  %s  %s  %s  %s\n", g.count, key.kind, key.verb, key.path, key.text)
		if examples {
			fmt.Fprintf(w, "      %s\n", g.example)
		}
	}
}
