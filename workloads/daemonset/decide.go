package daemonset

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/workloads"
)

// labelGeneration holds the template generation of a pod, if the set has the annotation with it.
const labelGeneration = "pod-template-generation"

// Kind is the type of the owner in owner references.
var Kind = metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"}

// Input is what a decision depends on. Pods and revisions are those of the set's namespace. Decide does not modify it.
type Input struct {
	Now time.Time
	Set *appsv1.DaemonSet
	// Nodes holds all nodes.
	Nodes []*corev1.Node
	// Pods holds at least the pods that match the selector and those that the set controls.
	Pods []*corev1.Pod
	// Revisions holds all ControllerRevisions: the name of a new one must not be that of another owner's.
	Revisions []*appsv1.ControllerRevision
	// RetryAfter holds, by the name of the node, when a failed pod may be deleted so that it is created again.
	RetryAfter map[string]time.Time
	// WriteError is the error that ended the writes of the last decision.
	WriteError *workloads.WriteError
}

// place is a node, or the name of one that does not exist, with the pods that belong to it, oldest first.
type place struct {
	name      string
	node      bool // whether the node exists
	run, stay bool
	pods      []*corev1.Pod
	created   bool // whether the decision creates a pod
}

// decision collects the result.
type decision struct {
	Input

	places  []*place // ordered by name
	hash    string
	deleted map[types.UID]bool

	writes []workloads.Write
	// deletions come before creations: a rejected creation must not prevent them.
	deletions, creations []workloads.Write
	events               []workloads.Event
	wake                 time.Time
}

// Decide returns what the DaemonSet needs next. A set with an invalid selector or one that is being deleted gets an
// empty decision.
func Decide(in Input) workloads.Decision[appsv1.DaemonSetStatus] {
	selector, err := metav1.LabelSelectorAsSelector(in.Set.Spec.Selector)
	if err != nil || in.Set.DeletionTimestamp != nil {
		return workloads.Decision[appsv1.DaemonSetStatus]{}
	}
	if selector.Empty() {
		return workloads.Decision[appsv1.DaemonSetStatus]{Events: []workloads.Event{{Type: corev1.EventTypeWarning,
			Reason:  "SelectingAll",
			Message: "This daemon set is selecting all pods. A non-empty selector is required."}}}
	}
	d := &decision{Input: in, deleted: map[types.UID]bool{}}
	pods, writes := workloads.Claim(in.Set, Kind, selector, in.Pods)
	revisions, adoptions := workloads.ClaimRevisions(in.Set, Kind, selector, in.Revisions)
	d.writes = append(writes, adoptions...)
	d.assign(pods)
	old, collided, err := d.chooseRevision(revisions, pods)
	switch {
	case err != nil:
		return workloads.Decision[appsv1.DaemonSetStatus]{Events: []workloads.Event{{Type: corev1.EventTypeWarning,
			Reason: "FailedRevision", Message: err.Error()}}}
	case collided:
		// The hash depends on the count, so the count is stored before the revision is created.
		status := in.Set.Status.DeepCopy()
		count := int32(1)
		if status.CollisionCount != nil {
			count += *status.CollisionCount
		}
		status.CollisionCount = &count
		return workloads.Decision[appsv1.DaemonSetStatus]{Status: status}
	}
	d.manage()
	if in.Set.Spec.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType {
		d.rollOut()
	}
	d.writes = slices.Concat(d.writes, d.deletions, d.creations)
	d.truncate(old, pods)
	return workloads.Decision[appsv1.DaemonSetStatus]{
		Writes: d.writes, Status: d.status(), Events: d.events, Wake: d.wake,
	}
}

// assign finds the places. Terminating pods that have terminated no longer occupy their node.
func (d *decision) assign(pods []*corev1.Pod) {
	byName := map[string]*place{}
	for _, node := range d.Nodes {
		p := &place{name: node.Name, node: true}
		p.run, p.stay = ShouldRun(d.Set, node)
		byName[node.Name] = p
		d.places = append(d.places, p)
	}
	for _, pod := range pods {
		name := NodeOf(pod)
		if name == "" || pod.DeletionTimestamp != nil && workloads.Terminated(pod) {
			continue
		}
		if byName[name] == nil {
			byName[name] = &place{name: name, stay: pod.Spec.NodeName != ""}
			d.places = append(d.places, byName[name])
		}
		byName[name].pods = append(byName[name].pods, pod)
	}
	slices.SortFunc(d.places, func(a, b *place) int { return strings.Compare(a.name, b.name) })
	for _, p := range d.places {
		slices.SortStableFunc(p.pods, older)
	}
}

// older orders pods: scheduled ones first, then the oldest.
func older(a, b *corev1.Pod) int {
	if as, bs := a.Spec.NodeName != "", b.Spec.NodeName != ""; as != bs {
		if as {
			return -1
		}
		return 1
	}
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
}

