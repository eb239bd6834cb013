package mountinfo

import (
	"bufio"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Mount is an entry of the mount table, as in proc_pid_mountinfo(5).
type Mount struct {
	Root         string   // path of the mounted directory in its file system
	Point        string   // absolute path without symbolic links
	Options      []string // of the mount: "ro", for example
	Source       string   // a device, for example
	SuperOptions []string
}

// unescape decodes the characters that the kernel escapes in paths of the mount table.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// Find returns the last mount that matches. ok: there is one.
func Find(matches func(Mount) bool) (found Mount, ok bool, err error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return Mount{}, false, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(make([]byte, 4<<10), 1<<20)
	for lines.Scan() {
		if m, valid := parse(lines.Text()); valid && matches(m) {
			found, ok = m, true
		}
	}
	return found, ok, lines.Err()
}

func parse(line string) (Mount, bool) {
	before, after, valid := strings.Cut(line, " - ")
	fields, rest := strings.Fields(before), strings.Fields(after)
	if !valid || len(fields) < 6 || len(rest) < 2 {
		return Mount{}, false
	}
	m := Mount{
		Root: unescape.Replace(fields[3]), Point: unescape.Replace(fields[4]), Options: strings.Split(fields[5], ","),
		Source: unescape.Replace(rest[1]),
	}
	if len(rest) > 2 {
		m.SuperOptions = strings.Split(rest[2], ",")
	}
	return m, true
}

// At returns the last mount at a path. ok: there is one. The directory of the path must respond.
func At(path string) (found Mount, ok bool, err error) {
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return Mount{}, false, nil
	}
	if err != nil {
		return Mount{}, false, err
	}
	path = filepath.Join(dir, filepath.Base(path))
	return Find(func(m Mount) bool { return m.Point == path })
}
