package crash

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/nodeapi"
	"berth/test/hosts"
	"berth/test/images"
)

// node is a host with an agent, for one test.
type node struct {
	*testing.T
	host    *hosts.Host
	agent   *hosts.Agent
	client  *nodeapi.Client
	witness string        // directory for witness files on the host; see doc.go
	timeout time.Duration // of a wait; 0: waitTimeout

	mu       sync.Mutex
	failures []string
}

// Error, Errorf and Fatalf record the failures. stopAndCheck repeats them at the end of the output, because
// the logs of a failed test are long.
func (n *node) Error(args ...any) {
	n.Helper()
	n.Errorf("%s", fmt.Sprintln(args...))
}

func (n *node) Errorf(format string, args ...any) {
	n.Helper()
	n.mu.Lock()
	n.failures = append(n.failures, fmt.Sprintf(format, args...))
	n.mu.Unlock()
	n.T.Errorf(format, args...)
}

func (n *node) Fatalf(format string, args ...any) {
	n.Helper()
	n.Errorf(format, args...)
	n.FailNow()
}

// options configures a node. The zero value uses Debian's containerd and an agent without build tags.
type options struct {
	host    hosts.Options
	agent   hosts.AgentOptions
	tags    []string
	noStart bool // the test calls startAgent
}

// otherImage is a second name for the testbox image, for image edits.
const otherImage = "docker.io/berth/testbox:other"

// testImages returns the paths of the image archives that every node loads.
func testImages(t *testing.T) []string {
	t.Helper()
	dir, err := images.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, image := range []func(context.Context, string) (images.Archive, error){images.Testbox, images.Busybox} {
		a, err := image(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, a.Path)
	}
	return paths
}

// start starts a node. At the end of the test, it stops the node and checks that nothing is left.
func start(t *testing.T, o options) *node {
	t.Helper()
	binary, err := hosts.BuildBerth(t.Context(), hosts.BuildOptions{Tags: o.tags, Race: raceFor(o.host.Version)})
	if err != nil {
		t.Fatal(err)
	}
	o.host.CNI = true
	o.host.Images = append(o.host.Images, testImages(t)...)
	h, err := hosts.Start(t.Context(), o.host)
	if err != nil {
		t.Fatal(err)
	}
	n := &node{T: t, host: h, witness: t.TempDir()}
	t.Cleanup(n.stopAndCheck)
	if out, err := h.Ctr(t.Context(), "images", "tag", images.TestboxRef, otherImage); err != nil {
		t.Fatalf("tag image: %v: %s", err, out)
	}
	if !o.noStart {
		o.agent.Binary, o.agent.Client = binary, clientProgram(t)
		n.startAgent(o.agent)
	}
	return n
}

// raceFor reports whether an agent has the race detector, with which it takes four times as much CPU time: half of
// the agents do.
func raceFor(v hosts.Version) bool { return raceEnabled && v == hosts.Version2 }

