package telemetry

import (
	"io/fs"
	"strconv"
	"syscall"
)

// sameFile reports whether st has that device and inode, written in decimal.
func sameFile(st fs.FileInfo, dev, ino string) bool {
	sys, ok := st.Sys().(*syscall.Stat_t)
	return ok && strconv.FormatUint(sys.Dev, 10) == dev && strconv.FormatUint(sys.Ino, 10) == ino
}
