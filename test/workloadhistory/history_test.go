package workloadhistory

import (
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func meta(name string, owner types.UID) metav1.ObjectMeta {
	m := metav1.ObjectMeta{Name: name, UID: types.UID(name)}
	if owner != "" {
		controller := true
		m.OwnerReferences = []metav1.OwnerReference{{UID: owner, Controller: &controller}}
	}
	return m
}

func testDeployment(replicas, surge, unavailable int32) *appsv1.Deployment {
	s, u, limit := intstr.FromInt32(surge), intstr.FromInt32(unavailable), int32(1)
	return &appsv1.Deployment{ObjectMeta: meta("d", ""), Spec: appsv1.DeploymentSpec{Replicas: &replicas,
		RevisionHistoryLimit: &limit, Strategy: appsv1.DeploymentStrategy{
			Type:          appsv1.RollingUpdateDeploymentStrategyType,
			RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &s, MaxUnavailable: &u}}}}
}

func testSet(name string, replicas int32) *appsv1.ReplicaSet {
	set := &appsv1.ReplicaSet{ObjectMeta: meta(name, "d"), Spec: appsv1.ReplicaSetSpec{Replicas: &replicas}}
	set.Annotations = map[string]string{revisionAnnotation: name}
	set.Spec.Template.Spec.Hostname = name
	return set
}

func testPod(name string, owner types.UID, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: meta(name, owner), Status: corev1.PodStatus{Phase: corev1.PodPending}}
	for _, f := range change {
		f(p)
	}
	return p
}

func isReady(p *corev1.Pod) {
	p.Status.Phase = corev1.PodRunning
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
}

func isDeleted(p *corev1.Pod) { now := metav1.Now(); p.DeletionTimestamp = &now }

func has(phase corev1.PodPhase) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Phase = phase }
}

func on(node string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.NodeName = node } }

func at(index int) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Annotations = map[string]string{batchv1.JobCompletionIndexAnnotation: fmt.Sprint(index)}
	}
}

func testJob(change ...func(*batchv1.Job)) *batchv1.Job {
	two, indexed, one := int32(2), batchv1.IndexedCompletion, int32(1)
	j := &batchv1.Job{ObjectMeta: meta("j", ""), Spec: batchv1.JobSpec{Completions: &two, Parallelism: &two,
		BackoffLimitPerIndex: &one, CompletionMode: &indexed}}
	for _, f := range change {
		f(j)
	}
	return j
}

// gone is an object that is removed.
type gone struct{ Object }

func (gone) DeepCopyObject() runtime.Object { return nil }

