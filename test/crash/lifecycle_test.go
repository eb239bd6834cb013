package crash

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/podspec"
	"berth/test/hosts"
	"berth/test/images"
)

// lifecyclePod is a pod with an image to pull, hooks, a ConfigMap volume that is updated, and resources that
// are resized.
type lifecyclePod struct {
	*node
	name            string
	repo            string
	registry        *images.Registry
	pod             *corev1.Pod
	config          *corev1.ConfigMap
	blobsBeforeKill int               // number of blob requests when the agent was killed
	before          map[string]string // live objects when it was last Ready
	uid             string
}

// killStage is an action at which the agent is killed. The stages are in the order of a pod's lifecycle.
type killStage struct {
	kind           string                // action type in package plan
	trigger        func(w *lifecyclePod) // triggers the action; nil: it follows from the previous stage
	checkWhileDown func(w *lifecyclePod) // checks the state before the agent restarts; may be nil
	verify         func(w *lifecyclePod) // waits for the result of the action; nil: the next stage does
}

// lifecycleStages contains the kinds of actions that TestKillAtEveryActionBoundary does not reach.
var lifecycleStages = []killStage{
	{kind: "PullImage", trigger: (*lifecyclePod).writeManifest, checkWhileDown: (*lifecyclePod).checkPullAfterKill},
	{kind: "PostStart", verify: (*lifecyclePod).checkRunning},
	{kind: "ProjectVolume", trigger: (*lifecyclePod).editConfigMap, verify: (*lifecyclePod).checkConfigMap},
	{kind: "ResizeCgroup", trigger: (*lifecyclePod).requestResize},
	{kind: "ResizeContainer", verify: (*lifecyclePod).checkResized},
	{kind: "PreStop", trigger: func(w *lifecyclePod) { w.removeManifest(w.name) },
		verify: (*lifecyclePod).checkTerminated},
}

// TestKillAtEveryLifecycleStage kills the agent at image pull, hooks, volume update, resize and termination
// of a pod: alternately after and before an action, and with BERTH_TORTURE after and before each action.
func TestKillAtEveryLifecycleStage(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.DividedVersions(t.Name()) {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			n := start(t, options{host: hosts.Options{Version: v}, tags: []string{"crashpoints"}})
			rounds := 1
			if os.Getenv("BERTH_TORTURE") != "" {
				rounds = 2
			}
			boundaries := []string{"after", "before"}
			for round := range rounds {
				w := n.newLifecyclePod(boundaries[round])
				watch := n.watchStatus(nil, n.compareStatus)
				for i, s := range lifecycleStages {
					w.killAt(boundaries[(round+i)%len(boundaries)], s)
				}
				watch.finish()
			}
		})
	}
}

func (w *lifecyclePod) killAt(boundary string, s killStage) {
	w.Helper()
	point := boundary + " " + s.kind + " "
	w.kill()
	w.agent.SetEnv("BERTH_CRASH=" + point)
	w.must("start the agent", w.agent.Start(w.Context()))
	// An action that needs no trigger can start before the agent is ready.
	if err := w.agent.WaitReady(w.Context()); err != nil && !w.exited() {
		w.Fatal(err)
	}
	if s.trigger != nil {
		s.trigger(w)
	}
	if !w.waitExitOr("the timeout", func() bool { return false }) || !strings.HasPrefix(w.lastKillPoint(), point) {
		w.Fatalf("agent was killed at %q, want %q", w.lastKillPoint(), point)
	}
	if s.checkWhileDown != nil {
		s.checkWhileDown(w)
	}
	if s.verify == nil {
		return
	}
	w.agent.SetEnv()
	w.launch()
	s.verify(w)
	if w.Failed() {
		w.Fatalf("killed at %s", w.lastKillPoint())
	}
}

// exited reports whether the agent has exited.
func (n *node) exited() bool {
	select {
	case <-n.agent.Exited():
		return true
	default:
		return false
	}
}

