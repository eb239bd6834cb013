package validation

import (
	"fmt"
	"strconv"
	"strings"
)

// interval is a range of completion indexes, both ends included.
type interval struct{ first, last int }

// parseInterval parses one part of a list of indexes, such as "3" or "2-4".
func parseInterval(text string, completions int32) (out interval, err error) {
	limits := strings.Split(text, "-")
	if len(limits) > 2 {
		return out, fmt.Errorf("the fragment %q violates the requirement that an index interval can have at most "+
			"two parts separated by '-'", text)
	}
	if out.first, err = parseIndex(limits[0], completions); err != nil || len(limits) == 1 {
		return interval{out.first, out.first}, err
	}
	if out.last, err = parseIndex(limits[1], completions); err != nil {
		return out, err
	}
	if out.first >= out.last {
		return out, fmt.Errorf("non-increasing order, previous: %d, current: %d", out.first, out.last)
	}
	return out, nil
}

func parseIndex(text string, completions int32) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("cannot convert string to integer for index: %q", text)
	}
	if n >= int(completions) {
		return 0, fmt.Errorf("too large index: %q", text)
	}
	return n, nil
}

// countIndexes returns how many indexes a list such as "0,2-4" has. The list must be in ascending order.
func countIndexes(text string, completions int32) (total int32, err error) {
	if text == "" {
		return 0, nil
	}
	last := -1
	for part := range strings.SplitSeq(text, ",") {
		i, err := parseInterval(part, completions)
		if err != nil {
			return 0, err
		}
		if i.first <= last {
			return 0, fmt.Errorf("non-increasing order, previous: %d, current: %d", last, i.first)
		}
		total += int32(i.last - i.first + 1)
		last = i.last
	}
	return total, nil
}

// commonIndex returns an index that is in both lists. It ignores parts that it cannot parse: countIndexes returns the
// error.
func commonIndex(a, b string, completions int32) (index int, found bool) {
	x, y := intervals(a, completions), intervals(b, completions)
	for len(x) > 0 && len(y) > 0 {
		if x[0].first <= y[0].last && y[0].first <= x[0].last {
			return max(x[0].first, y[0].first), true
		}
		if x[0].first <= y[0].first {
			x = x[1:]
		} else {
			y = y[1:]
		}
	}
	return 0, false
}

func intervals(text string, completions int32) (out []interval) {
	for part := range strings.SplitSeq(text, ",") {
		if i, err := parseInterval(part, completions); err == nil {
			out = append(out, i)
		}
	}
	return out
}
