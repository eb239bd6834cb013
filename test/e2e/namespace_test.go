package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/nodeapi"
	"berth/test/hosts"
)

// unsupported lists the features that a containerd version does not have, with the reason. A test
// that needs one calls Namespace.supports. Without support it checks the error instead.
var unsupported = map[hosts.Version]map[string]string{
	hosts.Version16: {
		"image volumes": "containerd 1.6 does not support image volumes (added in 2.1)",
		"recursive read-only mounts": "containerd 1.6 does not support recursive read-only mounts " +
			"(added in 2.0)",
		"the user of a container in its status": "containerd 1.6 does not report the user of a container " +
			"(added in 2.0)",
		"supplementalGroupsPolicy Strict": "containerd 1.6 does not support supplementalGroupsPolicy (added in 2.0)",
		"stop signals":                    "containerd 1.6 ignores lifecycle.stopSignal (added in 2.1)",
	},
	hosts.Version2: {},
}

// Namespace is a node as one test sees it: the test's pods are in a namespace of their own.
type Namespace struct {
	*Node
	t  *testing.T
	ns string

	mu    sync.Mutex
	files map[string]bool
}

var namespaceCount atomic.Int64

var nonNameChars = regexp.MustCompile(`[^a-z0-9]+`)

// versionTests are tests that expect something else from each version of containerd.
var versionTests = []string{
	"TestCheckAndVersion", "TestCheckReportsCosts", "TestImageVolumes", "TestRecursiveReadOnlyMounts",
	"TestStopSignals", "TestSupplementalGroupsPolicy", "TestUsersGroupsAndCapabilities",
}

// versionsOf returns the versions of containerd for a test: all for versionTests, hosts.DividedVersions for the
// others.
func versionsOf(t *testing.T) []hosts.Version {
	if slices.Contains(versionTests, t.Name()) {
		return hosts.Versions()
	}
	return hosts.DividedVersions(t.Name())
}

// forEachContainerd runs body on the shared node of each containerd version of versionsOf.
func forEachContainerd(t *testing.T, body func(t *testing.T, s *Namespace)) {
	t.Helper()
	t.Parallel()
	for _, v := range versionsOf(t) {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			n, err := shared.get(v)
			if err != nil {
				t.Fatal(err)
			}
			body(t, n.newNamespace(t))
		})
	}
}

// forEachNewNode runs body on a new node for each containerd version of versionsOf.
func forEachNewNode(t *testing.T, o nodeOptions, body func(t *testing.T, s *Namespace)) {
	t.Helper()
	t.Parallel()
	for _, v := range versionsOf(t) {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			body(t, newNode(t, v, o))
		})
	}
}

// newNode starts a node for the test and returns a namespace on it.
func newNode(t *testing.T, v hosts.Version, o nodeOptions) *Namespace {
	t.Helper()
	n, err := startNode(v, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.stop(); err != nil {
			t.Error(err)
		}
	})
	return n.newNamespace(t)
}

// newNamespace returns a namespace for a test. The cleanup of the test deletes its pods.
func (n *Node) newNamespace(t *testing.T) *Namespace {
	name := strings.ToLower(strings.TrimPrefix(strings.Split(t.Name(), "/")[0], "Test"))
	name = nonNameChars.ReplaceAllString(name, "-")
	if len(name) > 40 {
		name = name[:40]
	}
	ns := fmt.Sprintf("%s-%d", strings.Trim(name, "-"), namespaceCount.Add(1))
	s := &Namespace{Node: n, t: t, ns: ns, files: map[string]bool{}}
	// Cleanups run in reverse order, so the first call of TempDir makes its directory outlive the
	// pods. Otherwise the runtime would create the hostPath directories again.
	_ = t.TempDir()
	t.Cleanup(s.cleanUp)
	return s
}

// supports reports whether the node's containerd has a feature; see unsupported.
func (s *Namespace) supports(what string) bool {
	reason, missing := unsupported[s.Host.Version][what]
	if missing {
		s.t.Log(reason)
	}
	return !missing
}

