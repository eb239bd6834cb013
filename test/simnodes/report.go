package simnodes

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Serve reports that the container runs and is ready.
func Serve(pod *corev1.Pod) {
	now := metav1.Now()
	report(pod, corev1.PodRunning, true, corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}})
}

// ServeUnready reports that the container runs and is not ready.
func ServeUnready(pod *corev1.Pod) {
	now := metav1.Now()
	report(pod, corev1.PodRunning, false, corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}})
}

// Succeed reports that the container has exited with 0.
func Succeed(pod *corev1.Pod) {
	report(pod, corev1.PodSucceeded, false, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		Reason: "Completed", FinishedAt: metav1.Now()}})
}

// Fail reports that the container has exited with 1.
func Fail(pod *corev1.Pod) {
	report(pod, corev1.PodFailed, false, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		ExitCode: 1, Reason: "Error", FinishedAt: metav1.Now()}})
}

// report sets the status of a pod with one container.
func report(pod *corev1.Pod, phase corev1.PodPhase, ready bool, state corev1.ContainerState) {
	now, condition := metav1.Now(), corev1.ConditionFalse
	if ready {
		condition = corev1.ConditionTrue
	}
	conditions := pod.Status.Conditions[:0]
	for _, c := range pod.Status.Conditions {
		if c.Type != corev1.PodReady {
			conditions = append(conditions, c)
		}
	}
	pod.Status.Conditions = append(conditions, corev1.PodCondition{Type: corev1.PodReady, Status: condition,
		LastTransitionTime: now})
	pod.Status.Phase, pod.Status.StartTime = phase, &now
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: pod.Spec.Containers[0].Name,
		Image: pod.Spec.Containers[0].Image, Ready: ready, State: state}}
}
