package cri

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/api/services/containers/v1"
	"github.com/containerd/containerd/api/services/leases/v1"
	"github.com/containerd/containerd/api/services/snapshots/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const (
	endBound    = 5 * time.Second  // for killed processes to be gone
	deleteBound = 10 * time.Second // for the shim's own way of deleting
)

// DeleteLeakedTask ends what Forgotten has found: its processes, what the shim's own
// program deletes of it, its mounts, directories and socket. It may be repeated.
// A task that somebody answers for by now is left alone.
func (c *Client) DeleteLeakedTask(ctx context.Context, t LeakedTask) error {
	f, ok, err := c.Layout(ctx)
	if err != nil || !ok {
		return err
	}
	ids, err := c.UnknownIDs(ctx, []string{t.ID})
	if err != nil || len(ids) == 0 {
		return err
	}
	if err := c.strike(ctx, t.ID); err != nil {
		return fmt.Errorf("strike %.12s out of the runtime's books: %w", t.ID, err)
	}
	if err := c.killForgotten(ctx, t, f.Address); err != nil {
		return fmt.Errorf("end the processes of %.12s: %w", t.ID, err)
	}
	if t.Bundle != "" {
		c.sockets.learn(addressOf(t.Bundle))
	}
	var errs []error
	if t.Bundle != "" {
		_ = deleteTask(ctx, t, f.Address) // what it leaves is removed below
		errs = append(errs, removeBundle(t.Bundle, filepath.Dir(f.TaskDir)))
	}
	for _, dir := range append(slices.Clone(runcDirs(f, t.ID)), filepath.Join(f.StateDir, t.ID), filepath.Join(f.RootDir, t.ID)) {
		errs = append(errs, removeTree(dir))
	}
	errs = append(errs, c.endLease(ctx, t.ID))
	for _, socket := range socketsOf(t, f.Address, c.sockets.all()) {
		if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove what is left of %.12s: %w", t.ID, err)
	}
	return nil
}

// strike takes a task and its record away by containerd's own means, where CRI
// has lost sight of them and containerd has not.
func (c *Client) strike(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, deleteBound)
	defer cancel()
	inside := metadata.AppendToOutgoingContext(ctx, "containerd-namespace", criNamespace)
	got, err := c.containers.Get(inside, &containers.GetContainerRequest{ID: id})
	if status.Code(err) == codes.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	if !forBerth(got.GetContainer()) {
		return errors.New("it is another's")
	}
	if err := c.dropTask(ctx, id); err != nil {
		return err
	}
	_, err = c.containers.Delete(inside, &containers.DeleteContainerRequest{ID: id})
	if err != nil && status.Code(err) != codes.NotFound {
		return err
	}
	_, err = c.snapshots.Remove(inside, &snapshots.RemoveSnapshotRequest{Snapshotter: got.GetContainer().GetSnapshotter(), Key: got.GetContainer().GetSnapshotKey()})
	if err != nil && status.Code(err) != codes.NotFound {
		return err
	}
	return nil
}

// endLease gives back the lease that containerd 2.x takes for a sandbox under
// the sandbox's own ID.
func (c *Client) endLease(ctx context.Context, id string) error {
	ctx = metadata.AppendToOutgoingContext(ctx, "containerd-namespace", criNamespace)
	_, err := c.leases.Delete(ctx, &leases.DeleteRequest{ID: id})
	if code := status.Code(err); code == codes.NotFound || code == codes.Unimplemented {
		return nil
	}
	return err
}

// killForgotten kills the task's shims and what runs below them. Each process is
// held before its command line is read again, so that no other can have taken
// its number when it is killed.
func (c *Client) killForgotten(ctx context.Context, t LeakedTask, address string) error {
	procs, shims, err := settledShims(ctx, t.ID, address)
	if err != nil {
		return err
	}
	below := procs.below(shims)
	inside := slices.Clone(below)
	if state, err := booksOf(t.RuncDir); err == nil && state.Init > 1 && !slices.Contains(inside, state.Init) {
		inside = append(inside, state.Init) // its shim may have died; the number may be another's by now
	}
	if err := c.nobodyElse(ctx, t.ID, inside); err != nil {
		return err
	}
	for _, pid := range append(inside, shims...) {
		if err := killHeld(ctx, pid, func() bool {
			if !slices.Contains(shims, pid) {
				return procs.stillBelow(pid) && (slices.Contains(below, pid) || inCgroupOf(pid, t.ID))
			}
			text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			s, busy, ok := parseShim(string(text))
			return ok && !busy && s.id == t.ID && s.address == address
		}); err != nil {
			return err
		}
	}
	return nil
}

// settledShims looks for the shims of a task when the runtime has none of its
// programs at work on it, for which it waits a while.
func settledShims(ctx context.Context, id, address string) (processes, []int, error) {
	for end := time.Now().Add(endBound); ; {
		procs := lookAtProcesses()
		found := map[string]*LeakedTask{id: {ID: id}}
		procs.addShims(found, address)
		shims := found[id].Shims
		if !slices.ContainsFunc(shims, func(pid int) bool { return procs.busy[pid] }) {
			return procs, shims, nil
		}
		if time.Now().After(end) || !pause(ctx, 50*time.Millisecond) {
			return procs, nil, errors.New("the runtime is at it")
		}
	}
}

