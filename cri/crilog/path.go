package crilog

import (
	"path/filepath"
	"strconv"
	"strings"
	"unicode/utf8"
)

// ContainerFile is the name of the log of one attempt in the container's folder.
func ContainerFile(attempt uint32) string { return strconv.FormatUint(uint64(attempt), 10) + ".log" }

// Attempt reads the attempt from the name of a log or of a rotated one.
func Attempt(file string) (uint32, bool) {
	digits, rest, found := strings.Cut(filepath.Base(file), ".log")
	if !found || (rest != "" && rest[0] != '.') {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 32)
	return uint32(n), err == nil && ContainerFile(uint32(n)) == digits+".log"
}

const maxFileName = 255

// Link is the path below root (/var/log/containers) where log shippers look for
// the log of a container; a name too long for a file is cut.
func Link(root, pod, namespace, container, id string) string {
	name := pod + "_" + namespace + "_" + container + "-" + id
	if most := maxFileName - len(".log"); len(name) > most {
		for most > 0 && !utf8.RuneStart(name[most]) {
			most--
		}
		name = name[:most]
	}
	return filepath.Join(root, name+".log")
}
