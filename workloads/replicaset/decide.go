package replicaset

import (
	"errors"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"berth/workloads"
)

// The kinds of the objects that are decided about.
var (
	Kind                      = metav1.TypeMeta{APIVersion: "apps/v1", Kind: "ReplicaSet"}
	ReplicationControllerKind = metav1.TypeMeta{APIVersion: "v1", Kind: "ReplicationController"}
)

// Input is what a decision depends on.
type Input struct {
	Now time.Time
	Set *appsv1.ReplicaSet
	// Pods are the pods that the set controls, and those of its namespace without a controller. Others are ignored.
	Pods []*corev1.Pod
	// Related are the pods of all ReplicaSets with the same controller as the set, its own included. They matter only
	// for the order of deletions. Empty if the set has no controller.
	Related []*corev1.Pod
	// WriteError is the error that ended the execution of the previous decision, if one did.
	WriteError *workloads.WriteError
}

type decision = workloads.Decision[appsv1.ReplicaSetStatus]

// Decide returns what the ReplicaSet needs next. The ReplicaSet is defaulted and valid.
func Decide(in Input) workloads.Decision[appsv1.ReplicaSetStatus] { return decide(in, Kind) }

func decide(in Input, kind metav1.TypeMeta) (out decision) {
	selector, err := metav1.LabelSelectorAsSelector(in.Set.Spec.Selector)
	if err != nil {
		return out // not possible: the selector is validated
	}
	active, terminating := divide(in.Set, selector, in.Pods)
	owned, claims := workloads.Claim(in.Set, kind, selector, active)
	if failed := in.WriteError; failed != nil {
		if failed.Write.Verb != workloads.Create && failed.Write.Verb != workloads.Delete {
			return out
		}
		status, _ := status(in, owned, terminating)
		if errors.Is(failed, workloads.ErrTruncated) { // all writes before it have succeeded
			status.Conditions = withoutFailure(status.Conditions)
		} else {
			setFailure(&status, in, len(owned))
		}
		return decision{Status: &status}
	}
	if out.Writes = claims; len(claims) == 0 && in.Set.DeletionTimestamp == nil {
		out.Writes = manage(in, kind, owned)
	}
	status, wake := status(in, owned, terminating)
	status.Conditions = withoutFailure(status.Conditions)
	out.Status, out.Wake = &status, wake
	return out
}

// divide returns the pods that are active, and the terminating ones of the set.
func divide(set *appsv1.ReplicaSet, selector labels.Selector, pods []*corev1.Pod) (active, terminating []*corev1.Pod) {
	for _, pod := range pods {
		switch {
		case workloads.Active(pod):
			active = append(active, pod)
		case !workloads.Terminated(pod) && metav1.IsControlledBy(pod, set) && selector.Matches(labels.Set(pod.Labels)):
			terminating = append(terminating, pod)
		}
	}
	return active, terminating
}

// manage returns the writes that create missing pods or delete surplus ones.
func manage(in Input, kind metav1.TypeMeta, owned []*corev1.Pod) (writes []workloads.Write) {
	want := int(replicas(in.Set))
	for range want - len(owned) {
		writes = append(writes, workloads.Write{
			Verb:    workloads.Create,
			Object:  workloads.PodFromTemplate(in.Set, kind, &in.Set.Spec.Template),
			Success: event(corev1.EventTypeNormal, "SuccessfulCreate", "Created pod: %s"),
			Failure: event(corev1.EventTypeWarning, "FailedCreate", "Error creating: %s"),
		})
	}
	surplus := len(owned) - want
	if surplus <= 0 {
		return writes
	}
	if want > 0 {
		owned = NewRanking(in.Related, in.Now).Sorted(owned)
	}
	for _, pod := range owned[:surplus] {
		writes = append(writes, workloads.Write{
			Verb: workloads.Delete, Object: pod,
			Success: event(corev1.EventTypeNormal, "SuccessfulDelete", "Deleted pod: %s"),
			Failure: event(corev1.EventTypeWarning, "FailedDelete", "Error deleting: %s"),
		})
	}
	return writes
}

func event(kind, reason, message string) workloads.Event {
	return workloads.Event{Type: kind, Reason: reason, Message: message}
}

// status counts the pods. wake is when the next ready pod becomes available.
func status(in Input, owned, terminating []*corev1.Pod) (out appsv1.ReplicaSetStatus, wake time.Time) {
	out = appsv1.ReplicaSetStatus{
		Replicas: int32(len(owned)), TerminatingReplicas: new(int32(len(terminating))),
		ObservedGeneration: in.Set.Generation, Conditions: slices.Clone(in.Set.Status.Conditions),
	}
	template := labels.SelectorFromSet(in.Set.Spec.Template.Labels)
	for _, pod := range owned {
		if template.Matches(labels.Set(pod.Labels)) {
			out.FullyLabeledReplicas++
		}
		if workloads.ReadySince(pod) != nil {
			out.ReadyReplicas++
		}
		available, at := workloads.Available(pod, in.Set.Spec.MinReadySeconds, in.Now)
		if available {
			out.AvailableReplicas++
		}
		wake = workloads.Earlier(wake, at)
	}
	return out, wake
}

// setFailure adds the condition ReplicaFailure after a failed write, unless it is present: the first failure stays
// until a sync succeeds.
func setFailure(s *appsv1.ReplicaSetStatus, in Input, active int) {
	if slices.ContainsFunc(s.Conditions, isFailure) {
		return
	}
	reason, message := "", in.WriteError.Error()
	if in.WriteError.Write.Verb == workloads.Delete {
		message = "unable to delete pods: " + message
	}
	switch want := int(replicas(in.Set)); {
	case active < want:
		reason = "FailedCreate"
	case active > want:
		reason = "FailedDelete"
	}
	s.Conditions = append(s.Conditions, appsv1.ReplicaSetCondition{
		Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue, Reason: reason,
		Message: message, LastTransitionTime: metav1.NewTime(in.Now),
	})
}

func withoutFailure(conditions []appsv1.ReplicaSetCondition) []appsv1.ReplicaSetCondition {
	return slices.DeleteFunc(conditions, isFailure)
}

func isFailure(c appsv1.ReplicaSetCondition) bool { return c.Type == appsv1.ReplicaSetReplicaFailure }

func replicas(set *appsv1.ReplicaSet) int32 {
	if set.Spec.Replicas == nil {
		return 1
	}
	return *set.Spec.Replicas
}
