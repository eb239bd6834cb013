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

// pinPrefix begins the names of the namespaces that containerd pins.
const pinPrefix = "cni-"

// pins lists the pinned namespaces that no attachment names and in which no
// process lives. Those of containers that end or begin are among them for a
// moment.
func (n *Network) pins(s LeakQuery) (out []Leak, err error) {
	entries, err := os.ReadDir(s.NetNSDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list pinned network namespaces: %w", err)
	}
	var suspects []string
	for _, e := range entries {
		path := filepath.Join(s.NetNSDir, e.Name())
		if strings.HasPrefix(e.Name(), pinPrefix) && !s.PinKnown(path) {
			suspects = append(suspects, path)
		}
	}
	if len(suspects) == 0 {
		return nil, nil
	}
	all, err := n.attachments(func(string) bool { return false })
	if err != nil {
		return nil, fmt.Errorf("list what libcni remembers: %w", err)
	}
	named := map[string]bool{}
	for _, a := range all {
		named[filepath.Base(a.netns())] = true
	}
	lived := s.lived()
	for _, path := range suspects {
		if ino, isNS := namespaceAt(path); !named[filepath.Base(path)] && (!isNS || !lived[ino]) {
			out = append(out, Leak{Kind: PinnedNetNS, NetNS: path})
		}
	}
	return out, nil
}

// nsfs is the kernel's number for the file system of namespaces.
const nsfs = 0x6e736673

// namespaceAt is the number of the namespace that is mounted at a path; not ok:
// there is none.
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

func (s *LeakQuery) lived() map[uint64]bool {
	if s.NetNSInUse != nil {
		return s.NetNSInUse()
	}
	return inhabited()
}

// inhabited is the set of network namespaces in which a process lives.
func inhabited() map[uint64]bool {
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

// unpin lets go of a namespace in which nobody lives; the kernel ends it then
// with its links.
func unpin(path string) error {
	if ino, ok := namespaceAt(path); ok && inhabited()[ino] {
		return fmt.Errorf("network namespace %s: a process lives in it", path)
	}
	if err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount network namespace %s: %w", path, err)
	}
	return removeFile(path)
}
