package localworkloads

import (
	"errors"
	"reflect"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/rand"

	"berth/agent/source"
	"berth/podspec"
	"berth/workloads"
	"berth/workloads/cronjob"
	"berth/workloads/daemonset"
	"berth/workloads/deployment"
	"berth/workloads/job"
	"berth/workloads/statefulset"
	"berth/workloads/validation"
)

// errOutdated ends the execution of a decision: an object is no longer as it was decided about.
var errOutdated = errors.New("observation outdated")

// decide returns the decision about an object. failed is the write of the last decision that failed, or nil.
func (e *Reconciler) decide(o workloads.Object, now time.Time, failed *workloads.WriteError) outcome {
	switch w := o.(type) {
	case *appsv1.Deployment:
		in := deployment.Input{
			Now: now, Deployment: w, ReplicaSets: list[*appsv1.ReplicaSet](e.store, w.Namespace), WriteError: failed,
		}
		for _, set := range controlledBy[*appsv1.ReplicaSet](e.store, w) {
			in.Pods = append(in.Pods, controlledBy[*corev1.Pod](e.store, set)...)
		}
		return outcomeOf(w, deployment.Decide(in))
	case *appsv1.ReplicaSet:
		return e.decideReplicaSet(w, now, failed)
	case *appsv1.StatefulSet:
		d := statefulset.Decide(statefulset.Input{
			Now: now, Set: w, Pods: list[*corev1.Pod](e.store, w.Namespace), WriteError: failed,
			Revisions: list[*appsv1.ControllerRevision](e.store, w.Namespace),
		})
		if at := e.notBefore(w.UID); now.Before(at) { // only the status
			d.Writes, d.Wake = nil, workloads.Earlier(d.Wake, at)
		}
		return outcomeOf(w, d)
	case *appsv1.DaemonSet:
		node := e.Node()
		in := daemonset.Input{
			Now: now, Set: w, Nodes: []*corev1.Node{node}, Pods: list[*corev1.Pod](e.store, w.Namespace),
			Revisions: list[*appsv1.ControllerRevision](e.store, w.Namespace), WriteError: failed,
		}
		if at := e.notBefore(w.UID); now.Before(at) {
			in.RetryAfter = map[string]time.Time{node.Name: at}
		}
		return outcomeOf(w, daemonset.Decide(in))
	case *batchv1.Job:
		return e.decideJob(w, now, failed)
	case *batchv1.CronJob:
		in := cronjob.Input{
			Now: now, CronJob: w, Jobs: controlledBy[*batchv1.Job](e.store, w), Location: e.Location,
			WriteError: failed, ScheduleChanged: e.store.entries[keyOf(w)].ScheduleChanged,
		}
		if zone := w.Spec.TimeZone; zone != nil {
			in.Location, in.LocationError = time.LoadLocation(*zone)
		}
		return outcomeOf(w, cronjob.Decide(in))
	}
	return outcome{}
}

// decideJob combines the decisions of the two controllers of Jobs.
func (e *Reconciler) decideJob(j *batchv1.Job, now time.Time, failed *workloads.WriteError) outcome {
	in := job.Input{Now: now, Job: j, Pods: controlledBy[*corev1.Pod](e.store, j), WriteError: failed}
	if kept, found := e.backoffs[j.UID]; found {
		in.Backoff = &kept
	}
	out := outcomeOf(j, job.Decide(in))
	out.backoff = new(job.NextBackoff(in))
	if failed == nil && len(out.writes) == 0 && out.status == nil {
		ttl := job.DecideTTL(now, j)
		out.writes, out.wake = ttl.Writes, workloads.Earlier(out.wake, ttl.Wake)
	}
	return out
}

// outcomeOf converts a decision about an object.
func outcomeOf[T workloads.Object, S any](o T, d workloads.Decision[S]) outcome {
	out := outcome{writes: d.Writes, annotations: d.Annotations, events: d.Events, wake: d.Wake}
	if d.Status != nil {
		next := copyOf(o)
		if status, ok := statusOf(next).(*S); ok {
			*status = *d.Status
		}
		out.status = next
	}
	return out
}

// statusOf returns a pointer to the status of an object, or nil for a kind without one.
func statusOf(o workloads.Object) any {
	switch x := o.(type) {
	case *appsv1.Deployment:
		return &x.Status
	case *appsv1.ReplicaSet:
		return &x.Status
	case *appsv1.StatefulSet:
		return &x.Status
	case *appsv1.DaemonSet:
		return &x.Status
	case *batchv1.Job:
		return &x.Status
	case *batchv1.CronJob:
		return &x.Status
	case *corev1.Pod:
		return &x.Status
	}
	return nil
}

