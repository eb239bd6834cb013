package control

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"berth/test/hosts"
)

// Process is berth-control as a separate process, with a store that syncs to disk.
type Process struct {
	DataDir string
	Listen  string // the same address for all starts
	Program string // empty: the program under test
	cmd     *exec.Cmd
	done    chan struct{} // closed after cmd has exited with waitErr
	waitErr error
	logFile string
}

// Launch builds and starts berth-control with its own data directory and waits until it is ready.
func Launch(t testing.TB, args ...string) *Process {
	t.Helper()
	p := &Process{DataDir: t.TempDir()}
	p.logFile = filepath.Join(t.TempDir(), "log")
	p.Listen = freeAddress(t)
	p.Start(t, args...)
	t.Cleanup(func() { p.stopAndLog(t) })
	return p
}

// freeAddress returns an unused address on the loopback interface.
func freeAddress(t testing.TB) string {
	port, err := hosts.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", port)
}

// Start starts the program. A previous process must have exited.
func (p *Process) Start(t testing.TB, args ...string) {
	t.Helper()
	program := p.Program
	if program == "" {
		var err error
		if program, err = hosts.BuildControl(t.Context(), hosts.BuildOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	log, err := os.OpenFile(p.logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	address, err := netip.ParseAddrPort(p.Listen)
	if err != nil {
		t.Fatal(err)
	}
	listen := []string{"--bind-address", address.Addr().String(), "--secure-port", strconv.Itoa(int(address.Port()))}
	if p.Program != "" {
		listen = []string{"--listen", p.Listen} // the spelling of the previous release
	}
	p.cmd = exec.Command(program, slices.Concat([]string{"serve", "--data-dir", p.DataDir}, listen, args)...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	cmd, ended := p.cmd, make(chan struct{})
	p.done = ended
	go func() { p.waitErr = cmd.Wait(); close(ended) }()
}

// Wait waits until the program exits and returns its output since Launch and its exit error.
func (p *Process) Wait(t testing.TB) (string, error) {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(3 * time.Minute):
		t.Fatal("berth-control did not exit")
	}
	text, err := os.ReadFile(p.logFile)
	if err != nil {
		t.Fatal(err)
	}
	return string(text), p.waitErr
}

// Kill sends SIGKILL and waits until the process has exited.
func (p *Process) Kill(t testing.TB) {
	t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-p.done
}

// Stop stops the program gracefully. The test's Cleanup does so too.
func (p *Process) Stop(t testing.TB) {
	t.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(2 * time.Minute):
		t.Error("berth-control did not exit within 2 minutes")
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// stopAndLog stops the program and logs its output if the test has failed.
func (p *Process) stopAndLog(t testing.TB) {
	p.Stop(t)
	if text, err := os.ReadFile(p.logFile); err == nil && t.Failed() {
		t.Logf("berth-control log:\n%s", text)
	}
}

// Pid returns the process ID of the running program.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Kubeconfig returns the path of the administrator's kubeconfig.
func (p *Process) Kubeconfig() string { return filepath.Join(p.DataDir, "admin.kubeconfig") }

// Config waits for the administrator's kubeconfig and returns its client configuration.
func (p *Process) Config(ctx context.Context) (*restclient.Config, error) {
	for {
		c, err := clientcmd.BuildConfigFromFlags("", p.Kubeconfig())
		if err == nil {
			c.QPS = -1
			return c, nil
		}
		if err := pause(ctx); err != nil {
			return nil, fmt.Errorf("read kubeconfig of the administrator: %w", err)
		}
	}
}

// WaitReady waits until the server is ready and returns the administrator's client.
func (p *Process) WaitReady(ctx context.Context) (kubernetes.Interface, error) {
	c, err := p.Config(ctx)
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(c)
	if err != nil {
		return nil, err
	}
	for {
		err := client.CoreV1().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
		if err == nil {
			return client, nil
		}
		if pause(ctx) != nil {
			return nil, fmt.Errorf("not ready: %w", err)
		}
	}
}

// pause waits between two attempts.
func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(10 * time.Millisecond):
		return nil
	}
}
