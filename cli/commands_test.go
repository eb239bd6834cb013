package cli

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/nodeapi"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the golden files")

// now is the fixed clock of all tests.
var now = time.Date(2026, 5, 4, 15, 4, 5, 0, time.UTC)

// socket serves h on a real socket until the test ends and returns its path.
func socket(t *testing.T, h nodeapi.Handlers) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	ln, err := nodeapi.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	serve(t, ln, h)
	return path
}

func serve(t *testing.T, ln net.Listener, h nodeapi.Handlers) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	stopped := make(chan error, 1)
	go func() { stopped <- nodeapi.Serve(ctx, ln, h) }()
	t.Cleanup(func() {
		cancel()
		if err := <-stopped; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
}

// invocation is a call of the program.
type invocation struct {
	args   []string
	stdin  io.Reader
	screen screen
}

func rootOn(path string, s screen) *cobra.Command {
	root := &cobra.Command{Use: "berth", Version: "v0.1.0", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(commands(&factory{
		dial:   func() (*nodeapi.Client, error) { return nodeapi.Dial(path) },
		now:    func() time.Time { return now },
		screen: func(io.Writer) screen { return s },
	})...)
	return root
}

// run executes a command and returns its outputs and the exit code.
func run(t *testing.T, path string, in invocation) (stdout, stderr string, code int) {
	t.Helper()
	if in.screen.width == 0 {
		in.screen.width = plainWidth
	}
	root := rootOn(path, in.screen)
	var out, notes bytes.Buffer
	root.SetArgs(in.args)
	root.SetIn(in.stdin)
	root.SetOut(&out)
	root.SetErr(&notes)
	code = PrintError(&notes, root.ExecuteContext(t.Context()))
	return out.String(), notes.String(), code
}

// golden compares got with testdata/name, or rewrites the file with -rewrite.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *rewrite {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs (-rewrite accepts it):\n%s", path, diff)
	}
}

// fakeAgent is an agent that implements most endpoints.
func fakeAgent() nodeapi.Handlers {
	all := pods()
	return nodeapi.Handlers{
		Pods: func(context.Context) (*corev1.PodList, error) { return &corev1.PodList{Items: all}, nil },
		WatchPods: func(_ context.Context, send func(nodeapi.PodEvent) error) error {
			return watchSteps(all, send)
		},
		Node: func(context.Context) (nodeapi.NodeSummary, error) { return node(), nil },
		Describe: func(_ context.Context, namespace, name string) (nodeapi.Description, error) {
			p, err := find(all, namespace, name)
			if err != nil {
				return nodeapi.Description{}, err
			}
			return nodeapi.Description{
				Pod:       p,
				Events:    eventsOf(namespace, name),
				Source:    "/etc/berth/manifests/" + name + ".yaml",
				Warnings:  []nodeapi.Warning{{Field: "spec.schedulerName", Message: "has no meaning here"}},
				NextRetry: map[string]time.Time{"app": now.Add(95 * time.Second), "log": now.Add(-time.Second)},
			}, nil
		},
		Events: func(_ context.Context, r nodeapi.EventsRequest) (*corev1.EventList, error) {
			return &corev1.EventList{Items: eventsOf(r.Namespace, r.Pod)}, nil
		},
		WatchEvents: func(_ context.Context, r nodeapi.EventsRequest,
			send func(nodeapi.EventNotification) error) error {
			for _, e := range eventsOf(r.Namespace, r.Pod) {
				if err := send(nodeapi.EventNotification{Event: &e}); err != nil {
					return err
				}
			}
			return send(nodeapi.EventNotification{Missed: 3})
		},
		Logs: fakeLogs,
		Why: func(_ context.Context, namespace, name string) (nodeapi.PodExplanation, error) {
			_, err := find(all, namespace, name)
			return whyOf(namespace, name), err
		},
		Timeline: func(_ context.Context, namespace, name string) (nodeapi.Timeline, error) {
			_, err := find(all, namespace, name)
			return timelineOf(namespace, name), err
		},
		Probes: func(_ context.Context, namespace, name string) (nodeapi.PodProbes, error) {
			_, err := find(all, namespace, name)
			return probesOf(namespace, name), err
		},
		Top: func(_ context.Context, filter nodeapi.PodFilter, window time.Duration) (nodeapi.Top, error) {
			return topOf(all, filter, window), nil
		},
		Plan:   func(_ context.Context, m []byte) (nodeapi.PlanResult, error) { return planOf(string(m)), nil },
		Check:  func(context.Context) (nodeapi.CheckReport, error) { return checkReport(), nil },
		Images: func(context.Context) (nodeapi.Images, error) { return imagesOf(), nil },
		Eviction: func(_ context.Context, signal string) (nodeapi.EvictionPreview, error) {
			return evictionOf(signal), nil
		},
		Version: func(context.Context) (nodeapi.Version, error) { return agentVersion(), nil },
	}
}

