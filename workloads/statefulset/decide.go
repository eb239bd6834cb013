package statefulset

import (
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"berth/workloads"
)

// AnnotationReplaceBrokenPods with the value "true" makes a rolling update replace pods that are not available without
// waiting for them.
const AnnotationReplaceBrokenPods = "berth.dev/replace-broken-pods"

// claimRetry is the time until the next check of a claim that must be deleted first. Usually its deletion is observed
// before.
const claimRetry = 5 * time.Second

// Kind is the type of the owner in owner references.
var Kind = metav1.TypeMeta{APIVersion: "apps/v1", Kind: "StatefulSet"}

// Input is what a decision depends on. The objects are those of the set's namespace. Decide does not modify them.
type Input struct {
	Now time.Time
	Set *appsv1.StatefulSet
	// Pods holds at least the pods that match the selector and those that the set controls.
	Pods []*corev1.Pod
	// Revisions holds all ControllerRevisions: the name of a new one must not be that of another owner's.
	Revisions []*appsv1.ControllerRevision
	// Claims holds at least the claims named <template>-<set>-<ordinal>.
	Claims []*corev1.PersistentVolumeClaim
	// WriteError is the error that ended the writes of the last decision.
	WriteError *workloads.WriteError
}

// decision collects the result.
type decision struct {
	Input

	claims   map[string]*corev1.PersistentVolumeClaim
	current  *appsv1.ControllerRevision
	update   *appsv1.ControllerRevision
	replicas []replica // of the desired ordinals, ascending
	excess   []replica // of other ordinals, descending
	deleted  map[types.UID]bool

	writes  []workloads.Write
	events  []workloads.Event
	wake    time.Time
	updated int32 // pods of the current revision that are deleted for the update
}

// Decide returns what the StatefulSet needs next. An invalid selector or an unreadable revision gives an empty
// decision, the latter with an event.
func Decide(in Input) workloads.Decision[appsv1.StatefulSetStatus] {
	selector, err := metav1.LabelSelectorAsSelector(in.Set.Spec.Selector)
	if err != nil {
		return workloads.Decision[appsv1.StatefulSetStatus]{}
	}
	d := &decision{Input: in, claims: map[string]*corev1.PersistentVolumeClaim{}, deleted: map[types.UID]bool{}}
	for _, c := range in.Claims {
		d.claims[c.Name] = c
	}
	pods := d.claimPods(selector)
	revisions, adoptions := workloads.ClaimRevisions(in.Set, Kind, selector, in.Revisions)
	d.writes = append(d.writes, adoptions...)
	status := in.Set.Status.DeepCopy()
	revisions, err = d.chooseRevisions(revisions, status)
	if err == nil {
		err = d.sortPods(pods)
	}
	if err != nil {
		return workloads.Decision[appsv1.StatefulSetStatus]{Events: []workloads.Event{{Type: corev1.EventTypeWarning,
			Reason: "FailedRevision", Message: err.Error()}}}
	}
	if in.Set.DeletionTimestamp == nil {
		d.reconcile()
		d.truncate(revisions, pods)
	} else {
		d.writes = nil
	}
	return workloads.Decision[appsv1.StatefulSetStatus]{
		Writes: d.writes, Status: d.status(pods, status), Events: d.events, Wake: d.wake,
	}
}

// reconcile executes steps 2 to 4 of the package documentation.
func (d *decision) reconcile() {
	if d.createReplicas() {
		return
	}
	for _, r := range d.excess {
		d.adjustClaims(r.ordinal, r.pod, false)
	}
	if d.deleteExcess() {
		return
	}
	if d.Set.Spec.UpdateStrategy.Type != appsv1.OnDeleteStatefulSetStrategyType {
		d.rollOut()
	}
}

// claimPods returns the members of the set. Pods whose names are not of the form <set>-<ordinal> are no members, and
// are released if the set controls them.
func (d *decision) claimPods(selector labels.Selector) []*corev1.Pod {
	var members, others []*corev1.Pod
	for _, p := range d.Pods {
		if ordinal(d.Set, p) >= 0 {
			members = append(members, p)
		} else {
			others = append(others, p)
		}
	}
	members, writes := workloads.Claim(d.Set, Kind, selector, members)
	_, releases := workloads.Claim(d.Set, Kind, labels.Nothing(), others)
	d.writes = append(append(d.writes, writes...), releases...)
	return members
}

// write plans a write of a pod with upstream's events.
func (d *decision) write(verb workloads.Verb, pod *corev1.Pod) {
	word, reason := "create", "Create"
	switch verb {
	case workloads.Update, workloads.Patch:
		word, reason = "update", "Update"
	case workloads.Delete:
		word, reason = "delete", "Delete"
	case workloads.Create:
	}
	d.writes = append(d.writes, workloads.Write{Verb: verb, Object: pod,
		Success: workloads.Event{Type: corev1.EventTypeNormal, Reason: "Successful" + reason,
			Message: fmt.Sprintf("%s Pod %s in StatefulSet %s successful", word, pod.Name, d.Set.Name)},
		Failure: workloads.Event{Type: corev1.EventTypeWarning, Reason: "Failed" + reason,
			Message: fmt.Sprintf("%s Pod %s in StatefulSet %s failed error: %%s", word, pod.Name, d.Set.Name)},
	})
}

// failed records that a pod cannot be created or updated, and plans another try.
func (d *decision) failed(word, pod string, err error) {
	reason := "FailedCreate"
	if word == "update" {
		reason = "FailedUpdate"
	}
	d.events = append(d.events, workloads.Event{Type: corev1.EventTypeWarning, Reason: reason,
		Message: fmt.Sprintf("%s Pod %s in StatefulSet %s failed error: %v", word, pod, d.Set.Name, err)})
	d.wake = workloads.Earlier(d.wake, d.Now.Add(claimRetry))
}

func (d *decision) ordered() bool {
	return d.Set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement
}

// unavailable reports whether a pod is not running, not ready for minReadySeconds, or terminating.
func (d *decision) unavailable(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil || !d.available(pod)
}

// available reports whether a pod is running and has been ready for minReadySeconds. It sets when to
// decide again if the pod only has to stay ready.
func (d *decision) available(pod *corev1.Pod) bool {
	if pod.Status.Phase != corev1.PodRunning {
		return false
	}
	available, at := workloads.Available(pod, d.Set.Spec.MinReadySeconds, d.Now)
	d.wake = workloads.Earlier(d.wake, at)
	return available
}
