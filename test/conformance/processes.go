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

// stopTimeout is the time after which a component is killed.
const stopTimeout = 30 * time.Second

// controlPlane is a running control plane.
type controlPlane struct {
	kubectl, kubeconfig string
	server              string   // URL
	join                []string // arguments of berth join: the server, the token, the hash of its CA
	approve             bool     // serving certificates of nodes need manual approval
	dir                 string
	running             []*exec.Cmd // in start order
}

// start starts a component that logs to NAME.log. It must be called on the main goroutine: see main.
func (p *controlPlane) start(ctx context.Context, name, program string, args ...string) error {
	log, err := os.Create(filepath.Join(p.dir, name+".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.CommandContext(context.WithoutCancel(ctx), program, args...) // stop stops it
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, p.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	p.running = append(p.running, cmd)
	return nil
}

// stop stops all components in reverse start order and waits until they have exited.
func (p *controlPlane) stop() (err error) {
	if p == nil {
		return nil
	}
	for _, cmd := range slices.Backward(p.running) {
		err = errors.Join(err, cmd.Process.Signal(syscall.SIGTERM))
		killTimer := time.AfterFunc(stopTimeout, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait() // the error is the signal
		killTimer.Stop()
	}
	p.running = nil
	return err
}

// kubectlOutput runs kubectl and returns its trimmed output.
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

// ready waits until kubectl prints the wanted output.
func (p *controlPlane) ready(ctx context.Context, what, want string, args ...string) error {
	return hosts.WaitFor(ctx, what, func() (bool, error) {
		got, err := p.kubectlOutput(ctx, "", args...)
		return err == nil && got == want, nil
	})
}
