package job

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// span is a range of completion indexes, both ends included.
type span struct{ first, last int }

// indexes is a set of completion indexes: ordered spans with at least one missing index between neighbors.
type indexes []span

// parseIndexes reads the form of status.completedIndexes, such as "0,3-5". It ignores what it cannot read, and indexes
// of completions and above.
func parseIndexes(text string, completions int) indexes {
	var out indexes
	for part := range strings.SplitSeq(text, ",") {
		from, to, isRange := strings.Cut(part, "-")
		first, err := strconv.Atoi(from)
		if err != nil || first < 0 || first >= completions {
			continue
		}
		last := first
		if isRange {
			if last, err = strconv.Atoi(to); err != nil || last < first {
				continue
			}
		}
		out = append(out, span{first, min(last, completions-1)})
	}
	return out.normalized()
}

// indexesOf returns the set of the numbers.
func indexesOf(numbers ...int) indexes {
	out := make(indexes, 0, len(numbers))
	for _, n := range numbers {
		out = append(out, span{n, n})
	}
	return out.normalized()
}

func (s indexes) union(other indexes) indexes {
	return slices.Concat(s, other).normalized()
}

// normalized sorts and joins the spans. It may change the receiver.
func (s indexes) normalized() indexes {
	slices.SortFunc(s, func(a, b span) int { return cmp.Compare(a.first, b.first) })
	var out indexes
	for _, x := range s {
		if n := len(out); n > 0 && x.first <= out[n-1].last+1 {
			out[n-1].last = max(out[n-1].last, x.last)
			continue
		}
		out = append(out, x)
	}
	return out
}

// without returns the indexes that the other set does not have.
func (s indexes) without(other indexes) (out indexes) {
	next := 0
	for _, x := range s {
		for next < len(other) && other[next].last < x.first {
			next++
		}
		for _, y := range other[next:] {
			if y.first > x.last {
				break
			}
			if x.first < y.first {
				out = append(out, span{x.first, y.first - 1})
			}
			x.first = y.last + 1
		}
		if x.first <= x.last {
			out = append(out, x)
		}
	}
	return out
}

func (s indexes) total() (n int) {
	for _, x := range s {
		n += x.last - x.first + 1
	}
	return n
}

func (s indexes) has(n int) bool {
	_, found := slices.BinarySearchFunc(s, n, func(x span, n int) int {
		switch {
		case x.last < n:
			return -1
		case x.first > n:
			return 1
		}
		return 0
	})
	return found
}

// common returns how many indexes both sets have.
func (s indexes) common(other indexes) (n int) {
	for i, j := 0, 0; i < len(s) && j < len(other); {
		n += max(0, min(s[i].last, other[j].last)-max(s[i].first, other[j].first)+1)
		if s[i].last < other[j].last {
			i++
		} else {
			j++
		}
	}
	return n
}

// missing returns the lowest indexes below completions that are not in the set, at most limit.
func (s indexes) missing(completions, limit int) (out []int) {
	next := 0
	for _, x := range append(slices.Clone(s), span{completions, completions}) {
		for ; next < x.first && next < completions && len(out) < limit; next++ {
			out = append(out, next)
		}
		next = max(next, x.last+1)
	}
	return out
}

// String returns the form of status.completedIndexes: a range of two is written as two numbers.
func (s indexes) String() string {
	var parts []string
	for _, x := range s {
		switch x.last - x.first {
		case 0:
			parts = append(parts, strconv.Itoa(x.first))
		case 1:
			parts = append(parts, strconv.Itoa(x.first), strconv.Itoa(x.last))
		default:
			parts = append(parts, strconv.Itoa(x.first)+"-"+strconv.Itoa(x.last))
		}
	}
	return strings.Join(parts, ",")
}
