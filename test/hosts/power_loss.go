package hosts

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// PowerLoss puts the host into the state of a machine after a power failure: no process, mount,
// network namespace, link or cgroup, and nothing that is kept in memory. What was on disk remains:
// containerd's root, allocated addresses, the directories of the agents. Restart starts containerd
// again, Agent.Start an agent.
func (h *Host) PowerLoss() error {
	h.mu.Lock()
	agents := slices.Clone(h.agents)
	h.mu.Unlock()
	var errs error
	for _, a := range agents {
		errs = errors.Join(errs, a.Kill9())
	}
	errs = errors.Join(errs, h.Kill())
	r := &h.slot.record
	if errs = errors.Join(errs, r.killAll(teardownTimeout)); errs != nil {
		return errs
	}
	sockets := r.sharedDirShimSockets()
	keep := map[string]bool{} // a boot would mount these again
	for _, a := range agents {
		keep[a.RootDir] = true
	}
	for _, at := range r.mounts() {
		if keep[at] {
			continue
		}
		if err := unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
			errs = errors.Join(errs, err)
		}
	}
	errs = errors.Join(errs, r.removeLinks(), r.removeRules(), r.removeCgroups(teardownTimeout))
	for _, f := range sockets {
		os.Remove(f)
	}
	for _, dir := range []string{r.state(), r.shimSockets(), filepath.Join(r.run(), "runc")} {
		below := func(at string) bool { return strings.HasPrefix(at, dir+"/") }
		if slices.ContainsFunc(r.mounts(), below) {
			return errors.Join(errs, errors.New("something is still mounted below "+dir))
		}
		errs = errors.Join(errs, os.RemoveAll(dir))
	}
	return errors.Join(errs, os.MkdirAll(r.state(), 0o711), os.MkdirAll(r.shimSockets(), 0o711),
		r.makeCgroups(), r.makeBridge())
}