// cleanUp removes the test's manifests and waits until its pods are deleted.
func (s *Namespace) cleanUp() {
	s.mu.Lock()
	files := s.files
	s.files = map[string]bool{}
	s.mu.Unlock()
	if s.t.Failed() {
		s.logDiagnostics()
	}
	for f := range files {
		if err := os.Remove(f); err != nil && !errors.Is(err, os.ErrNotExist) {
			s.t.Error(err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), deletionTimeout)
	defer cancel()
	err := s.watch(ctx, func(_ nodeapi.PodEvent, now map[string]*corev1.Pod) bool {
		return now != nil && len(now) == 0
	})
	if err != nil {
		s.t.Errorf("pods of namespace %s still exist: %v", s.ns, err)
		s.logDiagnostics()
	}
}

// logDiagnostics logs the agent's log lines, and describe and why of all pods that are not ready.
func (s *Namespace) logDiagnostics() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	list, err := s.Client.Pods(ctx, nodeapi.PodsRequest{Namespace: s.ns})
	if err != nil {
		s.t.Log(err)
		return
	}
	var agentLog strings.Builder
	for line := range strings.Lines(s.Agent.Log()) {
		if strings.Contains(line, s.ns) {
			agentLog.WriteString(line)
		}
	}
	s.t.Logf("agent log:\n%s", tail(agentLog.String(), 6000))
	// Last, where a reader looks first.
	for _, p := range list.Items {
		if condition(&p, corev1.PodReady) == corev1.ConditionTrue {
			continue
		}
		out, _ := s.Agent.Command(ctx, "describe", "-n", s.ns, p.Name).CombinedOutput()
		why, _ := s.Agent.Command(ctx, "why", "-n", s.ns, p.Name).CombinedOutput()
		s.t.Logf("%s\n%s", out, why)
	}
}

func tail(text string, n int) string {
	if cut := len(text) - n; cut > 0 {
		return "…" + text[cut:]
	}
	return text
}

// Put writes a manifest file atomically. NS in the text is replaced by the test's namespace.
func (s *Namespace) Put(file, text string) {
	s.t.Helper()
	path := s.path(file)
	text = strings.ReplaceAll(text, "NS", s.ns)
	tmp := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
	if err := os.WriteFile(tmp, []byte(text), 0o644); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Rename(tmp, path); err != nil {
		s.t.Fatal(err)
	}
}

func (s *Namespace) path(file string) string {
	if filepath.Ext(file) == "" {
		file += ".yaml"
	}
	path := filepath.Join(s.Agent.ManifestDir, s.ns+"-"+file)
	s.mu.Lock()
	s.files[path] = true
	s.mu.Unlock()
	return path
}

// KillAndRestartAgent kills the agent with SIGKILL, starts it and waits until it is ready.
func (s *Namespace) KillAndRestartAgent() {
	s.t.Helper()
	ctx := s.t.Context()
	if err := errors.Join(s.Agent.Kill9(), s.Agent.Start(ctx), s.Agent.WaitReady(ctx)); err != nil {
		s.t.Fatal(err)
	}
}

// Remove removes a manifest file.
func (s *Namespace) Remove(file string) {
	s.t.Helper()
	if err := os.Remove(s.path(file)); err != nil {
		s.t.Fatal(err)
	}
}

// Pod puts a manifest of one pod. spec is YAML with any common indentation.
func (s *Namespace) Pod(name, spec string) {
	s.t.Helper()
	s.Put(name, podYAML(name, "", spec))
}

// podYAML returns a manifest. meta and spec are the YAML below metadata and spec.
func podYAML(name, meta, spec string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: v1\nkind: Pod\nmetadata:\n  name: %s\n  namespace: NS\n", name)
	b.WriteString(indent(meta))
	b.WriteString("spec:\n")
	if !strings.Contains(spec, "terminationGracePeriodSeconds") {
		b.WriteString("  terminationGracePeriodSeconds: 2\n")
	}
	b.WriteString(indent(spec))
	return b.String()
}

// indent removes the common indentation of a block of YAML and indents it by two.
func indent(text string) string {
	text = strings.ReplaceAll(strings.Trim(text, "\n"), "\t", "  ")
	minimum := -1
	for line := range strings.Lines(text) {
		if trimmed := strings.TrimLeft(line, " "); strings.TrimSpace(trimmed) != "" {
			if n := len(line) - len(trimmed); minimum < 0 || n < minimum {
				minimum = n
			}
		}
	}
	var b strings.Builder
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) == "" {
			continue
		}
		b.WriteString("  " + strings.TrimRight(line[max(minimum, 0):], " \n") + "\n")
	}
	return b.String()
}

// box returns a testbox container as YAML. more has additional fields.
func box(name, more string, steps ...string) string {
	quoted := make([]string, 0, len(steps))
	for _, step := range steps {
		for i, word := range strings.Fields(step) {
			if i == 0 && len(quoted) > 0 {
				quoted = append(quoted, `","`)
			}
			quoted = append(quoted, fmt.Sprintf("%q", word))
		}
	}
	if more != "" {
		more = ", " + more
	}
	return fmt.Sprintf("- {name: %s, image: berth/testbox:1, args: [%s]%s}\n", name, strings.Join(quoted, ", "), more)
}

