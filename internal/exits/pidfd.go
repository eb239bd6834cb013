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

// pidfdInfo is struct pidfd_info up to the fields of Linux 6.15.
type pidfdInfo struct {
	mask     uint64
	_        uint64    // cgroup
	_        [3]uint32 // process, thread group, parent
	_        [8]uint32 // users and groups
	exitCode int32     // as in wait(2)
}

// exitInfo reads the exit status of a process. known reports whether the kernel knows it.
func exitInfo(fd int) (status unix.WaitStatus, known bool, err error) {
	info := pidfdInfo{mask: pidfdInfoExit}
	_, _, errno := unix.Syscall(
		unix.SYS_IOCTL,
		uintptr(fd),
		pidfdGetInfo,
		uintptr(unsafe.Pointer(&info)), //nolint:gosec // there is no wrapper
	)
	if errno != 0 {
		return 0, false, errno
	}
	return unix.WaitStatus(info.exitCode), info.mask&pidfdInfoExit != 0, nil
}

// codeOf converts an exit status to an exit code as runtimes report it.
func codeOf(s unix.WaitStatus) int32 {
	const bySignal = 128
	if s.Signaled() {
		return bySignal + int32(s.Signal())
	}
	return int32(s.ExitStatus())
}

// isOf reports whether a process is in a cgroup named after the container. A process without its
// own cgroup is unknown.
func isOf(pid int, id string) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	return err == nil && bytes.Contains(text, []byte(id))
}
