package crash

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"berth/podspec"
	"berth/test/images"
)

// podBehavior is the behavior of a pod in TestLongChurn.
type podBehavior int

const (
	serving      podBehavior = iota // a churn pod with volumes of many types and a memory limit
	hostPort                        // like serving, with a host port
	rich                            // an init container, a sidecar and two containers
	succeeds                        // exits with 0 and does not restart
	fails                           // exits with an error and does not restart
	crashLoops                      // exits with an error and restarts
	imageMissing                    // its image cannot be pulled
	numBehaviors
)

// desiredPod is the desired state of a pod in TestLongChurn.
type desiredPod struct {
	incarnation
	behavior podBehavior
	config   int   // revision of its ConfigMap; 0: no ConfigMap
	memory   int64 // memory limit of its container in MiB; 0: no limit
	restarts int32 // minimum restart count, because a fault killed its containers
}

const (
	minPods, maxPods = 3, 8 // number of pods besides the stable ones
	missingImage     = "registry.example/berth/none:1"
)

func (w *desiredPod) canStart() bool { return w.behavior != imageMissing }

func (w *desiredPod) configText() string { return "revision " + strconv.Itoa(w.config) }

// witness returns the witnessPrefix of its pod.
func (w *desiredPod) witness() string {
	if w.edit > 0 {
		return fmt.Sprintf("%s.%d", w.name, w.edit)
	}
	return w.name
}

// mismatch describes how a pod differs from its desired state. It returns an empty string if it does not.
func (w *desiredPod) mismatch(p *corev1.Pod) string {
	if p.DeletionTimestamp != nil {
		return "is being deleted"
	}
	if witnessPrefix(p) != w.witness() {
		return "has not been replaced by the last edit"
	}
	var main corev1.ContainerStatus
	if len(p.Status.ContainerStatuses) > 0 {
		main = p.Status.ContainerStatuses[0]
	}
	var good bool
	switch w.behavior {
	case succeeds:
		good = p.Status.Phase == corev1.PodSucceeded
	case fails:
		good = p.Status.Phase == corev1.PodFailed
	case crashLoops:
		good = main.State.Terminated != nil || main.LastTerminationState.Terminated != nil
	case imageMissing:
		good = main.State.Waiting != nil && (main.State.Waiting.Reason == "ErrImagePull" ||
			main.State.Waiting.Reason == "ImagePullBackOff")
	default:
		good = isReady(p) && p.Spec.Containers[0].Image == w.image
	}
	switch {
	case !good:
		return fmt.Sprintf("phase %s, first container %+v", p.Status.Phase, main.State)
	case main.RestartCount < w.restarts:
		return fmt.Sprintf("got %d restarts, want at least %d", main.RestartCount, w.restarts)
	case w.memory > 0 && (main.Resources == nil || main.Resources.Limits.Memory().Value() != w.memory<<20):
		return fmt.Sprintf("container resources: got %+v, want a memory limit of %d MiB", main.Resources, w.memory)
	}
	return ""
}

// configMapFile returns the content of the file in a pod's ConfigMap volume.
func (h *longChurn) configMapFile(p *corev1.Pod) string {
	text, _ := os.ReadFile(filepath.Join(h.agent.RootDir, "pods", string(p.UID),
		"volumes/kubernetes.io~configmap/config/key"))
	return string(text)
}

// step creates, edits or removes one random pod.
func (h *longChurn) step() {
	h.Helper()
	names := slices.Sorted(maps.Keys(h.desired))
	if len(names) < minPods || len(names) < maxPods && h.rand.IntN(2) == 0 {
		h.create(fmt.Sprintf("churn-%d", h.log.created+1), podBehavior(h.rand.IntN(int(numBehaviors))))
		return
	}
	w := h.desired[names[h.rand.IntN(len(names))]]
	const changes = 5
	switch what := h.rand.IntN(changes + 1); {
	case what == changes || w.behavior > rich: // pods that exit or wait are not edited
		h.remove(w.name)
		return
	case what == 0 || w.behavior == rich:
		w.config++
		h.edit(w, "ConfigMap")
	case what == 1:
		if w.image == images.TestboxRef {
			w.image = otherImage
		} else {
			w.image = images.TestboxRef
		}
		h.allowRestart(w)
		h.edit(w, "image in place")
	case what == 2:
		w.edit++
		w.restarts = 0
		h.edit(w, "replacement by a pod of the same name")
	default:
		w.memory = 64 + 32*(w.memory/32%3) // 64, 96, 128 in turn
		h.edit(w, "resize")
	}
}