// TestHistory plays changes. The last one violates the invariant that the name of the case begins with, or none.
func TestHistory(t *testing.T) {
	t.Parallel()
	d := testDeployment(2, 1, 0)
	known := testDeployment(2, 1, 0)
	known.Status.AvailableReplicas = 2
	recreate := testDeployment(2, 0, 0)
	recreate.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
	two := int32(2)
	ordered := &appsv1.StatefulSet{ObjectMeta: meta("s", ""), Spec: appsv1.StatefulSetSpec{Replicas: &two}}
	one := intstr.FromInt32(1)
	daemon := &appsv1.DaemonSet{ObjectMeta: meta("e", ""), Spec: appsv1.DaemonSetSpec{
		UpdateStrategy: appsv1.DaemonSetUpdateStrategy{RollingUpdate: &appsv1.RollingUpdateDaemonSet{
			MaxUnavailable: &one}}},
		Status: appsv1.DaemonSetStatus{DesiredNumberScheduled: 2, NumberAvailable: 2}}
	endOf := func(completed string, succeeded, failed int32) func(*batchv1.Job) {
		return func(j *batchv1.Job) {
			j.Status = batchv1.JobStatus{Succeeded: succeeded, Failed: failed, CompletedIndexes: completed,
				Conditions: []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}}
		}
	}
	plain := testJob(func(j *batchv1.Job) { j.Spec.CompletionMode = nil })
	revision := func(name string, number int64) *appsv1.ControllerRevision {
		return &appsv1.ControllerRevision{ObjectMeta: meta(name, "s"), Revision: number,
			Data: runtime.RawExtension{Raw: []byte(name)}}
	}
	for name, changes := range map[string][]Object{
		"none: rollout": {known, testSet("1", 2), testPod("p", "1", isReady), testPod("q", "1", isReady), known,
			testSet("2", 1), testPod("r", "2", isReady), testSet("1", 1), testPod("p", "1", isReady, isDeleted),
			gone{testPod("p", "1")}, testSet("2", 2), testPod("u", "2")},
		"D1: too many replicas": {d, testSet("1", 2), testSet("2", 2)},
		"D2: too few available pods": {known, testSet("1", 2), testPod("p", "1", isReady), testPod("q", "1", isReady),
			known, testSet("1", 1), testPod("p", "1", isReady, isDeleted)},
		"none: the controller did not know the pod": {d, testSet("1", 2), testPod("p", "1", isReady),
			testPod("q", "1", isReady), testSet("1", 1), testPod("p", "1", isReady, isDeleted)},
		"D3: a doubled pod": {d, testSet("1", 2), testPod("p", "1"), testPod("q", "1"), testPod("r", "1")},
		"D4: pods of two revisions": {recreate, testSet("1", 2), testPod("p", "1"), testSet("1", 0), testSet("2", 2),
			testPod("q", "2")},
		"S1: a pod too early": {ordered, testPod("s-0", "s"), testPod("s-1", "s")},
		"none: pods in order": {ordered, testPod("s-0", "s", isReady), testPod("s-1", "s")},
		"S2: two unavailable pods": {ordered, testPod("s-0", "s", isReady), testPod("s-1", "s", isReady),
			gone{testPod("s-1", "s")}, testPod("s-0", "s", isReady, isDeleted)},
		"E1: a doubled pod": {daemon, testPod("p", "e", on("a")), testPod("q", "e", on("a"))},
		"E2: two unavailable nodes": {daemon, testPod("p", "e", on("a"), isReady), testPod("q", "e", on("b"), isReady),
			daemon, testPod("p", "e", on("a"), isReady, isDeleted), testPod("q", "e", on("b"), isReady, isDeleted)},
		"J1: a doubled index": {testJob(), testPod("p", "j", at(0)), testPod("q", "j", at(0))},
		"J1: a completed index again": {testJob(), testPod("p", "j", at(0)),
			testPod("p", "j", at(0), has(corev1.PodSucceeded)), gone{testPod("p", "j", at(0))},
			testPod("q", "j", at(0))},
		"none: a failed index again": {testJob(), testPod("p", "j", at(0)),
			testPod("p", "j", at(0), has(corev1.PodFailed)), testPod("q", "j", at(0))},
		"J1: a failed index too often": {testJob(), testPod("p", "j", at(0), has(corev1.PodFailed)),
			testPod("q", "j", at(0), has(corev1.PodFailed)), testPod("r", "j", at(0))},
		"J1: too many pods": {plain, testPod("p", "j", has(corev1.PodSucceeded)), testPod("q", "j"), testPod("r", "j")},
		"J2: too many active pods": {testJob(), testPod("p", "j", at(0)), testPod("q", "j", at(1)),
			testPod("r", "j", at(2))},
		"J2: a pod after the end": {testJob(), testPod("p", "j", at(0), has(corev1.PodSucceeded)),
			testJob(endOf("0", 1, 0)), testPod("q", "j", at(1))},
		"J3: a pod is counted twice": {testJob(), testPod("p", "j", at(0), has(corev1.PodSucceeded)),
			testJob(func(j *batchv1.Job) { j.Status.Succeeded = 2 })},
		"J3: wrong indexes": {testJob(), testPod("p", "j", at(0), has(corev1.PodSucceeded)), testJob(endOf("1", 1, 0))},
		"J3: a count decreases": {testJob(), testPod("p", "j", at(0), has(corev1.PodSucceeded)),
			testJob(func(j *batchv1.Job) { j.Status.Succeeded = 1 }), testJob()},
		"R1: a revision twice":       {ordered, revision("a", 1), revision("b", 1)},
		"R2: a revision is lost":     {d, testSet("1", 0), testSet("2", 2), gone{testSet("1", 0)}},
		"R2: a revision in use":      {d, testSet("1", 1), testSet("2", 0), testSet("3", 1), gone{testSet("1", 1)}},
		"none: an old revision goes": {d, testSet("1", 0), testSet("2", 0), testSet("3", 2), gone{testSet("1", 0)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := &History{}
			for i, obj := range changes {
				if len(h.Violations) > 0 {
					t.Errorf("before the last change: %s", h.Violations)
				}
				c := Change{Revision: int64(i + 1), Key: fmt.Sprintf("%T/%s", obj, obj.GetName()), Object: obj}
				if old, is := obj.(gone); is {
					c.Key, c.Object = fmt.Sprintf("%T/%s", old.Object, obj.GetName()), nil
				}
				h.Apply(c)
			}
			want, _, _ := strings.Cut(name, ":")
			switch {
			case want == "none" && len(h.Violations) > 0:
				t.Errorf("got %s", h.Violations)
			case want != "none" && (len(h.Violations) != 1 || !strings.HasPrefix(h.Violations[0], want+" ")):
				t.Errorf("got %s, want a violation of %s", h.Violations, want)
			}
		})
	}
}
