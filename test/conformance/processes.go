package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"berth/test/hosts"
)

// stopTimeout is how long a program may take to end.
const stopTimeout = 30 * time.Second

// controlPlane is a control plane that runs.
type controlPlane struct {
	kubectl, kubeconfig string
	server              string   // URL
	join                []string // of berth join: --server, --token, --ca-hash
	approve             bool     // only an administrator approves nodes' serving certificates
	dir                 string
	running             []*exec.Cmd // in the order of their starts
}

// start runs a program whose log is its name's. For the main goroutine: see main.
func (p *controlPlane) start(ctx context.Context, name, program string, args ...string) error {
	log, err := os.Create(filepath.Join(p.dir, name+".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.CommandContext(context.WithoutCancel(ctx), program, args...) // it is stopped in its turn
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, p.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	p.running = append(p.running, cmd)
	return nil
}

// stop ends what was started, the last first, and waits for it.
func (p *controlPlane) stop() (err error) {
	if p == nil {
		return nil
	}
	for _, cmd := range slices.Backward(p.running) {
		err = errors.Join(err, cmd.Process.Signal(syscall.SIGTERM))
		late := time.AfterFunc(stopTimeout, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait() // its error is that it was stopped
		late.Stop()
	}
	p.running = nil
	return err
}

// kubectlOutput runs kubectl and returns what it writes.
func (p *controlPlane) kubectlOutput(ctx context.Context, input string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, p.kubectl, append([]string{"--kubeconfig", p.kubeconfig}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECACHEDIR="+filepath.Join(p.dir, "kubecache"))
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("kubectl %s: %w: %s", args[0], err, out)
	}
	return strings.TrimSpace(string(out)), nil
}

// ready waits until kubectl says what is wanted.
func (p *controlPlane) ready(ctx context.Context, what, want string, args ...string) error {
	return hosts.WaitFor(ctx, what, func() (bool, error) {
		got, err := p.kubectlOutput(ctx, "", args...)
		return err == nil && got == want, nil
	})
}
