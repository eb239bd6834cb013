package deployment

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/workloads"
)

// Kind is the kind of the objects that Decide decides about.
var Kind = metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}

// Input is what a decision depends on.
type Input struct {
	Now        time.Time
	Deployment *appsv1.Deployment
	// ReplicaSets are all ReplicaSets of the namespace. Those of other owners are not touched, but show that a name is
	// taken.
	ReplicaSets []*appsv1.ReplicaSet
	// Pods are the pods that the ReplicaSets of the Deployment control. Only the Recreate strategy needs them. Other
	// pods are ignored.
	Pods []*corev1.Pod
	// WriteError is the error that ended the execution of the previous decision, if one did.
	WriteError *workloads.WriteError
}

type decision = workloads.Decision[appsv1.DeploymentStatus]

// Decide returns what the Deployment needs next. The Deployment is defaulted and valid.
func Decide(in Input) workloads.Decision[appsv1.DeploymentStatus] {
	d := in.Deployment
	if in.WriteError != nil {
		return afterError(in)
	}
	if equality.Semantic.DeepEqual(d.Spec.Selector, &metav1.LabelSelector{}) {
		return selectingAll(d)
	}
	selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	if err != nil {
		return decision{} // not possible: the selector is validated
	}
	owned, claims := workloads.Claim(d, Kind, selector, in.ReplicaSets)
	r := newRollout(in, owned)
	switch {
	case len(claims) > 0:
		r.out.Writes = claims
		r.finish(r.calculateStatus())
	case d.DeletionTimestamp != nil:
		r.finish(r.calculateStatus())
	default:
		r.decide()
	}
	return r.out
}

// selectingAll refuses a Deployment with an empty selector.
func selectingAll(d *appsv1.Deployment) (out decision) {
	out.Events = []workloads.Event{{
		Type: corev1.EventTypeWarning, Reason: "SelectingAll",
		Message: "This deployment is selecting all pods. A non-empty selector is required.",
	}}
	if d.Status.ObservedGeneration < d.Generation {
		out.Status = d.Status.DeepCopy()
		out.Status.ObservedGeneration = d.Generation
	}
	return out
}

// afterError returns the status after a failed write.
func afterError(in Input) (out decision) {
	d, failed := in.Deployment, in.WriteError
	rs, isReplicaSet := failed.Write.Object.(*appsv1.ReplicaSet)
	if failed.Write.Verb != workloads.Create || !isReplicaSet {
		return out
	}
	status := d.Status.DeepCopy()
	switch {
	case apierrors.IsAlreadyExists(failed.Err):
		if !nameTaken(in, rs.Name) {
			return out // not observed yet
		}
		status.CollisionCount = incremented(status.CollisionCount)
	case apierrors.HasStatusCause(failed.Err, corev1.NamespaceTerminatingCause), !hasProgressDeadline(d):
		return out
	default:
		setCondition(status, condition(in.Now, appsv1.DeploymentProgressing, corev1.ConditionFalse,
			reasonCreateError, fmt.Sprintf("Failed to create new replica set %q: %v", rs.Name, failed.Err)))
	}
	if !equality.Semantic.DeepEqual(status, &d.Status) {
		out.Status = status
	}
	return out
}

// nameTaken reports whether a ReplicaSet of this name exists that is not the Deployment's for its template.
func nameTaken(in Input, name string) bool {
	return slices.ContainsFunc(in.ReplicaSets, func(rs *appsv1.ReplicaSet) bool {
		return rs.Name == name &&
			!(metav1.IsControlledBy(rs, in.Deployment) && sameTemplate(&rs.Spec.Template, &in.Deployment.Spec.Template))
	})
}

func incremented(n *int32) *int32 {
	out := int32(1)
	if n != nil {
		out += *n
	}
	return &out
}

// rollout is a decision in progress.
type rollout struct {
	in       Input
	d        *appsv1.Deployment
	replicas int32 // the desired number
	newSet   *replicaSet
	old      []*replicaSet // oldest first
	// conditions are those of the status, with what the steps so far have changed.
	conditions     []appsv1.DeploymentCondition
	collisionCount *int32
	revision       string // of the new ReplicaSet
	deleted        []*appsv1.ReplicaSet
	out            decision
}

// replicaSet is a ReplicaSet of the Deployment. Its fields are what it is to become.
type replicaSet struct {
	appsv1.ReplicaSet
	observed       *appsv1.ReplicaSet // nil: it is created
	changed        bool
	ownAnnotations bool // the annotations are not those of observed
}

// newRollout finds the new ReplicaSet: the oldest with the template of the Deployment.
func newRollout(in Input, owned []*appsv1.ReplicaSet) *rollout {
	d := in.Deployment
	r := &rollout{
		in: in, d: d, replicas: replicasOf(d.Spec.Replicas), conditions: slices.Clone(d.Status.Conditions),
		collisionCount: d.Status.CollisionCount,
	}
	for _, rs := range owned {
		r.old = append(r.old, &replicaSet{ReplicaSet: *rs, observed: rs})
	}
	slices.SortFunc(r.old, byAge)
	for i, rs := range r.old {
		if sameTemplate(&rs.Spec.Template, &d.Spec.Template) {
			r.newSet, r.old = rs, slices.Delete(r.old, i, i+1)
			break
		}
	}
	return r
}

