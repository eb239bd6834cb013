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

// lacks says what a containerd cannot do. A test that needs it asks with
// Space.has and looks for the clear refusal instead where it is not there.
var lacks = map[hosts.Version]map[string]string{
	hosts.Version16: {
		"image volumes":                         "containerd 1.6 does not know image volumes (added in 2.1)",
		"recursive read-only mounts":            "containerd 1.6 does not know recursive read-only mounts (added in 2.0)",
		"the user of a container in its status": "containerd 1.6 does not tell the user of a container (added in 2.0)",
		"supplementalGroupsPolicy Strict":       "containerd 1.6 does not know supplementalGroupsPolicy (added in 2.0)",
		"stop signals":                          "containerd 1.6 does not know a container's own stop signal: the image's is sent (added in 2.1)",
	},
	hosts.Version2: {},
}

// Space is one test's part of a node: a namespace of its own.
type Space struct {
	*Node
	t  *testing.T
	ns string

	mu    sync.Mutex
	files map[string]bool
}

var spaces atomic.Int64

var notName = regexp.MustCompile(`[^a-z0-9]+`)

// both runs body on the shared node of either containerd.
func both(t *testing.T, body func(t *testing.T, s *Space)) {
	t.Helper()
	t.Parallel()
	for _, v := range hosts.Versions() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			n, err := shared.get(v)
			if err != nil {
				t.Fatal(err)
			}
			body(t, n.space(t))
		})
	}
}

// alone runs body on a node of its own of either containerd.
func alone(t *testing.T, o nodeOptions, body func(t *testing.T, s *Space)) {
	t.Helper()
	t.Parallel()
	for _, v := range hosts.Versions() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			body(t, own(t, v, o))
		})
	}
}

// own is a node of the test's own.
func own(t *testing.T, v hosts.Version, o nodeOptions) *Space {
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
	return n.space(t)
}

// space gives a test a namespace on the node, which is empty again at its end.
func (n *Node) space(t *testing.T) *Space {
	name := notName.ReplaceAllString(strings.ToLower(strings.TrimPrefix(strings.Split(t.Name(), "/")[0], "Test")), "-")
	if len(name) > 40 {
		name = name[:40]
	}
	s := &Space{Node: n, t: t, ns: fmt.Sprintf("%s-%d", strings.Trim(name, "-"), spaces.Add(1)), files: map[string]bool{}}
	// The first call decides when it is removed: after the pods, or the runtime would
	// make the folders of their hostPaths again.
	_ = t.TempDir()
	t.Cleanup(s.clear)
	return s
}

// has reports whether the node's containerd can do something; see lacks.
func (s *Space) has(what string) bool {
	why, missing := lacks[s.Host.Version][what]
	if missing {
		s.t.Log(why)
	}
	return !missing
}

// clear takes the test's manifests away and waits until nothing of its pods is
// left.
func (s *Space) clear() {
	s.mu.Lock()
	files := s.files
	s.files = map[string]bool{}
	s.mu.Unlock()
	if s.t.Failed() {
		s.tell()
	}
	for f := range files {
		if err := os.Remove(f); err != nil && !errors.Is(err, os.ErrNotExist) {
			s.t.Error(err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), goneBound)
	defer cancel()
	err := s.watch(ctx, func(_ nodeapi.PodEvent, now map[string]*corev1.Pod) bool { return now != nil && len(now) == 0 })
	if err != nil {
		s.t.Errorf("pods of %s are still there: %v", s.ns, err)
		s.tell()
	}
}

// tell logs what the agent knows of the test's pods.
func (s *Space) tell() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	list, err := s.Client.Pods(ctx, nodeapi.PodsRequest{Namespace: s.ns})
	if err != nil {
		s.t.Log(err)
		return
	}
	var said strings.Builder
	for line := range strings.Lines(s.Agent.Log()) {
		if strings.Contains(line, s.ns) {
			said.WriteString(line)
		}
	}
	s.t.Logf("the agent says:\n%s", tailOf(said.String(), 6000))
	// Last, for there it is found: those that are not as they should be.
	for _, p := range list.Items {
		if condition(&p, corev1.PodReady) == corev1.ConditionTrue {
			continue
		}
		out, _ := s.Agent.Command(ctx, "describe", "-n", s.ns, p.Name).CombinedOutput()
		why, _ := s.Agent.Command(ctx, "why", "-n", s.ns, p.Name).CombinedOutput()
		s.t.Logf("%s\n%s", out, why)
	}
}

