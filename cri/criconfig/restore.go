package criconfig

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/agent/plan"
)

// podMeta is the part of a pod's spec that labels do not hold and that ending
// the pod needs.
type podMeta struct {
	Labels        map[string]string    `json:"labels,omitempty"`
	Priority      *int32               `json:"priority,omitempty"`
	PriorityClass string               `json:"priorityClassName,omitempty"`
	RestartPolicy corev1.RestartPolicy `json:"restartPolicy,omitempty"`
	RuntimeClass  *string              `json:"runtimeClassName,omitempty"`
}

func metaOf(pod *corev1.Pod) podMeta {
	return podMeta{
		Labels:        pod.Labels,
		Priority:      pod.Spec.Priority,
		PriorityClass: pod.Spec.PriorityClassName,
		RestartPolicy: pod.Spec.RestartPolicy,
		RuntimeClass:  pod.Spec.RuntimeClassName,
	}
}

// PodFromSandbox gives enough of the pod that a sandbox was made for to end it
// when nobody remembers it: identity, grace, host network, and for the given
// containers their order, stop signal and preStop hook. It is nil for a sandbox
// that is not ours. It must not be used to start anything.
func PodFromSandbox(labels, annotations map[string]string, containers ...ContainerLabels) *corev1.Pod {
	s, ok := ParseSandbox(labels, annotations)
	if !ok {
		return nil
	}
	meta := decoded[podMeta](annotations[annotationPodMeta])
	pod := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Name: s.Name, Namespace: s.Namespace, UID: s.UID,
			Labels: meta.Labels, Annotations: passed(annotations),
		},
		Spec: corev1.PodSpec{
			HostNetwork:                   s.HostNetwork,
			TerminationGracePeriodSeconds: s.GraceSeconds,
			Priority:                      meta.Priority,
			PriorityClassName:             meta.PriorityClass,
			RestartPolicy:                 meta.RestartPolicy,
			RuntimeClassName:              meta.RuntimeClass,
		},
	}
	addContainers(pod, containers)
	return pod
}

// addContainers puts each container name once, as its newest attempt, where it
// stood in the spec.
func addContainers(pod *corev1.Pod, containers []ContainerLabels) {
	sorted := slices.Clone(containers)
	slices.SortStableFunc(sorted, func(a, b ContainerLabels) int {
		if a.Position != b.Position {
			return a.Position - b.Position
		}
		return int(b.Attempt) - int(a.Attempt)
	})
	seen := map[string]bool{}
	for _, l := range sorted {
		if seen[l.Name] || l.UID != pod.UID {
			continue
		}
		seen[l.Name] = true
		c := l.container()
		switch l.Kind {
		case plan.Init, plan.Sidecar:
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
		case plan.Ephemeral:
			pod.Spec.EphemeralContainers = append(pod.Spec.EphemeralContainers, corev1.EphemeralContainer{
				EphemeralContainerCommon: corev1.EphemeralContainerCommon(corev1.Container{Name: c.Name, Image: c.Image,
					TerminationMessagePath: c.TerminationMessagePath, TerminationMessagePolicy: c.TerminationMessagePolicy}),
			})
		default:
			pod.Spec.Containers = append(pod.Spec.Containers, c)
		}
	}
}

// container is what is known of the spec that the container was made from.
func (l ContainerLabels) container() corev1.Container {
	c := corev1.Container{
		Name: l.Name, Image: l.Image, Ports: l.Ports,
		TerminationMessagePath:   l.TerminationMessagePath,
		TerminationMessagePolicy: l.TerminationMessagePolicy,
	}
	if l.PreStop != nil || l.StopSignal != nil {
		c.Lifecycle = &corev1.Lifecycle{PreStop: l.PreStop, StopSignal: l.StopSignal}
	}
	if l.Kind == plan.Sidecar {
		always := corev1.ContainerRestartPolicyAlways
		c.RestartPolicy = &always
	}
	return c
}
