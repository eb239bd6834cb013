package exits

import (
	"bytes"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// From include/uapi/linux/pidfd.h.
const (
	pidfdGetInfo  = 0xc040ff0b // _IOWR(0xFF, 11, struct pidfd_info) of the size below
	pidfdInfoExit = 1 << 3
)

// pidfdInfo is struct pidfd_info as far as Linux 6.15 has it.
type pidfdInfo struct {
	mask     uint64
	_        uint64    // cgroup
	_        [3]uint32 // process, thread group, parent
	_        [8]uint32 // users and groups
	exitCode int32     // as wait(2) has it
}

// ask asks a handle how its process ended; told: the kernel knows by now.
func ask(fd int) (status unix.WaitStatus, told bool, err error) {
	info := pidfdInfo{mask: pidfdInfoExit}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), pidfdGetInfo, uintptr(unsafe.Pointer(&info))) //nolint:gosec // the only way to call it
	if errno != 0 {
		return 0, false, errno
	}
	return unix.WaitStatus(info.exitCode), info.mask&pidfdInfoExit != 0, nil
}

// codeOf writes the end of a process as runtimes do.
func codeOf(s unix.WaitStatus) int32 {
	const bySignal = 128
	if s.Signaled() {
		return bySignal + int32(s.Signal())
	}
	return int32(s.ExitStatus())
}

// isOf reports whether a process is in a cgroup that is named after a container;
// one that is in none of its own says nothing.
func isOf(pid int, id string) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	return err == nil && bytes.Contains(text, []byte(id))
}
