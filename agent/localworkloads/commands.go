package localworkloads

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"berth/agent/source"
	"berth/workloads"
	"berth/workloads/deployment"
)

// The commands that override the file of a workload until it changes.
const (
	overrideScale = "scale"
	overrideUndo  = "undo"
	overridePause = "pause"
)

// edit changes a workload. change modifies a copy of it and the overrides.
func (e *Reconciler) edit(k source.WorkloadKey, now time.Time,
	change func(o, file workloads.Object, overrides map[string]string) error) error {
	storeKey := key{k.Kind, k.Namespace, k.Name}
	entry := e.store.entries[storeKey]
	if entry == nil || entry.object == nil || entry.File == nil {
		return notFound(k)
	}
	if entry.object.GetDeletionTimestamp() != nil {
		return apierrors.NewBadRequest(k.String() + " is being deleted")
	}
	file := *entry.File
	file.Overrides = maps.Clone(file.Overrides)
	if file.Overrides == nil {
		file.Overrides = map[string]string{}
	}
	next := copyOf(entry.object)
	if err := change(next, e.files[storeKey].Object, file.Overrides); err != nil {
		return err
	}
	entry.File = &file
	e.store.dirty[storeKey] = true
	e.updateWorkload(next, now)
	return nil
}

func notFound(k source.WorkloadKey) error {
	return apierrors.NewNotFound(schema.GroupResource{Resource: k.Kind}, k.Namespace+"/"+k.Name)
}

func unsupported(k source.WorkloadKey, what string) error {
	return apierrors.NewBadRequest(fmt.Sprintf("%s is not supported for a %s", what, k.Kind))
}

// Scale sets the number of replicas of a workload until its file changes.
func (e *Reconciler) Scale(k source.WorkloadKey, replicas int32, now time.Time) error {
	if replicas < 0 {
		return apierrors.NewBadRequest("the number of replicas must not be negative")
	}
	return e.edit(k, now, func(o, file workloads.Object, overrides map[string]string) error {
		at := replicasOf(o)
		if at == nil {
			return unsupported(k, "scale")
		}
		*at = &replicas
		delete(overrides, overrideScale)
		if in := replicasOf(file); in == nil || *in == nil || **in != replicas {
			overrides[overrideScale] = fmt.Sprintf("%d replicas", replicas)
		}
		return nil
	})
}

// Pause pauses or resumes the rollout of a Deployment until its file changes.
func (e *Reconciler) Pause(k source.WorkloadKey, paused bool, now time.Time) error {
	return e.edit(k, now, func(o, _ workloads.Object, overrides map[string]string) error {
		d, ok := o.(*appsv1.Deployment)
		switch {
		case !ok:
			return unsupported(k, "rollout pause")
		case d.Spec.Paused == paused && paused:
			return apierrors.NewBadRequest(k.String() + " is already paused")
		case d.Spec.Paused == paused:
			return apierrors.NewBadRequest(k.String() + " is not paused")
		}
		d.Spec.Paused = paused
		delete(overrides, overridePause)
		if paused {
			overrides[overridePause] = "rollout paused"
		}
		return nil
	})
}

// Restart replaces all pods of a workload by a rollout.
func (e *Reconciler) Restart(k source.WorkloadKey, now time.Time) error {
	return e.edit(k, now, func(o, _ workloads.Object, _ map[string]string) error {
		switch w := o.(type) {
		case *appsv1.Deployment:
			if w.Spec.Paused {
				return apierrors.NewBadRequest("can't restart paused deployment (run rollout resume first)")
			}
		case *appsv1.StatefulSet, *appsv1.DaemonSet:
		default:
			return unsupported(k, "rollout restart")
		}
		template, _ := source.TemplateOf(o)
		setTemplateAnnotation(template, restartedAt, now.UTC().Format(time.RFC3339Nano))
		return nil
	})
}

// errSkipped ends a command that would change nothing.
var errSkipped = errors.New("skipped")

// Undo restores the pod template of a revision until the file changes, and for a Deployment the annotations of that
// revision. Revision 0 is the previous one. It returns the restored revision, and whether it was skipped because the
// current template is already that of the revision.
func (e *Reconciler) Undo(k source.WorkloadKey, revision int64, now time.Time) (restored int64, skipped bool,
	err error) {
	err = e.edit(k, now, func(o, file workloads.Object, overrides map[string]string) error {
		d, isDeployment := o.(*appsv1.Deployment)
		if isDeployment && d.Spec.Paused {
			return apierrors.NewBadRequest("you cannot rollback a paused deployment; resume it first")
		}
		history := e.revisions(o)
		if len(history) == 0 {
			return unsupported(k, "rollout undo")
		}
		var found int
		switch {
		case revision == 0 && len(history) < 2:
			return apierrors.NewBadRequest("no last revision to roll back to")
		case revision == 0:
			found = len(history) - 2
		default:
			found = slices.IndexFunc(history, func(r Revision) bool { return r.Number == revision })
		}
		if found < 0 {
			return apierrors.NewBadRequest(fmt.Sprintf("unable to find specified revision %d in history", revision))
		}
		restored = history[found].Number
		template, _ := source.TemplateOf(o)
		if equality.Semantic.DeepEqual(template, history[found].Template) {
			return errSkipped
		}
		*template = *history[found].Template.DeepCopy()
		if isDeployment {
			d.Annotations = rolledBackAnnotations(d.Annotations, history[found].annotations)
		}
		delete(overrides, overrideUndo)
		if defined, _ := source.TemplateOf(file); defined == nil || !equality.Semantic.DeepEqual(template, defined) {
			overrides[overrideUndo] = fmt.Sprintf("template of revision %d", restored)
		}
		return nil
	})
	if errors.Is(err, errSkipped) {
		return restored, true, nil
	}
	return restored, false, err
}

