package systemd

import (
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/coreos/go-systemd/v22/activation"
	"golang.org/x/sys/unix"
)

// maxFiles is the number of descriptors that the kernel passes in one message.
const maxFiles = 253

// InheritedFiles returns the descriptors that the service manager has passed to this process, by their names:
// sockets of socket units, and what StoreFiles has stored before a restart. It removes the variables of the
// protocol from the environment, so that programs that this process starts do not use them. It returns
// nothing in a second call.
func InheritedFiles() map[string][]*os.File {
	files := map[string][]*os.File{}
	for _, f := range activation.Files(true) {
		files[f.Name()] = append(files[f.Name()], f)
	}
	return files
}

// StoreFiles stores descriptors with a name in the file descriptor store of the service, which has to have
// FileDescriptorStoreMax=. The service manager passes them to the next process of the service. It ignores a
// file that it already has. The caller may close its descriptors. It does nothing without a service manager.
func (n Notifier) StoreFiles(name string, files ...*os.File) error {
	if len(files) > maxFiles {
		return fmt.Errorf("store files: %d files, at most %d", len(files), maxFiles)
	}
	if len(files) == 0 {
		return nil
	}
	return n.sendFiles("FDSTORE=1\nFDNAME="+name, name, files)
}

// RemoveFiles removes all descriptors with a name from the file descriptor store of the service.
func (n Notifier) RemoveFiles(name string) error {
	return n.sendFiles("FDSTOREREMOVE=1\nFDNAME="+name, name, nil)
}

// sendFiles sends a message with descriptors.
func (n Notifier) sendFiles(message, name string, files []*os.File) error {
	if strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' || r == ':' }) || len(name) > 255 {
		return fmt.Errorf("name of files %q: it must be printable ASCII without spaces and colons", name)
	}
	if n.socket == "" {
		return nil
	}
	fds := make([]int, 0, len(files))
	for _, f := range files {
		// File.Fd would make the file blocking, and all others that share its description.
		raw, err := f.SyscallConn()
		if err != nil {
			return fmt.Errorf("store files: %w", err)
		}
		if err := raw.Control(func(fd uintptr) { fds = append(fds, int(fd)) }); err != nil {
			return fmt.Errorf("store files: %w", err)
		}
	}
	defer runtime.KeepAlive(files)
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	defer func() { _ = unix.Close(socket) }()
	// A leading @ means the abstract namespace, for systemd and for this library.
	if err := unix.Sendmsg(socket, []byte(message), rights, &unix.SockaddrUnix{Name: n.socket}, 0); err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	return nil
}
