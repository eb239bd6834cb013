package deployment

import (
	"strconv"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"berth/workloads"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func at(seconds int) metav1.Time {
	return metav1.NewTime(now.Add(time.Duration(seconds) * time.Second))
}

func template(image string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: image}}},
	}
}

type deploymentOption func(*appsv1.Deployment)

// newDeployment returns a defaulted Deployment of image "v1" that its controller has observed.
func newDeployment(replicas int32, options ...deploymentOption) *appsv1.Deployment {
	surge, unavailable, limit, deadline := intstr.FromString("25%"), intstr.FromString("25%"), int32(10), int32(600)
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "web-uid", Generation: 1},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Template: template("v1"), RevisionHistoryLimit: &limit,
			ProgressDeadlineSeconds: &deadline,
			Selector:                &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			Strategy: appsv1.DeploymentStrategy{
				Type:          appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &surge, MaxUnavailable: &unavailable},
			},
		},
		Status: appsv1.DeploymentStatus{ObservedGeneration: 1},
	}
	for _, o := range options {
		o(d)
	}
	return d
}

func image(name string) deploymentOption {
	return func(d *appsv1.Deployment) { d.Spec.Template = template(name) }
}

func rolling(surge, unavailable string) deploymentOption {
	return func(d *appsv1.Deployment) {
		s, u := intstr.Parse(surge), intstr.Parse(unavailable)
		d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: &s, MaxUnavailable: &u}
	}
}

func recreating(d *appsv1.Deployment) {
	d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
}

func paused(d *appsv1.Deployment) { d.Spec.Paused = true }

// progressing sets the Progressing condition, last updated at a second before now.
func progressing(status corev1.ConditionStatus, reason string, age int) deploymentOption {
	return func(d *appsv1.Deployment) {
		d.Status.Conditions = append(d.Status.Conditions, appsv1.DeploymentCondition{
			Type: appsv1.DeploymentProgressing, Status: status, Reason: reason,
			LastUpdateTime: at(-age), LastTransitionTime: at(-age),
		})
	}
}

type setOption func(*appsv1.ReplicaSet)

// newSet returns the ReplicaSet of an image as the Deployment creates it: with the size and available replicas, the
// revision, and the annotations of a Deployment of this number of replicas.
func newSet(d *appsv1.Deployment, image string, size, available int32, revision int,
	options ...setOption) *appsv1.ReplicaSet {
	of := d.DeepCopy()
	of.Spec.Template = template(image)
	r := newRollout(Input{Now: now, Deployment: of}, nil)
	built := r.newReplicaSet()
	rs := &built.ReplicaSet
	rs.UID = types.UID(image + "-uid")
	rs.Generation, rs.CreationTimestamp = 1, at(-1000+revision)
	rs.Annotations = map[string]string{
		RevisionAnnotation:        strconv.Itoa(revision),
		desiredReplicasAnnotation: strconv.Itoa(int(r.replicas)),
		maxReplicasAnnotation:     strconv.Itoa(int(r.replicas + maxSurge(d))),
	}
	terminating := int32(0)
	rs.Spec.Replicas = &size
	rs.Status = appsv1.ReplicaSetStatus{
		Replicas: size, ReadyReplicas: available, AvailableReplicas: available, ObservedGeneration: 1,
		TerminatingReplicas: &terminating,
	}
	for _, o := range options {
		o(rs)
	}
	return rs
}

func annotated(key, value string) setOption {
	return func(rs *appsv1.ReplicaSet) {
		if value == "" {
			delete(rs.Annotations, key)
			return
		}
		rs.Annotations[key] = value
	}
}

// sized marks a ReplicaSet as sized for a Deployment of other numbers.
func sized(desired, limit int) setOption {
	return func(rs *appsv1.ReplicaSet) {
		rs.Annotations[desiredReplicasAnnotation] = strconv.Itoa(desired)
		rs.Annotations[maxReplicasAnnotation] = strconv.Itoa(limit)
	}
}

// sizes returns the sizes that a decision gives to ReplicaSets by image. Deletions count as -1.
func sizes(t *testing.T, writes []workloads.Write) map[string]int32 {
	t.Helper()
	out := map[string]int32{}
	for _, w := range writes {
		rs, ok := w.Object.(*appsv1.ReplicaSet)
		if !ok {
			t.Fatalf("write of a %T", w.Object)
		}
		name := rs.Spec.Template.Spec.Containers[0].Image
		if out[name] = *rs.Spec.Replicas; w.Verb == workloads.Delete {
			out[name] = -1
		}
	}
	return out
}

func podOf(rs *appsv1.ReplicaSet, phase corev1.PodPhase) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: rs.Name + "-pod", Labels: rs.Spec.Template.Labels,
			OwnerReferences: []metav1.OwnerReference{
				workloads.ControllerRef(rs, metav1.TypeMeta{APIVersion: "apps/v1", Kind: "ReplicaSet"}),
			},
		},
		Status: corev1.PodStatus{Phase: phase},
	}
}
