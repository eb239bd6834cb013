package userids

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

// owner is the user whose subordinate IDs are used for pods.
const owner = "kubelet"

// span is a range of host IDs. The zero value is no range.
type span struct{ first, count uint64 }

func (s span) String() string {
	if s.count == 0 {
		return "none"
	}
	return fmt.Sprintf("%d to %d", s.first, s.first+s.count-1)
}

// check returns why a range cannot be divided into ranges for all pods.
func (s span) check(pods int) error {
	switch {
	case s.first < PerPod:
		return fmt.Errorf("the first ID is %d, must be at least %d", s.first, PerPod)
	case s.first%PerPod != 0 || s.count%PerPod != 0:
		return fmt.Errorf("%d IDs from %d: both must be multiples of %d", s.count, s.first, PerPod)
	case s.first+s.count > 1<<32-PerPod: // the last ID means "no ID"
		return fmt.Errorf("%d IDs from %d exceed the range of IDs", s.count, s.first)
	case s.count/PerPod < uint64(max(pods, 0)):
		return fmt.Errorf(
			"%d IDs are sufficient for %d pods with user namespaces, and maxPods is %d",
			s.count,
			s.count/PerPod,
			pods,
		)
	}
	return nil
}

// subordinate reads the range of the owner from a file in the format of subuid(5). A missing file
// or line is no range. Two lines are an error.
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
			return span{}, fmt.Errorf("%s: %q is not a range of IDs", file, strings.TrimSpace(line))
		}
	}
	return found, nil
}