// withStatus sets the status of another object of the same kind.
func withStatus(o, from workloads.Object) workloads.Object {
	if to, status := reflect.ValueOf(statusOf(o)), reflect.ValueOf(statusOf(from)); to.IsValid() {
		to.Elem().Set(status.Elem())
	}
	return o
}

// apply executes writes in order and returns the first failure.
func (e *Reconciler) apply(owner workloads.Object, writes []workloads.Write, now time.Time) *workloads.WriteError {
	for _, w := range writes {
		name, err := e.write(owner, w, now)
		if err != nil {
			if !apierrors.IsAlreadyExists(err) && !errors.Is(err, errOutdated) {
				e.record(owner, w.Failure, err.Error())
			}
			return &workloads.WriteError{Write: w, Err: err}
		}
		e.record(owner, w.Success, name)
	}
	return nil
}

// write executes one write and returns the name of the written object.
func (e *Reconciler) write(owner workloads.Object, w workloads.Write, now time.Time) (string, error) {
	if w.Verb == workloads.Create {
		return e.create(owner, w.Object, now)
	}
	k := keyOf(w.Object)
	current := e.store.get(k)
	if current == nil || current.GetUID() != w.Object.GetUID() {
		if w.Verb == workloads.Delete {
			return k.name, nil // it is gone already
		}
		return "", errOutdated
	}
	switch w.Verb {
	case workloads.Update, workloads.Patch:
		next := withStatus(copyOf(w.Object), current)
		next.SetDeletionTimestamp(current.GetDeletionTimestamp())
		next.SetDeletionGracePeriodSeconds(current.GetDeletionGracePeriodSeconds())
		e.store.update(next, now)
	case workloads.Delete:
		// A finished Job after its TTL: its file must not start it again.
		if file := e.store.entries[k].File; file != nil {
			e.deleteExpired(k, now)
			break
		}
		e.store.remove(k, now)
	case workloads.Create:
	}
	return k.name, nil
}

// create stores a new object with a name and a UID derived from its owner.
func (e *Reconciler) create(owner, template workloads.Object, now time.Time) (string, error) {
	ownerKey := keyOf(owner)
	entry := e.store.entries[ownerKey]
	number := strconv.FormatInt(entry.Children, 10)
	if entry.Incarnation > 0 {
		number += "/" + strconv.FormatInt(entry.Incarnation, 10)
	}
	o := copyOf(template)
	if o.GetName() == "" {
		suffix := rand.SafeEncodeString(string(source.DerivedUID(string(owner.GetUID()), "name", number)))
		o.SetName(o.GetGenerateName() + compact(suffix))
	}
	k := keyOf(o)
	if e.store.entries[k] != nil {
		if o.GetGenerateName() != "" && template.GetName() == "" {
			entry.Children++ // the next number has another name
			e.store.dirty[ownerKey] = true
			return "", errOutdated
		}
		return "", apierrors.NewAlreadyExists(schema.GroupResource{Resource: k.kind}, k.name)
	}
	o.SetUID(source.DerivedUID(string(owner.GetUID()), k.kind, k.name, number))
	o.SetCreationTimestamp(metav1.NewTime(now.Truncate(time.Second)))
	o.SetGeneration(1)
	switch c := o.(type) {
	case *corev1.Pod:
		e.complete(c, now)
		if errs := podspec.Validate(c); len(errs) > 0 {
			return "", apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, c.Name, errs)
		}
	case *batchv1.Job:
		if rules, ok := validation.RulesFor(schema.GroupKind{Group: "batch", Kind: "Job"}); ok {
			rules.Default(c)
			rules.Prepare(c)
		}
	}
	entry.Children++
	e.store.dirty[ownerKey] = true
	e.store.put(o, true)
	if k.kind == "Pod" {
		e.byUID[o.GetUID()], e.created[o.GetUID()] = k, now
	}
	return k.name, nil
}

// suffixLength is the length of the generated part of a name, as upstream.
const suffixLength = 5

// compact shortens a generated suffix.
func compact(s string) string {
	out := make([]byte, 0, suffixLength)
	for i := 0; i < len(s) && len(out) < suffixLength; i++ {
		if s[i] != '-' {
			out = append(out, s[i])
		}
	}
	return string(out)
}
