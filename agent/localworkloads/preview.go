package localworkloads

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/source"
	"berth/podspec"
	"berth/workloads"
)

// Preview is what the agent would do for a workload if its file had other contents, every new pod became ready and
// every pod of a Job succeeded.
type Preview struct {
	// Old is the current object, nil if there is none. New is the object of the file.
	Old, New workloads.Object
	// Expired reports that the Job of the file has finished and was deleted after its TTL.
	Expired bool
	// NameTaken reports that an object of another workload has the name, so that nothing is done.
	NameTaken bool
	Changed   bool              // the file is not the one that has been applied
	Fields    []string          // the changed fields of the specification
	Overrides map[string]string // the overrides that end, by command
	Steps     []Step
	Settled   bool      // false: there are more steps
	Next      time.Time // of a CronJob: the next schedule
}

// Replaced reports whether the workload is deleted with its pods and created again.
func (p Preview) Replaced() bool { return p.Old != nil && p.Old.GetUID() != p.New.GetUID() }

// Step is the creation or deletion of one pod.
type Step struct {
	Verb   workloads.Verb // Create or Delete
	Pod    *corev1.Pod
	Owners []types.UID // the object that controls the pod, its owner, and so on
	After  string      // what happens before; empty: nothing
}

// Limits of a preview.
const (
	maxPreviewRounds = 1000
	maxPreviewSteps  = 500
	maxPreviewTime   = time.Hour
)

// Preview is Reconciler.Preview for the workloads of files, with the names of pods that the node uses. Without files
// it is about the files as they are.
func (s *Source) Preview(files []source.Workload, now time.Time) []Preview {
	s.mu.Lock()
	reconciler := s.reconciler
	if reconciler == nil {
		reconciler = New(s.opt.Reconciler, nil)
	}
	copied := reconciler.clone()
	copied.files = maps.Clone(reconciler.files)
	s.mu.Unlock()
	if files == nil {
		files = slices.Collect(maps.Values(copied.files))
	}
	suffix := s.opt.NodeSuffix
	if suffix != "" {
		suffix = "-" + suffix
	}
	return copied.preview(files, now, suffix)
}

// Preview returns what would be done if the workloads were in the files instead of those with their names. Other
// workloads stay. It does not change the reconciler.
func (e *Reconciler) Preview(files []source.Workload, now time.Time) []Preview {
	return e.preview(files, now, "")
}

// preview is Preview with a suffix for the names of pods.
func (e *Reconciler) preview(files []source.Workload, now time.Time, suffix string) []Preview {
	out := make([]Preview, len(files))
	next := e.clone()
	next.files = maps.Clone(e.files)
	if next.files == nil {
		next.files = map[key]source.Workload{}
	}
	for i, w := range files {
		k := keyOf(w.Object)
		next.files[k] = w
		out[i] = e.compare(k, w)
	}
	s := simulation{reconciler: next, start: now, now: now, suffix: suffix, previews: out, seen: map[types.UID]bool{}}
	for i := range out {
		s.families = append(s.families, map[types.UID]bool{out[i].New.GetUID(): true})
		if out[i].Old != nil {
			s.families[i][out[i].Old.GetUID()] = true
		}
	}
	s.run()
	return out
}

// compare returns the differences between a workload and its current state.
func (e *Reconciler) compare(k key, w source.Workload) Preview {
	p := Preview{New: w.Object, Changed: true}
	entry := e.store.entries[k]
	switch {
	case entry == nil:
		return p
	case entry.object == nil:
		p.Expired = entry.ExpiredUID == w.Object.GetUID()
		p.Changed = !p.Expired
		return p
	case entry.File == nil:
		p.Old, p.NameTaken = entry.object, true
		return p
	}
	p.Old, p.Changed = entry.object, entry.File.Hash != w.Hash
	if p.Changed {
		p.Overrides = entry.File.Overrides
		p.Fields = podspec.Differences("spec", specField(p.Old), specField(w.Object))
	}
	return p
}

// specField returns the field Spec of a workload.
func specField(o workloads.Object) any {
	return reflect.ValueOf(o).Elem().FieldByName("Spec").Interface()
}

// clone returns a reconciler with the same state that records no events. Stored objects are immutable and shared.
func (e *Reconciler) clone() *Reconciler {
	out := New(Config{Node: e.Node, Location: e.Location, Joined: e.Joined}, nil)
	for k, entry := range e.store.entries {
		next := *entry
		if entry.File != nil {
			file := *entry.File
			next.File = &file
		}
		next.object = nil
		out.store.entries[k] = &next
		out.store.set(k, &next, entry.object)
		out.queue.add(k)
	}
	out.store.version, out.store.removed = e.store.version, e.store.removed
	out.failures, out.failed = maps.Clone(e.failures), maps.Clone(e.failed)
	out.backoffs = maps.Clone(e.backoffs)
	out.byUID, out.created = maps.Clone(e.byUID), maps.Clone(e.created)
	out.emitted = maps.Clone(e.emitted)
	out.orphansRemoved = e.orphansRemoved
	return out
}

// simulation runs a reconciler on a node where every pod becomes ready.
type simulation struct {
	reconciler *Reconciler
	start, now time.Time
	suffix     string // of the names of pods
	previews   []Preview
	families   []map[types.UID]bool // by preview: the UIDs of the workload and of what it has ever controlled
	seen       map[types.UID]bool   // pods before the first round, and those of steps
	deleting   map[types.UID]bool
	after      string
	steps      int
}

