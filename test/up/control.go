package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"berth/test/hosts"
)

// server is the control server of the quick start with its kubectl.
type server struct {
	kubectl, kubeconfig string
}

func newServer(repo string) *server {
	return &server{program(repo, "kubectl"), path("control/admin.kubeconfig")}
}

// startServer starts berth-control with its files in home, where make down finds them.
func startServer(ctx context.Context, repo string) (*server, error) {
	logStep("starting berth-control")
	if err := os.MkdirAll(home, 0o755); err != nil {
		return nil, err
	}
	err := detach("berth-control", program(repo, "berth-control"), "serve", "--data-dir", path("control"),
		"--bind-address", "127.0.0.1", "--secure-port", "0")
	if err != nil {
		return nil, err
	}
	s := newServer(repo)
	return s, hosts.WaitFor(ctx, "berth-control to be ready, see "+path("berth-control.log"), func() (bool, error) {
		if pid, err := running("berth-control"); err != nil || pid == 0 {
			return false, errors.Join(errors.New("berth-control has exited"), err)
		}
		out, err := s.run(ctx, "get", "--raw", "/readyz")
		return err == nil && strings.TrimSpace(out) == "ok", nil
	})
}

// link returns a link to the web page that signs the administrator in.
func (s *server) link(ctx context.Context) (string, error) {
	repo, err := hosts.RepoRoot()
	if err != nil {
		return "", err
	}
	line, err := output(ctx, program(repo, "berth-control"), "ui", "--kubeconfig", s.kubeconfig)
	return strings.TrimSpace(line), err
}

// join joins this host with the command that the server prints. It returns the flags for the agent that
// name the written files.
func (s *server) join(ctx context.Context, repo string) ([]string, error) {
	logStep("joining the node with a token")
	url, err := s.run(ctx, "config", "view", "--minify", "-o", "jsonpath={.clusters[0].cluster.server}")
	if err != nil {
		return nil, err
	}
	line, err := output(ctx, program(repo, "berth-control"), "token", "create", "--kubeconfig", s.kubeconfig,
		"--server", url)
	if err != nil {
		return nil, err
	}
	words := strings.Fields(line)
	if len(words) < 2 || words[0] != "berth" || words[1] != "join" {
		return nil, fmt.Errorf("berth-control token create: unexpected output %q", line)
	}
	files := []string{"--kubeconfig", path("node.kubeconfig"), "--bootstrap-kubeconfig", path("bootstrap.kubeconfig")}
	args := slices.Concat(words[1:], files, []string{"--config", path("join.yaml")})
	_, err = output(ctx, program(repo, "berth"), args...)
	return files, err
}

// output runs a program and returns its standard output.
func output(ctx context.Context, program string, args ...string) (string, error) {
	// The error must not contain the arguments, which may include a token.
	return runCaptured(exec.CommandContext(ctx, program, args...), filepath.Base(program)+" "+args[0])
}

// runCaptured runs cmd and returns its standard output. An error contains name and standard error.
func runCaptured(cmd *exec.Cmd, name string) (string, error) {
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", name, err, stderr.String())
	}
	return out.String(), nil
}

// print runs kubectl with the output on the terminal.
func (s *server) print(ctx context.Context, args ...string) error {
	cmd := s.command(ctx, args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("kubectl %s: %w", strings.Join(args, " "), cmp.Or(context.Cause(ctx), err))
	}
	return nil
}

// run runs kubectl and returns its output.
func (s *server) run(ctx context.Context, args ...string) (string, error) {
	return runCaptured(s.command(ctx, args...), "kubectl "+strings.Join(args, " "))
}

func (s *server) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, s.kubectl, append([]string{"--kubeconfig", s.kubeconfig}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECACHEDIR="+path("kubecache"))
	return cmd
}

// detach starts a program that outlives this process. It writes log and PID file to home.
func detach(name, binary string, args ...string) error {
	log, err := os.Create(path(name + ".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(binary, args...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	if err := os.WriteFile(path(name+".pid"), []byte(strconv.Itoa(cmd.Process.Pid)), 0o644); err != nil {
		return errors.Join(err, cmd.Process.Kill())
	}
	return cmd.Process.Release()
}

// running returns the process ID of a program that detach started, or 0 if it does not run.
func running(name string) (pid int, err error) {
	text, err := os.ReadFile(path(name + ".pid"))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if pid, err = strconv.Atoi(strings.TrimSpace(string(text))); err != nil {
		return 0, fmt.Errorf("%s: %w", path(name+".pid"), err)
	}
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil || filepath.Base(strings.TrimSuffix(exe, " (deleted)")) != name {
		return 0, nil //nolint:nilerr // exited, and another process may have the ID
	}
	state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil || strings.Contains(string(state), ") Z ") {
		return 0, nil //nolint:nilerr // exited or a zombie
	}
	return pid, nil
}

// stop stops a program that detach started and waits until it has exited.
func stop(ctx context.Context, name string) error {
	pid, err := running(name)
	if err != nil || pid == 0 {
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		return err
	}
	return hosts.WaitFor(ctx, name+" to exit", func() (bool, error) {
		now, err := running(name)
		return now != pid, err
	})
}