// nobodyElse refuses to kill what runs in the cgroup of a container that the
// runtime answers for: a shim serves all containers of its sandbox.
func (c *Client) nobodyElse(ctx context.Context, id string, pids []int) error {
	var others []string
	for _, pid := range pids {
		for _, cgroup := range cgroupsOf(pid) {
			if other := idOfCgroup(cgroup); other != "" && other != id {
				others = append(others, other)
			}
		}
	}
	slices.Sort(others)
	others = slices.Compact(others)
	unknown, err := c.UnknownIDs(ctx, others)
	if err == nil && len(unknown) < len(others) {
		return errors.New("a container that the runtime knows runs in it")
	}
	return err
}

func inCgroupOf(pid int, id string) bool {
	return slices.ContainsFunc(cgroupsOf(pid), func(cgroup string) bool { return idOfCgroup(cgroup) == id })
}

// idOfCgroup reads the container's ID from its cgroup, of either naming.
func idOfCgroup(cgroup string) string {
	name := strings.TrimSuffix(filepath.Base(cgroup), ".scope")
	if at := strings.LastIndexByte(name, '-'); at >= 0 {
		name = name[at+1:]
	}
	if !isID(name) {
		return ""
	}
	return name
}

// stillBelow reports whether a process has the parent that it had, or that one
// has died and left it.
func (p *processes) stillBelow(pid int) bool {
	now, ok := parentOf(pid)
	return ok && (slices.Contains(p.children[now], pid) || now == 1 || slices.ContainsFunc(p.shims, func(s shimProcess) bool { return s.pid == now }))
}

// killHeld kills a process if it is still the one that is meant, and waits until
// it is gone.
func killHeld(ctx context.Context, pid int, meant func() bool) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("hold process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	if !meant() {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", pid, err)
	}
	for end := time.Now().Add(endBound); ; {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 100)
		switch {
		case n > 0:
			return nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("wait for process %d: %w", pid, err)
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(end):
			return fmt.Errorf("process %d survives SIGKILL", pid)
		}
	}
}

// deleteTask runs the shim's program as containerd does when a shim has died:
// it deletes what the low-level runtime keeps and unmounts the root.
func deleteTask(ctx context.Context, t LeakedTask, address string) error {
	text, err := os.ReadFile(filepath.Join(t.Bundle, "shim-binary-path"))
	program := strings.TrimSpace(string(text))
	if err != nil || !filepath.IsAbs(program) {
		if program, err = exec.LookPath("containerd-shim-runc-v2"); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, deleteBound)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "-namespace", criNamespace, "-address", address, "-id", t.ID, "-bundle", t.Bundle, "delete")
	cmd.Dir = t.Bundle
	cmd.Env = append(os.Environ(), "TTRPC_ADDRESS="+address+".ttrpc", "GRPC_ADDRESS="+address, "NAMESPACE="+criNamespace)
	cmd.WaitDelay = time.Second
	return cmd.Run()
}

// removeBundle removes a task's directory and the one beside containerd's root
// that belongs to it. Tasks is where that one's name must end in too.
func removeBundle(bundle, tasks string) error {
	work, err := os.Readlink(filepath.Join(bundle, "work"))
	errs := removeTree(bundle)
	tail := filepath.Join(filepath.Base(tasks), criNamespace, filepath.Base(bundle))
	if err == nil && strings.HasSuffix(filepath.Clean(work), "/"+tail) {
		errs = errors.Join(errs, removeTree(work))
	}
	return errs
}

func runcDirs(f Layout, id string) (out []string) {
	for _, root := range f.RuncRoots {
		out = append(out, filepath.Join(root, criNamespace, id))
	}
	return out
}

// removeTree unmounts all below a directory and removes it; it never removes
// through a mount.
func removeTree(dir string) error {
	if _, err := os.Lstat(dir); err != nil {
		return ignoreGone(err)
	}
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for _, at := range mountsBelow(string(text), dir) {
		if err := unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("unmount %s: %w", at, err)
		}
	}
	if text, err = os.ReadFile("/proc/self/mountinfo"); err != nil {
		return err
	}
	if left := mountsBelow(string(text), dir); len(left) > 0 {
		return fmt.Errorf("still mounted: %s", strings.Join(left, ", "))
	}
	return os.RemoveAll(dir)
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// mountsBelow lists the mounts at or below a directory, the innermost first.
func mountsBelow(mountinfo, dir string) (out []string) {
	for line := range strings.Lines(mountinfo) {
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		at := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(f[4])
		if at == dir || below(at, dir) {
			out = append(out, at)
		}
	}
	slices.Reverse(out)
	return out
}

// socketsOf lists where the shim of a task may listen, by the name that
// containerd gives the socket, a hash of its own address and the task. So the
// socket of a sandbox, which its containers' bundles name too, is not theirs.
func socketsOf(t LeakedTask, address string, dirs []string) (out []string) {
	name := fmt.Sprintf("%x", sha256.Sum256([]byte(filepath.Join(address, criNamespace, t.ID))))
	for _, dir := range dirs {
		out = append(out, filepath.Join(dir, name))
	}
	return out
}