func find(all []corev1.Pod, namespace, name string) (*corev1.Pod, error) {
	for i := range all {
		if all[i].Namespace == namespace && all[i].Name == name {
			return &all[i], nil
		}
	}
	return nil, nodeapi.NotFound(name)
}

func TestOutputs(t *testing.T) {
	path := socket(t, fakeAgent())
	manifest := filepath.Join(t.TempDir(), "web.yaml")
	if err := os.WriteFile(manifest, []byte("pods"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		in   invocation
	}{
		{"ps", invocation{args: []string{"ps"}}},
		{"ps-no-headers", invocation{args: []string{"ps", "--no-headers"}}},
		{"ps-no-headers-watch", invocation{args: []string{"ps", "-w", "--no-headers", "-l", "app=web"}}},
		{"ps-show-labels", invocation{args: []string{"ps", "--show-labels"}}},
		{"ps-no-headers-of-none", invocation{args: []string{"ps", "--no-headers", "-n", "nowhere"}}},
		{"events-no-headers", invocation{args: []string{"events", "--no-headers"}}},
		{"events-for", invocation{args: []string{"events", "--for", "pod/web"}}},
		{"events-for-and-pod", invocation{args: []string{"events", "web", "--for", "web"}}},
		{"restart-no-such-container", invocation{args: []string{"restart", "web/nope"}}},
		{"ps-all", invocation{args: []string{"ps", "-A"}}},
		{"ps-wide", invocation{args: []string{"ps", "-A", "-o", "wide"}}},
		{"ps-name", invocation{args: []string{"ps", "-o", "name"}}},
		{"ps-named", invocation{args: []string{"ps", "web", "pod/crash", "nobody"}}},
		{"ps-named-yaml", invocation{args: []string{"ps", "web", "-o", "yaml"}}},
		{"ps-named-all", invocation{args: []string{"ps", "web", "-A"}}},
		{"ps-json", invocation{args: []string{"ps", "-o", "json", "-l", "app=web"}}},
		{"ps-yaml", invocation{args: []string{"ps", "-o", "yaml", "-l", "app=web"}}},
		{"ps-none", invocation{args: []string{"ps", "-n", "nowhere"}}},
		{"ps-none-json", invocation{args: []string{"ps", "-n", "nowhere", "-o", "json"}}},
		{"ps-watch", invocation{args: []string{"ps", "-w", "-l", "app=web"}}},
		{"ps-watch-name", invocation{args: []string{"ps", "-w", "-l", "app=web", "-o", "name"}}},
		{"ps-bad-format", invocation{args: []string{"ps", "-o", "xml"}}},
		{"ps-bad-selector", invocation{args: []string{"ps", "-l", "a b"}}},
		{"describe", invocation{args: []string{"describe", "pod/web"}}},
		{"describe-pending", invocation{args: []string{"describe", "kube-system/dns"}}},
		{"describe-crash", invocation{args: []string{"describe", "crash"}}},
		{"describe-unknown", invocation{args: []string{"describe", "nope"}}},
		{"why", invocation{args: []string{"why", "crash"}}},
		{"why-json", invocation{args: []string{"why", "crash", "-o", "json"}}},
		{"why-unknown", invocation{args: []string{"why", "nope", "-n", "kube-system"}}},
		{"timeline", invocation{args: []string{"timeline", "web"}}},
		{"timeline-narrow", invocation{args: []string{"timeline", "web"}, screen: screen{width: 60}}},
		{"timeline-color", invocation{args: []string{"timeline", "web"}, screen: screen{width: 100, color: true}}},
		{"timeline-json", invocation{args: []string{"timeline", "web", "-o", "json"}}},
		{"probes", invocation{args: []string{"probes", "web"}}},
		{"probes-none", invocation{args: []string{"probes", "done"}}},
		{"probes-json", invocation{args: []string{"probes", "web", "-o", "json"}}},
		{"plan", invocation{args: []string{"plan", "-f", manifest}}},
		{"plan-stdin", invocation{args: []string{"plan", "-f", "-"}, stdin: strings.NewReader("none")}},
		{"plan-no-file", invocation{args: []string{"plan"}}},
		{"check", invocation{args: []string{"check"}}},
		{"check-color", invocation{args: []string{"check"}, screen: screen{width: 80, color: true}}},
		{"images", invocation{args: []string{"images"}}},
		{"images-color", invocation{args: []string{"images"}, screen: screen{width: 80, color: true}}},
		{"images-json", invocation{args: []string{"images", "-o", "json"}}},
		{"evict", invocation{args: []string{"evict", "--explain"}}},
		{
			"evict-signal",
			invocation{args: []string{"evict", "--explain", "--signal", "pid.available"},
				screen: screen{width: 80, color: true}},
		},
		{"evict-json", invocation{args: []string{"evict", "--explain", "--signal", "pid.available", "-o", "json"}}},
		{"evict-without-explain", invocation{args: []string{"evict"}}},
		{"check-json", invocation{args: []string{"check", "-o", "json"}}},
		{"events", invocation{args: []string{"events"}}},
		{"events-all", invocation{args: []string{"events", "-A"}}},
		{"events-pod", invocation{args: []string{"events", "kube-system/dns"}}},
		{"events-yaml", invocation{args: []string{"events", "kube-system/dns", "-o", "yaml"}}},
		{"events-watch", invocation{args: []string{"events", "-w", "-A"}}},
		{"events-watch-json", invocation{args: []string{"events", "-w", "kube-system/dns", "-o", "json"}}},
		{"events-warnings", invocation{args: []string{"events", "-A", "--types", "warning"}}},
		{"events-labels", invocation{args: []string{"events", "-l", "app=web"}}},
		{"events-watch-labels", invocation{args: []string{"events", "-w", "-A", "-l", "app!=web"}}},
		{"events-bad-labels", invocation{args: []string{"events", "-w", "-l", "a b"}}},
		{"events-pod-and-labels", invocation{args: []string{"events", "web", "-l", "app=web"}}},
		{"events-bad-type", invocation{args: []string{"events", "--types", "Bad"}}},
		{"logs-default", invocation{args: []string{"logs", "web"}}},
		{"logs-container", invocation{args: []string{"logs", "web", "-c", "setup"}}},
		{"logs-all-prefix", invocation{args: []string{"logs", "web", "--all-containers", "--prefix"}}},
		{
			"logs-flags",
			invocation{
				args: []string{
					"logs", "web", "-c", "app", "-p", "--tail", "5", "--since", "90s", "--timestamps", "--limit-bytes",
					"7",
				},
			},
		},
		{"logs-since-time", invocation{args: []string{"logs", "web", "-c", "app", "--since-time",
			"2026-05-04T15:00:00Z"}}},
		{"logs-labels", invocation{args: []string{"logs", "-l", "app=web", "--limit-bytes", "9"}}},
		{
			"logs-labels-all",
			invocation{args: []string{"logs", "-l", "tier=front", "--all-containers", "--prefix", "--tail", "3"}},
		},
		{"logs-labels-none", invocation{args: []string{"logs", "-l", "app=other"}}},
		{"logs-labels-and-pod", invocation{args: []string{"logs", "web", "-l", "app=web"}}},
		{"logs-unknown-container", invocation{args: []string{"logs", "web", "-c", "nope"}}},
		{"logs-one-has-none", invocation{args: []string{"logs", "dns", "-n", "kube-system", "--all-containers"}}},
		{"top", invocation{args: []string{"top"}}},
		{"top-all-containers", invocation{args: []string{"top", "-A", "--containers", "--sort-by", "memory", "--sum"}}},
		{"top-pod", invocation{args: []string{"top", "web", "--no-headers"}}},
		{"top-json", invocation{args: []string{"top", "-o", "json", "-l", "app=web"}}},
		{"top-none", invocation{args: []string{"top", "-n", "nowhere"}}},
		{"top-unknown", invocation{args: []string{"top", "nope"}}},
		{"top-bad-sort", invocation{args: []string{"top", "--sort-by", "name"}}},
		{"port-forward-bad-port", invocation{args: []string{"port-forward", "web", "80:http-none"}}},
		{"port-forward-not-running", invocation{args: []string{"port-forward", "done", "80"}}},
		{"port-forward-no-port", invocation{args: []string{"port-forward", "web"}}},
		{"cp-two-local", invocation{args: []string{"cp", "./a", "/b"}}},
		{"cp-two-remote", invocation{args: []string{"cp", "web:/a", "web:/b"}}},
		{"exec-no-command", invocation{args: []string{"exec", "web"}}},
		{"exec-no-dash", invocation{args: []string{"exec", "web", "ls"}}},
		{"two-namespaces", invocation{args: []string{"why", "a/b", "-n", "c"}}},
		{"no-pod", invocation{args: []string{"why"}}},
		{"bad-pod", invocation{args: []string{"why", "a/b/c"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			stdout, stderr, code := run(t, path, tt.in)
			shown := make([]string, len(tt.in.args))
			for i, a := range tt.in.args {
				shown[i] = strings.ReplaceAll(a, manifest, "web.yaml")
			}
			got := fmt.Sprintf("$ berth %s\n%s", strings.Join(shown, " "), stdout)
			if stderr != "" {
				got += "--- stderr\n" + stderr
			}
			golden(t, tt.name+".golden", got+fmt.Sprintf("--- exit %d\n", code))
		})
	}
}

func TestLogsRejectsConflictingFlags(t *testing.T) {
	path := socket(t, fakeAgent())
	for _, tt := range []struct {
		args []string
		want string
	}{
		{
			[]string{"--since", "5s", "--since-time", "2026-05-04T15:00:00Z"},
			"at most one of --since and --since-time may be used",
		},
		{[]string{"--since", "-5s"}, "--since must be greater than 0"},
		{[]string{"--since-time", "noon"}, `--since-time: "noon" is not a time like 2006-01-02T15:04:05Z`},
		{[]string{"--tail", "-2"}, "--tail must be greater than or equal to -1"},
		{[]string{"--limit-bytes", "0"}, "--limit-bytes must be greater than 0"},
		{[]string{"--all-containers", "-c", "app"}, "--all-containers and -c cannot be used together"},
	} {
		_, stderr, code := run(t, path, invocation{args: append([]string{"logs", "web"}, tt.args...)})
		if stderr != "error: "+tt.want+"\n" || code != 1 {
			t.Errorf("%q: got %d %q, want %q", tt.args, code, stderr, tt.want)
		}
	}
}

func TestFollowedLogsOfSeveralContainersDoNotMixLines(t *testing.T) {
	h := fakeAgent()
	path := socket(t, h)
	stdout, stderr, code := run(t, path,
		invocation{args: []string{"logs", "web", "-f", "--all-containers", "--prefix"}})
	if code != 0 || stderr != "" {
		t.Fatalf("exit %d, %s", code, stderr)
	}
	lines := map[string]int{}
	for line := range strings.Lines(stdout) {
		lines[line]++
	}
	for _, c := range []string{"setup", "proxy", "app", "log"} {
		for _, text := range []string{"out of " + c, "err of " + c, "unfinished " + c} {
			if want := "[pod/web/" + c + "] " + text + "\n"; lines[want] != 1 {
				t.Errorf("got %q %d times, want once", want, lines[want])
			}
		}
	}
	if len(lines) != 12 {
		t.Errorf("%d different lines, want 12:\n%s", len(lines), stdout)
	}
}

func TestCommandsReportStoppedAgent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none.sock")
	for _, args := range [][]string{{"ps"}, {"ps", "-w"}, {"describe", "a"}, {"logs", "a"}, {"exec", "a", "--", "b"},
		{"why", "a"}, {"timeline", "a"}, {"probes", "a"}, {"check"}, {"events"}, {"version"}} {
		_, stderr, code := run(t, path, invocation{args: args})
		want := "error: unable to connect to the agent, is berth running? dial " +
			"unix " + path + ": connect: no such file or directory\n"
		if stderr != want || code != 1 {
			t.Errorf("%q: got %d %q", args, code, stderr)
		}
	}
}

func TestVersionPrintsClientAndAgent(t *testing.T) {
	path := socket(t, fakeAgent())
	stdout, _, code := run(t, path, invocation{args: []string{"version"}})
	client, agent, _ := strings.Cut(stdout, "\n")
	if !strings.HasPrefix(client, "Client: berth v0.1.0") || code != 0 {
		t.Errorf("exit %d, client version %q", code, client)
	}
	if want := "Agent:  berth v0.2.0 (0123456789ab), Kubernetes v0.37.2, go1.26.8, linux/amd64\nRuntime: " +
		"containerd 1.6.20, CRI v1\n"; agent != want {
		t.Errorf("agent version %q, want %q", agent, want)
	}
	stdout, _, _ = run(t, path, invocation{args: []string{"version", "-o", "json"}})
	for _, want := range []string{`"client": {`, `"agent": {`, `"runtime": "containerd 1.6.20"`} {
		if !strings.Contains(stdout, want) {
			t.Errorf("missing %s in\n%s", want, stdout)
		}
	}
	stdout, _, code = run(t, path+"x", invocation{args: []string{"version"}})
	if !strings.HasPrefix(stdout, "Client: berth v0.1.0") || strings.Contains(stdout, "Agent") || code != 1 {
		t.Errorf("without an agent: exit %d, %q", code, stdout)
	}
}

func TestKubernetesRelease(t *testing.T) {
	for module, want := range map[string]string{
		"v0.37.2": "v1.37.2", "v0.38.0-alpha.1": "v1.38.0-alpha.1", "(devel)": "(devel)",
	} {
		if got := kubernetesRelease(module); got != want {
			t.Errorf("%s: got release %s, want %s", module, got, want)
		}
	}
}

func TestCompletion(t *testing.T) {
	path := socket(t, fakeAgent())
	for _, tt := range []struct {
		name  string
		typed []string
		want  string
	}{
		{"pods of the default namespace", []string{"why", ""}, "crash done web"},
		{"pods with a prefix", []string{"describe", "c"}, "crash"},
		{"pods of another namespace", []string{"logs", "-n", "kube-system", ""}, "dns"},
		{"with a kind prefix", []string{"exec", "pod/w"}, "pod/web"},
		{"with a namespace prefix", []string{"timeline", "kube-system/"}, "kube-system/dns"},
		{"no completion after the pod", []string{"why", "web", ""}, ""},
		{"namespaces", []string{"ps", "-n", ""}, "default kube-system"},
		{"containers of the pod", []string{"logs", "web", "-c", ""}, "app log proxy setup"},
		{"ps takes names", []string{"ps", ""}, "crash done web"},
		{"containers of the pod to restart", []string{"restart", "web/"}, "web/app web/log web/proxy web/setup"},
		{"containers to restart in another namespace", []string{"restart", "kube-system/dns/"},
			"kube-system/dns/dns kube-system/dns/wait"},
		{"existing containers are not completed", []string{"debug", "web", "-c", ""}, ""},
		{"target container", []string{"debug", "web", "--target", "a"}, "app"},
		{"pods for events", []string{"events", "--for", "w"}, "web"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			stdout, _, _ := run(t, path, invocation{args: append([]string{"__complete"}, tt.typed...)})
			names, _, _ := strings.Cut(stdout, ":4\n") // no file names
			if got := strings.Join(strings.Fields(names), " "); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
	if stdout, _, _ := run(t, path+"x", invocation{args: []string{"__complete", "why", ""}}); stdout != ":4\n" {
		t.Errorf("without an agent: %q", stdout)
	}
}

func TestPodTextCannotMoveCursor(t *testing.T) { // V1
	h := fakeAgent()
	evil := "\x1b[2J\x07\u009b31mred\nnext\xff"
	h.Why = func(context.Context, string, string) (nodeapi.PodExplanation, error) {
		return nodeapi.PodExplanation{
			Summary: evil,
			Name:    evil,
			Syncs:   1,
			WaitingFor: []nodeapi.WaitReason{
				{Reason: evil, Target: evil, Message: evil, Details: []nodeapi.Detail{{Name: evil, Value: evil}}},
			},
			InProgress: []nodeapi.Operation{
				{Action: evil, Detail: evil},
			},
			Next:    []nodeapi.Step{{Action: evil, After: evil}},
			Reasons: []nodeapi.Reason{{Code: evil, Detail: evil}},
		}, nil
	}
	h.Timeline = func(context.Context, string, string) (nodeapi.Timeline, error) {
		return nodeapi.Timeline{
			Name:  evil,
			Spans: []nodeapi.Span{{ID: 1, Name: evil, Target: evil, Cause: evil, Error: evil, Start: now}},
		}, nil
	}
	h.Probes = func(context.Context, string, string) (nodeapi.PodProbes, error) {
		return nodeapi.PodProbes{
			Name: evil,
			Probes: []nodeapi.Probe{
				{
					Container:  evil,
					Kind:       evil,
					Action:     evil,
					WaitingFor: evil,
					Recent:     []nodeapi.ProbeRun{{Result: evil, Output: evil, At: now}},
				},
			},
		}, nil
	}
	h.Plan = func(context.Context, []byte) (nodeapi.PlanResult, error) {
		return nodeapi.PlanResult{
			Warnings: []nodeapi.Warning{{Object: evil, Field: evil, Message: evil}},
			Pods: []nodeapi.PodPlan{{Name: evil, Change: nodeapi.Change(evil), Rejection: evil,
				Stages: []nodeapi.StagePlan{
					{Stage: evil, Actions: []nodeapi.PlannedAction{{Action: evil, Target: evil, Detail: evil}}},
				}, Reasons: []nodeapi.Reason{{Code: evil}}}},
		}, nil
	}
	h.Check = func(context.Context) (nodeapi.CheckReport, error) {
		return nodeapi.CheckReport{Items: []nodeapi.CheckItem{{Name: evil, Detail: evil, Remedy: evil}}}, nil
	}
	h.Version = func(context.Context) (nodeapi.Version, error) {
		return nodeapi.Version{Version: evil, Runtime: evil, CRI: evil}, nil
	}
	h.Node = func(context.Context) (nodeapi.NodeSummary, error) {
		return nodeapi.NodeSummary{InvalidManifests: []nodeapi.InvalidManifest{{Path: evil, Message: evil}}}, nil
	}
	p := pods()[0]
	p.Name, p.Status.Reason, p.Status.Message, p.Spec.NodeName = evil, evil, evil, evil
	p.Annotations = map[string]string{evil: evil}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodConditionType(evil), Message: evil}}
	p.Spec.Containers[0].Image, p.Spec.Containers[0].Name, p.Spec.Containers[0].Command = evil, evil, []string{evil}
	h.Pods = func(context.Context) (*corev1.PodList, error) { return &corev1.PodList{Items: []corev1.Pod{p}}, nil }
	h.Describe = func(context.Context, string, string) (nodeapi.Description, error) {
		return nodeapi.Description{Pod: &p, Source: evil, Events: []corev1.Event{{Message: evil, Reason: evil}}}, nil
	}
	h.Events = func(context.Context, nodeapi.EventsRequest) (*corev1.EventList, error) {
		return nil, fmt.Errorf("%s", evil)
	}
	path := socket(t, h)
	for _, args := range [][]string{
		{"ps", "-o", "wide"}, {"ps", "-o", "name"}, {"describe", "x"}, {"why", "x"}, {"timeline", "x"}, {"probes", "x"},
		{"plan", "-f", "/dev/null"}, {"check"}, {"version"}, {"events"},
	} {
		stdout, stderr, _ := run(t, path, invocation{args: args})
		if out := stdout + stderr; strings.ContainsAny(out, "\x1b\x07\u009b") || strings.Contains(out, "\nnext") ||
			!strings.Contains(out, "next") {
			t.Errorf("%q prints %q", args, out)
		}
	}
}

func TestStructuredOutputGoesToStdoutAlone(t *testing.T) { // V2
	path := socket(t, fakeAgent())
	stdout, stderr, code := run(t, path, invocation{args: []string{"ps", "-A", "-o", "json"}})
	if !strings.HasPrefix(stdout, "{") || stderr != "" || code != 0 {
		t.Errorf("exit %d, stderr %q", code, stderr)
	}
	stdout, stderr, _ = run(t, path, invocation{args: []string{"ps"}})
	if strings.Contains(stdout, "Invalid manifest") || !strings.Contains(stderr, "Invalid manifest") {
		t.Errorf("notes belong on stderr: %q", stdout)
	}
}
