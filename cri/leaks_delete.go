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
	killTimeout   = 5 * time.Second  // for killed processes to exit
	deleteTimeout = 10 * time.Second // for the shim's own delete command
)

// DeleteLeakedTask deletes a task that LeakedTasks returned: its processes, what the shim's delete
// command deletes, and its mounts, directories and socket. It may be repeated. It does nothing if
// the task is known by now.
func (c *Client) DeleteLeakedTask(ctx context.Context, t LeakedTask) error {
	f, ok, err := c.Layout(ctx)
	if err != nil || !ok {
		return err
	}
	ids, err := c.UnknownIDs(ctx, []string{t.ID})
	if err != nil || len(ids) == 0 {
		return err
	}
	if err := c.deleteRecord(ctx, t.ID); err != nil {
		return fmt.Errorf("delete the record of %.12s: %w", t.ID, err)
	}
	if err := c.killTask(ctx, t, f.Address); err != nil {
		return fmt.Errorf("kill the processes of %.12s: %w", t.ID, err)
	}
	if t.Bundle != "" {
		c.sockets.add(shimAddress(t.Bundle))
	}
	var errs []error
	if t.Bundle != "" {
		_ = runShimDelete(ctx, t, f.Address) // what it leaves is removed below
		errs = append(errs, removeBundle(t.Bundle, filepath.Dir(f.TaskDir)))
	}
	for _, dir := range append(slices.Clone(runcDirs(f, t.ID)), filepath.Join(f.StateDir, t.ID),
		filepath.Join(f.RootDir, t.ID)) {
		errs = append(errs, removeTree(dir))
	}
	errs = append(errs, c.deleteLease(ctx, t.ID))
	for _, socket := range shimSockets(t, f.Address, c.sockets.all()) {
		if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove resources of %.12s: %w", t.ID, err)
	}
	return nil
}

// deleteRecord deletes a task and its record through containerd's own services, for tasks that CRI
// has lost and containerd has not.
func (c *Client) deleteRecord(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, deleteTimeout)
	defer cancel()
	inside := metadata.AppendToOutgoingContext(ctx, "containerd-namespace", criNamespace)
	got, err := c.containers.Get(inside, &containers.GetContainerRequest{ID: id})
	if status.Code(err) == codes.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	if !c.isOwnRecord(got.GetContainer()) {
		return errors.New("the record has another owner")
	}
	if err := c.deleteTask(ctx, id); err != nil {
		return err
	}
	_, err = c.containers.Delete(inside, &containers.DeleteContainerRequest{ID: id})
	if err != nil && status.Code(err) != codes.NotFound {
		return err
	}
	_, err = c.snapshots.Remove(inside,
		&snapshots.RemoveSnapshotRequest{Snapshotter: got.GetContainer().GetSnapshotter(),
			Key: got.GetContainer().GetSnapshotKey()})
	if err != nil && status.Code(err) != codes.NotFound {
		return err
	}
	return nil
}

// deleteLease deletes the lease that containerd 2.x takes for a sandbox under the sandbox's ID.
func (c *Client) deleteLease(ctx context.Context, id string) error {
	ctx = metadata.AppendToOutgoingContext(ctx, "containerd-namespace", criNamespace)
	_, err := c.leases.Delete(ctx, &leases.DeleteRequest{ID: id})
	if code := status.Code(err); code == codes.NotFound || code == codes.Unimplemented {
		return nil
	}
	return err
}

