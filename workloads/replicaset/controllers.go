package replicaset

import (
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/workloads"
)

// ControllerInput is what a decision about a ReplicationController depends on. The fields are those of Input.
type ControllerInput struct {
	Now        time.Time
	Controller *corev1.ReplicationController
	Pods       []*corev1.Pod
	WriteError *workloads.WriteError
}

// DecideController returns what the ReplicationController needs next. It is defaulted and valid.
func DecideController(in ControllerInput) (out workloads.Decision[corev1.ReplicationControllerStatus]) {
	d := decide(Input{
		Now: in.Now, Set: asReplicaSet(in.Controller), Pods: in.Pods, WriteError: in.WriteError,
	}, ReplicationControllerKind)
	out.Writes, out.Wake = d.Writes, d.Wake
	if d.Status != nil {
		out.Status = new(controllerStatus(d.Status))
	}
	return out
}

// asReplicaSet returns a ReplicaSet that shares memory with the ReplicationController.
func asReplicaSet(rc *corev1.ReplicationController) *appsv1.ReplicaSet {
	out := &appsv1.ReplicaSet{
		ObjectMeta: rc.ObjectMeta,
		Spec: appsv1.ReplicaSetSpec{
			Replicas: rc.Spec.Replicas, MinReadySeconds: rc.Spec.MinReadySeconds,
			Selector: &metav1.LabelSelector{MatchLabels: rc.Spec.Selector},
		},
	}
	if rc.Spec.Template != nil {
		out.Spec.Template = *rc.Spec.Template
	}
	for _, c := range rc.Status.Conditions {
		out.Status.Conditions = append(out.Status.Conditions, appsv1.ReplicaSetCondition{
			Type: appsv1.ReplicaSetConditionType(c.Type), Status: c.Status, LastTransitionTime: c.LastTransitionTime,
			Reason: c.Reason, Message: c.Message,
		})
	}
	return out
}

// controllerStatus converts a status. ReplicationControllers do not count terminating pods.
func controllerStatus(s *appsv1.ReplicaSetStatus) corev1.ReplicationControllerStatus {
	out := corev1.ReplicationControllerStatus{
		Replicas: s.Replicas, FullyLabeledReplicas: s.FullyLabeledReplicas, ReadyReplicas: s.ReadyReplicas,
		AvailableReplicas: s.AvailableReplicas, ObservedGeneration: s.ObservedGeneration,
	}
	for _, c := range s.Conditions {
		out.Conditions = append(out.Conditions, corev1.ReplicationControllerCondition{
			Type: corev1.ReplicationControllerConditionType(c.Type), Status: c.Status,
			LastTransitionTime: c.LastTransitionTime, Reason: c.Reason, Message: c.Message,
		})
	}
	return out
}