// newLifecyclePod returns a pod, whose manifest is not written yet, and starts a registry with its image.
func (n *node) newLifecyclePod(boundary string) *lifecyclePod {
	n.Helper()
	w := &lifecyclePod{node: n, name: "lifecycle-" + boundary, repo: "berth/lifecycle-" + boundary}
	ref := "registry.example/" + w.repo + ":1"
	w.registry = newRegistry(n.T, ref, images.Bash)
	n.must("configure the registry", w.registry.HostsToml(n.host.CertsDir(), "registry.example"))
	p := n.simple(w.name)
	p.Spec.TerminationGracePeriodSeconds = new(int64(60))
	hook := func(name string) *corev1.LifecycleHandler {
		return &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"sh", "-c", "echo ran >>/witness/" +
			w.name + "." + name}}}
	}
	c := &p.Spec.Containers[0]
	c.Image, c.Args = ref, nil
	c.Command = []string{"sh", "-c",
		"trap 'exit 0' TERM; echo started >>/witness/" + w.name + ".main; while :; do sleep 1000 & wait; done"}
	c.Lifecycle = &corev1.Lifecycle{PostStart: hook("postStart"), PreStop: hook("preStop")}
	c.ReadinessProbe = &corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"sh", "-c",
			"test -e /config/key"}}},
		PeriodSeconds: 1, TimeoutSeconds: 20,
	}
	second := n.witnessed(w.name, "second", "sleep")
	mount := corev1.VolumeMount{Name: "config", MountPath: "/config"}
	c.VolumeMounts, second.VolumeMounts = append(c.VolumeMounts, mount), append(second.VolumeMounts, mount)
	p.Spec.Containers = append(p.Spec.Containers, second)
	p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "config", VolumeSource: corev1.VolumeSource{
		ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: w.name}},
	}})
	for i := range p.Spec.Containers {
		p.Spec.Containers[i].Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}
	}
	podspec.SetDefaults(p)
	w.pod = p
	w.config = &corev1.ConfigMap{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Name: w.name,
			Namespace: "default"},
		Data: map[string]string{"key": "old"},
	}
	return w
}

func (w *lifecyclePod) writeManifest() { w.Helper(); w.node.put(w.name, w.config, w.pod) }

// pulledBlobs returns the number of blob requests to the registry.
func (w *lifecyclePod) pulledBlobs() int { return w.registry.Counts(w.repo).Blobs }

// checkPullAfterKill checks the state after the agent was killed at the pull: the image is present if the
// agent was killed after it.
func (w *lifecyclePod) checkPullAfterKill() {
	w.Helper()
	st, err := w.host.Image.ImageStatus(w.Context(),
		&runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: w.pod.Spec.Containers[0].Image}})
	w.must("image status", err)
	if after := strings.HasPrefix(w.lastKillPoint(), "after"); after != (st.Image != nil) {
		w.Errorf("agent was killed %s; image is present: %v", w.lastKillPoint(), st.Image != nil)
	}
	w.blobsBeforeKill = w.pulledBlobs()
}

// checkRunning checks that the image was pulled (only once if the pull had finished before the kill), the
// PostStart hook ran, and each container started once.
func (w *lifecyclePod) checkRunning() {
	w.Helper()
	w.awaitRunning(w.name)
	w.checkRanOnce(w.name)
	if c := w.registry.Counts(w.repo); c.Manifests == 0 || w.blobsBeforeKill > 0 && c.Blobs != w.blobsBeforeKill {
		w.Errorf("registry requests: got %+v; %d blobs before the kill", c, w.blobsBeforeKill)
	}
	if ran := w.startCount(w.name, "postStart"); ran < 1 || ran > 2 {
		w.Errorf("postStart: got %d runs, want 1 or 2", ran)
	}
	w.before, w.uid = w.liveObjects(w.name), string(w.pods()[w.name].UID)
}

func (w *lifecyclePod) checkUnchanged() {
	w.Helper()
	w.checkStillLive(w.before)
	w.checkRanOnce(w.name)
	if uid := string(w.pods()[w.name].UID); uid != w.uid {
		w.Errorf("pod UID: got %s, want %s", uid, w.uid)
	}
}

