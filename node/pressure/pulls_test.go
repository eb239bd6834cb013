package pressure

import "testing"

// TestPullBudgetUsesImageFileSystemOnly has one rule per row.
func TestPullBudgetUsesImageFileSystemOnly(t *testing.T) {
	t.Parallel()
	hard := Threshold{Signal: ImagefsAvailable, Hard: true, Percent: 15}
	soft := Threshold{Signal: ImagefsAvailable, Quantity: 30 * gi}
	inodes := Threshold{Signal: ImagefsInodesFree, Hard: true, Percent: 5}
	nodefs := Threshold{Signal: NodefsAvailable, Hard: true, Percent: 10}
	images := func(free, inodes int64) map[Signal]Level {
		return map[Signal]Level{ImagefsAvailable: {free, 100 * gi}, ImagefsInodesFree: {inodes, 1000}}
	}
	both := images(12*gi, 500)
	both[NodefsAvailable] = Level{12 * gi, 100 * gi}
	lower := images(5*gi, 500)
	lower[NodefsAvailable] = Level{5 * gi, 100 * gi}
	for _, row := range []struct {
		sentence   string
		thresholds []Threshold
		levels     map[Signal]Level
		keep       int64
		low        string // empty: none
	}{
		{"enough free space", []Threshold{hard, inodes}, images(50*gi, 500), 15 * gi, ""},
		{"exactly the threshold is enough", []Threshold{hard}, images(15*gi, 500), 15 * gi, ""},
		{"below the hard threshold", []Threshold{hard}, images(14*gi, 500), 15 * gi,
			"imagefs.available is 14Gi, less than 15Gi"},
		{"below the soft threshold, regardless of its grace period: keep is that of the hard one",
			[]Threshold{hard, soft}, images(20*gi, 500), 15 * gi, "imagefs.available is 20Gi, less than 30Gi"},
		{"the hard threshold is reported first", []Threshold{soft, hard}, images(14*gi, 500), 15 * gi,
			"imagefs.available is 14Gi, less than 15Gi"},
		{"inode thresholds count, but do not add to keep", []Threshold{inodes}, images(50*gi, 49), 0,
			"imagefs.inodesFree is 49, less than 50"},
		{"thresholds of nodefs count if both are on one file system", []Threshold{nodefs, hard}, both, 15 * gi,
			"imagefs.available is 12Gi, less than 15Gi"},
		{"also without a threshold of imagefs", []Threshold{nodefs}, lower, 10 * gi,
			"nodefs.available is 5Gi, less than 10Gi"},
		{"thresholds of another file system do not count", []Threshold{nodefs}, images(1*gi, 500), 0, ""},
		{"memory thresholds do not count", []Threshold{{Signal: MemoryAvailable, Hard: true, Quantity: gi}},
			images(1*gi, 500), 0, ""},
	} {
		keep, low := Config{Thresholds: row.thresholds}.PullBudget(row.levels)
		text := ""
		if low != nil {
			text = low.String()
		}
		if keep != row.keep || text != row.low {
			t.Errorf("%s: got keep %d, low %q; want %d, %q", row.sentence, keep, text, row.keep, row.low)
		}
	}
}