func (r *rollout) decide() {
	r.checkPaused()
	if r.newSet != nil {
		r.syncNewReplicaSet()
	}
	if r.d.Spec.Paused {
		r.scaleExisting()
		r.cleanUp()
		r.write()
		r.finish(r.calculateStatus())
		return
	}
	if r.scalingEvent() && r.scaleExisting() {
		r.write()
		r.finish(r.calculateStatus())
		return
	}
	if r.d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		r.recreate()
	} else {
		r.rollingUpdate()
	}
	r.write()
	r.finish(r.progressStatus())
}

// write turns the changes of the ReplicaSets into writes: the creation first, then the updates, then the deletions.
func (r *rollout) write() {
	all := r.all()
	for _, rs := range all {
		if rs.observed == nil {
			r.out.Writes = append(r.out.Writes, createWrite(rs))
		}
	}
	for _, rs := range all {
		if rs.observed != nil && rs.changed {
			from := replicasOf(rs.observed.Spec.Replicas)
			r.out.Writes = append(r.out.Writes, workloads.Write{
				Verb: workloads.Update, Object: &rs.ReplicaSet, Success: scaled(rs, from),
			})
		}
	}
	for _, rs := range r.deleted {
		r.out.Writes = append(r.out.Writes, workloads.Write{Verb: workloads.Delete, Object: rs})
	}
}

func createWrite(rs *replicaSet) workloads.Write {
	return workloads.Write{
		Verb: workloads.Create, Object: &rs.ReplicaSet, Success: scaled(rs, 0),
		Failure: workloads.Event{
			Type: corev1.EventTypeWarning, Reason: reasonCreateError,
			Message: fmt.Sprintf("Failed to create new replica set %q: ", rs.Name) + "%s",
		},
	}
}

// scaled returns the event about a changed number of replicas.
func scaled(rs *replicaSet, from int32) (event workloads.Event) {
	to := replicasOf(rs.Spec.Replicas)
	direction := "up"
	switch {
	case to == from:
		return event
	case to < from:
		direction = "down"
	}
	return workloads.Event{
		Type: corev1.EventTypeNormal, Reason: "ScalingReplicaSet",
		Message: fmt.Sprintf("Scaled %s replica set %s from %d to %d", direction, rs.Name, from, to),
	}
}

// finish completes the decision by the status and the revision, if they changed.
func (r *rollout) finish(status appsv1.DeploymentStatus) {
	if r.revision != "" && r.d.Annotations[RevisionAnnotation] != r.revision {
		r.out.Annotations = map[string]string{RevisionAnnotation: r.revision}
	}
	if r.out.Annotations != nil || !equality.Semantic.DeepEqual(status, r.d.Status) {
		r.out.Status = &status
	}
}

// all returns all ReplicaSets: the new one first, then the old ones, oldest first.
func (r *rollout) all() []*replicaSet {
	if r.newSet == nil {
		return r.old
	}
	return append([]*replicaSet{r.newSet}, r.old...)
}

// active returns those of the ReplicaSets that are to have replicas.
func active(sets []*replicaSet) (out []*replicaSet) {
	for _, rs := range sets {
		if rs.size() > 0 {
			out = append(out, rs)
		}
	}
	return out
}

// size returns the number of replicas that a ReplicaSet is to have.
func (rs *replicaSet) size() int32 { return replicasOf(rs.Spec.Replicas) }

// available returns the number of available replicas that stay when the ReplicaSet has been scaled to its size.
func (rs *replicaSet) available() int32 { return min(rs.size(), rs.Status.AvailableReplicas) }

func total(sets []*replicaSet, count func(*replicaSet) int32) (sum int32) {
	for _, rs := range sets {
		sum += count(rs)
	}
	return sum
}

func replicasOf(n *int32) int32 {
	if n == nil {
		return 1
	}
	return *n
}

func byAge(a, b *replicaSet) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
}

// oldPodsExist reports whether a pod of an old ReplicaSet may still run. The observed pods alone do not tell, because
// they may be older than the ReplicaSets.
func (r *rollout) oldPodsExist() bool {
	old := map[types.UID]bool{}
	for _, rs := range r.old {
		s := &rs.Status
		if s.Replicas > 0 || s.ObservedGeneration < rs.Generation ||
			s.TerminatingReplicas != nil && *s.TerminatingReplicas > 0 {
			return true
		}
		old[rs.UID] = true
	}
	return slices.ContainsFunc(r.in.Pods, func(pod *corev1.Pod) bool {
		ref := metav1.GetControllerOfNoCopy(pod)
		return ref != nil && old[ref.UID] && !workloads.Terminated(pod)
	})
}
