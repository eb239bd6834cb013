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

// podKind is what becomes of a pod of the hour.
type podKind int

const (
	serves  podKind = iota // one of the churn's kinds, with volumes of many kinds and a memory limit
	exposed                // the same with a port of the host
	rich                   // an init container, a sidecar and two containers
	works                  // ends well
	fails                  // ends badly, for good
	crashes                // ends badly, and begins again
	poor                   // its image is not to be had
	fates
)

// desiredPod is a pod of the hour as it is wanted now.
type desiredPod struct {
	incarnation
	fate     podKind
	config   int   // what its ConfigMap says; 0: it has none
	memory   int64 // MiB that its container may have; 0: no limit
	restarts int32 // that its status tells at least: something outside struck its containers
}

const (
	fewest, most = 3, 8 // pods beside the untouched ones
	nowhere      = "registry.example/berth/none:1"
)

func (w *desiredPod) canStart() bool { return w.fate != poor }

func (w *desiredPod) configText() string { return "is at " + strconv.Itoa(w.config) }

// witness is what witnessOf makes of its pod.
func (w *desiredPod) witness() string {
	if w.edit > 0 {
		return fmt.Sprintf("%s.%d", w.name, w.edit)
	}
	return w.name
}

// mismatch says how a pod is not as it is wanted; empty: it is.
func (w *desiredPod) mismatch(p *corev1.Pod) string {
	if p.DeletionTimestamp != nil {
		return "it is being deleted"
	}
	if witnessPrefix(p) != w.witness() {
		return "it is not yet the pod of the last edit"
	}
	var main corev1.ContainerStatus
	if len(p.Status.ContainerStatuses) > 0 {
		main = p.Status.ContainerStatuses[0]
	}
	var good bool
	switch w.fate {
	case works:
		good = p.Status.Phase == corev1.PodSucceeded
	case fails:
		good = p.Status.Phase == corev1.PodFailed
	case crashes:
		good = main.State.Terminated != nil || main.LastTerminationState.Terminated != nil
	case poor:
		good = main.State.Waiting != nil && (main.State.Waiting.Reason == "ErrImagePull" || main.State.Waiting.Reason == "ImagePullBackOff")
	default:
		good = isReady(p) && p.Spec.Containers[0].Image == w.image
	}
	switch {
	case !good:
		return fmt.Sprintf("it is %s, its first container %+v", p.Status.Phase, main.State)
	case main.RestartCount < w.restarts:
		return fmt.Sprintf("%d restarts, and its containers were struck: at least %d", main.RestartCount, w.restarts)
	case w.memory > 0 && (main.Resources == nil || main.Resources.Limits.Memory().Value() != w.memory<<20):
		return fmt.Sprintf("its container has %+v and is to have %d MiB", main.Resources, w.memory)
	}
	return ""
}

// configMapFile is what the file of a pod's ConfigMap says.
func (h *longChurn) configMapFile(p *corev1.Pod) string {
	text, _ := os.ReadFile(filepath.Join(h.agent.RootDir, "pods", string(p.UID), "volumes/kubernetes.io~configmap/config/key"))
	return string(text)
}

// step changes what is wanted.
func (h *longChurn) step() {
	h.Helper()
	names := slices.Sorted(maps.Keys(h.desired))
	if len(names) < fewest || len(names) < most && h.rand.IntN(2) == 0 {
		h.create(fmt.Sprintf("churn-%d", h.log.came+1), podKind(h.rand.IntN(int(fates))))
		return
	}
	w := h.desired[names[h.rand.IntN(len(names))]]
	const changes = 5
	switch what := h.rand.IntN(changes + 1); {
	case what == changes || w.fate > rich: // those that end or wait are not edited
		h.remove(w.name)
		return
	case what == 0 || w.fate == rich:
		w.config++
		h.edit(w, "ConfigMap")
	case what == 1:
		if w.image == images.TestboxRef {
			w.image = otherImage
		} else {
			w.image = images.TestboxRef
		}
		h.excuseRestart(w)
		h.edit(w, "image, in place")
	case what == 2:
		w.edit++
		w.restarts = 0
		h.edit(w, "another pod of the name")
	default:
		w.memory = 64 + 32*(w.memory/32%3) // 64, 96, 128 in turn
		h.edit(w, "resize")
	}
}

// create wants one more pod.
func (h *longChurn) create(name string, f podKind) {
	h.Helper()
	h.log.came++
	w := &desiredPod{incarnation: incarnation{name: name, kind: h.rand.IntN(kinds), image: images.TestboxRef}, fate: f}
	for _, other := range h.desired {
		if other.fate == exposed && f == exposed {
			w.fate = serves // there is one port
		}
	}
	if w.fate <= rich {
		w.config = 1
	} else {
		h.excuseRestart(w) // it is Ready for as long as it runs
	}
	if w.fate < rich {
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

// excuseRestart has the vigil not mind that an incarnation is not Ready any more, or begins
// again.
func (h *longChurn) excuseRestart(w *desiredPod) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.edits[w.witness()]++
}

// objects are the pod and what it names.
func (h *longChurn) objects(w *desiredPod) []any {
	never := func(p *corev1.Pod) []any {
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
		return []any{p}
	}
	switch w.fate {
	case works:
		return never(h.simple(w.name, "print", "works", ",", "sleep", "300ms"))
	case fails:
		return never(h.simple(w.name, "exit", "3"))
	case crashes:
		return []any{h.simple(w.name, "sleep", "200ms", ",", "exit", "1")}
	case poor:
		p := h.simple(w.name)
		p.Spec.Containers[0].Image = nowhere
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

// podWithVolumes is one of the churn's pods with volumes of many kinds and a memory limit.
func (h *longChurn) podWithVolumes(w *desiredPod) []any {
	p := h.pod(&w.incarnation)
	m := &p.Spec.Containers[0]
	ref := corev1.LocalObjectReference{Name: w.name}
	names := &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{Path: "name", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}}
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
	// In one order, or each edit would make another pod.
	slices.SortFunc(p.Spec.Volumes, func(a, b corev1.Volume) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(m.VolumeMounts, func(a, b corev1.VolumeMount) int { return strings.Compare(a.MountPath, b.MountPath) })
	limit := corev1.ResourceList{corev1.ResourceMemory: *resource.NewQuantity(w.memory<<20, resource.BinarySI)}
	m.Resources = corev1.ResourceRequirements{Limits: limit, Requests: limit.DeepCopy()}
	if w.kind%2 == 1 {
		m.StartupProbe = &corev1.Probe{
			ProbeHandler:  corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(8080)}},
			PeriodSeconds: 1, FailureThreshold: 60,
		}
	}
	if w.fate == exposed {
		m.Ports = []corev1.ContainerPort{{ContainerPort: 8080, HostPort: int32(h.port)}}
	}
	podspec.SetDefaults(p)
	meta := metav1.ObjectMeta{Name: w.name, Namespace: "default"}
	return []any{
		&corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: meta, Data: map[string]string{"key": w.configText()}},
		&corev1.Secret{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, ObjectMeta: meta, StringData: map[string]string{"key": "secret"}},
		p,
	}
}