func (s *simulation) run() {
	s.deleting = map[types.UID]bool{}
	for _, pod := range list[*corev1.Pod](s.reconciler.store, "") {
		s.seen[pod.UID] = true
		s.deleting[pod.UID] = pod.DeletionTimestamp != nil
	}
	for range maxPreviewRounds {
		s.reconciler.Sync(s.now)
		before := s.steps
		s.collect()
		if s.steps > maxPreviewSteps {
			return
		}
		switch after := s.advance(); {
		case after != "":
			s.after = after
		case s.steps == before && !s.sleep():
			for i := range s.previews {
				s.previews[i].Settled = true
				s.previews[i].Next = s.reconciler.wakes[keyOf(s.previews[i].New)]
			}
			return
		}
	}
}

// collect adds the steps of one round.
func (s *simulation) collect() {
	for _, pod := range list[*corev1.Pod](s.reconciler.store, "") {
		verb := workloads.Create
		switch {
		case pod.DeletionTimestamp != nil && !s.deleting[pod.UID] && s.seen[pod.UID]:
			verb = workloads.Delete
			s.deleting[pod.UID] = true
		case s.seen[pod.UID]:
			continue
		}
		s.seen[pod.UID] = true
		owners := s.ownersOf(pod)
		for i, family := range s.families {
			if len(owners) > 0 && slices.ContainsFunc(owners, func(uid types.UID) bool { return family[uid] }) {
				s.steps++
				s.previews[i].Steps = append(s.previews[i].Steps, Step{
					Verb: verb, Pod: s.named(pod), Owners: owners, After: s.after,
				})
			}
		}
	}
}

// named returns a pod with the name that the node uses.
func (s *simulation) named(pod *corev1.Pod) *corev1.Pod {
	if s.suffix == "" {
		return pod
	}
	out := pod.DeepCopy()
	out.Name += s.suffix
	return out
}

// previewed reports whether one of the objects is a workload of the previews.
func (s *simulation) previewed(uids []types.UID) bool {
	return slices.ContainsFunc(s.families, func(family map[types.UID]bool) bool {
		return slices.ContainsFunc(uids, func(uid types.UID) bool { return family[uid] })
	})
}

// ownersOf returns the controllers of an object, the nearest first.
func (s *simulation) ownersOf(o workloads.Object) (out []types.UID) {
	for o != nil {
		ref := metav1.GetControllerOfNoCopy(o)
		if ref == nil {
			break
		}
		out = append(out, ref.UID)
		o = s.reconciler.store.get(key{ref.Kind, o.GetNamespace(), ref.Name})
	}
	return out
}

// advance lets all pods of the previews become ready or succeed, and all terminating pods end. It returns what
// happened, or "".
func (s *simulation) advance() string {
	var ready, succeeded, deleted []string
	for _, pod := range list[*corev1.Pod](s.reconciler.store, "") {
		if !s.previewed(s.ownersOf(pod)) {
			continue
		}
		next := pod.DeepCopy()
		switch {
		case pod.DeletionTimestamp != nil && !s.reconciler.store.entries[keyOf(pod)].gone:
			s.reconciler.PodDeleted(pod.UID, s.now)
			deleted = append(deleted, pod.Name+s.suffix)
			continue
		case pod.DeletionTimestamp != nil, workloads.Terminated(pod):
			continue
		case metav1.GetControllerOfNoCopy(pod).Kind == "Job":
			next.Status = succeededStatus(pod, s.now)
			succeeded = append(succeeded, pod.Name+s.suffix)
		case workloads.ReadySince(pod) == nil:
			next.Status.Phase = corev1.PodRunning
			next.Status.Conditions = []corev1.PodCondition{{
				Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(s.now),
			}}
			ready = append(ready, pod.Name+s.suffix)
		default:
			continue
		}
		s.reconciler.PodObserved(next, s.now)
	}
	var happened []string
	for _, list := range []struct {
		names    []string
		one, all string
	}{{ready, "is ready", "are ready"}, {succeeded, "has succeeded", "have succeeded"},
		{deleted, "is deleted", "are deleted"}} {
		switch len(list.names) {
		case 0:
		case 1:
			happened = append(happened, "pod "+list.names[0]+" "+list.one)
		default:
			happened = append(happened, fmt.Sprintf("%d pods %s", len(list.names), list.all))
		}
	}
	return strings.Join(happened, " and ")
}

// succeededStatus is the status of a pod whose containers have all succeeded.
func succeededStatus(pod *corev1.Pod, now time.Time) corev1.PodStatus {
	out := corev1.PodStatus{Phase: corev1.PodSucceeded}
	for i := range pod.Spec.Containers {
		out.ContainerStatuses = append(out.ContainerStatuses, corev1.ContainerStatus{
			Name: pod.Spec.Containers[i].Name, State: corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(now)},
			},
		})
	}
	return out
}

// sleep advances the time to the next decision of a workload that has no schedule. It returns false if there is none.
func (s *simulation) sleep() bool {
	var wake time.Time
	for k, at := range s.reconciler.wakes {
		o := s.reconciler.store.get(k)
		_, scheduled := o.(*batchv1.CronJob)
		if o != nil && !scheduled && s.previewed(append(s.ownersOf(o), o.GetUID())) {
			wake = workloads.Earlier(wake, at)
		}
	}
	if wake.IsZero() || wake.Sub(s.start) > maxPreviewTime {
		return false
	}
	if wake.After(s.now) {
		s.after = strings.TrimPrefix(s.after+" and "+wake.Sub(s.now).Round(time.Second).String(), " and ")
		s.now = wake
	}
	return true
}