// clientProgram builds the program of commands.
func clientProgram(t *testing.T) string {
	t.Helper()
	program, err := hosts.BuildBerth(t.Context(), hosts.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return program
}

// startAgent starts the node's agent for the first time.
func (n *node) startAgent(o hosts.AgentOptions) {
	n.Helper()
	var err error
	if o.Binary == "" {
		race := raceFor(n.host.Version)
		if o.Binary, err = hosts.BuildBerth(n.Context(), hosts.BuildOptions{Race: race}); err != nil {
			n.Fatal(err)
		}
		o.Client = clientProgram(n.T)
	}
	o.Host = n.host
	if n.agent, err = hosts.StartAgent(n.Context(), o); err != nil {
		n.Fatal(err)
	}
	if n.client, err = nodeapi.Dial(n.agent.Socket); err != nil {
		n.Fatal(err)
	}
	n.waitReady()
}

// stopAndCheck stops the node. It reports data races, panics and leaks, and logs the failures.
func (n *node) stopAndCheck() {
	if n.agent != nil {
		log := n.agent.Log()
		if at := strings.Index(log, "DATA RACE"); at >= 0 {
			n.Errorf("data race in the agent:\n%.4000s", log[at:])
		}
		if at := strings.Index(log, "panic: "); at >= 0 {
			n.Errorf("panic in the agent:\n%.4000s", log[at:])
		}
		if n.Failed() {
			if file := os.Getenv("BERTH_CRASH_LOGS"); file != "" {
				containerdLog, _ := os.ReadFile(filepath.Join(n.host.Dir, "containerd.log"))
				for suffix, text := range map[string][]byte{".log": []byte(log), ".containerd.log": containerdLog} {
					if err := os.WriteFile(filepath.Join(file, strings.ReplaceAll(n.Name(), "/", "_")+suffix), text,
						0o600); err != nil {
						n.Log(err)
					}
				}
			}
			containerdLog := n.host.Log()
			n.Logf("containerd log:\n%s", containerdLog[max(0, len(containerdLog)-2000):])
			n.Logf("berth log:\n%s", log[max(0, len(log)-6000):])
		}
		n.client.Close()
	}
	if err := n.host.Stop(); err != nil {
		n.Error(err)
	}
	if left := n.host.Leaks(); len(left) > 0 {
		n.Errorf("leaked:\n%s", strings.Join(left, "\n"))
	}
	if n.agent != nil { // log links of pods that ran until the end
		for _, l := range n.logLinks() {
			os.Remove(l)
		}
	}
	if n.Failed() {
		n.Logf("failures:\n%s", strings.Join(n.failures, "\n"))
	}
}

// must fails the test if err is not nil. what describes the failed operation.
func (n *node) must(what string, err error) {
	n.Helper()
	if err != nil {
		n.Fatalf("%s: %v", what, err)
	}
}

func (n *node) waitReady() { n.Helper(); n.must("wait for the agent", n.agent.WaitReady(n.Context())) }

// launch starts the agent and waits until it is ready.
func (n *node) launch() {
	n.Helper()
	n.must("start the agent", n.agent.Start(n.Context()))
	n.waitReady()
}

// kill sends SIGKILL to the agent and waits until it has exited.
func (n *node) kill() { n.Helper(); n.must("kill the agent", n.agent.Kill9()) }

// waitTimeout limits every wait. It is long enough for a busy machine.
const waitTimeout = 8 * time.Minute

// unblockedTimeout is shorter than the deadline of a CRI call. With it, a test detects a pod that is blocked by
// the call of another pod.
const unblockedTimeout = 80 * time.Second

// waitFor waits until cond is true and fails the test after the timeout. what completes "wait for".
func (n *node) waitFor(what string, cond func() bool) {
	n.Helper()
	if !n.pollUntil(cmp.Or(n.timeout, waitTimeout), what, cond) {
		n.FailNow()
	}
}

func (n *node) pollUntil(timeout time.Duration, what string, cond func() bool) bool {
	n.Helper()
	ctx, cancel := context.WithTimeout(n.Context(), timeout)
	defer cancel()
	if err := hosts.WaitFor(ctx, what, func() (bool, error) { return cond(), nil }); err != nil {
		n.Errorf("%v\n%s", err, n.describe())
		return false
	}
	return true
}

// describe returns the pods of the agent and the objects of the runtime, for a failed wait.
func (n *node) describe() string {
	var b strings.Builder
	for name, p := range n.pods() {
		fmt.Fprintf(&b, "pod %s %s %s %s\n", name, p.Status.Phase, p.Status.Reason, p.Status.Message)
		for _, s := range statuses(&p) {
			state, _ := json.Marshal(s.State)
			fmt.Fprintf(&b, "  %s restarts=%d ready=%v %s\n", s.Name, s.RestartCount, s.Ready, state)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if list, err := n.host.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{}); err == nil {
		for _, s := range list.Items {
			fmt.Fprintf(&b, "sandbox %.8s %s/%d %s\n", s.Id, s.Metadata.Name, s.Metadata.Attempt, s.State)
		}
	}
	if list, err := n.host.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{}); err == nil {
		for _, c := range list.Containers {
			fmt.Fprintf(&b, "container %.8s %s/%s/%d %s\n", c.Id, c.Labels["io.kubernetes.pod.name"], c.Metadata.Name,
				c.Metadata.Attempt, c.State)
		}
	}
	for _, pid := range n.podProcesses() {
		proc := filepath.Join("/proc", strconv.Itoa(pid))
		stat, _ := os.ReadFile(filepath.Join(proc, "stat")) // PID, name, state, parent
		wchan, _ := os.ReadFile(filepath.Join(proc, "wchan"))
		args, _ := os.ReadFile(filepath.Join(proc, "cmdline"))
		fmt.Fprintf(&b, "process %.40s %s %.100s\n", stat, wchan, bytes.ReplaceAll(args, []byte{0}, []byte{' '}))
	}
	return b.String()
}

// podProcesses returns the process IDs of all pods of the host.
func (n *node) podProcesses() (pids []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/cgroup")
	for _, file := range files {
		groups, _ := os.ReadFile(file)
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err == nil && strings.Contains(string(groups), n.host.CgroupRoot+"/") {
			pids = append(pids, pid)
		}
	}
	return pids
}

// put writes a manifest atomically: the agent never reads an incomplete file.
func (n *node) put(name string, objects ...any) {
	n.Helper()
	var text []byte
	for _, o := range objects {
		one, err := json.Marshal(o)
		n.must("encode "+name, err)
		text = append(append(text, "---\n"...), one...)
		text = append(text, '\n')
	}
	file := filepath.Join(n.agent.ManifestDir, name+".yaml")
	tmp := filepath.Join(n.agent.ManifestDir, "."+name+".tmp")
	n.must("write "+name, os.WriteFile(tmp, text, 0o600))
	n.must("write "+name, os.Rename(tmp, file))
}

func (n *node) putPod(p *corev1.Pod) { n.Helper(); n.put(p.Name, p) }

func (n *node) removeManifest(name string) {
	n.Helper()
	n.must("remove manifest", os.Remove(filepath.Join(n.agent.ManifestDir, name+".yaml")))
}

// pods returns all pods that the agent reports, by name. It returns nil if the agent does not respond.
func (n *node) pods() map[string]corev1.Pod {
	// Without an agent, the call fails at once. On a busy machine, it takes seconds.
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if n.client == nil {
		return nil
	}
	list, err := n.client.Pods(ctx, nodeapi.PodsRequest{})
	if err != nil {
		return nil
	}
	out := map[string]corev1.Pod{}
	for _, p := range list.Items {
		if old, exists := out[p.Name]; !exists || old.DeletionTimestamp != nil {
			out[p.Name] = p
		}
	}
	return out
}

// running reports whether every pod named is Running and Ready and not being deleted.
func (n *node) running(names ...string) bool {
	all := n.pods()
	for _, name := range names {
		p, ok := all[name]
		if !ok || !isReady(&p) || p.DeletionTimestamp != nil {
			return false
		}
	}
	return true
}

// awaitRunning waits until every pod named is Running and Ready.
func (n *node) awaitRunning(names ...string) {
	n.Helper()
	n.waitFor(strings.Join(names, ", ")+" to be Ready", func() bool { return n.running(names...) })
}

func isReady(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodRunning &&
		slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
}

func statuses(p *corev1.Pod) []corev1.ContainerStatus {
	return slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses)
}

