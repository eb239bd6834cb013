package nspawn

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/test/hosts"
)

const teardownTimeout = time.Minute

// teardown removes everything that belongs to the host. It needs only the record.
func (r *record) teardown() error {
	ctx, cancel := context.WithTimeout(context.Background(), teardownTimeout)
	defer cancel()
	if err := r.killAll(ctx); err != nil {
		return err
	}
	errs := r.removeNetwork()
	// systemd-nspawn does not remove this directory if it is killed.
	errs = errors.Join(errs, unmountBelow(r.propagate()), os.RemoveAll(r.propagate()))
	os.Remove(filepath.Dir(r.propagate())) // fails if another container has a directory there
	os.Remove(filepath.Dir(filepath.Dir(r.propagate())))
	if r.Dir == "" {
		return errs
	}
	if err := errors.Join(errs, unmountBelow(r.Dir)); err != nil {
		return err // never delete through a mount
	}
	return os.RemoveAll(r.Dir)
}

// killAll kills every process of the host, including process 1, and removes its cgroups.
func (r *record) killAll(ctx context.Context) error {
	err := os.WriteFile(filepath.Join(r.Cgroup, "cgroup.kill"), []byte("1"), 0)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	cgroups, err := r.cgroups()
	if err != nil {
		return err
	}
	return hosts.WaitFor(ctx, r.name()+" to end", func() (bool, error) {
		removed := true
		for _, dir := range cgroups {
			removeCgroups(dir)
			_, err := os.Stat(dir)
			removed = removed && errors.Is(err, fs.ErrNotExist)
		}
		return removed, nil
	})
}

// removeCgroups removes the empty cgroups of a tree, children before parents.
func removeCgroups(top string) {
	var dirs []string
	_ = filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return nil // removed during the walk
	})
	slices.Reverse(dirs)
	for _, dir := range dirs {
		_ = unix.Rmdir(dir) // if it is busy, the next call tries again
	}
}

func (r *record) removeNetwork() error {
	if _, err := os.Stat(r.netns()); err != nil {
		return nil //nolint:nilerr // it does not exist
	}
	return run(context.Background(), "ip", "netns", "delete", r.name())
}

// mountsBelow lists the mount points at or below a directory, the latest first.
func mountsBelow(dir string) ([]string, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var out []string
	for line := range strings.Lines(string(text)) {
		unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
		at := unescape.Replace(strings.Fields(line)[4])
		if at == dir || strings.HasPrefix(at, dir+"/") {
			out = append(out, at)
		}
	}
	slices.Reverse(out)
	return out, nil
}

func unmountBelow(dir string) error {
	all, err := mountsBelow(dir)
	for _, at := range all {
		if e := unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); e != nil {
			err = errors.Join(err, fmt.Errorf("unmount %s: %w", at, e))
		}
	}
	return err
}

// leaks lists what remains of a host after teardown.
func (r *record) leaks() []string {
	var out []string
	cgroups, err := r.cgroups()
	if err != nil {
		out = append(out, err.Error())
	}
	for _, f := range append(cgroups, r.netns(), r.propagate(), r.Dir) {
		if _, err := os.Lstat(f); err == nil {
			out = append(out, "file "+f)
		}
	}
	mounts, err := mountsBelow(r.Dir)
	if err != nil {
		out = append(out, err.Error())
	}
	for _, m := range mounts {
		out = append(out, "mount "+m)
	}
	return out
}

// run runs a program. An error contains its output.
func run(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, tail(string(out)))
	}
	return nil
}
