package vm

import (
	"fmt"
	"slices"
	"strings"
)

// result is the result of one check in a report.
type result struct {
	name   string
	took   string // for example "2.17s"; empty: the check did not finish
	ok     bool
	output string
}

// complete reports whether every announced check has finished.
func complete(report string) bool {
	results, err := parseReport(report)
	return err == nil && !slices.ContainsFunc(results, func(r result) bool { return r.took == "" })
}

// marker is the first character of each line of -test.v=test2json that is not output of a check.
const marker = "\x16"

// withoutMarkers returns a report for the log of a test. go test -json would take lines with a marker for
// results of tests of this package.
func withoutMarkers(report string) string { return strings.ReplaceAll(report, marker, "") }

// parseReport returns the results of a report. Announced checks without a result are included as
// unfinished. A report without an announcement is an error.
func parseReport(report string) ([]result, error) {
	report = strings.ReplaceAll(report, "\r", "")
	_, after, found := strings.Cut(report, "\nchecks: ")
	if !found {
		return nil, fmt.Errorf("no announcement of checks in the report:\n%s", report)
	}
	announced, _, _ := strings.Cut(after, "\n")
	var out []result
	byName := map[string]int{}
	for name := range strings.FieldsSeq(announced) {
		byName[name] = len(out)
		out = append(out, result{name: name})
	}
	var current *result
	for line := range strings.Lines(after) {
		text, marked := strings.CutPrefix(strings.TrimSpace(line), marker)
		switch {
		case marked && strings.HasPrefix(text, "=== RUN "):
			if i, known := byName[strings.TrimSpace(strings.TrimPrefix(text, "=== RUN "))]; known {
				current = &out[i]
			}
		case marked && strings.HasPrefix(text, "--- ") && current != nil:
			status, rest, _ := strings.Cut(strings.TrimPrefix(text, "--- "), ": ")
			_, took, _ := strings.Cut(rest, " ")
			current.ok, current.took = status == "PASS", strings.Trim(took, "()")
			current = nil
		case !marked && current != nil:
			current.output += line
		}
	}
	return out, nil
}
