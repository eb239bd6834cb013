package localworkloads

import (
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/agent/source"
	"berth/workloads"
	"berth/workloads/cronjob"
	"berth/workloads/deployment"
)

// restartedAt is the annotation of a pod template that "rollout restart" sets, as kubectl does.
const restartedAt = "kubectl.kubernetes.io/restartedAt"

// SetFiles sets the workloads of all files. The next Sync applies them.
func (e *Reconciler) SetFiles(files []source.Workload) {
	e.files = make(map[key]source.Workload, len(files))
	for _, w := range files {
		e.files[keyOf(w.Object)] = w
	}
}

// applyFiles creates, updates and deletes workloads so that they match the files.
func (e *Reconciler) applyFiles(now time.Time) {
	if e.files == nil {
		return
	}
	for _, k := range slices.SortedFunc(maps.Keys(e.files), key.compare) {
		e.applyFile(k, e.files[k], now)
	}
	var deleted sortedKeys
	for k, entry := range e.store.entries {
		if _, defined := e.files[k]; !defined && entry.File != nil {
			deleted.add(k)
		}
	}
	for _, k := range deleted {
		entry := e.store.entries[k]
		entry.ExpiredUID = ""
		if entry.object == nil {
			e.store.drop(k)
			continue
		}
		e.store.remove(k, now)
	}
}

func (e *Reconciler) applyFile(k key, w source.Workload, now time.Time) {
	entry := e.store.entries[k]
	switch {
	case entry == nil, entry.object == nil && entry.ExpiredUID != w.Object.GetUID():
		e.createFromFile(k, w, now)
	case entry.object == nil: // expired
	case entry.File == nil:
		if !e.conflicts[k] {
			e.conflicts[k] = true
			e.Log.Error("workload of a file has the name of another object", "kind", k.kind, "namespace", k.namespace,
				"name", k.name, "file", w.File)
		}
	case entry.object.GetDeletionTimestamp() != nil: // created again when it is deleted
	case entry.File.Joined != e.Joined:
		e.reportServer(k, entry)
		e.applyFile(k, w, now)
	case entry.object.GetUID() != w.Object.GetUID():
		entry.ExpiredUID = ""
		e.store.remove(k, now)
	case entry.File.Hash != w.Hash:
		e.updateFromFile(k, w, now)
	case entry.File.Path != w.File:
		entry.File.Path = w.File
		e.store.dirty[k] = true
	}
}

func (e *Reconciler) createFromFile(k key, w source.Workload, now time.Time) {
	o := copyOf(w.Object)
	o.SetCreationTimestamp(metav1.NewTime(now.Truncate(time.Second)))
	o.SetGeneration(1)
	delete(e.conflicts, k)
	e.Created(o.GetUID())
	e.store.entries[k] = &entry{
		Incarnation: e.store.removed, File: &fileRecord{Hash: w.Hash, Path: w.File},
	}
	e.store.put(o, true)
	e.Log.Info("workload created from file", "kind", k.kind, "namespace", k.namespace, "name", k.name, "file", w.File)
	if e.Joined {
		e.reportServer(k, e.store.entries[k])
	}
}

// NotOnServer is the reason of the event of a workload of a file on a node that has an API server.
const NotOnServer = "NotOnServer"

// reportServer reports once that the API server does not know a workload, or that the node has no server any more.
func (e *Reconciler) reportServer(k key, entry *entry) {
	file := *entry.File
	file.Joined = e.Joined
	entry.File = &file
	e.store.dirty[k] = true
	if !e.Joined {
		e.Log.Info("workload of file has no API server any more", "kind", k.kind, "namespace", k.namespace,
			"name", k.name, "file", file.Path)
		return
	}
	e.Log.Warn("API server does not know the workload of a file", "kind", k.kind, "namespace", k.namespace,
		"name", k.name, "file", file.Path)
	e.record(entry.object, workloads.Event{
		Type: corev1.EventTypeWarning, Reason: NotOnServer,
		Message: "The workload of " + file.Path + " keeps running on this node, but the API server knows only the " +
			"mirror pods of its pods. To hand it over, apply its manifest on the server and delete the file.",
	}, "")
}

// updateFromFile applies a changed file. All overrides end. A requested restart stays, because its end would restart
// the pods once more.
func (e *Reconciler) updateFromFile(k key, w source.Workload, now time.Time) {
	entry := e.store.entries[k]
	old, next := entry.object, copyOf(w.Object)
	next = withStatus(next, old)
	next.SetCreationTimestamp(old.GetCreationTimestamp())
	if revision, found := old.GetAnnotations()[deployment.RevisionAnnotation]; found {
		setAnnotation(next, deployment.RevisionAnnotation, revision)
	}
	was, _ := source.TemplateOf(old)
	is, _ := source.TemplateOf(next)
	if at, found := was.Annotations[restartedAt]; found {
		setTemplateAnnotation(is, restartedAt, at)
	}
	if len(entry.File.Overrides) > 0 {
		e.Log.Info("overrides ended because the file has changed", "kind", k.kind, "namespace", k.namespace,
			"name", k.name, "overrides", strings.Join(slices.Sorted(maps.Keys(entry.File.Overrides)), ","))
	}
	entry.File = &fileRecord{Hash: w.Hash, Path: w.File, Joined: entry.File.Joined}
	e.store.dirty[k] = true
	e.updateWorkload(next, now)
}

// updateWorkload replaces a workload that a user has changed, and ends its back-off: the changed pods may not fail.
func (e *Reconciler) updateWorkload(next workloads.Object, now time.Time) {
	k := keyOf(next)
	if cron, is := next.(*batchv1.CronJob); is {
		if old, was := e.store.get(k).(*batchv1.CronJob); was && cronjob.ScheduleDiffers(old, cron) {
			e.store.entries[k].ScheduleChanged = now
		}
	}
	e.store.update(next, now)
	e.endBackOff(next)
}

// endBackOff ends the back-off of a workload. That of a Deployment is the one of its ReplicaSet with the current
// template. Those with old templates keep theirs.
func (e *Reconciler) endBackOff(w workloads.Object) {
	delete(e.failures, w.GetUID())
	d, ok := w.(*appsv1.Deployment)
	if !ok {
		return
	}
	for _, set := range controlledBy[*appsv1.ReplicaSet](e.store, d) {
		_, failed := e.failures[set.UID]
		if failed && equality.Semantic.DeepEqual(revisionTemplate(set), &d.Spec.Template) {
			delete(e.failures, set.UID)
			e.queue.add(keyOf(set))
		}
	}
}

// deleteExpired deletes a finished Job of a file whose TTL has expired.
func (e *Reconciler) deleteExpired(k key, now time.Time) {
	e.store.entries[k].ExpiredUID = e.store.get(k).GetUID()
	e.store.dirty[k] = true
	e.store.remove(k, now)
}

func setAnnotation(o workloads.Object, name, value string) {
	annotations := maps.Clone(o.GetAnnotations())
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[name] = value
	o.SetAnnotations(annotations)
}

func setTemplateAnnotation(t *corev1.PodTemplateSpec, name, value string) {
	annotations := maps.Clone(t.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[name] = value
	t.Annotations = annotations
}

// replicasOf returns where the number of replicas of a workload is, or nil if it has none.
func replicasOf(o workloads.Object) **int32 {
	switch w := o.(type) {
	case *appsv1.Deployment:
		return &w.Spec.Replicas
	case *appsv1.StatefulSet:
		return &w.Spec.Replicas
	}
	return nil
}
