package localworkloads

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/source"
	"berth/workloads"
	"berth/workloads/validation"
)

const deploymentManifest = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: %d
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers: [{name: web, image: "web:%d"}]
`

const jobManifest = `apiVersion: batch/v1
kind: Job
metadata: {name: count}
spec:
  completions: 4
  parallelism: %d
  completionMode: Indexed
  ttlSecondsAfterFinished: 100
  backoffLimit: 1000
  template:
    spec:
      restartPolicy: Never
      containers: [{name: c, image: "count:1"}]
`

// world is a model of a node: the disk with the transactions that survive a crash, the agent with its pods, and the
// files.
type world struct {
	t          *testing.T
	rand       *rand.Rand
	now        time.Time
	disk       map[string][]byte
	reconciler *Reconciler
	files      map[string]string // content by name
	pods       map[types.UID]*corev1.Pod
	started    map[types.UID]bool // all pods that ever ran
	indexes    map[string]int     // completions by UID of the Job and index
	done       map[types.UID]bool // finished Jobs
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{
		t: t, rand: rand.New(rand.NewPCG(seed, 1)), now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		disk: map[string][]byte{}, files: map[string]string{}, pods: map[types.UID]*corev1.Pod{},
		started: map[types.UID]bool{}, indexes: map[string]int{}, done: map[types.UID]bool{},
	}
	w.restart()
	return w
}

// workloadsOf validates manifests.
func workloadsOf(t *testing.T, files map[string]string) (out []source.Workload) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		d, err := source.Validate(source.Input{Path: name, Data: []byte(files[name])},
			source.Identity{NodeName: "n1"}, nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		out = append(out, d.Workloads...)
	}
	return out
}

// restart starts an agent with what is on the disk. It reports the pods that still run.
func (w *world) restart() {
	w.reconciler = New(Config{
		Node: func() *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}} },
	}, maps.Clone(w.disk))
	w.reconciler.SetFiles(workloadsOf(w.t, w.files))
	for _, uid := range slices.Sorted(maps.Keys(w.pods)) {
		w.reconciler.PodObserved(w.pods[uid], w.now)
	}
}

// sync lets the reconciler decide. With some probability, the agent is killed before or after the transaction.
func (w *world) sync(mayCrash bool) {
	before := map[key]workloads.Object{}
	for k := range w.reconciler.store.entries {
		before[k] = w.reconciler.store.get(k)
	}
	changes := w.reconciler.Sync(w.now)
	w.checkStatuses(before)
	crash := 0
	if mayCrash {
		crash = w.rand.IntN(8)
	}
	if crash == 1 {
		w.restart()
		return
	}
	for k, v := range changes {
		if v == nil {
			delete(w.disk, k)
		} else {
			w.disk[k] = v
		}
	}
	if crash == 2 {
		w.restart()
		return
	}
	w.deliver()
}

// checkStatuses checks that an API server would accept what has changed in the status of each workload.
func (w *world) checkStatuses(before map[key]workloads.Object) {
	for _, kind := range validation.Kinds() {
		rules, _ := validation.RulesFor(kind)
		for _, k := range w.reconciler.store.index.within(kind.Kind, "") {
			old, now := before[k], w.reconciler.store.get(k)
			if old == nil || old.GetUID() != now.GetUID() {
				continue
			}
			for _, err := range rules.ValidateStatus(now, old) {
				if strings.HasPrefix(err.Field, "status") {
					w.t.Fatalf("%s %s: %v", k.kind, k.name, err)
				}
			}
		}
	}
}

// deliver lets the agent run the pods that the reconciler desires.
func (w *world) deliver() {
	desired := map[types.UID]*corev1.Pod{}
	for _, pod := range w.reconciler.Pods() {
		if desired[pod.UID] != nil {
			w.t.Fatalf("L1: two pods with UID %s", pod.UID)
		}
		desired[pod.UID] = pod
		running := w.pods[pod.UID]
		switch {
		case running != nil:
			running.DeletionTimestamp = pod.DeletionTimestamp
		case pod.DeletionTimestamp != nil:
			w.reconciler.PodDeleted(pod.UID, w.now)
		default:
			if w.started[pod.UID] {
				w.t.Fatalf("L1: pod %s was created twice", pod.Name)
			}
			w.started[pod.UID] = true
			w.checkJob(pod)
			next := pod.DeepCopy()
			next.Status.Phase = corev1.PodPending
			w.pods[pod.UID] = next
			w.reconciler.PodObserved(next, w.now)
		}
	}
	for uid, pod := range w.pods {
		if desired[uid] == nil {
			w.t.Fatalf("pod %s is no longer desired without having been deleted", pod.Name)
		}
	}
}

func (w *world) checkJob(pod *corev1.Pod) {
	ref := metav1.GetControllerOf(pod)
	if ref == nil || ref.Kind != "Job" {
		return
	}
	if w.done[ref.UID] {
		w.t.Fatalf("L2: pod %s of a finished Job was created", pod.Name)
	}
	if n := w.indexes[indexOf(pod)]; n > 0 {
		w.t.Fatalf("L3: pod %s runs a completed index again", pod.Name)
	}
}

func indexOf(pod *corev1.Pod) string {
	return string(pod.OwnerReferences[0].UID) + "/" + pod.Annotations[batchv1.JobCompletionIndexAnnotation]
}

// advance changes one pod as containers do.
func (w *world) advance() {
	uids := slices.Sorted(maps.Keys(w.pods))
	if len(uids) == 0 {
		return
	}
	pod := w.pods[uids[w.rand.IntN(len(uids))]]
	ofJob := pod.OwnerReferences[0].Kind == "Job"
	switch {
	case pod.DeletionTimestamp != nil:
		w.end(pod)
	case workloads.Terminated(pod):
	case pod.Status.Phase == corev1.PodPending:
		w.setStatus(pod, corev1.PodRunning, true)
	case ofJob && w.rand.IntN(3) > 0:
		w.finish(pod, corev1.PodSucceeded)
	case w.rand.IntN(20) == 0:
		w.finish(pod, corev1.PodFailed)
	}
}

// end continues the termination of a pod.
func (w *world) end(pod *corev1.Pod) {
	if !workloads.Terminated(pod) {
		w.finish(pod, corev1.PodFailed)
		return
	}
	delete(w.pods, pod.UID)
	w.reconciler.PodDeleted(pod.UID, w.now)
}

func (w *world) finish(pod *corev1.Pod, phase corev1.PodPhase) {
	if phase == corev1.PodSucceeded {
		w.indexes[indexOf(pod)]++
	}
	w.setStatus(pod, phase, false)
}

func (w *world) setStatus(pod *corev1.Pod, phase corev1.PodPhase, ready bool) {
	next := pod.DeepCopy()
	next.Status.Phase = phase
	next.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}
	if ready {
		next.Status.Conditions[0].Status = corev1.ConditionTrue
		next.Status.Conditions[0].LastTransitionTime = metav1.NewTime(w.now)
	} else {
		exit := int32(0)
		if phase == corev1.PodFailed {
			exit = 1
		}
		next.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: next.Spec.Containers[0].Name, State: corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{ExitCode: exit, FinishedAt: metav1.NewTime(w.now)},
			},
		}}
	}
	w.pods[pod.UID] = next
	w.reconciler.PodObserved(next, w.now)
}

// settle lets the world run without crashes and edits until nothing changes.
func (w *world) settle() {
	for range 200 {
		w.now = w.now.Add(20 * time.Second)
		w.advanceWithoutFailure()
		w.sync(false)
		for _, job := range list[*batchv1.Job](w.reconciler.store, "") {
			if job.Status.CompletionTime != nil {
				w.done[job.UID] = true
			}
		}
	}
}

func (w *world) advanceWithoutFailure() {
	for _, uid := range slices.Sorted(maps.Keys(w.pods)) {
		pod := w.pods[uid]
		switch {
		case pod.DeletionTimestamp != nil:
			w.end(pod)
		case workloads.Terminated(pod):
		case pod.Status.Phase == corev1.PodPending:
			w.setStatus(pod, corev1.PodRunning, true)
		case pod.OwnerReferences[0].Kind == "Job":
			w.finish(pod, corev1.PodSucceeded)
		}
	}
}

// check checks the invariants of a world in which nothing changes any more.
func (w *world) check(replicas, version int) {
	_, defined := w.files["web"]
	running := 0
	for _, pod := range w.pods {
		if pod.Labels["app"] != "web" || workloads.Terminated(pod) {
			continue
		}
		running++
		if want := fmt.Sprintf("web:%d", version); pod.Spec.Containers[0].Image != want {
			w.t.Errorf("L4: pod %s runs %s, want %s", pod.Name, pod.Spec.Containers[0].Image, want)
		}
	}
	if defined && running != replicas {
		w.t.Errorf("L4: %d replicas run, want %d", running, replicas)
	}
	if !defined && (running > 0 || len(list[*appsv1.Deployment](w.reconciler.store, "")) > 0) {
		w.t.Errorf("L5: %d pods run although the file is deleted", running)
	}
	if _, defined := w.files["job"]; defined && len(list[*batchv1.Job](w.reconciler.store, "")) > 0 {
		w.t.Error("L2: the finished Job still exists after its TTL")
	}
}

func TestModelWorld(t *testing.T) {
	t.Parallel()
	seeds := 20
	if testing.Short() {
		seeds = 10
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, uint64(seed))
			replicas, version := 0, 0
			edit := func() {
				switch w.rand.IntN(6) {
				case 0:
					delete(w.files, "web")
				case 1:
					w.files["job"] = fmt.Sprintf(jobManifest, 1+w.rand.IntN(4))
				default:
					replicas, version = 1+w.rand.IntN(4), w.rand.IntN(3)
					w.files["web"] = fmt.Sprintf(deploymentManifest, replicas, version)
				}
				w.reconciler.SetFiles(workloadsOf(t, w.files))
			}
			for range 300 {
				w.now = w.now.Add(time.Duration(w.rand.IntN(4000)) * time.Millisecond)
				if w.rand.IntN(15) == 0 {
					edit()
				}
				w.advance()
				w.sync(true)
			}
			w.settle()
			w.check(replicas, version)
		})
	}
}
