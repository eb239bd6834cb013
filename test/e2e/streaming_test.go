package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/nodeapi"
	"berth/test/hosts"
)

func TestTop(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		s.Put("uses", podYAML("uses", "labels: {app: uses}", "containers:\n"+
			box("busy", "resources: {limits: {cpu: 100m}}", "print on", "spin")+box("big", "", "alloc 24", "sleep")))
		s.Pod("idle", "containers:\n"+box("c", "", "sleep"))
		s.Running("uses")
		s.Running("idle")
		s.WaitLog("uses", "big", "allocated 24 MiB")
		var top nodeapi.Top
		if err := json.Unmarshal([]byte(s.Berth("top", "-n", s.ns, "-o", "json", "--window", "2s")), &top); err != nil {
			t.Fatal(err)
		}
		if len(top.Pods) != 2 || top.Pods[1].Name != "uses" || len(top.Pods[1].Containers) != 2 {
			t.Fatalf("unexpected top output: %+v", top.Pods)
		}
		pod := top.Pods[1]
		byContainer := map[string]nodeapi.Resources{}
		for _, k := range pod.Containers {
			byContainer[k.Name] = k.Resources
		}
		// A busy loop uses its limit of 0.1 CPU, even on a slow machine.
		if n := byContainer["busy"].CPUNanoCores; n < 20e6 || n > 200e6 || pod.CPUNanoCores < n*8/10 {
			t.Errorf("got CPU usage of %d nanocores for busy, %d for the pod", n, pod.CPUNanoCores)
		}
		if m := byContainer["big"].WorkingSetBytes; m < 24<<20 || m > 100<<20 || pod.WorkingSetBytes < m ||
			byContainer["busy"].WorkingSetBytes >= m {
			t.Errorf("got working sets: big %d, busy %d, pod %d", m, byContainer["busy"].WorkingSetBytes,
				pod.WorkingSetBytes)
		}
		if p := byContainer["busy"].Processes; p != 1 || pod.Processes != 3 {
			t.Errorf("got %d processes of busy, %d of the pod with its sandbox", p, pod.Processes)
		}
		first, _, _ := strings.Cut(s.Berth("top", "-n", s.ns, "--sort-by", "cpu", "--no-headers"), " ")
		if first != "uses" {
			t.Errorf("first pod by CPU: got %q, want \"uses\"", first)
		}
		s.contains("top --containers", s.Berth("top", "-A", "-l", "app=uses", "--containers"), "NAMESPACE",
			"CPU(cores)", s.ns, "uses", "busy", "big")
		if out, err := s.Try("top", "-n", s.ns, "missing"); err == nil ||
			!strings.Contains(out, `pods "missing" not found`) {
			t.Errorf("top of an unknown pod: %v %s", err, out)
		}
	})
}

func TestAttachJoinsRunningProcess(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		s.Pod("echoes", "containers:\n"+
			sh("plain", "stdin: true", `while read x; do echo "got $x"; echo "err $x" >&2; done; sleep 1000`)+
			sh("screen", "stdin: true, tty: true", `while read x; do echo "read $x"; stty size; done`)+
			box("no-stdin", "", "sleep"))
		s.Running("echoes")
		cmd := s.Agent.Command(t.Context(), "attach", "-i", "-n", s.ns, "echoes", "-c", "plain")
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		errs, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		stdout, stderr := bufio.NewScanner(out), bufio.NewScanner(errs)
		for _, word := range []string{"one", "two"} {
			fmt.Fprintln(in, word)
			if !stdout.Scan() || stdout.Text() != "got "+word {
				t.Fatalf("got stdout line %q", stdout.Text())
			}
			if !stderr.Scan() || stderr.Text() != "err "+word {
				t.Fatalf("got stderr line %q", stderr.Text())
			}
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		s.checkAttachTTY()
		out2, err := s.Try("attach", "-i", "-n", s.ns, "echoes", "-c", "no-stdin")
		if err == nil || !strings.Contains(out2, "does not set stdin") {
			t.Errorf("stdin of a container without one: %v %s", err, out2)
		}
	})
}

// checkAttachTTY attaches a pseudoterminal to a container with a TTY, and writes to it.
func (s *Namespace) checkAttachTTY() {
	t := s.t
	master, slave := pty(t)
	if err := unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 33, Col: 77}); err != nil {
		t.Fatal(err)
	}
	cmd := s.Agent.Command(t.Context(), "attach", "-it", "-n", s.ns, "echoes", "-c", "screen")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	slave.Close()
	screen := make(chan string)
	go func() {
		defer close(screen)
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			if n > 0 {
				screen <- string(buf[:n])
			}
			if err != nil {
				return
			}
		}
	}()
	var output string
	for timeout := time.After(waitTimeout); !strings.Contains(output, "33 77"); {
		// The terminal size arrives on a separate stream: send lines until it is set.
		if !strings.HasSuffix(output, "read input\r\n") {
			fmt.Fprintln(master, "input")
		}
		select {
		case text, ok := <-screen:
			if output += text; !ok {
				t.Fatalf("terminal closed after output %q", output)
			}
		case <-timeout:
			t.Fatalf("got terminal output %q", output)
		}
	}
	if !strings.Contains(output, "read input") || !strings.Contains(output, "try pressing enter") {
		t.Errorf("got terminal output %q", output)
	}
	_ = cmd.Process.Kill()
	go func() {
		for range screen {
		}
	}()
	_ = cmd.Wait()
}

