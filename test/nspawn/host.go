package nspawn

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth/test/hosts"
	"berth/test/images"
)

const (
	bootTimeout = 6 * time.Minute // long enough for a machine that runs all other tests too
	program     = "/usr/bin/systemd-nspawn"
)

// Options configure a host.
type Options struct {
	Images []string // archives to import into containerd, in addition to the pause image
}

// Host is a host with systemd. Its methods must not be called concurrently.
type Host struct {
	*record
	Name string // also its hostname
	Root string // path of its root file system on this machine
	// Address is the address of its only link other than the loopback.
	Address string

	lock      *os.File
	nspawn    *exec.Cmd // nil while the host is off
	exited    chan error
	init      int // process ID of its process 1 on this machine; 0 while the host is off
	remaining []string
}

// Start creates a host and boots it. After an error nothing remains.
func Start(ctx context.Context, o Options) (*Host, error) {
	if _, err := os.Stat(program); err != nil {
		return nil, fmt.Errorf("%w: test/deps.sh installs it", err)
	}
	r, lock, err := claim()
	if err != nil {
		return nil, fmt.Errorf("start a host: %w", err)
	}
	h := &Host{record: r, Name: r.name(), lock: lock}
	if err := h.start(ctx, o); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", h.Name, err), h.Stop())
	}
	return h, nil
}

// Base returns the root file system that is the lower layer of all hosts, built at most once, and the
// archive of its sandbox image.
func Base(ctx context.Context) (dir string, pause images.Archive, err error) {
	cache, err := images.CacheDir()
	if err != nil {
		return "", pause, err
	}
	if pause, err = images.Pause(ctx, cache); err != nil {
		return "", pause, err
	}
	dir, err = makeBase(ctx, pause.Ref)
	return dir, pause, err
}

func (h *Host) start(ctx context.Context, o Options) error {
	base, pause, err := Base(ctx)
	if err != nil {
		return err
	}
	// Overlays and containerd need a disk file system. /tmp may be a tmpfs.
	if h.Dir, err = os.MkdirTemp("/var/tmp", h.Name+"-"); err != nil {
		return err
	}
	if err := h.write(); err != nil {
		return err
	}
	h.Root = h.root()
	upper, work := filepath.Join(h.Dir, "upper"), filepath.Join(h.Dir, "work")
	for _, dir := range []string{h.Root, upper, work, h.containerd()} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	options := "lowerdir=" + base + ",upperdir=" + upper + ",workdir=" + work
	if err := unix.Mount("overlay", h.Root, "overlay", 0, options); err != nil {
		return fmt.Errorf("mount overlay: %w", err)
	}
	err = errors.Join(h.WriteFile("/etc/hostname", h.Name+"\n"),
		h.WriteFile("/etc/hosts", "127.0.0.1 localhost "+h.Name+"\n"))
	if err != nil {
		return err
	}
	if err := h.Boot(ctx); err != nil {
		return err
	}
	return h.importImages(ctx, append([]string{pause.Path}, o.Images...))
}

// makeNetwork creates the network namespace of the host with a veth pair. Both ends are in the
// namespace: the host has a non-loopback address and is isolated from other hosts.
func (h *Host) makeNetwork(ctx context.Context) error {
	h.Address = fmt.Sprintf("10.214.%d.2", h.Number)
	for _, args := range [][]string{
		{"netns", "add", h.Name},
		{"-n", h.Name, "link", "set", "lo", "up"},
		{"-n", h.Name, "link", "add", "eth0", "type", "veth", "peer", "name", "wire"},
		{"-n", h.Name, "addr", "add", h.Address + "/24", "dev", "eth0"},
		{"-n", h.Name, "link", "set", "eth0", "up"},
		{"-n", h.Name, "link", "set", "wire", "up"},
		{"-n", h.Name, "route", "add", "default", "via", fmt.Sprintf("10.214.%d.1", h.Number)},
	} {
		if err := run(ctx, "ip", args...); err != nil {
			return err
		}
	}
	return nil
}

