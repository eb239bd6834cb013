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
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
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
				t.Fatalf("ps -o %s: got %T of kind %s, want a List of one item", form, obj, kind)
			}
			item, _, err := serializer.NewCodecFactory(scheme).UniversalDeserializer().Decode(list.Items[0].Raw, nil,
				nil)
			if pod, ok := item.(*corev1.Pod); err != nil || !ok || pod.UID != p.UID ||
				pod.Status.PodIP != p.Status.PodIP {
				t.Errorf("ps -o %s: unexpected item %v (%v)", form, item, err)
			}
		}
		s.contains("ps -o wide", s.Berth("ps", "-n", s.ns, "-o", "wide"), "NAME", "READY", "STATUS", "RESTARTS", "AGE",
			"IP", "one", "1/1", "Running", p.Status.PodIP, s.Host.Name)
		s.contains("ps -A", s.Berth("ps", "-A"), "NAMESPACE", s.ns)
	})
}

func TestPsFollowsPodsFromStartToEnd(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
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
			_ = cmd.Process.Kill() // it may have exited
			for range lines {
			}
			_ = cmd.Wait()
		})
		expect := func(parts ...string) {
			t.Helper()
			timeout := time.After(waitTimeout)
			for {
				select {
				case line, ok := <-lines:
					if !ok {
						t.Fatalf("ps -w exited before it printed a line with %v", parts)
					}
					if !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(line, p) }) {
						return
					}
				case <-timeout:
					t.Fatalf("timeout: ps -w printed no line with %v", parts)
				}
			}
		}
		// The line of an existing pod shows that the watch has started.
		s.Pod("early", "containers:\n"+box("c", "", "sleep"))
		expect("early", "1/1", "Running")
		s.Pod("late", "containers:\n"+box("c", "", "sleep"))
		expect("late", "0/1")
		expect("late", "1/1", "Running")
		s.Remove("late")
		expect("late", "Terminating")
	})
}

func TestScenario37_DescribeWhyTimelineAndPlan(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		s.Put("web", podYAML("web", "labels: {app: web}", `
			initContainers:
			`+box("first", "", "print ready")+`
			containers:
			`+box("main", "resources: {requests: {cpu: 10m, memory: 16Mi}}", "sleep")))
		p := s.Running("web")
		s.contains("describe", s.Berth("describe", "-n", s.ns, "web"),
			"Name:", "web", "Namespace:", s.ns, "app=web", "Status:", "Running", p.Status.PodIP, "Init Containers:",
			"first",
			"Containers:", "main",
			"berth/testbox:1", "Conditions:", "Ready", "Events:", "Pulled", "Created", "Started")
		s.waitWhy("web", "web", "Running")
		s.contains("timeline", s.Berth("timeline", "-n", s.ns, "web"), "run sandbox", "RunPodSandbox", "start first",
			"start main", "StartContainer")
		var timeline nodeapi.Timeline
		if err := json.Unmarshal([]byte(s.Berth("timeline", "-n", s.ns, "web", "-o", "json")), &timeline); err != nil {
			t.Fatal(err)
		}
		kinds := map[nodeapi.SpanKind]int{}
		ids := map[int]bool{}
		for _, sp := range timeline.Spans {
			kinds[sp.Kind]++
			ids[sp.ID] = true
			if sp.Start.IsZero() || !sp.End.IsZero() && sp.End.Before(sp.Start) {
				t.Errorf("invalid times of span %+v", sp)
			}
			if sp.Parent != 0 && !ids[sp.Parent] {
				t.Errorf("span %+v precedes its parent", sp)
			}
		}
		if kinds[nodeapi.SpanAction] < 3 || kinds[nodeapi.SpanCall] == 0 {
			t.Errorf("too few spans by kind: %v", kinds)
		}

		file := filepath.Join(t.TempDir(), "plan.yaml")
		plan := func(text string) string {
			t.Helper()
			if err := os.WriteFile(file, []byte(strings.ReplaceAll(text, "NS", s.ns)), 0o644); err != nil {
				t.Fatal(err)
			}
			return s.Berth("plan", "-f", file)
		}
		s.contains("plan of a new pod", plan(podYAML("fresh", "", "containers:\n"+box("c", "", "sleep"))), "create",
			"RunSandbox", "StartContainer")
		manifest := podYAML("web", "labels: {app: web}", `
			initContainers:
			`+box("first", "", "print ready")+`
			containers:
			`+box("main", "resources: {requests: {cpu: 10m, memory: 16Mi}}", "sleep"))
		s.contains("plan of the same pod", plan(manifest), "unchanged")
		s.contains("plan of a new image", plan(strings.ReplaceAll(manifest, "testbox:1", "testbox:user")),
			"would be updated in place", "StopContainer main")
		s.contains("plan of a new command", plan(strings.ReplaceAll(manifest, "ready", "steady")),
			"would be replaced by a new pod",
			"termination", "StopContainer main", "RemoveSandbox", "RunSandbox")
		s.contains("plan of a resize", plan(strings.ReplaceAll(manifest, "memory: 16Mi", "memory: 17Mi")),
			"would be resized in place", "ResizeContainer main")
		if out := plan(strings.ReplaceAll(manifest, "memory: 16Mi", "memory: 900Gi")); !strings.Contains(out,
			"would keep its current CPU and memory: Infeasible: ") || strings.Contains(out, "ResizeContainer") {
			t.Errorf("plan of a resize beyond the node's capacity:\n%s", out)
		}
		s.contains("plan of a pod beyond the node's capacity",
			plan(podYAML("fresh", "", "containers:\n"+box("c", "resources: {requests: {cpu: 900}}", "sleep"))), "cpu")
		if s.Get("fresh") != nil {
			t.Error("plan created a pod")
		}
		if out, err := s.Try("describe", "-n", s.ns, "missing"); err == nil ||
			!strings.Contains(out, `pods "missing" not found`) {
			t.Errorf("describe of an unknown pod: %v %s", err, out)
		}
	})
}