// sh returns a container that runs a shell script as YAML. more has additional fields.
func sh(name, more, script string) string {
	if more != "" {
		more = ", " + more
	}
	return fmt.Sprintf("- {name: %s, image: 'busybox:1.36', command: [sh, -c, %q]%s}\n", name, script, more)
}

// watch watches the test's pods until done returns true. pods is nil until the watch is synced.
func (s *Namespace) watch(ctx context.Context, done func(e nodeapi.PodEvent, pods map[string]*corev1.Pod) bool) error {
	pods, synced, finished := map[string]*corev1.Pod{}, false, false
	stop := errors.New("watch done")
	err := s.Client.WatchPods(ctx, nodeapi.PodsRequest{Namespace: s.ns}, func(e nodeapi.PodEvent) error {
		switch e.Type {
		case nodeapi.Synced:
			synced = true
		case nodeapi.Deleted:
			delete(pods, string(e.Pod.UID))
		default:
			pods[string(e.Pod.UID)] = e.Pod
		}
		current := pods
		if !synced {
			current = nil
		}
		if done(e, current) {
			finished = true
			return stop
		}
		return nil
	})
	switch {
	case finished:
		return nil
	case err != nil:
		return err
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return errors.New("watch closed by the agent")
}

// Wait waits until a pod meets cond, and returns it.
func (s *Namespace) Wait(name, what string, cond func(*corev1.Pod) bool) *corev1.Pod {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), waitTimeout)
	defer cancel()
	var last *corev1.Pod
	err := s.watch(ctx, func(e nodeapi.PodEvent, _ map[string]*corev1.Pod) bool {
		if e.Pod == nil || e.Pod.Name != name || e.Type == nodeapi.Deleted {
			return false
		}
		last = e.Pod
		return cond(last)
	})
	if err != nil {
		s.t.Fatalf("wait for pod %s to be %s: %v\n%s", name, what, err, brief(last))
	}
	return last
}

// brief returns the phase and the container states of a pod for a message.
func brief(p *corev1.Pod) string {
	if p == nil {
		return "pod never existed"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %s\n", p.Status.Phase, p.Status.Reason, p.Status.Message)
	for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses,
		p.Status.EphemeralContainerStatuses} {
		for _, c := range list {
			fmt.Fprintf(&b, "  %s: %d restarts, %v, last %v\n", c.Name, c.RestartCount, c.State.String(),
				c.LastTerminationState.String())
		}
	}
	return b.String()
}

// Running waits until a pod is running and ready.
func (s *Namespace) Running(name string) *corev1.Pod {
	s.t.Helper()
	return s.Wait(name, "Running and ready", func(p *corev1.Pod) bool {
		return p.Status.Phase == corev1.PodRunning && condition(p, corev1.PodReady) == corev1.ConditionTrue
	})
}

// Phase waits until a pod is in a phase.
func (s *Namespace) Phase(name string, phase corev1.PodPhase) *corev1.Pod {
	s.t.Helper()
	return s.Wait(name, string(phase), func(p *corev1.Pod) bool { return p.Status.Phase == phase })
}

// Waiting waits until a container is in state waiting for a reason.
func (s *Namespace) Waiting(name, container, reason string) *corev1.Pod {
	s.t.Helper()
	return s.Wait(name, container+" waiting for "+reason, func(p *corev1.Pod) bool {
		w := status(p, container).State.Waiting
		return w != nil && w.Reason == reason
	})
}

// WaitDeleted waits until no pod with this name exists.
func (s *Namespace) WaitDeleted(name string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), deletionTimeout)
	defer cancel()
	err := s.watch(ctx, func(_ nodeapi.PodEvent, now map[string]*corev1.Pod) bool {
		for _, p := range now {
			if p.Name == name {
				return false
			}
		}
		return now != nil
	})
	if err != nil {
		s.t.Fatalf("wait for pod %s to be deleted: %v", name, err)
	}
}

// Get returns the current pod, nil if there is none.
func (s *Namespace) Get(name string) *corev1.Pod {
	s.t.Helper()
	list, err := s.Client.Pods(s.t.Context(), nodeapi.PodsRequest{Namespace: s.ns})
	if err != nil {
		s.t.Fatal(err)
	}
	for i := range list.Items {
		if p := &list.Items[i]; p.Name == name {
			return p
		}
	}
	return nil
}

func condition(p *corev1.Pod, kind corev1.PodConditionType) corev1.ConditionStatus {
	for _, c := range p.Status.Conditions {
		if c.Type == kind {
			return c.Status
		}
	}
	return "none"
}

// status returns the status of a container or init container.
func status(p *corev1.Pod, name string) corev1.ContainerStatus {
	for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for _, c := range list {
			if c.Name == name {
				return c
			}
		}
	}
	return corev1.ContainerStatus{}
}

