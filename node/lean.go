package node

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ShedStartPages gives back the memory of this program's own code and constants
// that only its start has used. What is needed again comes back from the page
// cache, one fault each. Writable memory is never touched.
func ShedStartPages() error {
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return err
	}
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	for _, r := range readOnlyRanges(text, exe) {
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, r.from, r.to-r.from, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("give back %x-%x: %w", r.from, r.to, errno)
		}
	}
	return nil
}

type addressRange struct{ from, to uintptr }

// readOnlyRanges finds the mappings of a file that can not be written to in the
// text of /proc/self/maps.
func readOnlyRanges(maps []byte, file string) (out []addressRange) {
	lines := bufio.NewScanner(bytes.NewReader(maps))
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) < 6 || f[5] != file || len(f[1]) < 2 || f[1][1] == 'w' {
			continue
		}
		lo, hi, _ := strings.Cut(f[0], "-")
		from, err := strconv.ParseUint(lo, 16, 64)
		to, err2 := strconv.ParseUint(hi, 16, 64)
		if err == nil && err2 == nil && from < to {
			out = append(out, addressRange{uintptr(from), uintptr(to)})
		}
	}
	return out
}