func tailOf(text string, n int) string {
	if cut := len(text) - n; cut > 0 {
		return "…" + text[cut:]
	}
	return text
}

// Put writes a manifest file whole, as a careful user does. NS in the text
// stands for the test's namespace.
func (s *Space) Put(file, text string) {
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

func (s *Space) path(file string) string {
	if filepath.Ext(file) == "" {
		file += ".yaml"
	}
	path := filepath.Join(s.Agent.ManifestDir, s.ns+"-"+file)
	s.mu.Lock()
	s.files[path] = true
	s.mu.Unlock()
	return path
}

// Killed has the agent killed and begin again.
func (s *Space) Killed() {
	s.t.Helper()
	ctx := s.t.Context()
	if err := errors.Join(s.Agent.Kill9(), s.Agent.Start(ctx), s.Agent.WaitReady(ctx)); err != nil {
		s.t.Fatal(err)
	}
}

// Remove takes a manifest file away.
func (s *Space) Remove(file string) {
	s.t.Helper()
	if err := os.Remove(s.path(file)); err != nil {
		s.t.Fatal(err)
	}
}

// Pod puts a manifest of one pod; spec is YAML, indented as one likes.
func (s *Space) Pod(name, spec string) {
	s.t.Helper()
	s.Put(name, podYAML(name, "", spec))
}

// podYAML is a manifest; meta and spec are YAML of the fields below metadata
// and spec.
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

// indent moves a block of YAML two to the right, after taking away the
// indentation that all its lines share.
func indent(text string) string {
	text = strings.ReplaceAll(strings.Trim(text, "\n"), "\t", "  ")
	least := -1
	for line := range strings.Lines(text) {
		if trimmed := strings.TrimLeft(line, " "); strings.TrimSpace(trimmed) != "" {
			if n := len(line) - len(trimmed); least < 0 || n < least {
				least = n
			}
		}
	}
	var b strings.Builder
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) == "" {
			continue
		}
		b.WriteString("  " + strings.TrimRight(line[max(least, 0):], " \n") + "\n")
	}
	return b.String()
}

// box is a container of the test program in YAML flow; more is added to it.
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

// sh is a container that runs a shell script in YAML flow.
func sh(name, more, script string) string {
	if more != "" {
		more = ", " + more
	}
	return fmt.Sprintf("- {name: %s, image: 'busybox:1.36', command: [sh, -c, %q]%s}\n", name, script, more)
}

// watch follows the test's pods until done. now is nil until the watch has said
// all that is there.
func (s *Space) watch(ctx context.Context, done func(e nodeapi.PodEvent, now map[string]*corev1.Pod) bool) error {
	pods, synced, finished := map[string]*corev1.Pod{}, false, false
	stop := errors.New("seen")
	err := s.Client.WatchPods(ctx, nodeapi.PodsRequest{Namespace: s.ns}, func(e nodeapi.PodEvent) error {
		switch e.Type {
		case nodeapi.Synced:
			synced = true
		case nodeapi.Deleted:
			delete(pods, string(e.Pod.UID))
		default:
			pods[string(e.Pod.UID)] = e.Pod
		}
		now := pods
		if !synced {
			now = nil
		}
		if done(e, now) {
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
	return errors.New("the agent ended the watch")
}

// Wait waits until a pod is as cond wants it, and returns it.
func (s *Space) Wait(name, what string, cond func(*corev1.Pod) bool) *corev1.Pod {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), waitBound)
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
		s.t.Fatalf("pod %s: wait until it is %s: %v\n%s", name, what, err, brief(last))
	}
	return last
}

func brief(p *corev1.Pod) string {
	if p == nil {
		return "it has never been there"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %s\n", p.Status.Phase, p.Status.Reason, p.Status.Message)
	for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses, p.Status.EphemeralContainerStatuses} {
		for _, c := range list {
			fmt.Fprintf(&b, "  %s: %d restarts, %v, last %v\n", c.Name, c.RestartCount, c.State.String(), c.LastTerminationState.String())
		}
	}
	return b.String()
}

