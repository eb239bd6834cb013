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
	bootBound = 2 * time.Minute // on a machine that runs all other tests too
	program   = "/usr/bin/systemd-nspawn"
)

// Options say what host is wanted.
type Options struct {
	Images []string // archives that its containerd has, beside the pause image
}

// Host is a host with systemd. Its methods are for one goroutine.
type Host struct {
	*record
	Name string // of the host itself too
	Root string // its root file system, seen from outside
	// Address is that of its only link but the loopback.
	Address string

	lock    *os.File
	nspawn  *exec.Cmd // nil: it is off
	ended   chan error
	init    int // its process 1, seen from outside
	remains []string
}

// Start makes a host and boots it. When that fails nothing remains.
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

func (h *Host) start(ctx context.Context, o Options) error {
	cache, err := images.CacheDir()
	if err != nil {
		return err
	}
	pause, err := images.Pause(ctx, cache)
	if err != nil {
		return err
	}
	base, err := makeBase(ctx, pause.Ref)
	if err != nil {
		return err
	}
	// /tmp may be in memory; overlays and containerd want a disk.
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
	if err := unix.Mount("overlay", h.Root, "overlay", 0, "lowerdir="+base+",upperdir="+upper+",workdir="+work); err != nil {
		return fmt.Errorf("mount the overlay: %w", err)
	}
	if err := errors.Join(h.WriteFile("/etc/hostname", h.Name+"\n"), h.WriteFile("/etc/hosts", "127.0.0.1 localhost "+h.Name+"\n")); err != nil {
		return err
	}
	if err := h.Boot(ctx); err != nil {
		return err
	}
	return h.importImages(ctx, append([]string{pause.Path}, o.Images...))
}

// makeNetwork gives the host a link of its own, both ends of which are in its
// namespace: it reaches no other host, and has an address that is not loopback.
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

// Boot starts the host, which is off, and waits until its systemd has come up.
// An error has what it said.
func (h *Host) Boot(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, bootBound)
	defer cancel()
	// Links, addresses and rules of the boot before are gone, as with a machine.
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
	// sh moves itself first, so that nothing of the host is ever elsewhere.
	cmd := exec.Command("/bin/sh", append([]string{"-c", `echo $$ >"$0/cgroup.procs" && exec "$@"`, h.Cgroup, program}, h.args()...)...)
	cmd.Env = append(os.Environ(), "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1", "SYSTEMD_NSPAWN_API_VFS_WRITABLE=network", "SYSTEMD_NSPAWN_LOCK=0", "NOTIFY_SOCKET=")
	cmd.Stdout, cmd.Stderr = console, console
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	h.nspawn, h.ended = cmd, make(chan error, 1)
	go func(ended chan<- error) { ended <- cmd.Wait() }(h.ended)
	if err := h.comeUp(ctx); err != nil {
		text, _ := os.ReadFile(h.console())
		return fmt.Errorf("boot: %w\nconsole:\n%s", err, lastOf(string(text)))
	}
	return nil
}

func (h *Host) args() []string {
	return []string{
		"--boot", "-D", h.Root, "-M", h.Name, "--register=no", "--keep-unit", "--console=pipe", "--network-namespace-path=" + h.netns(),
		"--capability=all", "--system-call-filter=bpf keyctl add_key request_key perf_event_open", "--bind=" + h.containerd() + ":/var/lib/containerd",
		"--resolv-conf=off", "--timezone=off", "--link-journal=no", "--kill-signal=SIGRTMIN+3",
	}
}

