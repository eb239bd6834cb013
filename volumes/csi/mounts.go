package csi

import (
	"bufio"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// isMounted reports whether path is a mount point in the mount table, without access to the mounted
// file system, which may not respond.
func isMounted(path string) (bool, error) {
	m, err := findMount(path)
	return m.exists, err
}

// mount is an entry of the mount table.
type mount struct{ exists, seclabel bool }

// findMount returns the last mount at path.
func findMount(path string) (m mount, err error) {
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return m, err
	}
	path = filepath.Join(dir, filepath.Base(path))
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return m, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(make([]byte, 4<<10), 1<<20)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 7 || unescape.Replace(fields[4]) != path {
			continue
		}
		m = mount{exists: true, seclabel: slices.Contains(strings.Split(fields[len(fields)-1], ","), "seclabel")}
	}
	return m, lines.Err()
}

// unescape decodes the characters that the kernel escapes in paths of the mount table.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