// cleanupTimeout limits how long the cleanup after interrupted CRI calls may take. The agent observes objects
// that the runtime has lost for some time before it removes them.
const cleanupTimeout = 6 * time.Minute

// waitNothingLeft waits until nothing of any pod is left in the agent, in the runtime and on the host. The
// timeout for leaks of interrupted CRI calls is cleanupTimeout, and waitTimeout for everything else.
func (n *node) waitNothingLeft() {
	n.Helper()
	var left []string
	for _, wait := range []struct {
		timeout time.Duration
		ignored func(resource string) bool
	}{{waitTimeout, isContainerdLeak}, {cleanupTimeout, func(string) bool { return false }}} {
		if !n.pollUntil(wait.timeout, "all resources of pods to be removed", func() bool {
			left = slices.DeleteFunc(n.leaks(), wait.ignored)
			return len(left) == 0
		}) {
			n.Fatalf("leaked:\n%s", strings.Join(left, "\n"))
		}
	}
}

// isContainerdLeak reports whether an interrupted call of containerd or its CNI plugins may have left a
// resource behind. Container processes, cgroups and directories of the agent are not such resources.
func isContainerdLeak(resource string) bool {
	kind, what, _ := strings.Cut(resource, " ")
	switch kind {
	case "pod", "pod:", "sandbox", "container", "cgroup":
		return false
	case "process":
		return strings.Contains(what, "/containerd-shim-")
	case "file":
		return strings.HasPrefix(what, "/var/lib/cni/") || strings.Contains(what, "/s/")
	case "mount":
		return strings.Contains(what, "/netns/cni-") || strings.Contains(what, "/io.containerd.")
	}
	return true // addresses, links, rules, chains, records and directories of containerd
}