func TestCheckAndVersion(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		var r nodeapi.CheckReport
		out := s.Berth("check", "-o", "json")
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			t.Fatal(err)
		}
		if r.Failed() {
			t.Errorf("check fails:\n%s", s.Berth("check"))
		}
		for _, want := range []string{"runtime", "cni", "cgroup", "ip_forward", "inotify", "controllers", "disk"} {
			if !slices.ContainsFunc(r.Items, func(i nodeapi.CheckItem) bool {
				return strings.Contains(strings.ToLower(i.Name), want)
			}) {
				t.Errorf("check has no item for %s:\n%s", want, out)
			}
		}
		s.contains("version", s.Berth("version"), "containerd", "linux/")
	})
}

func TestExecStreamsAndExitCode(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		s.Pod("shell", "containers:\n"+sh("a", "", "sleep 1000")+box("b", "", "sleep"))
		s.Running("shell")
		if out := s.Exec("shell", "a", "echo", "hello", "two  blanks"); out != "hello two  blanks\n" {
			t.Errorf("got output %q", out)
		}
		out, err := s.Try("exec", "-n", s.ns, "shell", "-c", "b", "--", "/bin/testbox", "warn", "oops", ",", "exit",
			"42")
		if x, ok := errors.AsType[*exec.ExitError](err); !ok || x.ExitCode() != 42 || !strings.Contains(out, "oops") {
			t.Errorf("exit code: %v, output %q", err, out)
		}
		cmd := s.Agent.Command(t.Context(), "exec", "-i", "-n", s.ns, "shell", "-c", "a", "--", "sh", "-c",
			"wc -c; echo done >&2")
		cmd.Stdin = strings.NewReader(strings.Repeat("0123456789", 30_000))
		var errs strings.Builder
		cmd.Stderr = &errs
		text, err := cmd.Output()
		if err != nil || strings.TrimSpace(string(text)) != "300000" || errs.String() != "done\n" {
			t.Errorf("with stdin: %q %q %v", text, errs.String(), err)
		}
		out, err = s.Try("exec", "-n", s.ns, "shell", "-c", "a", "--", "no-such-program")
		if err == nil || !strings.Contains(out, "no-such-program") {
			t.Errorf("unknown program: %v %q", err, out)
		}
		if out, err := s.Try("exec", "-n", s.ns, "shell", "-c", "missing", "--", "true"); err == nil ||
			!strings.Contains(out, "missing") {
			t.Errorf("unknown container: %v %q", err, out)
		}
		s.checkExecTTY()
	})
}

