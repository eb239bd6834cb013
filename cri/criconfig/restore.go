package criconfig

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/agent/plan"
)

// podMeta is the part of a pod that its labels do not hold and that terminating the pod needs.
type podMeta struct {
	Labels        map[string]string    `json:"labels,omitempty"`
	Priority      *int32               `json:"priority,omitempty"`
	PriorityClass string               `json:"priorityClassName,omitempty"`
	RestartPolicy corev1.RestartPolicy `json:"restartPolicy,omitempty"`
	RuntimeClass  *string              `json:"runtimeClassName,omitempty"`
}

func podMetaOf(pod *corev1.Pod) podMeta {
	return podMeta{
		Labels:        pod.Labels,
		Priority:      pod.Spec.Priority,
		PriorityClass: pod.Spec.PriorityClassName,
		RestartPolicy: pod.Spec.RestartPolicy,
		RuntimeClass:  pod.Spec.RuntimeClassName,
	}
}

// PodFromSandbox returns enough of a sandbox's pod to terminate it when its spec is lost: identity,
// grace period, host network, and for the given containers their order, stop signal and preStop
// hook. It is nil for a sandbox that berth did not create. The pod must not be used to start
// anything.
func PodFromSandbox(labels, annotations map[string]string, containers ...ContainerLabels) *corev1.Pod {
	s, ok := ParseSandbox(labels, annotations)
	if !ok {
		return nil
	}
	meta := decodeJSON[podMeta](annotations[annotationPodMeta])
	pod := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Name: s.Name, Namespace: s.Namespace, UID: s.UID,
			Labels: meta.Labels, Annotations: unreserved(annotations),
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

// addContainers adds each container name once, as its newest attempt, at its position in the spec.
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
					TerminationMessagePath:   c.TerminationMessagePath,
					TerminationMessagePolicy: c.TerminationMessagePolicy}),
			})
		default:
			pod.Spec.Containers = append(pod.Spec.Containers, c)
		}
	}
}

// container returns the known part of the spec that the container was created from.
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