func (w *lifecyclePod) editConfigMap() {
	w.Helper()
	w.awaitRunning(w.name)
	w.config.Data["key"] = "new"
	w.writeManifest()
}

// checkConfigMap checks that the containers see the new content and that the old content is deleted.
func (w *lifecyclePod) checkConfigMap() {
	w.Helper()
	dir := filepath.Join(w.agent.RootDir, "pods", w.uid, "volumes/kubernetes.io~configmap/config")
	w.waitFor("new content of the ConfigMap volume", func() bool {
		text, err := os.ReadFile(filepath.Join(dir, "key"))
		return err == nil && string(text) == "new"
	})
	for c, command := range map[string][]string{"main": {"cat", "/config/key"},
		"second": {"/bin/testbox", "cat", "/config/key"}} {
		if got := w.exec(c, command...); got != "new" {
			w.Errorf("container %s: ConfigMap content: got %q, want \"new\"", c, got)
		}
	}
	w.waitFor("old content to be deleted", func() bool {
		entries, err := os.ReadDir(dir)
		return err == nil && len(entries) == 3 // ..data, its target, key
	})
	w.awaitRunning(w.name)
	w.checkUnchanged()
}

func (w *lifecyclePod) exec(container string, command ...string) string {
	w.Helper()
	out, err := w.agent.Command(w.Context(), append([]string{"exec", w.name, "-c", container, "--"},
		command...)...).CombinedOutput()
	w.must(fmt.Sprintf("exec %v: %s", command, out), err)
	return strings.TrimSpace(string(out))
}

func (w *lifecyclePod) requestResize() {
	w.Helper()
	w.awaitRunning(w.name)
	w.pod.Spec.Containers[0].Resources.Limits[corev1.ResourceMemory] = resource.MustParse("128Mi")
	w.pod.Spec.Containers[0].Resources.Requests[corev1.ResourceMemory] = resource.MustParse("96Mi")
	w.writeManifest()
}

// checkResized checks the new memory limits in the status, the container's cgroup and the pod's cgroup.
func (w *lifecyclePod) checkResized() {
	w.Helper()
	w.waitFor("resize to complete", func() bool {
		p := w.pods()[w.name]
		resizing := slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodResizeInProgress || c.Type == corev1.PodResizePending
		})
		return !resizing && slices.ContainsFunc(p.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
			return s.Name == "main" && s.Resources != nil && s.Resources.Limits.Memory().String() == "128Mi" &&
				s.AllocatedResources.Memory().String() == "96Mi"
		})
	})
	got := w.exec("main", "sh", "-c", "cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || cat "+
		"/sys/fs/cgroup/memory.max")
	if got != fmt.Sprint(128<<20) {
		w.Errorf("memory limit of the container: got %s, want 128 MiB", got)
	}
	if got := w.podLimit(); got != fmt.Sprint(192<<20) {
		w.Errorf("memory limit of the pod: got %s, want 192 MiB", got)
	}
	w.checkUnchanged()
}

// podLimit returns the memory limit of the pod's cgroup.
func (w *lifecyclePod) podLimit() string {
	w.Helper()
	path := filepath.Join(w.host.CgroupRoot, "kubepods/burstable/pod"+w.uid)
	for _, file := range []string{"/sys/fs/cgroup/memory" + path + "/memory.limit_in_bytes",
		"/sys/fs/cgroup" + path + "/memory.max"} {
		if text, err := os.ReadFile(file); err == nil {
			return strings.TrimSpace(string(text))
		}
	}
	w.Fatalf("memory cgroup %s not found", path)
	return ""
}

// checkTerminated checks that the PreStop hook ran, no container restarted, and nothing is left.
func (w *lifecyclePod) checkTerminated() {
	w.Helper()
	w.waitNothingLeft()
	if ran := w.startCount(w.name, "preStop"); ran < 1 || ran > 2 {
		w.Errorf("preStop: got %d runs, want 1 or 2", ran)
	}
	for _, c := range []string{"main", "second"} {
		if ran := w.startCount(w.name, c); ran != 1 {
			w.Errorf("container %s: got %d starts, want 1", c, ran)
		}
	}
}
