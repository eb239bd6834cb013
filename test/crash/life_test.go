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

// whole is a pod with all that not every pod has: an image to pull, hooks, a
// projected volume that changes, resources that change.
type whole struct {
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

// stage is one action at which the agent dies, in the order of a pod's life.
type stage struct {
	kind  string         // of package plan
	cause func(w *whole) // makes the agent do it; nil: it comes by itself
	dead  func(w *whole) // looks at what there is before the agent comes back
	right func(w *whole) // waits until what it was to bring about is there; nil: the next stage tells
}

// wholeLife are the kinds of actions that TestKilledAtEveryBoundary does not
// meet.
var wholeLife = []stage{
	{kind: "PullImage", cause: (*whole).put, dead: (*whole).noted},
	{kind: "PostStart", right: (*whole).runs},
	{kind: "ProjectVolume", cause: (*whole).reconfigure, right: (*whole).reconfigured},
	{kind: "ResizeCgroup", cause: (*whole).grow},
	{kind: "ResizeContainer", right: (*whole).grown},
	{kind: "PreStop", cause: func(w *whole) { w.drop(w.name) }, right: (*whole).ended},
}

// TestKilledAllThroughAWholeLife kills the agent at each action of a life that
// has more than one container's start and end in it: first after each, then
// before each.
func TestKilledAllThroughAWholeLife(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.Versions() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			n := start(t, options{host: hosts.Options{Version: v}, tags: []string{"crashpoints"}})
			for _, moment := range []string{"after", "before"} {
				w := n.whole(moment)
				watch := n.vigil(nil, n.compare)
				for _, s := range wholeLife {
					w.killedAt(moment, s)
				}
				watch.end()
			}
		})
	}
}

func (w *whole) killedAt(moment string, s stage) {
	w.Helper()
	point := moment + " " + s.kind + " "
	w.relaunch("BERTH_CRASH=" + point)
	if s.cause != nil {
		s.cause(w)
	}
	if !w.diesOr("half a minute to pass", func() bool { return false }) || !strings.HasPrefix(w.died(), point) {
		w.Fatalf("the agent died at %q, and was to die %q", w.died(), point)
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
		w.Fatalf("killed at %s", w.died())
	}
}

// whole makes the pod, and the registry that has its image.
func (n *node) whole(moment string) *whole {
	n.Helper()
	w := &whole{node: n, name: "whole-" + moment, repo: "berth/whole-" + moment}
	ref := "registry.example/" + w.repo + ":1"
	w.store = serve(n.T, ref, images.Bash)
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

func (w *whole) put() { w.Helper(); w.node.put(w.name, w.config, w.pod) }

// pulledBlobs are those that the registry was asked for.
func (w *whole) pulledBlobs() int { return w.store.Counts(w.repo).Blobs }

// noted looks at what the agent left behind when it died at the pull.
func (w *whole) noted() {
	w.Helper()
	st, err := w.host.Image.ImageStatus(w.Context(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: w.pod.Spec.Containers[0].Image}})
	w.must("image status", err)
	if after := strings.HasPrefix(w.died(), "after"); after != (st.Image != nil) {
		w.Errorf("the agent died %s, and the image is there: %v", w.died(), st.Image != nil)
	}
	w.blobs = w.pulledBlobs()
}

// runs: the image was pulled, once if the pull was over, the hook ran, and each
// container began one time.
func (w *whole) runs() {
	w.Helper()
	w.awaitRunning(w.name)
	w.once(w.name)
	if c := w.store.Counts(w.repo); c.Manifests == 0 || w.blobs > 0 && c.Blobs != w.blobs {
		w.Errorf("the registry was asked for %+v, and for %d blobs when the agent died", c, w.blobs)
	}
	if ran := w.ran(w.name, "postStart"); ran < 1 || ran > 2 {
		w.Errorf("postStart ran %d times", ran)
	}
	w.before, w.uid = w.living(w.name), string(w.pods()[w.name].UID)
}

func (w *whole) same() {
	w.Helper()
	w.stillLiving(w.before)
	w.once(w.name)
	if uid := string(w.pods()[w.name].UID); uid != w.uid {
		w.Errorf("the pod has the UID %s, had %s", uid, w.uid)
	}
}

func (w *whole) reconfigure() {
	w.Helper()
	w.awaitRunning(w.name)
	w.config.Data["key"] = "new"
	w.put()
}

// reconfigured: the containers see the new content, and of the old nothing is
// left.
func (w *whole) reconfigured() {
	w.Helper()
	dir := filepath.Join(w.agent.RootDir, "pods", w.uid, "volumes/kubernetes.io~configmap/config")
	w.until("the new content", func() bool {
		text, err := os.ReadFile(filepath.Join(dir, "key"))
		return err == nil && string(text) == "new"
	})
	for c, command := range map[string][]string{"main": {"cat", "/config/key"}, "second": {"/bin/testbox", "cat", "/config/key"}} {
		if got := w.exec(c, command...); got != "new" {
			w.Errorf("container %s sees %q", c, got)
		}
	}
	w.until("the old content to go", func() bool {
		entries, err := os.ReadDir(dir)
		return err == nil && len(entries) == 3 // ..data, what it leads to, key
	})
	w.awaitRunning(w.name)
	w.same()
}

func (w *whole) exec(container string, command ...string) string {
	w.Helper()
	out, err := w.agent.Command(w.Context(), append([]string{"exec", w.name, "-c", container, "--"}, command...)...).CombinedOutput()
	w.must(fmt.Sprintf("exec %v: %s", command, out), err)
	return strings.TrimSpace(string(out))
}

func (w *whole) grow() {
	w.Helper()
	w.awaitRunning(w.name)
	w.pod.Spec.Containers[0].Resources.Limits[corev1.ResourceMemory] = resource.MustParse("128Mi")
	w.pod.Spec.Containers[0].Resources.Requests[corev1.ResourceMemory] = resource.MustParse("96Mi")
	w.put()
}

// grown: the kernel limits the container and the pod to what is asked for, and
// the status says so.
func (w *whole) grown() {
	w.Helper()
	w.until("the resize to be over", func() bool {
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
	w.same()
}

// podLimit is the memory limit of the pod's own cgroup.
func (w *whole) podLimit() string {
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

// ended: the hook ran before the end, no container began again.
func (w *whole) ended() {
	w.Helper()
	w.gone()
	if ran := w.ran(w.name, "preStop"); ran < 1 || ran > 2 {
		w.Errorf("preStop ran %d times", ran)
	}
	for _, c := range []string{"main", "second"} {
		if ran := w.ran(w.name, c); ran != 1 {
			w.Errorf("%s really ran %d times", c, ran)
		}
	}
}
