package userids

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

// owner is the user whose subordinate IDs are those of pods.
const owner = "kubelet"

// span is a range of IDs on the host; zero: none is configured.
type span struct{ first, count uint64 }

func (s span) String() string {
	if s.count == 0 {
		return "none"
	}
	return fmt.Sprintf("%d to %d", s.first, s.first+s.count-1)
}

// check says why a range cannot be cut into runs for all pods.
func (s span) check(pods int) error {
	switch {
	case s.first < PerPod:
		return fmt.Errorf("the first ID is %d, and must not be below %d", s.first, PerPod)
	case s.first%PerPod != 0 || s.count%PerPod != 0:
		return fmt.Errorf("%d IDs from %d on; both must be multiples of %d", s.count, s.first, PerPod)
	case s.first+s.count > 1<<32-PerPod: // the last ID of all stands for "no ID"
		return fmt.Errorf("%d IDs from %d on are more than there are", s.count, s.first)
	case s.count/PerPod < uint64(max(pods, 0)):
		return fmt.Errorf("%d IDs are enough for %d pods with users of their own, and maxPods is %d", s.count, s.count/PerPod, pods)
	}
	return nil
}

// subordinate reads the owner's range from a file of subuid(5)'s form. No file
// or no line of the owner's is no range; two lines are an error.
func subordinate(file string) (span, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return span{}, nil
	}
	if err != nil {
		return span{}, err
	}
	var found span
	for line := range strings.Lines(string(text)) {
		name, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name != owner {
			continue
		}
		if found != (span{}) {
			return span{}, fmt.Errorf("%s: the user %s has more than one range", file, owner)
		}
		first, count, _ := strings.Cut(rest, ":")
		if found.first, err = strconv.ParseUint(first, 10, 32); err == nil {
			found.count, err = strconv.ParseUint(count, 10, 32)
		}
		if err != nil || found.count == 0 {
			return span{}, fmt.Errorf("%s: %q is no range of IDs", file, strings.TrimSpace(line))
		}
	}
	return found, nil
}
