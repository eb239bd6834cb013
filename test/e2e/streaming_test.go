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
			t.Fatalf("top tells %+v", top.Pods)
		}
		pod := top.Pods[1]
		byContainer := map[string]nodeapi.Resources{}
		for _, k := range pod.Containers {
			byContainer[k.Name] = k.Resources
		}
		// A loop under a limit of 0.1 CPU uses that, however slow the machine is.
		if n := byContainer["busy"].CPUNanoCores; n < 20e6 || n > 200e6 || pod.CPUNanoCores < n*8/10 {
			t.Errorf("busy uses %d nanocores, the pod %d", n, pod.CPUNanoCores)
		}
		if m := byContainer["big"].WorkingSetBytes; m < 24<<20 || m > 100<<20 || pod.WorkingSetBytes < m || byContainer["busy"].WorkingSetBytes >= m {
			t.Errorf("big's working set is %d, busy's %d, the pod's %d", m, byContainer["busy"].WorkingSetBytes, pod.WorkingSetBytes)
		}
		if p := byContainer["busy"].Processes; p != 1 || pod.Processes != 3 {
			t.Errorf("busy has %d processes, the pod %d with its sandbox's", p, pod.Processes)
		}
		first, _, _ := strings.Cut(s.Berth("top", "-n", s.ns, "--sort-by", "cpu", "--no-headers"), " ")
		if first != "uses" {
			t.Errorf("the busiest is %q", first)
		}
		s.contains("top --containers", s.Berth("top", "-A", "-l", "app=uses", "--containers"), "NAMESPACE", "CPU(cores)", s.ns, "uses", "busy", "big")
		if out, err := s.Try("top", "-n", s.ns, "nobody"); err == nil || !strings.Contains(out, `pods "nobody" not found`) {
			t.Errorf("top of no pod: %v %s", err, out)
		}
	})
}

func TestAttachJoinsRunningProcess(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		s.Pod("echoes", "containers:\n"+
			sh("plain", "stdin: true", `while read x; do echo "got $x"; echo "err $x" >&2; done; sleep 1000`)+
			sh("screen", "stdin: true, tty: true", `while read x; do echo "saw $x"; stty size; done`)+
			box("deaf", "", "sleep"))
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
				t.Fatalf("stdout has %q", stdout.Text())
			}
			if !stderr.Scan() || stderr.Text() != "err "+word {
				t.Fatalf("stderr has %q", stderr.Text())
			}
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		s.checkAttachTTY()
		out2, err := s.Try("attach", "-i", "-n", s.ns, "echoes", "-c", "deaf")
		if err == nil || !strings.Contains(out2, "does not set stdin") {
			t.Errorf("stdin of a container without one: %v %s", err, out2)
		}
	})
}

// attachTTY types into a container's terminal on one of ours.
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
		// The size takes its way on a stream of its own: type until it is there.
		if !strings.HasSuffix(output, "saw me\r\n") {
			fmt.Fprintln(master, "me")
		}
		select {
		case text, ok := <-screen:
			if output += text; !ok {
				t.Fatalf("the terminal ends with %q", output)
			}
		case <-timeout:
			t.Fatalf("the terminal shows %q", output)
		}
	}
	if !strings.Contains(output, "saw me") || !strings.Contains(output, "try pressing enter") {
		t.Errorf("the terminal shows %q", output)
	}
	_ = cmd.Process.Kill()
	go func() {
		for range screen {
		}
	}()
	_ = cmd.Wait()
}

var forwarding = regexp.MustCompile(`^Forwarding from (\S+) -> (\d+)$`)

// TestScenario36_PortForwardSeparatesConnections is row 36 of the scenarios.
func TestScenario36_PortForwardSeparatesConnections(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		s.Pod("far", "containers:\n"+box("c", "ports: [{name: echo, containerPort: 7000}]", "tcp 7000"))
		s.Pod("near", "hostNetwork: true\ncontainers:\n"+box("c", "", "tcp "+hostPort(s)))
		s.Running("far")
		s.Running("near")
		local, errs := s.startPortForward("far", ":echo", ":7001")
		a, b := dialTCP(t, local["7000"]), dialTCP(t, local["7000"])
		// A connection to a port without a listener fails by itself.
		refused := dialTCP(t, local["7001"])
		if n, err := refused.Read(make([]byte, 1)); err == nil {
			t.Errorf("%d bytes came from where nobody listens", n)
		}
		if !errs.Scan() || !strings.Contains(errs.Text(), "7001") || !strings.Contains(errs.Text(), "refused") {
			t.Errorf("it says %q", errs.Text())
		}
		// One that is reset does not touch the others.
		if err := a.SetLinger(0); err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(a, "gone")
		a.Close()
		data := strings.Repeat("0123456789", 100_000)
		go func() {
			_, _ = io.WriteString(b, data)
			_ = b.CloseWrite() // half closed: the rest of the echo still comes
		}()
		if text, err := io.ReadAll(b); err != nil || string(text) != data {
			t.Errorf("%d of %d bytes came back: %v", len(text), len(data), err)
		}
		port := hostPort(s)
		local, _ = s.startPortForward("near", ":"+port)
		c := dialTCP(t, local[port])
		fmt.Fprint(c, "hello")
		_ = c.CloseWrite()
		if text, err := io.ReadAll(c); err != nil || string(text) != "hello" {
			t.Errorf("from a pod on the host's network %q: %v", text, err)
		}
		if out, err := s.Try("port-forward", "-n", s.ns, "nobody", "80"); err == nil || !strings.Contains(out, `pods "nobody" not found`) {
			t.Errorf("no such pod: %v %s", err, out)
		}
	})
}

