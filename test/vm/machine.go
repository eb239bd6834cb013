package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	checksStartTimeout = 75 * time.Second // for the checks to start
	program            = "qemu-system-x86_64"
	install            = "test/deps.sh installs it"
	kernelArgs         = "console=ttyS0 rw quiet mitigations=off panic=-1 systemd.unified_cgroup_hierarchy=1 " +
		"hugepagesz=2M hugepages=16 transparent_hugepage=never audit=0 tsc=unstable psi=1"
)

// size is the size of a machine.
type size struct {
	memory  string
	extra   string        // size of the second disk
	timeout time.Duration // for one boot with all its checks
}

// machine is a virtual machine with its own copies of the disks. It can be booted several times.
type machine struct {
	host host
	size size
	dir  string // root.img, extra.img, console, report
}

// newMachine copies the disk image of a host and creates a second disk with the files of the directory
// extra.
func newMachine(ctx context.Context, h host, s size, dir, extra string) (*machine, error) {
	m := &machine{host: h, size: s, dir: dir}
	// Most of the disk is sparse.
	if err := run(ctx, "cp", "--sparse=always", "--reflink=auto", h.disk(), m.file("root.img")); err != nil {
		return nil, fmt.Errorf("copy disk image: %w", err)
	}
	if err := makeDisk(ctx, m.file("extra.img"), extra, s.extra); err != nil {
		return nil, fmt.Errorf("create second disk: %w", err)
	}
	return m, nil
}

func (m *machine) file(name string) string { return filepath.Join(m.dir, name) }

// console returns the console output of the last boot.
func (m *machine) console() string {
	text, err := os.ReadFile(m.file("console"))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// errNotStarted is the error of a boot in which the checks did not start.
var errNotStarted = errors.New("the checks did not start")

// maxBoots is the maximum number of boots for the same checks.
const maxBoots = 3

// boot boots the machine with the named set of checks, waits until it has shut down and returns the
// report. Without KVM, a boot occasionally fails or the kernel crashes during the checks. In that case
// boot restores the disk and tries again. onFailure is called after each such boot with its output.
func (m *machine) boot(ctx context.Context, set string, onFailure func(string)) (text string, err error) {
	if err := run(ctx, "cp", "--sparse=always", "--reflink=auto", m.file("root.img"),
		m.file("before.img")); err != nil {
		return "", fmt.Errorf("save disk: %w", err)
	}
	for try := range maxBoots {
		if try > 0 {
			if err := run(ctx, "cp", "--sparse=always", "--reflink=auto", m.file("before.img"),
				m.file("root.img")); err != nil {
				return "", fmt.Errorf("restore disk: %w", err)
			}
		}
		text, err = m.bootOnce(ctx, set)
		if ctx.Err() != nil || err == nil && complete(text) || err != nil && !errors.Is(err, errNotStarted) {
			break
		}
		onFailure(fmt.Sprintf("%v\n%s\nconsole:\n%s", err, text, m.console())) // err may be nil
	}
	return text, err
}

// bootOnce boots the machine once and returns the report.
func (m *machine) bootOnce(ctx context.Context, set string) (string, error) {
	if _, err := exec.LookPath(program); err != nil {
		return "", fmt.Errorf("%w: %s", err, install)
	}
	ctx, cancel := context.WithTimeout(ctx, m.size.timeout)
	defer cancel()
	report, err := os.Create(m.file("report"))
	if err != nil {
		return "", err
	}
	defer report.Close()
	cmd := exec.CommandContext(ctx, program, m.args(set)...)
	cmd.WaitDelay = 5 * time.Second
	output, err := os.Create(m.file("qemu"))
	if err != nil {
		return "", err
	}
	defer output.Close()
	cmd.Stdout, cmd.Stderr = output, output
	// The kernel kills qemu when this process dies. Pdeathsig is sent when the thread that started qemu
	// exits, therefore the goroutine stays locked to the thread.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	exited := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if err := cmd.Start(); err != nil {
			exited <- fmt.Errorf("start qemu: %w", err)
			return
		}
		raisePriority(cmd.Process.Pid)
		exited <- cmd.Wait()
	}()
	return m.waitExit(cancel, exited)
}

// raisePriority gives the machine priority over other tests: its clock runs in real time, therefore lack
// of CPU looks like slowness inside. Errors, such as missing privileges, are ignored.
func raisePriority(pid int) {
	_ = unix.Setpriority(unix.PRIO_PROCESS, pid, -10)
	// autogroup applies to the session. Some kernels do not have the file.
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/autogroup", pid), []byte("-10"), 0)
}

// waitExit waits until qemu has exited and returns the report. It kills qemu if the checks do not start
// in time.
func (m *machine) waitExit(kill context.CancelFunc, exited <-chan error) (string, error) {
	startTimer := time.NewTimer(checksStartTimeout)
	defer startTimer.Stop()
	var err error
	for waiting := true; waiting; {
		select {
		case err = <-exited:
			waiting = false
		case <-startTimer.C:
			if !m.checksStarted() {
				kill()
			}
		}
	}
	if !m.checksStarted() {
		qemu, _ := os.ReadFile(m.file("qemu"))
		text := fmt.Sprintf("%s\n%s", qemu, m.console())
		return "", fmt.Errorf("%w: %v\n%s", errNotStarted, err, text) //nolint:errorlint // it may be nil
	}
	if err != nil {
		err = fmt.Errorf("qemu was killed: %w", err)
	}
	text, readErr := os.ReadFile(m.file("report"))
	return string(text), errors.Join(err, readErr)
}

func (m *machine) checksStarted() bool {
	info, err := os.Stat(m.file("report"))
	return err == nil && info.Size() > 0
}

func (m *machine) args(set string) []string {
	return []string{
		"-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", m.size.memory,
		"-display", "none", "-nodefaults", "-no-reboot", "-nic", "none",
		"-serial", "file:" + m.file("console"), "-serial", "file:" + m.file("report"),
		"-kernel", m.host.kernel(), "-initrd", m.host.initrd(), "-append", kernelArgs + " berth.checks=" + set,
		"-drive", "id=d0,file=" + m.file("root.img") + ",format=raw,if=none,cache=unsafe", "-device",
		"virtio-blk-pci,drive=d0",
		"-drive", "id=d1,file=" + m.file("extra.img") + ",format=raw,if=none,readonly=on", "-device",
		"virtio-blk-pci,drive=d1",
	}
}
