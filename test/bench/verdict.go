package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// A goal that can be missed is a bound with its unit: "<= 30 ms", ">= 0.95 x". In
// x it bounds the ratio, else the figure; the last of several in one row, as of
// "1 ms / 9 ms". Any other text in a goal's place is for the reader alone.
var (
	bound = regexp.MustCompile(`(<=|>=) ([0-9.]+)(?: (\S+))?$`)
	value = regexp.MustCompile(`^([0-9.]+)(?: (\S+))?$`)
)

// missed reports whether a figure misses its goal. A figure that cannot be
// compared with its goal is an error: a missed goal would go unnoticed.
func (r row) missed() (bool, error) {
	goal := bound.FindStringSubmatch(r.goal)
	if goal == nil {
		return false, nil
	}
	got := r.got
	if goal[3] == "x" {
		got = r.ratio
	}
	parts := strings.Split(got, " / ")
	figure := value.FindStringSubmatch(parts[len(parts)-1])
	if figure == nil || figure[2] != goal[3] {
		return false, fmt.Errorf("%s: %q cannot be compared with its goal %q", r.what, got, r.goal)
	}
	is, err := strconv.ParseFloat(figure[1], 64)
	if err != nil {
		return false, fmt.Errorf("%s: %w", r.what, err)
	}
	limit, err := strconv.ParseFloat(goal[2], 64)
	if err != nil {
		return false, fmt.Errorf("%s: %w", r.what, err)
	}
	return goal[1] == "<=" && is > limit || goal[1] == ">=" && is < limit, nil
}

// markMissed adds to each row that misses its goal that it does, and says in one line
// which do.
func markMissed(rows []row) (summary string, err error) {
	judged := 0
	var missed []string
	for i, r := range rows {
		if bound.MatchString(r.goal) {
			judged++
		}
		is, err := r.missed()
		if err != nil {
			return "", err
		}
		if is {
			rows[i].goal += "  MISSED"
			missed = append(missed, fmt.Sprintf("%s (%s%s)", r.what, r.got, strings.TrimRight(", "+r.ratio, ", ")))
		}
	}
	if len(missed) == 0 {
		return fmt.Sprintf("All %d figures that have a goal reach it.", judged), nil
	}
	return fmt.Sprintf("MISSED: %d of %d figures that have a goal: %s.", len(missed), judged, strings.Join(missed, "; ")), nil
}