var forwarding = regexp.MustCompile(`^Forwarding from (\S+) -> (\d+)$`)

// TestScenario36_PortForwardSeparatesConnections checks that a failed or reset connection does not
// affect other connections.
func TestScenario36_PortForwardSeparatesConnections(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		// The probes wait until the programs listen.
		s.Pod("far", "containers:\n"+box("c", "ports: [{name: echo, containerPort: 7000}], readinessProbe: "+
			"{tcpSocket: {port: echo}, periodSeconds: 1}", "tcp 7000"))
		s.Pod("near", "hostNetwork: true\ncontainers:\n"+box("c", "readinessProbe: {tcpSocket: {port: "+hostPort(s)+
			"}, periodSeconds: 1}", "tcp "+hostPort(s)))
		s.Running("far")
		s.Running("near")
		local, errs := s.startPortForward("far", ":echo", ":7001")
		a, b := dialTCP(t, local["7000"]), dialTCP(t, local["7000"])
		// A connection to a port without a listener fails alone.
		refused := dialTCP(t, local["7001"])
		if n, err := refused.Read(make([]byte, 1)); err == nil {
			t.Errorf("got %d bytes from a port without a listener", n)
		}
		if !errs.Scan() || !strings.Contains(errs.Text(), "7001") || !strings.Contains(errs.Text(), "refused") {
			t.Errorf("got error line %q", errs.Text())
		}
		// A connection reset does not affect other connections.
		if err := a.SetLinger(0); err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(a, "reset")
		a.Close()
		data := strings.Repeat("0123456789", 100_000)
		go func() {
			_, _ = io.WriteString(b, data)
			_ = b.CloseWrite() // half closed: the rest of the echo is still received
		}()
		if text, err := io.ReadAll(b); err != nil || string(text) != data {
			t.Errorf("got %d of %d bytes: %v", len(text), len(data), err)
		}
		port := hostPort(s)
		local, _ = s.startPortForward("near", ":"+port)
		c := dialTCP(t, local[port])
		fmt.Fprint(c, "hello")
		_ = c.CloseWrite()
		if text, err := io.ReadAll(c); err != nil || string(text) != "hello" {
			t.Errorf("pod with hostNetwork: got %q: %v", text, err)
		}
		if out, err := s.Try("port-forward", "-n", s.ns, "missing", "80"); err == nil ||
			!strings.Contains(out, `pods "missing" not found`) {
			t.Errorf("unknown pod: %v %s", err, out)
		}
	})
}

// hostPort returns a port that is different on the nodes of the two containerd versions.
func hostPort(s *Namespace) string {
	port := 20000 + os.Getpid()%10000
	if s.Host.Version == hosts.Version2 {
		port++
	}
	return fmt.Sprint(port)
}

// startPortForward runs berth port-forward until the test ends. It returns the local address of each
// remote port and a scanner of stderr.
func (s *Namespace) startPortForward(pod string, ports ...string) (map[string]string, *bufio.Scanner) {
	t := s.t
	t.Helper()
	ctx := context.WithoutCancel(t.Context()) // the cleanup interrupts the command
	cmd := s.Agent.Command(ctx, append([]string{"port-forward", "-n", s.ns, pod, "--address", "127.0.0.1"},
		ports...)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	errs, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	local := map[string]string{}
	for range ports {
		if !lines.Scan() {
			rest, _ := io.ReadAll(errs)
			t.Fatalf("port-forward exited: %s", rest)
		}
		m := forwarding.FindStringSubmatch(lines.Text())
		if m == nil {
			t.Fatalf("unexpected output of port-forward: %q", lines.Text())
		}
		local[m[2]] = m[1]
	}
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		for lines.Scan() {
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(unix.SIGINT)
		<-drained
		if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 130 {
			t.Errorf("port-forward after SIGINT: got %v, want exit code 130", err)
		}
	})
	return local, bufio.NewScanner(errs)
}

func dialTCP(t *testing.T, address string) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c.(*net.TCPConn)
}