// create creates a pod.
func (h *longChurn) create(name string, f podBehavior) {
	h.Helper()
	h.log.created++
	w := &desiredPod{incarnation: incarnation{name: name, kind: h.rand.IntN(kinds), image: images.TestboxRef},
		behavior: f}
	for _, other := range h.desired {
		if other.behavior == hostPort && f == hostPort {
			w.behavior = serving // there is only one port
		}
	}
	if w.behavior <= rich {
		w.config = 1
	} else {
		h.allowRestart(w) // the pod is Ready only while it runs
	}
	if w.behavior < rich {
		w.memory = 64
	}
	h.desired[name] = w
	h.put(name, h.objects(w)...)
}

func (h *longChurn) remove(name string) {
	h.Helper()
	delete(h.desired, name)
	h.removeManifest(name)
}

func (h *longChurn) edit(w *desiredPod, what string) {
	h.Helper()
	h.log.edits[what]++
	h.put(w.name, h.objects(w)...)
}

// allowRestart makes the statusWatch accept that the incarnation becomes not Ready or restarts.
func (h *longChurn) allowRestart(w *desiredPod) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.edits[w.witness()]++
}

// objects returns the pod and the objects that it refers to.
func (h *longChurn) objects(w *desiredPod) []any {
	never := func(p *corev1.Pod) []any {
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
		return []any{p}
	}
	switch w.behavior {
	case succeeds:
		return never(h.simple(w.name, "print", "works", ",", "sleep", "300ms"))
	case fails:
		return never(h.simple(w.name, "exit", "3"))
	case crashLoops:
		return []any{h.simple(w.name, "sleep", "200ms", ",", "exit", "1")}
	case imageMissing:
		p := h.simple(w.name)
		p.Spec.Containers[0].Image = missingImage
		return []any{p}
	case rich:
		all := h.rich(w.name)
		for _, o := range all {
			if m, ok := o.(*corev1.ConfigMap); ok {
				m.Data["key"] = w.configText()
			}
		}
		return all
	default:
		return h.podWithVolumes(w)
	}
}

// podWithVolumes returns a churn pod with volumes of many types and a memory limit.
func (h *longChurn) podWithVolumes(w *desiredPod) []any {
	p := h.pod(&w.incarnation)
	m := &p.Spec.Containers[0]
	ref := corev1.LocalObjectReference{Name: w.name}
	names := &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{Path: "name",
		FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}}
	for name, source := range map[string]corev1.VolumeSource{
		"config":   {ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: ref}},
		"secret":   {Secret: &corev1.SecretVolumeSource{SecretName: w.name}},
		"memory":   {EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}},
		"disk":     {EmptyDir: &corev1.EmptyDirVolumeSource{}},
		"downward": {DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: names.Items}},
		"all": {Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: ref}}, {DownwardAPI: names},
		}}},
	} {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: source})
		m.VolumeMounts = append(m.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: "/" + name})
	}
	m.VolumeMounts = append(m.VolumeMounts, corev1.VolumeMount{Name: "disk", MountPath: "/part", SubPath: "part/of"})
	// In a fixed order, because otherwise each edit would replace the pod.
	slices.SortFunc(p.Spec.Volumes, func(a, b corev1.Volume) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(m.VolumeMounts, func(a, b corev1.VolumeMount) int {
		return strings.Compare(a.MountPath, b.MountPath)
	})
	limit := corev1.ResourceList{corev1.ResourceMemory: *resource.NewQuantity(w.memory<<20, resource.BinarySI)}
	m.Resources = corev1.ResourceRequirements{Limits: limit, Requests: limit.DeepCopy()}
	if w.kind%2 == 1 {
		m.StartupProbe = &corev1.Probe{
			ProbeHandler:  corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(8080)}},
			PeriodSeconds: 1, FailureThreshold: 60,
		}
	}
	if w.behavior == hostPort {
		m.Ports = []corev1.ContainerPort{{ContainerPort: 8080, HostPort: int32(h.port)}}
	}
	podspec.SetDefaults(p)
	meta := metav1.ObjectMeta{Name: w.name, Namespace: "default"}
	return []any{
		&corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: meta,
			Data: map[string]string{"key": w.configText()}},
		&corev1.Secret{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, ObjectMeta: meta,
			StringData: map[string]string{"key": "secret"}},
		p,
	}
}
