package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"berth/nodeapi"
	"berth/test/hosts"
)

func TestPsPrintsKubernetesListAndTable(t *testing.T) {
	both(t, func(t *testing.T, s *Space) {
		s.Pod("one", "containers:\n"+box("c", "", "sleep"))
		p := s.Running("one")
		scheme := runtime.NewScheme()
		if err := corev1.AddToScheme(scheme); err != nil {
			t.Fatal(err)
		}
		for _, form := range []string{"json", "yaml"} {
			out := s.Berth("ps", "-n", s.ns, "-o", form)
			obj, kind, err := serializer.NewCodecFactory(scheme).UniversalDeserializer().Decode([]byte(out), nil, nil)
			if err != nil {
				t.Fatalf("ps -o %s: %v\n%s", form, err, out)
			}
			list, ok := obj.(*corev1.List)
			if !ok || kind.Kind != "List" || len(list.Items) != 1 {
				t.Fatalf("ps -o %s is a %T of kind %s", form, obj, kind)
			}
			item, _, err := serializer.NewCodecFactory(scheme).UniversalDeserializer().Decode(list.Items[0].Raw, nil, nil)
			if pod, ok := item.(*corev1.Pod); err != nil || !ok || pod.UID != p.UID || pod.Status.PodIP != p.Status.PodIP {
				t.Errorf("ps -o %s holds %v (%v)", form, item, err)
			}
		}
		s.contains("ps -o wide", s.Berth("ps", "-n", s.ns, "-o", "wide"), "NAME", "READY", "STATUS", "RESTARTS", "AGE", "IP", "one", "1/1", "Running", p.Status.PodIP, s.Host.Name)
		s.contains("ps -A", s.Berth("ps", "-A"), "NAMESPACE", s.ns)
	})
}

func TestPsFollowsPodsFromStartToEnd(t *testing.T) {
	both(t, func(t *testing.T, s *Space) {
		cmd := s.Agent.Command(t.Context(), "ps", "-n", s.ns, "-w")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := make(chan string)
		go func() {
			defer close(lines)
			for sc := bufio.NewScanner(out); sc.Scan(); {
				lines <- sc.Text()
			}
		}()
		t.Cleanup(func() {
			_ = cmd.Process.Kill() // it may have ended
			for range lines {
			}
			_ = cmd.Wait()
		})
		expect := func(parts ...string) {
			t.Helper()
			bound := time.After(waitBound)
			for {
				select {
				case line, ok := <-lines:
					if !ok {
						t.Fatalf("ps -w ended before a line with %v", parts)
					}
					if !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(line, p) }) {
						return
					}
				case <-bound:
					t.Fatalf("ps -w prints no line with %v", parts)
				}
			}
		}
		// One that is there shows that the watch has started.
		s.Pod("early", "containers:\n"+box("c", "", "sleep"))
		expect("early", "1/1", "Running")
		s.Pod("seen", "containers:\n"+box("c", "", "sleep"))
		expect("seen", "0/1")
		expect("seen", "1/1", "Running")
		s.Remove("seen")
		expect("seen", "Terminating")
	})
}