// end is the testbox step that prints the last line of a container's output; see WaitOutput.
const end = "print --end--"

// WaitLog waits until a container's log contains text, and returns the log.
func (s *Namespace) WaitLog(pod, container, text string) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), waitTimeout)
	defer cancel()
	var log string
	err := hosts.WaitFor(ctx, fmt.Sprintf("%q in the log of %s/%s", text, pod, container), func() (bool, error) {
		log = s.log(pod, container, false)
		return strings.Contains(log, text), nil
	})
	if err != nil {
		s.t.Fatalf("%v\nlog:\n%s", err, log)
	}
	return log
}

// WaitOutput waits until a container has run the step end, and returns its log.
func (s *Namespace) WaitOutput(pod, container string) string {
	s.t.Helper()
	return s.WaitLog(pod, container, "--end--")
}

// log returns the current log of a container, followed by error messages.
func (s *Namespace) log(pod, container string, previous bool) string {
	var out, errs bytes.Buffer
	_ = s.Client.Logs(s.t.Context(), nodeapi.LogRequest{Namespace: s.ns, Pod: pod, Container: container,
		Previous: previous}, &out, &errs)
	return out.String() + errs.String()
}

// Berth runs a berth command and returns its output. An error fails the test.
func (s *Namespace) Berth(args ...string) string {
	s.t.Helper()
	out, err := s.Try(args...)
	if err != nil {
		s.t.Fatalf("berth %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// Try runs a berth command and returns its combined output.
func (s *Namespace) Try(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), waitTimeout)
	defer cancel()
	out, err := s.Agent.Command(ctx, args...).CombinedOutput()
	return string(out), err
}

// Exec runs a command in a container and returns its output.
func (s *Namespace) Exec(pod, container string, command ...string) string {
	s.t.Helper()
	return s.Berth(append([]string{"exec", "-n", s.ns, pod, "-c", container, "--"}, command...)...)
}

// Events returns the pod's events as "Reason: message".
func (s *Namespace) Events(pod string) []string {
	s.t.Helper()
	list, err := s.Client.Events(s.t.Context(), nodeapi.EventsRequest{Namespace: s.ns, Pod: pod})
	if err != nil {
		s.t.Fatal(err)
	}
	out := make([]string, 0, len(list.Items))
	for _, e := range list.Items {
		out = append(out, e.Reason+": "+e.Message)
	}
	return out
}

// Event waits until the pod has an event with this prefix, and returns it.
func (s *Namespace) Event(pod, prefix string) string {
	s.t.Helper()
	var found string
	err := hosts.WaitFor(s.t.Context(), "event "+prefix+" of "+pod, func() (bool, error) {
		es := s.Events(pod)
		i := slices.IndexFunc(es, func(e string) bool { return strings.HasPrefix(e, prefix) })
		if i >= 0 {
			found = es[i]
		}
		return i >= 0, nil
	})
	if err != nil {
		s.t.Fatalf("%v\nevents:\n%s", err, strings.Join(s.Events(pod), "\n"))
	}
	return found
}

// contains checks that text contains all parts. where is the subject of the message.
func (s *Namespace) contains(where, text string, parts ...string) {
	s.t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			s.t.Errorf("%s does not contain %q:\n%s", where, p, tail(text, 4000))
		}
	}
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return string(text)
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	names, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// metric reads a metric of the agent. With labels in name it returns that series, otherwise the sum of
// all series. It returns -1 if there is none.
func (s *Namespace) metric(name string) float64 {
	s.t.Helper()
	client := http.Client{Timeout: waitTimeout, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", s.Agent.Socket)
		},
	}}
	resp, err := client.Get("http://berth/metrics")
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	sum := -1.0
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, name+" ") || strings.HasPrefix(line, name+"{") {
			n, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' '):]), 64)
			if err != nil {
				s.t.Fatal(err)
			}
			sum = max(sum, 0) + n
		}
	}
	return sum
}

// waitMetric waits until a metric has an expected value. A counter may change shortly after the
// effect that it counts.
func (s *Namespace) waitMetric(name string, good func(float64) bool) {
	s.t.Helper()
	ctx, cancel := waitContext(s.t)
	defer cancel()
	last := 0.0
	err := hosts.WaitFor(ctx, name, func() (bool, error) { last = s.metric(name); return good(last), nil })
	if err != nil {
		s.t.Errorf("last value %v: %v", last, err)
	}
}

func equals(want float64) func(float64) bool  { return func(n float64) bool { return n == want } }
func atLeast(want float64) func(float64) bool { return func(n float64) bool { return n >= want } }

// waitContext returns a context with waitTimeout.
func waitContext(t *testing.T) (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.Context(), waitTimeout)
}
