package browser

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// launcherVariable makes a test program become the browser, see launch.
const launcherVariable = "BERTH_BROWSER_LAUNCHER"

//nolint:gochecknoinits // must run before the flags of the test program are parsed
func init() {
	if os.Getenv(launcherVariable) != "" {
		fmt.Fprintln(os.Stderr, "start the browser:", launch())
		os.Exit(1)
	}
}

// launch replaces this process by Chromium, which cannot open netlink sockets. Otherwise it would observe the network
// interfaces that other tests create on this host, and fail requests with ERR_NETWORK_CHANGED.
func launch() error {
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	const number, firstArgument = 0, 16 // offsets in struct seccomp_data
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: number},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 3, K: unix.SYS_SOCKET},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: firstArgument},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: unix.AF_NETLINK},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EAFNOSUPPORT)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0)
	if err != nil {
		return fmt.Errorf("seccomp: %w", err)
	}
	if err := os.Unsetenv(launcherVariable); err != nil {
		return err
	}
	return syscall.Exec(chromium, append([]string{chromium}, os.Args[1:]...), os.Environ())
}