// leaks returns the remaining resources of all pods.
func (n *node) leaks() []string {
	pods := n.pods()
	if pods == nil {
		return []string{"pod: agent does not respond"}
	}
	var left []string
	for name := range pods {
		left = append(left, "pod "+name)
	}
	for _, s := range n.sandboxes("") {
		left = append(left, "sandbox "+s.Id)
	}
	for _, c := range n.containers("") {
		left = append(left, "container "+c.Id)
	}
	if len(left) > 0 {
		return left
	}
	left = append(left, n.host.PodResources()...)
	left = append(left, n.logLinks()...)
	for _, dir := range []string{n.agent.LogsDir, filepath.Join(n.agent.RootDir, "pods")} {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			left = append(left, "file "+filepath.Join(dir, e.Name()))
		}
	}
	return left
}

// logLinks returns the links of this node's containers in /var/log/containers.
func (n *node) logLinks() []string {
	links, _ := filepath.Glob("/var/log/containers/*")
	return slices.DeleteFunc(links, func(l string) bool {
		to, err := os.Readlink(l)
		return err != nil || !strings.HasPrefix(to, n.agent.LogsDir+"/")
	})
}

// sandboxes returns the sandboxes of a pod in the runtime, or all sandboxes if the name is empty.
func (n *node) sandboxes(pod string) []*runtimeapi.PodSandbox {
	n.Helper()
	list, err := n.host.Runtime.ListPodSandbox(context.Background(), &runtimeapi.ListPodSandboxRequest{})
	n.must("list sandboxes", err)
	return slices.DeleteFunc(list.Items, func(s *runtimeapi.PodSandbox) bool {
		return pod != "" && s.Metadata.Name != pod
	})
}

// containers returns the containers of a pod in the runtime, or all containers if the name is empty.
func (n *node) containers(pod string) []*runtimeapi.Container {
	n.Helper()
	list, err := n.host.Runtime.ListContainers(context.Background(), &runtimeapi.ListContainersRequest{})
	n.must("list containers", err)
	return slices.DeleteFunc(list.Containers, func(c *runtimeapi.Container) bool {
		return pod != "" && c.Labels["io.kubernetes.pod.name"] != pod
	})
}