// Boot starts the host, which must be off, and waits until systemd has started all units. An error
// contains the console output.
func (h *Host) Boot(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	// As on a real machine, links, addresses and rules do not survive a reboot.
	if err := errors.Join(h.removeNetwork(), h.makeNetwork(ctx)); err != nil {
		return err
	}
	console, err := os.OpenFile(h.console(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer console.Close()
	if err := os.MkdirAll(h.Cgroup, 0o755); err != nil {
		return err
	}
	// The shell moves itself into the cgroup first: no process of the host ever runs outside of it.
	args := []string{"-c", `echo $$ >"$0/cgroup.procs" && exec "$@"`, h.Cgroup, program}
	cmd := exec.Command("/bin/sh", append(args, h.args()...)...)
	cmd.Env = append(os.Environ(), "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1", "SYSTEMD_NSPAWN_API_VFS_WRITABLE=network",
		"SYSTEMD_NSPAWN_LOCK=0", "NOTIFY_SOCKET=")
	cmd.Stdout, cmd.Stderr = console, console
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	h.nspawn, h.exited = cmd, make(chan error, 1)
	go func(exited chan<- error) { exited <- cmd.Wait() }(h.exited)
	if err := h.waitBooted(ctx); err != nil {
		text, _ := os.ReadFile(h.console())
		return fmt.Errorf("boot: %w\nconsole:\n%s", err, tail(string(text)))
	}
	return nil
}

func (h *Host) args() []string {
	return []string{
		"--boot", "-D", h.Root, "-M", h.Name, "--register=no", "--keep-unit", "--console=pipe",
		"--network-namespace-path=" + h.netns(), "--capability=all",
		"--system-call-filter=bpf keyctl add_key request_key perf_event_open",
		"--bind=" + h.containerd() + ":/var/lib/containerd",
		"--resolv-conf=off", "--timezone=off", "--link-journal=no", "--kill-signal=SIGRTMIN+3",
	}
}

// waitBooted finds the host's process 1 and waits until it has started all units. A failed unit is
// an error.
func (h *Host) waitBooted(ctx context.Context) error {
	err := hosts.WaitFor(ctx, "process 1 to start", func() (bool, error) {
		select {
		case err := <-h.exited:
			h.exited <- err
			return false, fmt.Errorf("systemd-nspawn exited: %v", err) //nolint:errorlint // nil too
		default:
		}
		h.init = findInit(h.nspawn.Process.Pid)
		return h.init != 0, nil
	})
	if err != nil {
		return err
	}
	var last string
	err = hosts.WaitFor(ctx, "systemd to start all units", func() (bool, error) {
		out, err := h.Run(ctx, "systemctl", "is-system-running")
		last = strings.TrimSpace(out)
		if last == "" && err != nil {
			last = err.Error()
		}
		return last == "running" || last == "degraded", nil
	})
	if err != nil {
		return fmt.Errorf("%w: state is %s", err, last)
	}
	if last == "degraded" {
		out, _ := h.Run(ctx, "systemctl", "--failed", "--no-legend", "--plain")
		return fmt.Errorf("units failed: %s", out)
	}
	return nil
}

// findInit returns the child of systemd-nspawn that is process 1 of a PID namespace and has executed
// systemd. 0: it does not exist yet.
func findInit(nspawn int) int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", nspawn, nspawn))
	for child := range strings.FieldsSeq(string(text)) {
		pid, _ := strconv.Atoi(child)
		status, _ := os.ReadFile(filepath.Join("/proc", child, "status"))
		cmdline, _ := os.ReadFile(filepath.Join("/proc", child, "cmdline"))
		for line := range strings.Lines(string(status)) {
			f := strings.Fields(line)
			if f[0] == "NSpid:" && len(f) > 2 && f[len(f)-1] == "1" && !bytes.Contains(cmdline, []byte("nspawn")) {
				return pid
			}
		}
	}
	return 0
}

// Run runs a program on the host and returns its standard output. An error contains its standard
// error.
func (h *Host) Run(ctx context.Context, name string, args ...string) (string, error) {
	return h.RunWith(ctx, nil, name, args...)
}

// RunWith is Run with a standard input.
func (h *Host) RunWith(ctx context.Context, in io.Reader, name string, args ...string) (string, error) {
	if h.init == 0 {
		return "", fmt.Errorf("%s is off", h.Name)
	}
	nsenter := []string{"-t", strconv.Itoa(h.init), "-a", "--", name}
	cmd := exec.CommandContext(ctx, "nsenter", append(nsenter, args...)...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"LANG=C.UTF-8", "HOME=/root", "TERM=dumb"}
	cmd.WaitDelay = 5 * time.Second
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, &out, &errs
	if err := cmd.Run(); err != nil {
		line := name + " " + strings.Join(args, " ")
		return out.String(), fmt.Errorf("%s: %w: %s", line, err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

// WriteFile writes a file on the host.
func (h *Host) WriteFile(name, text string) error {
	return writeFile(filepath.Join(h.root(), name), text)
}

// Copy copies a program to the host.
func (h *Host) Copy(from, to string) error {
	return run(context.Background(), "install", "-D", "-m", "0755", from, filepath.Join(h.root(), to))
}

// importImages imports image archives and waits until containerd's CRI plugin lists the images.
func (h *Host) importImages(ctx context.Context, archives []string) error {
	for _, a := range archives {
		f, err := os.Open(a)
		if err != nil {
			return err
		}
		_, err = h.RunWith(ctx, f, "ctr", "-n", "k8s.io", "images", "import", "-")
		f.Close()
		if err != nil {
			return err
		}
	}
	return hosts.WaitFor(ctx, "images", func() (bool, error) {
		out, err := h.Run(ctx, "ctr", "-n", "k8s.io", "images", "list",
			"labels.\"io.cri-containerd.image\"==managed", "-q")
		return strings.Count(out, "\n") >= len(archives), err
	})
}

// PowerLoss kills process 1 and with it every process of the host, without a shutdown.
func (h *Host) PowerLoss(ctx context.Context) error {
	if err := unix.Kill(h.init, unix.SIGKILL); err != nil {
		return fmt.Errorf("kill process 1: %w", err)
	}
	return h.waitExited(ctx)
}

// Reboot reboots the host with systemctl and waits until it has booted again.
func (h *Host) Reboot(ctx context.Context) error {
	// The command may be killed by the reboot that it requests: its error counts only if the host stays up.
	_, rebootErr := h.Run(ctx, "systemctl", "reboot", "--no-block")
	if err := h.waitExited(ctx); err != nil {
		return errors.Join(err, rebootErr)
	}
	return h.Boot(ctx)
}

// waitExited waits until systemd-nspawn has exited, then kills the remaining processes.
func (h *Host) waitExited(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	select {
	case <-h.exited:
	case <-ctx.Done():
		text, _ := os.ReadFile(h.console())
		return fmt.Errorf("%s did not shut down: %w\nconsole:\n%s", h.Name, ctx.Err(), tail(string(text)))
	}
	h.nspawn, h.init = nil, 0
	return h.killAll(ctx)
}

// Stop removes the host and everything that belongs to it. It may be called twice.
func (h *Host) Stop() error {
	if h.lock == nil {
		return nil
	}
	if err := h.teardown(); err != nil {
		return fmt.Errorf("stop %s: %w", h.Name, err)
	}
	if h.nspawn != nil {
		<-h.exited
		h.nspawn, h.init = nil, 0
	}
	h.remaining = h.leaks()
	err := release(h.record, h.lock)
	h.lock = nil
	return err
}

// Leaks lists what remained after Stop.
func (h *Host) Leaks() []string { return h.remaining }