// hostPort is a port that the nodes of the two containerds do not share.
func hostPort(s *Namespace) string {
	port := 20000 + os.Getpid()%10000
	if s.Host.Version == hosts.Version2 {
		port++
	}
	return fmt.Sprint(port)
}

// forward runs port-forward until the test ends, and returns the local address
// for each remote port and what it says of errors.
func (s *Namespace) startPortForward(pod string, ports ...string) (map[string]string, *bufio.Scanner) {
	t := s.t
	t.Helper()
	ctx := context.WithoutCancel(t.Context()) // it is interrupted at the end
	cmd := s.Agent.Command(ctx, append([]string{"port-forward", "-n", s.ns, pod, "--address", "127.0.0.1"}, ports...)...)
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
			t.Fatalf("port-forward ended: %s", rest)
		}
		m := forwarding.FindStringSubmatch(lines.Text())
		if m == nil {
			t.Fatalf("port-forward says %q", lines.Text())
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
			t.Errorf("port-forward ends with %v", err)
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
		s.Pod("holds", "containers:\n"+sh("c", "", "sleep 1000")+box("bare", "", "sleep"))
		s.Running("holds")
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
		s.Berth("cp", "-n", s.ns, "-c", "c", src, "holds:/tmp/new")
		if out := s.Exec("holds", "c", "sh", "-c", "cd /tmp/new && cat a.txt && readlink link && wc -c <deep/er/b && stat -c %a a.txt"); out != "onea.txt\n300000\n640\n" {
			t.Errorf("in the container there is %q", out)
		}
		s.Berth("cp", "-c", "c", filepath.Join(src, "a.txt"), s.ns+"/holds:/tmp/new/")
		// Into a directory that is there: under the name it has.
		target := filepath.Join(dir, "back")
		if err := os.Mkdir(target, 0o755); err != nil {
			t.Fatal(err)
		}
		s.Exec("holds", "c", "sh", "-c", "ln -s /etc /tmp/new/evil")
		out := s.Berth("cp", "-n", s.ns, "-c", "c", "holds:/tmp/new", target)
		s.contains("cp", out, `skipping symlink: "new/link"`, `skipping symlink: "new/evil" -> "/etc"`)
		diff, err := exec.Command("diff", "-r", "--exclude=link", src, filepath.Join(target, "new")).CombinedOutput()
		if err != nil {
			t.Errorf("what came back differs: %s", diff)
		}
		// A link that lies in the target is not written through.
		if err := os.WriteFile(filepath.Join(dir, "outside"), []byte("safe"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("../outside", filepath.Join(target, "a.txt")); err != nil {
			t.Fatal(err)
		}
		s.Berth("cp", "-n", s.ns, "-c", "c", "holds:/tmp/new/a.txt", target)
		if text := readFile(t, filepath.Join(dir, "outside")); text != "safe" {
			t.Errorf("outside of the target there is %q", text)
		}
		if text := readFile(t, filepath.Join(target, "a.txt")); text != "one" {
			t.Errorf("the copied file has %q", text)
		}
		for want, args := range map[string][]string{
			"No such file":                {"-c", "c", "holds:/no/such", target},
			"must contain the tar binary": {"-c", "bare", "holds:/etc", target},
			"no such file":                {"-c", "c", filepath.Join(dir, "nothing"), "holds:/tmp/x"},
			"tar: can't open 'big'":       {"-c", "c", sparse(t, filepath.Join(dir, "big"), 64<<20), "holds:/proc/"}, // most of it is not read
		} {
			if out, err := s.Try(append([]string{"cp", "-n", s.ns}, args...)...); err == nil || !strings.Contains(out, want) {
				t.Errorf("cp %v: %v %s, want %q", args, err, out, want)
			}
		}
	})
}

// sparse makes a file of so many zeroes.
func sparse(t *testing.T, path string, size int64) string {
	t.Helper()
	if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, size)); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestUnreadStdinDoesNotBlock has a command end, and a user lose
// patience, while more input is on its way than anybody takes.
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
				t.Fatalf("%v did not end: %v", cmd.Args, <-done)
				return nil
			}
		}
		cmd, output := run("sh", "-c", "echo enough; exit 7")
		err := wait(cmd)
		if code := cmd.ProcessState.ExitCode(); err == nil || !strings.Contains(output.String(), "enough") ||
			code != 7 && !strings.Contains(output.String(), "no longer reads its input") {
			t.Errorf("the command ends with %v: %s", err, output)
		}
		cmd, output = run("sh", "-c", "echo begun > /tmp/begun; exec sleep 1000")
		waitFor(t, "the command to begin", func() bool {
			out, err := s.Try("exec", "-n", s.ns, "full", "--", "cat", "/tmp/begun")
			return err == nil && strings.Contains(out, "begun")
		})
		if err := cmd.Process.Signal(unix.SIGINT); err != nil {
			t.Fatal(err)
		}
		if err := wait(cmd); err == nil {
			t.Errorf("interrupted, it ends well: %s", output)
		}
	})
}