// liveObjects describes the ready sandboxes and running containers of a pod by ID. With an empty name, it
// returns those of all pods. It ignores containers named init because they exit.
func (n *node) liveObjects(pod string) map[string]string {
	n.Helper()
	live := map[string]string{}
	for _, s := range n.sandboxes(pod) {
		if s.State == runtimeapi.PodSandboxState_SANDBOX_READY {
			live[s.Id] = "sandbox of " + s.Metadata.Name
		}
	}
	for _, c := range n.containers(pod) {
		if c.State == runtimeapi.ContainerState_CONTAINER_RUNNING && c.Metadata.Name != "init" {
			live[c.Id] = c.Labels["io.kubernetes.pod.name"] + "/" + c.Metadata.Name
		}
	}
	return live
}

// checkStillLive reports an error for each object in before that no longer runs.
func (n *node) checkStillLive(before map[string]string) {
	n.Helper()
	now := n.liveObjects("")
	for id, what := range before {
		if _, ok := now[id]; !ok {
			n.Errorf("%s (%.12s) no longer runs", what, id)
		}
	}
}

// waitRan waits until a container has written its witness file and returns the number of its starts. It
// returns 0 after waitTimeout.
func (n *node) waitRan(pod, container string) int {
	n.Helper()
	ctx, cancel := context.WithTimeout(n.Context(), waitTimeout)
	defer cancel()
	// On timeout, startCount returns 0.
	_ = hosts.WaitFor(ctx, "witness file", func() (bool, error) { return n.startCount(pod, container) > 0, nil })
	return n.startCount(pod, container)
}

// startCount returns how often a container of a pod has started, according to its witness file.
func (n *node) startCount(pod, container string) int {
	text, _ := os.ReadFile(filepath.Join(n.witness, pod+"."+container))
	return strings.Count(string(text), "\n")
}

var (
	createdSandbox   = regexp.MustCompile(`RunPodSandbox for .* returns sandbox id \\"(\w+)\\"`)
	createdContainer = regexp.MustCompile(`CreateContainer within sandbox \\"(\w+)\\" for .*[nN]ame:\W*([\w-]+).* ` +
		`returns container id \\"(\w+)\\"`)
	startedContainer = regexp.MustCompile(`StartContainer for \\"(\w+)\\"( failed| returns successfully)?`)
)

// interruptedStarts returns how many starts of a pod's container failed in containerd, or never ended because
// containerd was killed. Their processes may have run: containerd kills the process of a failed start. After its
// own restart, containerd does not know a container whose start it had not recorded, although the task runs.
func (n *node) interruptedStarts(podUID, container string) int {
	n.Helper()
	text, err := os.ReadFile(filepath.Join(n.host.Dir, "containerd.log"))
	n.must("read the log of containerd", err)
	return failedStarts(string(text), podUID, container)
}

// failedStarts is interruptedStarts for the text of a log.
func failedStarts(log, podUID, container string) (count int) {
	sandboxes, containers := map[string]bool{}, map[string]bool{}
	began := map[string]bool{}
	for line := range strings.Lines(log) {
		if m := createdSandbox.FindStringSubmatch(line); m != nil && strings.Contains(line, podUID) {
			sandboxes[m[1]] = true
		} else if m := createdContainer.FindStringSubmatch(line); m != nil && sandboxes[m[1]] && m[2] == container {
			containers[m[3]] = true
		} else if m := startedContainer.FindStringSubmatch(line); m != nil && containers[m[1]] {
			if began[m[1]] = m[2] == ""; m[2] == " failed" {
				count++
			}
		}
	}
	for _, unfinished := range began {
		if unfinished {
			count++
		}
	}
	return count
}

// checkRanOnce checks that a running pod has started once: no restarts, one sandbox, and one container per
// name, which started once.
func (n *node) checkRanOnce(name string) {
	n.Helper()
	n.checkStarts(name, func(string, string) int { return 0 })
}

// checkRanOnceAcrossRestart is checkRanOnce for a pod during whose start containerd was restarted: starts that the
// restart interrupted may have run.
func (n *node) checkRanOnceAcrossRestart(name string) {
	n.Helper()
	n.checkStarts(name, n.interruptedStarts)
}