func (s *Space) Running(name string) *corev1.Pod {
	s.t.Helper()
	return s.Wait(name, "Running and ready", func(p *corev1.Pod) bool {
		return p.Status.Phase == corev1.PodRunning && condition(p, corev1.PodReady) == corev1.ConditionTrue
	})
}

func (s *Space) Phase(name string, phase corev1.PodPhase) *corev1.Pod {
	s.t.Helper()
	return s.Wait(name, string(phase), func(p *corev1.Pod) bool { return p.Status.Phase == phase })
}

// Waiting waits until the pod's first container that waits does so for reason.
func (s *Space) Waiting(name, container, reason string) *corev1.Pod {
	s.t.Helper()
	return s.Wait(name, container+" waiting for "+reason, func(p *corev1.Pod) bool {
		w := status(p, container).State.Waiting
		return w != nil && w.Reason == reason
	})
}

// Gone waits until no pod of that name is there.
func (s *Space) Gone(name string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), goneBound)
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
		s.t.Fatalf("pod %s: wait until it is gone: %v", name, err)
	}
}

// Get returns the pod as it is now; nil: there is none.
func (s *Space) Get(name string) *corev1.Pod {
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

// status is the status of a container of any kind.
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

// end marks the last line that a container prints for a test.
const end = "print --end--"

// Said waits until a container's log has text, and returns the log.
func (s *Space) Said(pod, container, text string) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), waitBound)
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

// Report waits until a container has printed the end mark, and returns its log.
func (s *Space) Report(pod, container string) string {
	s.t.Helper()
	return s.Said(pod, container, "--end--")
}

// log is a container's log as far as it goes; empty while there is none.
func (s *Space) log(pod, container string, previous bool) string {
	var out, errs bytes.Buffer
	_ = s.Client.Logs(s.t.Context(), nodeapi.LogRequest{Namespace: s.ns, Pod: pod, Container: container, Previous: previous}, &out, &errs)
	return out.String() + errs.String()
}

// Berth runs a command of the program and returns what it prints.
func (s *Space) Berth(args ...string) string {
	s.t.Helper()
	out, err := s.Try(args...)
	if err != nil {
		s.t.Fatalf("berth %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// Try runs a command of the program; what it prints is all in one.
func (s *Space) Try(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), waitBound)
	defer cancel()
	out, err := s.Agent.Command(ctx, args...).CombinedOutput()
	return string(out), err
}

// Exec runs a command in a container and returns what it prints.
func (s *Space) Exec(pod, container string, command ...string) string {
	s.t.Helper()
	return s.Berth(append([]string{"exec", "-n", s.ns, pod, "-c", container, "--"}, command...)...)
}

// Events returns the pod's events so far as "Reason: message".
func (s *Space) Events(pod string) []string {
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

// Event waits until the pod has an event that begins so.
func (s *Space) Event(pod, prefix string) string {
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
		s.t.Fatalf("%v\nthere are:\n%s", err, strings.Join(s.Events(pod), "\n"))
	}
	return found
}

// must is for checks that say what was seen when they fail.
func (s *Space) contains(where, text string, parts ...string) {
	s.t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			s.t.Errorf("%s lacks %q:\n%s", where, p, tailOf(text, 4000))
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

// metric reads one figure of the agent's metrics by its name with labels, or the
// sum of all of a name; -1: there is none.
func (s *Space) metric(name string) float64 {
	s.t.Helper()
	client := http.Client{Timeout: waitBound, Transport: &http.Transport{
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

// counted waits until a metric has come to a value; it may be counted a moment after
// what it counts is seen.
func (s *Space) counted(name string, good func(float64) bool) {
	s.t.Helper()
	ctx, cancel := withBound(s.t)
	defer cancel()
	last := 0.0
	err := hosts.WaitFor(ctx, name, func() (bool, error) { last = s.metric(name); return good(last), nil })
	if err != nil {
		s.t.Errorf("it is %v: %v", last, err)
	}
}

func is(want float64) func(float64) bool      { return func(n float64) bool { return n == want } }
func atLeast(want float64) func(float64) bool { return func(n float64) bool { return n >= want } }

// withBound is a context with the bound of a wait.
func withBound(t *testing.T) (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.Context(), waitBound)
}
