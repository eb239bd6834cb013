package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// A goal that can be missed is a bound with a unit, for example "<= 30 ms" or ">= 0.95 x". A goal with unit
// x applies to the ratio, any other goal to the figure, or to the last of several figures ("1 ms / 9 ms").
// Any other text is informational.
var (
	bound = regexp.MustCompile(`(<=|>=) ([0-9.]+)(?: (\S+))?$`)
	value = regexp.MustCompile(`^([0-9.]+)(?: (\S+))?$`)
)

// missed reports whether a figure misses its goal. A figure that cannot be compared with its goal is an
// error.
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

// markMissed marks the rows that miss their goals and returns a one-line summary.
func markMissed(rows []row) (summary string, err error) {
	compared := 0
	var missed []string
	for i, r := range rows {
		if bound.MatchString(r.goal) {
			compared++
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
		return fmt.Sprintf("All %d goals are met.", compared), nil
	}
	return fmt.Sprintf("MISSED: %d of %d goals: %s.", len(missed), compared, strings.Join(missed, "; ")), nil
}
