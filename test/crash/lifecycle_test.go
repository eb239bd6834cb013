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

// lifecyclePod is a pod with all that not every pod has: an image to pull, hooks, a
// projected volume that changes, resources that change.
type lifecyclePod struct {
	*node
	name   string
	repo   string
	store  *images.Registry
	pod    *corev1.Pod
	config *corev1.ConfigMap
	blobs  int               // that were asked for when the agent died after the pull
	before map[string]string // what lived when it last was Ready
	uid    string
}

// killStage is one action at which the agent dies, in the order of a pod's life.
type killStage struct {
	kind  string                // of package plan
	cause func(w *lifecyclePod) // makes the agent do it; nil: it comes by itself
	dead  func(w *lifecyclePod) // looks at what there is before the agent comes back
	right func(w *lifecyclePod) // waits until what it was to bring about is there; nil: the next stage tells
}

// lifecycleStages are the kinds of actions that TestKillAtEveryActionBoundary does not
// meet.
var lifecycleStages = []killStage{
	{kind: "PullImage", cause: (*lifecyclePod).writeManifest, dead: (*lifecyclePod).checkPullAfterKill},
	{kind: "PostStart", right: (*lifecyclePod).checkRunning},
	{kind: "ProjectVolume", cause: (*lifecyclePod).editConfigMap, right: (*lifecyclePod).checkConfigMap},
	{kind: "ResizeCgroup", cause: (*lifecyclePod).requestResize},
	{kind: "ResizeContainer", right: (*lifecyclePod).checkResized},
	{kind: "PreStop", cause: func(w *lifecyclePod) { w.removeManifest(w.name) }, right: (*lifecyclePod).checkTerminated},
}

// TestKillAtEveryLifecycleStage kills the agent at each action of a life that
// has more than one container's start and end in it: first after each, then
// before each.
func TestKillAtEveryLifecycleStage(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.Versions() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			n := start(t, options{host: hosts.Options{Version: v}, tags: []string{"crashpoints"}})
			for _, moment := range []string{"after", "before"} {
				w := n.newLifecyclePod(moment)
				watch := n.watchStatus(nil, n.compareStatus)
				for _, s := range lifecycleStages {
					w.killAt(moment, s)
				}
				watch.finish()
			}
		})
	}
}

func (w *lifecyclePod) killAt(moment string, s killStage) {
	w.Helper()
	point := moment + " " + s.kind + " "
	w.restartWithEnv("BERTH_CRASH=" + point)
	if s.cause != nil {
		s.cause(w)
	}
	if !w.waitExitOr("half a minute to pass", func() bool { return false }) || !strings.HasPrefix(w.lastKillPoint(), point) {
		w.Fatalf("the agent died at %q, and was to die %q", w.lastKillPoint(), point)
	}
	if s.dead != nil {
		s.dead(w)
	}
	if s.right == nil {
		return
	}
	w.agent.SetEnv()
	w.launch()
	s.right(w)
	if w.Failed() {
		w.Fatalf("killed at %s", w.lastKillPoint())
	}
}

// newLifecyclePod makes the pod, and the registry that has its image.
func (n *node) newLifecyclePod(moment string) *lifecyclePod {
	n.Helper()
	w := &lifecyclePod{node: n, name: "whole-" + moment, repo: "berth/whole-" + moment}
	ref := "registry.example/" + w.repo + ":1"
	w.store = newRegistry(n.T, ref, images.Bash)
	n.must("registry", w.store.HostsToml(n.host.CertsDir(), "registry.example"))
	p := n.simple(w.name)
	p.Spec.TerminationGracePeriodSeconds = new(int64(60))
	hook := func(name string) *corev1.LifecycleHandler {
		return &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"sh", "-c", "echo ran >>/witness/" + w.name + "." + name}}}
	}
	c := &p.Spec.Containers[0]
	c.Image, c.Args = ref, nil
	c.Command = []string{"sh", "-c", "trap 'exit 0' TERM; echo began >>/witness/" + w.name + ".main; while :; do sleep 1000 & wait; done"}
	c.Lifecycle = &corev1.Lifecycle{PostStart: hook("postStart"), PreStop: hook("preStop")}
	c.ReadinessProbe = &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"sh", "-c", "test -e /config/key"}}},
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
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Name: w.name, Namespace: "default"},
		Data: map[string]string{"key": "old"},
	}
	return w
}

func (w *lifecyclePod) writeManifest() { w.Helper(); w.node.put(w.name, w.config, w.pod) }

// pulledBlobs are those that the registry was asked for.
func (w *lifecyclePod) pulledBlobs() int { return w.store.Counts(w.repo).Blobs }

