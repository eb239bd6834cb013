package statefulset

import (
	"maps"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"berth/workloads"
)

// replica is an ordinal of the set.
type replica struct {
	ordinal  int
	pod      *corev1.Pod             // nil: missing
	revision string                  // of the pod to create
	template *corev1.PodTemplateSpec // of the pod to create
}

func start(set *appsv1.StatefulSet) int {
	if set.Spec.Ordinals == nil {
		return 0
	}
	return int(set.Spec.Ordinals.Start)
}

func replicas(set *appsv1.StatefulSet) int32 {
	if set.Spec.Replicas == nil {
		return 1
	}
	return *set.Spec.Replicas
}

func podName(set *appsv1.StatefulSet, ordinal int) string {
	return set.Name + "-" + strconv.Itoa(ordinal)
}

// ordinal returns the ordinal of a pod, or -1 if its name is not that of a pod of the set.
func ordinal(set *appsv1.StatefulSet, pod *corev1.Pod) int {
	suffix, ok := strings.CutPrefix(pod.Name, set.Name+"-")
	n, err := strconv.ParseInt(suffix, 10, 32)
	if !ok || err != nil || n < 0 || pod.Name != podName(set, int(n)) {
		return -1
	}
	return int(n)
}

func podRevision(pod *corev1.Pod) string { return pod.Labels[appsv1.StatefulSetRevisionLabel] }

// newPod returns the pod of a missing replica.
func newPod(set *appsv1.StatefulSet, r *replica) *corev1.Pod {
	pod := workloads.PodFromTemplate(set, Kind, r.template)
	pod.Name = podName(set, r.ordinal)
	maps.Copy(pod.Labels, identityLabels(pod.Name, r.ordinal))
	pod.Labels[appsv1.StatefulSetRevisionLabel] = r.revision
	pod.Spec.Hostname, pod.Spec.Subdomain = pod.Name, set.Spec.ServiceName
	setClaims(set, pod, r.ordinal)
	return pod
}

func identityLabels(name string, ordinal int) map[string]string {
	return map[string]string{appsv1.StatefulSetPodNameLabel: name, appsv1.PodIndexLabel: strconv.Itoa(ordinal)}
}

// withIdentity returns a copy of a pod that lacks the label with its name, with its identity labels restored, or nil
// if the pod has that label. Hostname and subdomain of a pod are immutable.
func withIdentity(pod *corev1.Pod, ordinal int) *corev1.Pod {
	if pod.Labels[appsv1.StatefulSetPodNameLabel] == pod.Name {
		return nil
	}
	out := pod.DeepCopy()
	if out.Labels == nil {
		out.Labels = map[string]string{}
	}
	maps.Copy(out.Labels, identityLabels(pod.Name, ordinal))
	return out
}
