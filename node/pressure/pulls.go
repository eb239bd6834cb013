package pressure

import "slices"

// PullBudget judges the disk that images lie on, by its signals as they are now. keep
// is how many bytes of it hard thresholds want free: a pull that took them would have
// pods evicted. low is the threshold that is met, hard or soft, the most urgent if
// there are more: then nothing should be pulled; nil: none is.
func (c Config) PullBudget(levels map[Signal]Level) (keep int64, low *ThresholdMet) {
	for _, t := range slices.SortedFunc(slices.Values(c.Thresholds), order) {
		level, read := levels[t.Signal]
		if !read {
			continue
		}
		m := ThresholdMet{Threshold: t, Level: level, Minimum: t.value(level.Capacity, false)}
		if t.Hard && t.Signal.Resource() != Inodes {
			keep = max(keep, m.Minimum)
		}
		if level.Available < m.Minimum && low == nil {
			low = &m
		}
	}
	return keep, low
}
