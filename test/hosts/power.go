package hosts

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// PowerLoss leaves the host as a machine is found after its power came back:
// no process, mount, network namespace, link or cgroup, nothing of what lies in
// memory; and all that was on disk: containerd's root, the addresses that the
// network gave out, the agents' directories. Restart starts containerd again,
// Agent.Start an agent.
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
	stray := r.sharedDirShimSockets()
	keep := map[string]bool{} // what a boot would mount again
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
	for _, f := range stray {
		os.Remove(f)
	}
	for _, dir := range []string{r.state(), r.shimSockets(), filepath.Join(r.run(), "runc")} {
		if below := slices.ContainsFunc(r.mounts(), func(at string) bool { return strings.HasPrefix(at, dir+"/") }); below {
			return errors.Join(errs, errors.New("something is still mounted below "+dir))
		}
		errs = errors.Join(errs, os.RemoveAll(dir))
	}
	return errors.Join(errs, os.MkdirAll(r.state(), 0o711), os.MkdirAll(r.shimSockets(), 0o711), r.makeCgroups(), r.makeBridge())
}