func TestScenario37_DescribeWhyTimelineAndPlan(t *testing.T) {
	both(t, func(t *testing.T, s *Space) {
		s.Put("told", podYAML("told", "labels: {app: told}", `
			initContainers:
			`+box("first", "", "print ready")+`
			containers:
			`+box("main", "resources: {requests: {cpu: 10m, memory: 16Mi}}", "sleep")))
		p := s.Running("told")
		s.contains("describe", s.Berth("describe", "-n", s.ns, "told"),
			"Name:", "told", "Namespace:", s.ns, "app=told", "Status:", "Running", p.Status.PodIP, "Init Containers:", "first", "Containers:", "main",
			"berth/testbox:1", "Conditions:", "Ready", "Events:", "Pulled", "Created", "Started")
		s.whySays("told", "told", "Running")
		s.contains("timeline", s.Berth("timeline", "-n", s.ns, "told"), "run sandbox", "RunPodSandbox", "start first", "start main", "StartContainer")
		var line nodeapi.Timeline
		if err := json.Unmarshal([]byte(s.Berth("timeline", "-n", s.ns, "told", "-o", "json")), &line); err != nil {
			t.Fatal(err)
		}
		kinds := map[nodeapi.SpanKind]int{}
		ids := map[int]bool{}
		for _, sp := range line.Spans {
			kinds[sp.Kind]++
			ids[sp.ID] = true
			if sp.Start.IsZero() || !sp.End.IsZero() && sp.End.Before(sp.Start) {
				t.Errorf("span %+v", sp)
			}
			if sp.Parent != 0 && !ids[sp.Parent] {
				t.Errorf("span %+v comes before its parent", sp)
			}
		}
		if kinds[nodeapi.SpanAction] < 3 || kinds[nodeapi.SpanCall] == 0 {
			t.Errorf("spans by kind: %v", kinds)
		}

		file := filepath.Join(t.TempDir(), "plan.yaml")
		plan := func(text string) string {
			t.Helper()
			if err := os.WriteFile(file, []byte(strings.ReplaceAll(text, "NS", s.ns)), 0o644); err != nil {
				t.Fatal(err)
			}
			return s.Berth("plan", "-f", file)
		}
		s.contains("plan of a new pod", plan(podYAML("fresh", "", "containers:\n"+box("c", "", "sleep"))), "create", "RunSandbox", "StartContainer")
		same := podYAML("told", "labels: {app: told}", `
			initContainers:
			`+box("first", "", "print ready")+`
			containers:
			`+box("main", "resources: {requests: {cpu: 10m, memory: 16Mi}}", "sleep"))
		s.contains("plan of the same pod", plan(same), "unchanged")
		s.contains("plan of another image", plan(strings.ReplaceAll(same, "testbox:1", "testbox:user")), "would be updated in place", "StopContainer main")
		s.contains("plan of another command", plan(strings.ReplaceAll(same, "ready", "steady")), "would be replaced by a new pod",
			"ending", "StopContainer main", "RemoveSandbox", "RunSandbox")
		s.contains("plan of another amount", plan(strings.ReplaceAll(same, "memory: 16Mi", "memory: 17Mi")), "would be resized in place", "ResizeContainer main")
		if out := plan(strings.ReplaceAll(same, "memory: 16Mi", "memory: 900Gi")); !strings.Contains(out, "would keep its current CPU and memory: Infeasible: ") || strings.Contains(out, "ResizeContainer") {
			t.Errorf("plan of what is too much for the node:\n%s", out)
		}
		s.contains("plan of too much", plan(podYAML("fresh", "", "containers:\n"+box("c", "resources: {requests: {cpu: 900}}", "sleep"))), "cpu")
		if s.Get("fresh") != nil {
			t.Error("plan made a pod")
		}
		if out, err := s.Try("describe", "-n", s.ns, "nobody"); err == nil || !strings.Contains(out, `pods "nobody" not found`) {
			t.Errorf("describe of no pod: %v %s", err, out)
		}
	})
}

func TestCheckAndVersion(t *testing.T) {
	both(t, func(t *testing.T, s *Space) {
		var r nodeapi.CheckReport
		out := s.Berth("check", "-o", "json")
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			t.Fatal(err)
		}
		if r.Failed() {
			t.Errorf("check fails:\n%s", s.Berth("check"))
		}
		for _, want := range []string{"runtime", "cni", "cgroup", "ip_forward", "inotify", "controllers", "disk"} {
			if !slices.ContainsFunc(r.Items, func(i nodeapi.CheckItem) bool { return strings.Contains(strings.ToLower(i.Name), want) }) {
				t.Errorf("check does not look at %s:\n%s", want, out)
			}
		}
		s.contains("version", s.Berth("version"), "containerd", "linux/")
	})
}

func TestExecStreamsAndExitCode(t *testing.T) {
	both(t, func(t *testing.T, s *Space) {
		s.Pod("shell", "containers:\n"+sh("a", "", "sleep 1000")+box("b", "", "sleep"))
		s.Running("shell")
		if out := s.Exec("shell", "a", "echo", "hello", "two  blanks"); out != "hello two  blanks\n" {
			t.Errorf("it prints %q", out)
		}
		out, err := s.Try("exec", "-n", s.ns, "shell", "-c", "b", "--", "/bin/testbox", "warn", "oops", ",", "exit", "42")
		if x, ok := errors.AsType[*exec.ExitError](err); !ok || x.ExitCode() != 42 || !strings.Contains(out, "oops") {
			t.Errorf("exit code: %v, output %q", err, out)
		}
		cmd := s.Agent.Command(t.Context(), "exec", "-i", "-n", s.ns, "shell", "-c", "a", "--", "sh", "-c", "wc -c; echo done >&2")
		cmd.Stdin = strings.NewReader(strings.Repeat("0123456789", 30_000))
		var errs strings.Builder
		cmd.Stderr = &errs
		text, err := cmd.Output()
		if err != nil || strings.TrimSpace(string(text)) != "300000" || errs.String() != "done\n" {
			t.Errorf("with stdin: %q %q %v", text, errs.String(), err)
		}
		out, err = s.Try("exec", "-n", s.ns, "shell", "-c", "a", "--", "no-such-program")
		if err == nil || !strings.Contains(out, "no-such-program") {
			t.Errorf("no such program: %v %q", err, out)
		}
		if out, err := s.Try("exec", "-n", s.ns, "shell", "-c", "nobody", "--", "true"); err == nil || !strings.Contains(out, "nobody") {
			t.Errorf("no such container: %v %q", err, out)
		}
		s.execTTY()
	})
}