// killTask kills the shims of the task and their descendants. It opens a pidfd for each process
// before it reads the command line again, so that it never kills another process that reuses the
// PID.
func (c *Client) killTask(ctx context.Context, t LeakedTask, address string) error {
	procs, shims, err := idleShims(ctx, t.ID, address)
	if err != nil {
		return err
	}
	below := procs.descendants(shims)
	inside := slices.Clone(below)
	if state, err := readRuncState(t.RuncDir); err == nil && state.Init > 1 && !slices.Contains(inside, state.Init) {
		inside = append(inside, state.Init) // the shim may have died and the PID may have been reused
	}
	if err := c.checkNoOtherContainer(ctx, t.ID, inside); err != nil {
		return err
	}
	for _, pid := range append(inside, shims...) {
		if err := killPidfd(ctx, pid, func() bool {
			if !slices.Contains(shims, pid) {
				return procs.stillDescends(pid) && (slices.Contains(below, pid) || inCgroupOf(pid, t.ID))
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

// idleShims returns the shims of a task, after waiting until containerd runs no shim command on it.
func idleShims(ctx context.Context, id, address string) (processes, []int, error) {
	for end := time.Now().Add(killTimeout); ; {
		procs := scanProcesses()
		found := map[string]*LeakedTask{id: {ID: id}}
		procs.addShims(found, address)
		shims := found[id].Shims
		if !slices.ContainsFunc(shims, func(pid int) bool { return procs.busy[pid] }) {
			return procs, shims, nil
		}
		if time.Now().After(end) || !sleep(ctx, 50*time.Millisecond) {
			return procs, nil, errors.New("the runtime is working on it")
		}
	}
}

// checkNoOtherContainer refuses to kill processes in the cgroup of a container that the runtime
// knows: a shim serves all containers of its sandbox.
func (c *Client) checkNoOtherContainer(ctx context.Context, id string, pids []int) error {
	var others []string
	for _, pid := range pids {
		for _, cgroup := range cgroupsOf(pid) {
			if other := containerIDFromCgroup(cgroup); other != "" && other != id {
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
	return slices.ContainsFunc(cgroupsOf(pid), func(cgroup string) bool { return containerIDFromCgroup(cgroup) == id })
}

// containerIDFromCgroup returns the container ID in a cgroup path of either cgroup driver. Empty:
// none.
func containerIDFromCgroup(cgroup string) string {
	name := strings.TrimSuffix(filepath.Base(cgroup), ".scope")
	if at := strings.LastIndexByte(name, '-'); at >= 0 {
		name = name[at+1:]
	}
	if !isContainerID(name) {
		return ""
	}
	return name
}

// stillDescends reports whether a process has the same parent as in the scan, or was reparented
// because the parent died.
func (p *processes) stillDescends(pid int) bool {
	now, ok := parentOf(pid)
	return ok && (slices.Contains(p.children[now], pid) || now == 1 ||
		slices.ContainsFunc(p.shims, func(s shimProcess) bool { return s.pid == now }))
}

// killPidfd kills a process if isTarget still holds after its pidfd is open, and waits until it
// exits.
func killPidfd(ctx context.Context, pid int, isTarget func() bool) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open pidfd of process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	if !isTarget() {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", pid, err)
	}
	for end := time.Now().Add(killTimeout); ; {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 100)
		switch {
		case n > 0:
			return nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("wait for process %d: %w", pid, err)
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(end):
			return fmt.Errorf("process %d did not exit after SIGKILL", pid)
		}
	}
}

// runShimDelete runs the shim's delete command, as containerd does after a shim died: it deletes
// the runc state and unmounts the root file system.
func runShimDelete(ctx context.Context, t LeakedTask, address string) error {
	text, err := os.ReadFile(filepath.Join(t.Bundle, "shim-binary-path"))
	program := strings.TrimSpace(string(text))
	if err != nil || !filepath.IsAbs(program) {
		if program, err = exec.LookPath("containerd-shim-runc-v2"); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, deleteTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "-namespace", criNamespace, "-address", address, "-id", t.ID, "-bundle",
		t.Bundle, "delete")
	cmd.Dir = t.Bundle
	cmd.Env = append(os.Environ(), "TTRPC_ADDRESS="+address+".ttrpc", "GRPC_ADDRESS="+address, "NAMESPACE="+
		criNamespace)
	cmd.WaitDelay = time.Second
	return cmd.Run()
}

// removeBundle removes a bundle directory and the work directory below containerd's root that
// belongs to it. The path of the work directory has to end like that of the bundle below tasks.
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

// removeTree unmounts everything below a directory and removes the directory. It never removes
// files through a mount.
func removeTree(dir string) error {
	if _, err := os.Lstat(dir); err != nil {
		return ignoreNotExist(err)
	}
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for _, at := range mountsBelow(string(text), dir) {
		if err := unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) &&
			!errors.Is(err, unix.ENOENT) {
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

func ignoreNotExist(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// mountsBelow returns the mounts at or below a directory, innermost first.
func mountsBelow(mountinfo, dir string) (out []string) {
	for line := range strings.Lines(mountinfo) {
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		at := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(f[4])
		if at == dir || isBelow(at, dir) {
			out = append(out, at)
		}
	}
	slices.Reverse(out)
	return out
}

// shimSockets returns where the shim of a task may listen. containerd names the socket by a hash of
// its own address and the task, so the socket of a sandbox, which the bundles of its containers
// name too, is not among the sockets of a container.
func shimSockets(t LeakedTask, address string, dirs []string) (out []string) {
	name := fmt.Sprintf("%x", sha256.Sum256([]byte(filepath.Join(address, criNamespace, t.ID))))
	for _, dir := range dirs {
		out = append(out, filepath.Join(dir, name))
	}
	return out
}
