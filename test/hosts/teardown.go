package hosts

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// teardownTimeout is far longer than a kill and an unmount take on an idle machine.
const teardownTimeout = 5 * time.Minute

// Stop removes the host with everything that ran on it. It may be called twice.
func (h *Host) Stop() error {
	h.mu.Lock()
	agents := slices.Clone(h.agents)
	h.mu.Unlock()
	var errs error
	for _, a := range agents {
		errs = errors.Join(errs, a.Kill9())
		if a.store != nil {
			errs = errors.Join(errs, a.store.close())
			a.store = nil
		}
	}
	errs = errors.Join(errs, h.Kill())
	if h.conn != nil {
		h.conn.Close()
	}
	return errors.Join(errs, h.teardown())
}

// teardown needs only the record: it kills the remaining processes of the host and removes what
// they created.
func (h *Host) teardown() error {
	r := &h.slot.record
	if h.alreadyRemoved() {
		return nil
	}
	if r.Dir == "" { // only the number was claimed
		return h.release()
	}
	if err := r.killAll(teardownTimeout); err != nil {
		return err
	}
	if r.LAN > 0 {
		if err := removeNetNS(r.netns()); err != nil {
			return err
		}
	}
	sockets := slices.Concat(r.sharedDirShimSockets(), r.shimSocketsOf(h.loggedIDs.read(r.log())),
		linksBelow(containerLogs, r.Dir))
	errs := errors.Join(r.unmountAll(), r.removeLinks(), r.removeRules(), r.removeCgroups(teardownTimeout))
	for _, f := range append(sockets, r.cniCache()...) {
		if err := os.Remove(f); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = errors.Join(errs, err)
		}
	}
	if len(r.mounts()) > 0 { // never delete through a mount
		return errors.Join(errs, fmt.Errorf("still mounted: %v", r.mounts()))
	}
	errs = errors.Join(errs, r.removeDir())
	if errs != nil {
		return errs
	}
	h.recordLeaks()
	return h.release()
}

// alreadyRemoved reports whether the host was removed before, by this Stop or by another process
// that opened it. The host that has its number now is then another one.
func (h *Host) alreadyRemoved() bool {
	r := &h.slot.record
	now, err := readRecord(r.Number)
	if err == nil && now.Owner == r.Owner && (now.Dir == r.Dir || now.Dir == "") {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stoppedLeaks == nil { // the process that removed it recorded the leaks
		h.stoppedLeaks = new([]string)
	}
	return true
}

// recordLeaks stores what is left of the host while it still owns its number.
func (h *Host) recordLeaks() {
	remains := h.leaks()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stoppedLeaks = &remains
}

// removeDir removes what the host created in its directory, and the directory itself if it was
// created for the host.
func (r *record) removeDir() error {
	if r.OwnDir {
		return os.RemoveAll(r.Dir)
	}
	var errs error
	for _, name := range []string{"root", "cni", "opt", "certs.d", "containerd.log"} {
		errs = errors.Join(errs, os.RemoveAll(filepath.Join(r.Dir, name)))
	}
	return errs
}

// mounts lists the mount points below the host's directories, innermost first.
func (r *record) mounts() []string {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return []string{err.Error()}
	}
	var out []string
	for line := range strings.Lines(string(text)) {
		at := unescape(strings.Fields(line)[4])
		below := func(dir string) bool { return dir != "" && (at == dir || strings.HasPrefix(at, dir+"/")) }
		if slices.ContainsFunc(r.mountRoots(), below) {
			out = append(out, at)
		}
	}
	slices.Reverse(out)
	return out
}

// unescape decodes the octal escapes of a path in mountinfo.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

func (r *record) unmountAll() error {
	var errs error
	for range 100 { // one mount may hide another at the same path
		all := r.mounts()
		if len(all) == 0 {
			return nil
		}
		errs = nil
		for _, at := range all {
			if err := unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil &&
				!errors.Is(err, unix.EINVAL) {
				errs = errors.Join(errs, fmt.Errorf("unmount %s: %w", at, err))
			}
		}
		if errs != nil {
			return errs
		}
	}
	return fmt.Errorf("mounts come back: %v", r.mounts())
}

// sharedDirShimSockets lists the sockets that shims of containerd 1.6 create in a directory that
// all containerds of a machine share.
func (r *record) sharedDirShimSockets() []string {
	files, _ := filepath.Glob(filepath.Join(r.state(), "io.containerd.runtime.v2.task", "*", "*", "address"))
	var out []string
	for _, f := range files {
		text, err := os.ReadFile(f)
		path, ok := strings.CutPrefix(strings.TrimSpace(string(text)), "unix://")
		if err == nil && ok && strings.HasPrefix(path, "/run/containerd/s/") {
			out = append(out, path)
		}
	}
	return slices.DeleteFunc(out, func(f string) bool { _, err := os.Lstat(f); return err != nil })
}

// containerLogs is the directory in which agents create links to container logs.
const containerLogs = "/var/log/containers"

// linksBelow lists the symbolic links in directory links that point below another directory.
func linksBelow(links, below string) []string {
	files, _ := filepath.Glob(filepath.Join(links, "*"))
	return slices.DeleteFunc(files, func(f string) bool {
		to, err := os.Readlink(f)
		return err != nil || !strings.HasPrefix(to, below+"/")
	})
}

// removeSharedCgroups removes the parent cgroup that containerd creates for containers whose
// sandbox names none. It stays while it has children.
func removeSharedCgroups() error {
	v1, v2, err := hierarchies()
	for _, h := range append(v1, v2...) {
		os.Remove(filepath.Join(h, "k8s.io"))
	}
	return err
}