// checkExecTTY runs exec -t on a pseudoterminal and resizes it.
func (s *Namespace) checkExecTTY() {
	t := s.t
	master, slave := pty(t)
	resize := func(rows, cols uint16) {
		if err := unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ,
			&unix.Winsize{Row: rows, Col: cols}); err != nil {
			t.Fatal(err)
		}
	}
	resize(33, 77)
	// The terminal size arrives on a separate stream, so the script polls.
	script := `is() { until [ "$(stty size 2>&1)" = "$1" ]; do sleep 0.05; done; echo it is $1; }; is "33 77"; read ` +
		`x; is "44 111"; exit 7`
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
	var output string
	waitScreen := func(text string) {
		t.Helper()
		timeout := time.After(waitTimeout)
		for !strings.Contains(output, text) {
			select {
			case more, ok := <-screen:
				if output += more; !ok {
					t.Fatalf("terminal output %q does not contain %q", output, text)
				}
			case <-timeout:
				t.Fatalf("terminal output %q does not contain %q", output, text)
			}
		}
	}
	waitScreen("it is 33 77")
	resize(44, 111)
	fmt.Fprintln(master, "go")
	waitScreen("it is 44 111")
	var x *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &x) || x.ExitCode() != 7 {
		t.Errorf("exec -t: got %v, want exit code 7", err)
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
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		s.Pod("writes", `
			volumes: [{name: gate, emptyDir: {}}]
			containers:
			`+box("c", "volumeMounts: [{name: gate, mountPath: /gate}]", "lines 5", "print careful", "await /gate/open",
			"print goodbye", "exit 3"))
		s.WaitLog("writes", "c", "careful")
		if out := s.Berth("logs", "-n", s.ns, "writes", "--tail", "2"); out != "line 5\ncareful\n" {
			t.Errorf("--tail 2: %q", out)
		}
		if out := s.Berth("logs", "-n", s.ns, "writes", "--since", "1h"); !strings.HasPrefix(out, "line 1\n") {
			t.Errorf("--since 1h: %q", out)
		}
		if out := s.Berth("logs", "-n", s.ns, "writes", "--since", "1ms"); out != "" {
			t.Errorf("--since 1ms: %q", out)
		}
		first, _, _ := strings.Cut(s.Berth("logs", "-n", s.ns, "writes", "--timestamps"), " ")
		if _, err := time.Parse(time.RFC3339Nano, first); err != nil {
			t.Error(err)
		}
		cmd := s.Agent.Command(t.Context(), "logs", "-f", "-n", s.ns, "writes")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		if !lines.Scan() || lines.Text() != "line 1" {
			t.Errorf("logs -f: got first line %q, want \"line 1\"", lines.Text())
		}
		s.Exec("writes", "c", "/bin/testbox", "write", "/gate/open", "now")
		rest := []string{}
		for restarted := false; !restarted && lines.Scan(); {
			rest = append(rest, lines.Text())
			restarted = len(rest) > 1 && rest[len(rest)-2] == "goodbye"
		}
		if n := len(rest); n < 2 || rest[n-1] != "line 1" {
			t.Errorf("logs -f across the restart: got %q", rest)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		s.Wait("writes", "restarted", func(p *corev1.Pod) bool { return status(p, "c").RestartCount > 0 })
		if out := s.Berth("logs", "-p", "-n", s.ns, "writes"); !strings.HasSuffix(out, "goodbye\n") ||
			strings.Count(out, "goodbye") != 1 {
			t.Errorf("logs -p: %q", out)
		}
		if out, err := s.Try("logs", "-n", s.ns, "writes", "-c", "missing"); err == nil ||
			!strings.Contains(out, "missing") {
			t.Errorf("unknown container: %v %q", err, out)
		}
	})
}
