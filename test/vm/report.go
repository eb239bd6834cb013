package vm

import (
	"fmt"
	"slices"
	"strings"
)

// result is one check as the machine reported it.
type result struct {
	name string
	took string // in seconds, as "2.17s"; empty: it never ended
	ok   bool
	said string
}

// whole reports whether every check that was announced has ended.
func whole(report string) bool {
	results, err := read(report)
	return err == nil && !slices.ContainsFunc(results, func(r result) bool { return r.took == "" })
}

// mark begins each line of the form -test.v=test2json that is no output.
const mark = "\x16"

// read takes a report apart. The checks that were announced and are not in it
// are results too, that never ended. A report without an announcement is an
// error.
func read(report string) ([]result, error) {
	report = strings.ReplaceAll(report, "\r", "")
	_, after, found := strings.Cut(report, "\nchecks: ")
	if !found {
		return nil, fmt.Errorf("the machine announced no checks:\n%s", report)
	}
	announced, _, _ := strings.Cut(after, "\n")
	var out []result
	byName := map[string]int{}
	for name := range strings.FieldsSeq(announced) {
		byName[name] = len(out)
		out = append(out, result{name: name})
	}
	var now *result
	for line := range strings.Lines(after) {
		text, marked := strings.CutPrefix(strings.TrimSpace(line), mark)
		switch {
		case marked && strings.HasPrefix(text, "=== RUN "):
			if i, known := byName[strings.TrimSpace(strings.TrimPrefix(text, "=== RUN "))]; known {
				now = &out[i]
			}
		case marked && strings.HasPrefix(text, "--- ") && now != nil:
			verdict, rest, _ := strings.Cut(strings.TrimPrefix(text, "--- "), ": ")
			_, took, _ := strings.Cut(rest, " ")
			now.ok, now.took = verdict == "PASS", strings.Trim(took, "()")
			now = nil
		case !marked && now != nil:
			now.said += line
		}
	}
	return out, nil
}