// execTTY runs a command on a terminal of ours and changes its size.
func (s *Space) execTTY() {
	t := s.t
	master, slave := pty(t)
	resize := func(rows, cols uint16) {
		if err := unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols}); err != nil {
			t.Fatal(err)
		}
	}
	resize(33, 77)
	// The size takes its way on a stream of its own: ask until it is there.
	script := `is() { until [ "$(stty size 2>&1)" = "$1" ]; do sleep 0.05; done; echo it is $1; }; is "33 77"; read x; is "44 111"; exit 7`
	cmd := s.Agent.Command(t.Context(), "exec", "-it", "-n", s.ns, "shell", "-c", "a", "--", "sh", "-c", script)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	slave.Close()
	screen := make(chan string, 100)
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
	var all string
	shows := func(text string) {
		t.Helper()
		bound := time.After(waitBound)
		for !strings.Contains(all, text) {
			select {
			case more, ok := <-screen:
				if all += more; !ok {
					t.Fatalf("the terminal shows %q, not %q", all, text)
				}
			case <-bound:
				t.Fatalf("the terminal shows %q, not %q", all, text)
			}
		}
	}
	shows("it is 33 77")
	resize(44, 111)
	fmt.Fprintln(master, "go")
	shows("it is 44 111")
	var x *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &x) || x.ExitCode() != 7 {
		t.Errorf("on a terminal: %v", err)
	}
}

func pty(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, slave, err := hosts.Terminal()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close(); slave.Close() })
	return master, slave
}

func TestLogsFollowAndSelectLines(t *testing.T) {
	both(t, func(t *testing.T, s *Space) {
		s.Pod("talks", `
			volumes: [{name: gate, emptyDir: {}}]
			containers:
			`+box("c", "volumeMounts: [{name: gate, mountPath: /gate}]", "lines 5", "print careful", "await /gate/open", "print last words", "exit 3"))
		s.Said("talks", "c", "careful")
		if out := s.Berth("logs", "-n", s.ns, "talks", "--tail", "2"); out != "line 5\ncareful\n" {
			t.Errorf("--tail 2: %q", out)
		}
		if out := s.Berth("logs", "-n", s.ns, "talks", "--since", "1h"); !strings.HasPrefix(out, "line 1\n") {
			t.Errorf("--since 1h: %q", out)
		}
		if out := s.Berth("logs", "-n", s.ns, "talks", "--since", "1ms"); out != "" {
			t.Errorf("--since 1ms: %q", out)
		}
		first, _, _ := strings.Cut(s.Berth("logs", "-n", s.ns, "talks", "--timestamps"), " ")
		if _, err := time.Parse(time.RFC3339Nano, first); err != nil {
			t.Error(err)
		}
		cmd := s.Agent.Command(t.Context(), "logs", "-f", "-n", s.ns, "talks")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		if !lines.Scan() || lines.Text() != "line 1" {
			t.Errorf("logs -f begins with %q", lines.Text())
		}
		s.Exec("talks", "c", "/bin/testbox", "write", "/gate/open", "now")
		rest := []string{}
		for again := false; !again && lines.Scan(); {
			rest = append(rest, lines.Text())
			again = len(rest) > 1 && rest[len(rest)-2] == "last words"
		}
		if n := len(rest); n < 2 || rest[n-1] != "line 1" {
			t.Errorf("logs -f goes on from the last words with %q", rest)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		s.Wait("talks", "restarted", func(p *corev1.Pod) bool { return status(p, "c").RestartCount > 0 })
		if out := s.Berth("logs", "-p", "-n", s.ns, "talks"); !strings.HasSuffix(out, "last words\n") || strings.Count(out, "last words") != 1 {
			t.Errorf("logs -p: %q", out)
		}
		if out, err := s.Try("logs", "-n", s.ns, "talks", "-c", "nobody"); err == nil || !strings.Contains(out, "nobody") {
			t.Errorf("no such container: %v %q", err, out)
		}
	})
}