// rolledBackAnnotations returns the annotations of a Deployment that is rolled back to a ReplicaSet. As with kubectl,
// they are those of the ReplicaSet, so that the history gets the right change cause, except those about the Deployment
// itself.
func rolledBackAnnotations(deployment, set map[string]string) map[string]string {
	ownOnly := func(name string) bool {
		return strings.HasPrefix(name, "deployment.kubernetes.io/") || name == corev1.LastAppliedConfigAnnotation ||
			name == appsv1.DeprecatedRollbackTo
	}
	out := map[string]string{}
	for name, value := range deployment {
		if ownOnly(name) {
			out[name] = value
		}
	}
	for name, value := range set {
		if !ownOnly(name) {
			out[name] = value
		}
	}
	return out
}

// Revision is one pod template of the history of a workload.
type Revision struct {
	Number      int64
	ChangeCause string
	Template    *corev1.PodTemplateSpec
	annotations map[string]string // of the ReplicaSet or ControllerRevision
}

// revisions returns the history of a workload, oldest first.
func (e *Reconciler) revisions(o workloads.Object) (out []Revision) {
	switch o.(type) {
	case *appsv1.Deployment:
		for _, set := range controlledBy[*appsv1.ReplicaSet](e.store, o) {
			n, err := strconv.ParseInt(set.Annotations[deployment.RevisionAnnotation], 10, 64)
			if err != nil {
				continue
			}
			out = append(out, Revision{n, set.Annotations[changeCause], revisionTemplate(set), set.Annotations})
		}
	case *appsv1.StatefulSet, *appsv1.DaemonSet:
		for _, r := range controlledBy[*appsv1.ControllerRevision](e.store, o) {
			template, err := workloads.RevisionTemplate(r)
			if err != nil {
				e.Log.Warn("controller revision unreadable", "name", r.Name, "err", err)
				continue
			}
			out = append(out, Revision{r.Revision, r.Annotations[changeCause], template, r.Annotations})
		}
	}
	slices.SortFunc(out, func(a, b Revision) int { return cmp.Compare(a.Number, b.Number) })
	return out
}

// revisionTemplate returns the template of the Deployment that a ReplicaSet was created for.
func revisionTemplate(set *appsv1.ReplicaSet) *corev1.PodTemplateSpec {
	template := set.Spec.Template.DeepCopy()
	delete(template.Labels, appsv1.DefaultDeploymentUniqueLabelKey)
	return template
}

// changeCause is the annotation that "rollout history" shows.
const changeCause = "kubernetes.io/change-cause"

// View is a workload as users see it.
type View struct {
	Object    workloads.Object
	File      string            // empty: another workload owns it
	Overrides map[string]string // by command
	Revisions []Revision        // oldest first
	Children  []workloads.Object
	// RetryAt is when a pod may be created again after Failures pods in a row have failed. Zero: now.
	RetryAt  time.Time
	Failures int
	// Unobserved is the number of pods of the workload, of an earlier run of the agent, that the agent has not reported
	// yet. No workload is decided about until all are.
	Unobserved int
	// Next is when the next decision is due although nothing changes. Zero: not needed.
	Next time.Time
}

// Views returns the workloads, ReplicaSets and the Jobs of CronJobs, ordered by kind, namespace and name.
func (e *Reconciler) Views() (out []View) {
	for k, entry := range e.store.entries {
		if entry.object == nil || k.kind == "Pod" || k.kind == "ControllerRevision" {
			continue
		}
		v := View{Object: typed(entry.object), Revisions: e.revisions(entry.object)}
		if entry.File != nil {
			v.File, v.Overrides = entry.File.Path, entry.File.Overrides
		}
		for _, child := range e.store.childrenOf(entry.object.GetUID()) {
			o := e.store.get(child)
			if e.unobserved[o.GetUID()] {
				v.Unobserved++
			}
			v.Children = append(v.Children, typed(o))
		}
		uid := entry.object.GetUID()
		v.RetryAt, v.Failures, v.Next = e.notBefore(uid), e.failures[uid].count, e.wakes[k]
		out = append(out, v)
	}
	slices.SortFunc(out, func(a, b View) int {
		return keyOf(a.Object).compare(keyOf(b.Object))
	})
	return out
}

// typed returns a copy of an object with apiVersion and kind.
func typed(o workloads.Object) workloads.Object {
	out := copyOf(o)
	kind := kindOf(o)
	out.GetObjectKind().SetGroupVersionKind(schema.FromAPIVersionAndKind(apiVersion(kind), kind))
	return out
}
