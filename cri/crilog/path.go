package crilog

import (
	"path/filepath"
	"strconv"
	"strings"
	"unicode/utf8"
)

// LogFileName is the name of the log of one attempt in the container's folder.
func LogFileName(attempt uint32) string { return strconv.FormatUint(uint64(attempt), 10) + ".log" }

// ParseAttempt reads the attempt from the name of a log or of a rotated one.
func ParseAttempt(file string) (uint32, bool) {
	digits, rest, found := strings.Cut(filepath.Base(file), ".log")
	if !found || (rest != "" && rest[0] != '.') {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 32)
	return uint32(n), err == nil && LogFileName(uint32(n)) == digits+".log"
}

const maxFileName = 255

// LinkPath is the path below root (/var/log/containers) where log shippers look for
// the log of a container; a name too long for a file is cut.
func LinkPath(root, pod, namespace, container, id string) string {
	name := pod + "_" + namespace + "_" + container + "-" + id
	if most := maxFileName - len(".log"); len(name) > most {
		for most > 0 && !utf8.RuneStart(name[most]) {
			most--
		}
		name = name[:most]
	}
	return filepath.Join(root, name+".log")
}