// manage executes step 2.
func (d *decision) manage() {
	for _, p := range d.places {
		switch {
		case p.run && len(p.pods) == 0:
			d.create(p)
		case p.stay:
			running, waiting := d.deleteTerminated(p)
			d.keepOne(running)
			// With maxSurge, a terminating pod is replaced at once, and a failed one when its back-off ends.
			if len(running) == 0 && p.run && !waiting && d.maxSurge(1) > 0 {
				d.create(p)
			}
		default:
			for _, pod := range p.pods {
				d.delete(pod)
			}
		}
	}
}

// deleteTerminated deletes the failed and succeeded pods of a place and returns the others that are not terminating.
// waiting is true if a failed pod stays until its back-off ends.
func (d *decision) deleteTerminated(p *place) (running []*corev1.Pod, waiting bool) {
	for _, pod := range p.pods {
		switch {
		case pod.DeletionTimestamp != nil:
		case pod.Status.Phase == corev1.PodFailed:
			if at := d.RetryAfter[p.name]; d.Now.Before(at) {
				d.wake, waiting = workloads.Earlier(d.wake, at), true
				continue
			}
			d.event(corev1.EventTypeWarning, "FailedDaemonPod",
				"Found failed daemon pod %s/%s on node %s, will try to kill it", pod, p)
			d.delete(pod)
		case pod.Status.Phase == corev1.PodSucceeded:
			d.event(corev1.EventTypeNormal, "SucceededDaemonPod",
				"Found succeeded daemon pod %s/%s on node %s, will try to delete it", pod, p)
			d.delete(pod)
		default:
			running = append(running, pod)
		}
	}
	return running, waiting
}

func (d *decision) event(kind, reason, format string, pod *corev1.Pod, p *place) {
	d.events = append(d.events, workloads.Event{Type: kind, Reason: reason,
		Message: fmt.Sprintf(format, pod.Namespace, pod.Name, p.name)})
}

// keepOne deletes the excess pods of a place: all but one or, with maxSurge, all but one old pod that is ready and one
// new pod that is not available yet. Of several pods, an available one stays, else the oldest.
func (d *decision) keepOne(running []*corev1.Pod) {
	if len(running) <= 1 {
		return
	}
	slices.SortStableFunc(running, func(a, b *corev1.Pod) int { // the available ones first
		switch av, bv := d.available(a), d.available(b); {
		case av == bv:
			return 0
		case av:
			return -1
		}
		return 1
	})
	if d.maxSurge(1) == 0 {
		for _, pod := range running[1:] {
			d.delete(pod)
		}
		return
	}
	var updated, old *corev1.Pod
	for _, pod := range running {
		switch {
		case d.isUpdated(pod) && updated == nil:
			updated = pod
		case !d.isUpdated(pod) && old == nil:
			old = pod
		default:
			d.delete(pod)
		}
	}
	if updated != nil && old != nil && (workloads.ReadySince(old) == nil || d.available(updated)) {
		d.delete(old)
	}
}

// create plans a pod on a node, at most once per decision.
func (d *decision) create(p *place) {
	if p.created {
		return
	}
	p.created = true
	pod := workloads.PodFromTemplate(d.Set, Kind, &d.Set.Spec.Template)
	pod.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] = d.hash
	if g := d.Set.Annotations[appsv1.DeprecatedTemplateGeneration]; g != "" {
		pod.Labels[labelGeneration] = g
	}
	pod.Spec.Tolerations = withTolerations(&pod.Spec)
	pod.Spec.Affinity = pinned(pod.Spec.Affinity, p.name)
	d.creations = append(d.creations, workloads.Write{Verb: workloads.Create, Object: pod,
		Success: workloads.Event{Type: corev1.EventTypeNormal, Reason: "SuccessfulCreate", Message: "Created pod: %s"},
		Failure: workloads.Event{Type: corev1.EventTypeWarning, Reason: "FailedCreate", Message: "Error creating: %s"}})
}

// delete plans the deletion of a pod that is not terminating, at most once per decision.
func (d *decision) delete(pod *corev1.Pod) {
	if pod.DeletionTimestamp != nil || d.deleted[pod.UID] {
		return
	}
	d.deleted[pod.UID] = true
	d.deletions = append(d.deletions, workloads.Write{Verb: workloads.Delete, Object: pod,
		Success: workloads.Event{Type: corev1.EventTypeNormal, Reason: "SuccessfulDelete", Message: "Deleted pod: %s"},
		Failure: workloads.Event{Type: corev1.EventTypeWarning, Reason: "FailedDelete", Message: "Error deleting: %s"}})
}

// isUpdated reports whether a pod has the newest template.
func (d *decision) isUpdated(pod *corev1.Pod) bool {
	g := d.Set.Annotations[appsv1.DeprecatedTemplateGeneration]
	return pod.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] == d.hash || g != "" && pod.Labels[labelGeneration] == g
}

// available reports whether a pod has been ready for minReadySeconds. It sets when to decide again if the pod
// only has to stay ready.
func (d *decision) available(pod *corev1.Pod) bool {
	available, at := workloads.Available(pod, d.Set.Spec.MinReadySeconds, d.Now)
	d.wake = workloads.Earlier(d.wake, at)
	return available
}