func TestCpCopiesBothWaysWithoutFollowingLinks(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		s.Pod("files", "containers:\n"+sh("c", "", "sleep 1000")+box("bare", "", "sleep"))
		s.Running("files")
		dir := t.TempDir()
		src := filepath.Join(dir, "src")
		for name, text := range map[string]string{"a.txt": "one", "deep/er/b": strings.Repeat("x", 300_000)} {
			if err := os.MkdirAll(filepath.Dir(filepath.Join(src, name)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(src, name), []byte(text), 0o640); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink("a.txt", filepath.Join(src, "link")); err != nil {
			t.Fatal(err)
		}
		s.Berth("cp", "-n", s.ns, "-c", "c", src, "files:/tmp/new")
		out := s.Exec("files", "c", "sh", "-c",
			"cd /tmp/new && cat a.txt && readlink link && wc -c <deep/er/b && stat -c %a a.txt")
		if out != "onea.txt\n300000\n640\n" {
			t.Errorf("files in the container: got %q", out)
		}
		s.Berth("cp", "-c", "c", filepath.Join(src, "a.txt"), s.ns+"/files:/tmp/new/")
		// A copy to an existing directory keeps the base name.
		target := filepath.Join(dir, "back")
		if err := os.Mkdir(target, 0o755); err != nil {
			t.Fatal(err)
		}
		s.Exec("files", "c", "sh", "-c", "ln -s /etc /tmp/new/evil")
		out = s.Berth("cp", "-n", s.ns, "-c", "c", "files:/tmp/new", target)
		s.contains("cp", out, `skipping symlink: "new/link"`, `skipping symlink: "new/evil" -> "/etc"`)
		diff, err := exec.Command("diff", "-r", "--exclude=link", src, filepath.Join(target, "new")).CombinedOutput()
		if err != nil {
			t.Errorf("copied files differ: %s", diff)
		}
		// cp does not follow a symlink in the target.
		if err := os.WriteFile(filepath.Join(dir, "outside"), []byte("safe"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("../outside", filepath.Join(target, "a.txt")); err != nil {
			t.Fatal(err)
		}
		s.Berth("cp", "-n", s.ns, "-c", "c", "files:/tmp/new/a.txt", target)
		if text := readFile(t, filepath.Join(dir, "outside")); text != "safe" {
			t.Errorf("file outside the target: got %q, want \"safe\"", text)
		}
		if text := readFile(t, filepath.Join(target, "a.txt")); text != "one" {
			t.Errorf("copied file: got %q, want \"one\"", text)
		}
		for want, args := range map[string][]string{
			"No such file":                {"-c", "c", "files:/no/such", target},
			"must contain the tar binary": {"-c", "bare", "files:/etc", target},
			"no such file":                {"-c", "c", filepath.Join(dir, "nothing"), "files:/tmp/x"},
			"tar: can't open 'big'": {"-c", "c", sparse(t, filepath.Join(dir, "big"), 64<<20),
				"files:/proc/"}, // most of the input is not read
		} {
			if out, err := s.Try(append([]string{"cp", "-n", s.ns}, args...)...); err == nil ||
				!strings.Contains(out, want) {
				t.Errorf("cp %v: %v %s, want %q", args, err, out, want)
			}
		}
	})
}

// sparse creates a sparse file of the given size.
func sparse(t *testing.T, path string, size int64) string {
	t.Helper()
	if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, size)); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestUnreadStdinDoesNotBlock checks that exec ends when the command exits or the user interrupts it,
// although it has unread input.
func TestUnreadStdinDoesNotBlock(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		s.Pod("full", "containers:\n"+sh("c", "", "sleep 1000"))
		s.Running("full")
		run := func(command ...string) (*exec.Cmd, *strings.Builder) {
			t.Helper()
			cmd := s.Agent.Command(t.Context(), append([]string{"exec", "-i", "-n", s.ns, "full", "--"}, command...)...)
			zero, err := os.Open("/dev/zero")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { zero.Close() })
			output := &strings.Builder{}
			cmd.Stdin, cmd.Stdout, cmd.Stderr = zero, output, output
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			return cmd, output
		}
		wait := func(cmd *exec.Cmd) error {
			t.Helper()
			done := make(chan error, 1)
			go func() { done <- cmd.Wait() }()
			select {
			case err := <-done:
				return err
			case <-time.After(waitTimeout):
				_ = cmd.Process.Kill()
				t.Fatalf("timeout: %v did not exit: %v", cmd.Args, <-done)
				return nil
			}
		}
		cmd, output := run("sh", "-c", "echo enough; exit 7")
		err := wait(cmd)
		if code := cmd.ProcessState.ExitCode(); err == nil || !strings.Contains(output.String(), "enough") ||
			code != 7 && !strings.Contains(output.String(), "no longer reads its input") {
			t.Errorf("got error %v, want exit code 7: %s", err, output)
		}
		cmd, output = run("sh", "-c", "echo started > /tmp/started; exec sleep 1000")
		waitFor(t, "the command to start", func() bool {
			out, err := s.Try("exec", "-n", s.ns, "full", "--", "cat", "/tmp/started")
			return err == nil && strings.Contains(out, "started")
		})
		if err := cmd.Process.Signal(unix.SIGINT); err != nil {
			t.Fatal(err)
		}
		if err := wait(cmd); err == nil {
			t.Errorf("exec succeeded after SIGINT: %s", output)
		}
	})
}
