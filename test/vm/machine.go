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
	bootBound  = 600 * time.Second // of one boot with all its checks
	comesUp    = 75 * time.Second  // the checks have started by then, or never will
	program    = "qemu-system-x86_64"
	install    = "test/deps.sh installs it"
	kernelArgs = "console=ttyS0 rw quiet mitigations=off panic=-1 systemd.unified_cgroup_hierarchy=1 " +
		"hugepagesz=2M hugepages=16 transparent_hugepage=never audit=0 tsc=unstable psi=1"
)

// machine is one host with disks of its own. It may be booted several times.
type machine struct {
	host host
	dir  string // root.img, extra.img, console, report
}

// newMachine gives a host's disk to a machine, beside one with the files of the
// folder extra.
func newMachine(ctx context.Context, h host, dir, extra string) (*machine, error) {
	m := &machine{host: h, dir: dir}
	// The holes stay holes: most of the disk is.
	if err := run(ctx, "cp", "--sparse=always", "--reflink=auto", h.disk(), m.file("root.img")); err != nil {
		return nil, fmt.Errorf("copy the disk: %w", err)
	}
	if err := makeDisk(ctx, m.file("extra.img"), extra, "256M"); err != nil {
		return nil, fmt.Errorf("make the disk of what is tested: %w", err)
	}
	return m, nil
}

func (m *machine) file(name string) string { return filepath.Join(m.dir, name) }

// console is what kernel and systemd said during the last boot.
func (m *machine) console() string {
	text, err := os.ReadFile(m.file("console"))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// errNotUp says that the checks never began.
var errNotUp = errors.New("the machine did not come up")

// boots is how often a machine is booted at most for the same checks.
const boots = 3

// boot starts the machine with a word for the checks, waits until it has ended
// and returns what the checks wrote. Without KVM a machine does not come up now
// and then, or its kernel dies among the checks: then it is booted again, with the
// disk that it had. died is called each time with what was seen.
func (m *machine) boot(ctx context.Context, word string, died func(string)) (text string, err error) {
	if err := run(ctx, "cp", "--sparse=always", "--reflink=auto", m.file("root.img"), m.file("before.img")); err != nil {
		return "", fmt.Errorf("keep the disk: %w", err)
	}
	for try := range boots {
		if try > 0 {
			if err := run(ctx, "cp", "--sparse=always", "--reflink=auto", m.file("before.img"), m.file("root.img")); err != nil {
				return "", fmt.Errorf("bring the disk back: %w", err)
			}
		}
		text, err = m.once(ctx, word)
		if ctx.Err() != nil || err == nil && whole(text) || err != nil && !errors.Is(err, errNotUp) {
			break
		}
		died(fmt.Sprintf("%v\n%s\nconsole:\n%s", err, text, m.console())) // err may be nil
	}
	return text, err
}

func (m *machine) once(ctx context.Context, word string) (string, error) {
	if _, err := exec.LookPath(program); err != nil {
		return "", fmt.Errorf("%w: %s", err, install)
	}
	ctx, cancel := context.WithTimeout(ctx, bootBound)
	defer cancel()
	report, err := os.Create(m.file("report"))
	if err != nil {
		return "", err
	}
	defer report.Close()
	cmd := exec.CommandContext(ctx, program, m.args(word)...)
	cmd.WaitDelay = 5 * time.Second
	said, err := os.Create(m.file("qemu"))
	if err != nil {
		return "", err
	}
	defer said.Close()
	cmd.Stdout, cmd.Stderr = said, said
	// It ends with this process, however that ends. The signal comes when the
	// thread ends that started it, so the thread is kept.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	ended := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if err := cmd.Start(); err != nil {
			ended <- fmt.Errorf("start the machine: %w", err)
			return
		}
		favour(cmd.Process.Pid)
		ended <- cmd.Wait()
	}()
	return m.follow(cancel, ended)
}

// favour has the processor given to the machine before other tests: seconds in
// there are seconds out here, and what waits for its turn looks slow from inside.
// Without the right to do so it goes on as it is.
func favour(pid int) {
	_ = unix.Setpriority(unix.PRIO_PROCESS, pid, -10)
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/autogroup", pid), []byte("-10"), 0) // of its session: absent in some kernels
}

// follow waits for the end of the machine, or ends it when the checks have not
// started in time.
func (m *machine) follow(end context.CancelFunc, ended <-chan error) (string, error) {
	late := time.NewTimer(comesUp)
	defer late.Stop()
	var err error
	for waiting := true; waiting; {
		select {
		case err = <-ended:
			waiting = false
		case <-late.C:
			if !m.begun() {
				end()
			}
		}
	}
	if !m.begun() {
		qemu, _ := os.ReadFile(m.file("qemu"))
		return "", fmt.Errorf("%w: %v\n%s\n%s", errNotUp, err, qemu, m.console()) //nolint:errorlint // it may be nil
	}
	if err != nil {
		err = fmt.Errorf("the machine was ended: %w", err)
	}
	text, readErr := os.ReadFile(m.file("report"))
	return string(text), errors.Join(err, readErr)
}

func (m *machine) begun() bool {
	info, err := os.Stat(m.file("report"))
	return err == nil && info.Size() > 0
}

func (m *machine) args(word string) []string {
	return []string{
		"-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "2G",
		"-display", "none", "-nodefaults", "-no-reboot", "-nic", "none",
		"-serial", "file:" + m.file("console"), "-serial", "file:" + m.file("report"),
		"-kernel", m.host.kernel(), "-initrd", m.host.initrd(), "-append", kernelArgs + " berth.checks=" + word,
		"-drive", "id=d0,file=" + m.file("root.img") + ",format=raw,if=none,cache=unsafe", "-device", "virtio-blk-pci,drive=d0",
		"-drive", "id=d1,file=" + m.file("extra.img") + ",format=raw,if=none,readonly=on", "-device", "virtio-blk-pci,drive=d1",
	}
}