func (n *node) checkStarts(name string, interruptedStarts func(podUID, container string) int) {
	n.Helper()
	p, ok := n.pods()[name]
	if !ok {
		n.Errorf("pod %s: not in the pod list", name)
		return
	}
	if s := n.sandboxes(name); len(s) != 1 {
		n.Errorf("pod %s: got %d sandboxes, want 1: %v", name, len(s), s)
	}
	counts := map[string]int{}
	for _, c := range n.containers(name) {
		counts[c.Metadata.Name]++
		if c.State == runtimeapi.ContainerState_CONTAINER_CREATED {
			n.Errorf("pod %s: container %s is still Created", name, c.Metadata.Name)
		}
	}
	for _, s := range statuses(&p) {
		if s.RestartCount != 0 {
			n.Errorf("pod %s: container %s: restart count %d, want 0", name, s.Name, s.RestartCount)
		}
		if counts[s.Name] != 1 {
			n.Errorf("pod %s: got %d containers named %s, want 1", name, counts[s.Name], s.Name)
		}
		interrupted := interruptedStarts(string(p.UID), s.Name)
		if ran := n.waitRan(name, s.Name); ran < 1 || ran > 1+interrupted {
			n.Errorf("pod %s: container %s: got %d starts, want 1 and at most %d interrupted ones", name, s.Name, ran,
				interrupted)
		} else if ran > 1 {
			n.Logf("pod %s: container %s: %d interrupted starts ran", name, s.Name, ran-1)
		}
	}
}

// ---- pods

// witnessed returns a container that appends a line to its witness file and then executes the steps.
func (n *node) witnessed(pod, name string, steps ...string) corev1.Container {
	return corev1.Container{
		Name: name, Image: images.TestboxRef,
		Args:         append([]string{"append", "/witness/" + pod + "." + name, "started", ","}, steps...),
		VolumeMounts: []corev1.VolumeMount{{Name: "witness", MountPath: "/witness"}},
	}
}

// simple returns a pod with one container, which executes the steps or sleeps.
func (n *node) simple(name string, steps ...string) *corev1.Pod {
	if len(steps) == 0 {
		steps = []string{"sleep"}
	}
	p := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
	}
	p.Spec.TerminationGracePeriodSeconds = new(int64(1))
	p.Spec.Containers = []corev1.Container{n.witnessed(name, "main", steps...)}
	p.Spec.Volumes = []corev1.Volume{{Name: "witness",
		VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: n.witness}}}}
	return p
}

// rich returns a pod with an init container, a sidecar, two containers and volumes of several types, and the
// objects that it refers to.
func (n *node) rich(name string) []any {
	p := n.simple(name)
	always := corev1.ContainerRestartPolicyAlways
	sidecar := n.witnessed(name, "side", "sleep")
	sidecar.RestartPolicy = &always
	p.Spec.InitContainers = []corev1.Container{n.witnessed(name, "init", "cat", "/config/key", "/secret/key"), sidecar}
	p.Spec.Containers = append(p.Spec.Containers, n.witnessed(name, "second", "sleep"))
	p.Spec.Volumes = append(p.Spec.Volumes,
		corev1.Volume{Name: "scratch",
			VolumeSource: corev1.VolumeSource{
				EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}},
		corev1.Volume{Name: "config",
			VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: name}}}},
		corev1.Volume{Name: "secret",
			VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name}}})
	mounts := []corev1.VolumeMount{{Name: "scratch", MountPath: "/scratch"}, {Name: "config", MountPath: "/config"},
		{Name: "secret", MountPath: "/secret"}}
	for _, cs := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range cs {
			cs[i].VolumeMounts = append(cs[i].VolumeMounts, mounts...)
		}
	}
	meta := metav1.ObjectMeta{Name: name, Namespace: "default"}
	return []any{
		&corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: meta,
			Data: map[string]string{"key": "config"}},
		&corev1.Secret{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, ObjectMeta: meta,
			StringData: map[string]string{"key": "secret"}},
		p,
	}
}