// comeUp finds the host's process 1 and waits until it has started its units.
func (h *Host) comeUp(ctx context.Context) error {
	err := hosts.WaitFor(ctx, "process 1", func() (bool, error) {
		select {
		case err := <-h.ended:
			h.ended <- err
			return false, fmt.Errorf("nspawn ended: %v", err) //nolint:errorlint // nil too
		default:
		}
		h.init = initOf(h.nspawn.Process.Pid)
		return h.init != 0, nil
	})
	if err != nil {
		return err
	}
	var last string
	err = hosts.WaitFor(ctx, "systemd", func() (bool, error) {
		out, err := h.Run(ctx, "systemctl", "is-system-running")
		last = strings.TrimSpace(out)
		if last == "" && err != nil {
			last = err.Error()
		}
		return last == "running" || last == "degraded", nil
	})
	if err != nil {
		return fmt.Errorf("%w: it is %s", err, last)
	}
	if last == "degraded" {
		out, _ := h.Run(ctx, "systemctl", "--failed", "--no-legend", "--plain")
		return fmt.Errorf("units failed: %s", out)
	}
	return nil
}

// initOf is the child of nspawn that is process 1 of a namespace and has become
// systemd; 0: none yet.
func initOf(nspawn int) int {
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

// Run runs a program on the host and returns what it printed; what it said
// beside that is in the error.
func (h *Host) Run(ctx context.Context, name string, args ...string) (string, error) {
	return h.RunWith(ctx, nil, name, args...)
}

// RunWith does so with an input.
func (h *Host) RunWith(ctx context.Context, in io.Reader, name string, args ...string) (string, error) {
	if h.init == 0 {
		return "", fmt.Errorf("%s is off", h.Name)
	}
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{"-t", strconv.Itoa(h.init), "-a", "--", name}, args...)...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "HOME=/root", "TERM=dumb"}
	cmd.WaitDelay = 5 * time.Second
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

// WriteFile writes a file of the host.
func (h *Host) WriteFile(name, text string) error {
	return writeFile(filepath.Join(h.root(), name), text)
}

// Copy brings a program onto the host.
func (h *Host) Copy(from, to string) error {
	return run(context.Background(), "install", "-D", "-m", "0755", from, filepath.Join(h.root(), to))
}

// importImages waits until the runtime's CRI side knows them too.
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
		out, err := h.Run(ctx, "ctr", "-n", "k8s.io", "images", "list", "labels.\"io.cri-containerd.image\"==managed", "-q")
		return strings.Count(out, "\n") >= len(archives), err
	})
}

// PowerLoss ends everything on the host at once, as it is.
func (h *Host) PowerLoss(ctx context.Context) error {
	if err := unix.Kill(h.init, unix.SIGKILL); err != nil {
		return fmt.Errorf("kill process 1: %w", err)
	}
	return h.wentOff(ctx)
}

// Reboot asks systemd for a reboot and waits until the host has come up again.
func (h *Host) Reboot(ctx context.Context) error {
	// The connection may be cut off by the end of what it asks for.
	_, asked := h.Run(ctx, "systemctl", "reboot", "--no-block")
	if err := h.wentOff(ctx); err != nil {
		return errors.Join(err, asked)
	}
	return h.Boot(ctx)
}

// wentOff waits for the end of nspawn, which takes down what is left.
func (h *Host) wentOff(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, bootBound)
	defer cancel()
	select {
	case <-h.ended:
	case <-ctx.Done():
		text, _ := os.ReadFile(h.console())
		return fmt.Errorf("%s does not go off: %w\nconsole:\n%s", h.Name, ctx.Err(), lastOf(string(text)))
	}
	h.nspawn, h.init = nil, 0
	return h.endAll(ctx)
}

// Stop takes the host away with all that is of it.
func (h *Host) Stop() error {
	if h.lock == nil {
		return nil
	}
	if err := h.takeAway(); err != nil {
		return fmt.Errorf("stop %s: %w", h.Name, err)
	}
	if h.nspawn != nil {
		<-h.ended
		h.nspawn, h.init = nil, 0
	}
	h.remains = h.leftovers()
	err := release(h.record, h.lock)
	h.lock = nil
	return err
}

// Leftovers names what remained when the host was stopped.
func (h *Host) Leftovers() []string { return h.remains }