// checkPullAfterKill looks at what the agent left behind when it died at the pull.
func (w *lifecyclePod) checkPullAfterKill() {
	w.Helper()
	st, err := w.host.Image.ImageStatus(w.Context(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: w.pod.Spec.Containers[0].Image}})
	w.must("image status", err)
	if after := strings.HasPrefix(w.lastKillPoint(), "after"); after != (st.Image != nil) {
		w.Errorf("the agent died %s, and the image is there: %v", w.lastKillPoint(), st.Image != nil)
	}
	w.blobs = w.pulledBlobs()
}

// checkRunning: the image was pulled, once if the pull was over, the hook ran, and each
// container began one time.
func (w *lifecyclePod) checkRunning() {
	w.Helper()
	w.awaitRunning(w.name)
	w.checkRanOnce(w.name)
	if c := w.store.Counts(w.repo); c.Manifests == 0 || w.blobs > 0 && c.Blobs != w.blobs {
		w.Errorf("the registry was asked for %+v, and for %d blobs when the agent died", c, w.blobs)
	}
	if ran := w.startCount(w.name, "postStart"); ran < 1 || ran > 2 {
		w.Errorf("postStart ran %d times", ran)
	}
	w.before, w.uid = w.liveObjects(w.name), string(w.pods()[w.name].UID)
}

func (w *lifecyclePod) checkUnchanged() {
	w.Helper()
	w.checkStillLive(w.before)
	w.checkRanOnce(w.name)
	if uid := string(w.pods()[w.name].UID); uid != w.uid {
		w.Errorf("the pod has the UID %s, had %s", uid, w.uid)
	}
}

func (w *lifecyclePod) editConfigMap() {
	w.Helper()
	w.awaitRunning(w.name)
	w.config.Data["key"] = "new"
	w.writeManifest()
}

// checkConfigMap: the containers see the new content, and of the old nothing is
// left.
func (w *lifecyclePod) checkConfigMap() {
	w.Helper()
	dir := filepath.Join(w.agent.RootDir, "pods", w.uid, "volumes/kubernetes.io~configmap/config")
	w.waitFor("the new content", func() bool {
		text, err := os.ReadFile(filepath.Join(dir, "key"))
		return err == nil && string(text) == "new"
	})
	for c, command := range map[string][]string{"main": {"cat", "/config/key"}, "second": {"/bin/testbox", "cat", "/config/key"}} {
		if got := w.exec(c, command...); got != "new" {
			w.Errorf("container %s sees %q", c, got)
		}
	}
	w.waitFor("the old content to go", func() bool {
		entries, err := os.ReadDir(dir)
		return err == nil && len(entries) == 3 // ..data, what it leads to, key
	})
	w.awaitRunning(w.name)
	w.checkUnchanged()
}

func (w *lifecyclePod) exec(container string, command ...string) string {
	w.Helper()
	out, err := w.agent.Command(w.Context(), append([]string{"exec", w.name, "-c", container, "--"}, command...)...).CombinedOutput()
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

// checkResized: the kernel limits the container and the pod to what is asked for, and
// the status says so.
func (w *lifecyclePod) checkResized() {
	w.Helper()
	w.waitFor("the resize to be over", func() bool {
		p := w.pods()[w.name]
		resizing := slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodResizeInProgress || c.Type == corev1.PodResizePending
		})
		return !resizing && slices.ContainsFunc(p.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
			return s.Name == "main" && s.Resources != nil && s.Resources.Limits.Memory().String() == "128Mi" && s.AllocatedResources.Memory().String() == "96Mi"
		})
	})
	got := w.exec("main", "sh", "-c", "cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || cat /sys/fs/cgroup/memory.max")
	if got != fmt.Sprint(128<<20) {
		w.Errorf("the container is limited to %s", got)
	}
	if got := w.podLimit(); got != fmt.Sprint(192<<20) {
		w.Errorf("the pod is limited to %s", got)
	}
	w.checkUnchanged()
}

// podLimit is the memory limit of the pod's own cgroup.
func (w *lifecyclePod) podLimit() string {
	w.Helper()
	below := filepath.Join(w.host.CgroupRoot, "kubepods/burstable/pod"+w.uid)
	for _, file := range []string{"/sys/fs/cgroup/memory" + below + "/memory.limit_in_bytes", "/sys/fs/cgroup" + below + "/memory.max"} {
		if text, err := os.ReadFile(file); err == nil {
			return strings.TrimSpace(string(text))
		}
	}
	w.Fatalf("the pod has no memory cgroup %s", below)
	return ""
}

// checkTerminated: the hook ran before the end, no container began again.
func (w *lifecyclePod) checkTerminated() {
	w.Helper()
	w.waitNothingLeft()
	if ran := w.startCount(w.name, "preStop"); ran < 1 || ran > 2 {
		w.Errorf("preStop ran %d times", ran)
	}
	for _, c := range []string{"main", "second"} {
		if ran := w.startCount(w.name, c); ran != 1 {
			w.Errorf("%s really ran %d times", c, ran)
		}
	}
}
