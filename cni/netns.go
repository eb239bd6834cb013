package cni

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// pinPrefix is the prefix of the names of namespaces that containerd pins.
const pinPrefix = "cni-"

// pinLeaks lists the pinned namespaces that have no attachment and contain no process. For a moment
// these include the namespaces of containers that are starting or stopping.
func (n *Network) pinLeaks(s LeakQuery) (out []Leak, err error) {
	entries, err := os.ReadDir(s.NetNSDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list pinned network namespaces: %w", err)
	}
	var candidates []string
	for _, e := range entries {
		path := filepath.Join(s.NetNSDir, e.Name())
		if strings.HasPrefix(e.Name(), pinPrefix) && !s.PinKnown(path) {
			candidates = append(candidates, path)
		}
	}
	if len(candidates) == 0 {
		return nil, nil
	}
	all, err := n.attachments(func(string) bool { return false })
	if err != nil {
		return nil, fmt.Errorf("list libcni cache: %w", err)
	}
	named := map[string]bool{}
	for _, a := range all {
		named[filepath.Base(a.netns())] = true
	}
	inUse := s.netNSInUse()
	for _, path := range candidates {
		if ino, isNS := namespaceAt(path); !named[filepath.Base(path)] && (!isNS || !inUse[ino]) {
			out = append(out, Leak{Kind: PinnedNetNS, NetNS: path})
		}
	}
	return out, nil
}

// nsfs is the magic number of the namespace file system.
const nsfs = 0x6e736673

// namespaceAt returns the inode number of the namespace that is mounted at path. It returns false
// if there is none.
func namespaceAt(path string) (uint64, bool) {
	if path == "" {
		return 0, false
	}
	var fsys unix.Statfs_t
	var st unix.Stat_t
	if unix.Statfs(path, &fsys) != nil || fsys.Type != nsfs || unix.Stat(path, &st) != nil {
		return 0, false
	}
	return st.Ino, true
}

func (s *LeakQuery) netNSInUse() map[uint64]bool {
	if s.NetNSInUse != nil {
		return s.NetNSInUse()
	}
	return netNSWithProcesses()
}

// netNSWithProcesses returns the inode numbers of the network namespaces that contain a process.
func netNSWithProcesses() map[uint64]bool {
	out := map[uint64]bool{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		link, err := os.Readlink(filepath.Join("/proc", e.Name(), "ns", "net")) // net:[4026531840]
		if err != nil {
			continue
		}
		text, ok := strings.CutPrefix(strings.TrimSuffix(link, "]"), "net:[")
		if ino, err := strconv.ParseUint(text, 10, 64); err == nil && ok {
			out[ino] = true
		}
	}
	return out
}

// removePin unmounts a pinned namespace without processes. The kernel then deletes the namespace
// with its links.
func removePin(path string) error {
	if ino, ok := namespaceAt(path); ok && netNSWithProcesses()[ino] {
		return fmt.Errorf("network namespace %s is in use by a process", path)
	}
	if err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) &&
		!errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount network namespace %s: %w", path, err)
	}
	return removeFile(path)
}
