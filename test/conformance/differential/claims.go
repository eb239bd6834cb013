package differential

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/retry"
)

// statefulSetWithClaims has a claim for each pod and, of two, one has a retention policy.
func statefulSetWithClaims(r *rand.Rand) workload {
	object := newStatefulSet(r)
	claim := corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data"},
		Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceStorage: resource.MustParse("1Gi")}}}}
	object.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{claim}
	if r.IntN(2) == 0 {
		object.Spec.PersistentVolumeClaimRetentionPolicy = retention(r)
	}
	w := statefulSetScript(object, servingImage, readyRest)
	next := w.next
	w.next = func(r *rand.Rand) edit {
		if r.IntN(6) > 0 {
			return next(r)
		}
		policy := retention(r)
		return statefulSets.change("set retention "+string(policy.WhenDeleted)+" "+string(policy.WhenScaled),
			func(s *appsv1.StatefulSet) { s.Spec.PersistentVolumeClaimRetentionPolicy = policy })
	}
	return w
}

func retention(r *rand.Rand) *appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy {
	one := func() appsv1.PersistentVolumeClaimRetentionPolicyType {
		return pick(r, appsv1.RetainPersistentVolumeClaimRetentionPolicyType,
			appsv1.DeletePersistentVolumeClaimRetentionPolicyType)
	}
	return &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{WhenDeleted: one(), WhenScaled: one()}
}

// usesClaims reports whether a pod has a volume of a claim.
func usesClaims(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.PersistentVolumeClaim != nil })
}

// followPods does what the simulated nodes and schedulers do not: it binds pods with claims, which no volume exists
// for, and reports deleted pods as failed that a finalizer keeps.
func (p *plane) followPods(ctx context.Context, pods cache.SharedIndexInformer) error {
	follow := func(obj any) {
		pod, is := obj.(*corev1.Pod)
		if !is {
			return
		}
		switch {
		case pod.DeletionTimestamp != nil && len(pod.Finalizers) > 0 && pod.Status.Phase == corev1.PodRunning:
			p.try(ctx, func() error { return p.reportKilled(ctx, pod) })
		case pod.DeletionTimestamp == nil && pod.Spec.NodeName == "" && usesClaims(pod):
			p.try(ctx, func() error {
				return p.client.CoreV1().Pods(pod.Namespace).Bind(ctx, &corev1.Binding{
					ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
					Target:     corev1.ObjectReference{Kind: "Node", Name: nodeName(0)}}, metav1.CreateOptions{})
			})
		}
	}
	_, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: follow,
		UpdateFunc: func(_, obj any) { follow(obj) }})
	return err
}

// reportKilled reports that the container of a deleted pod was killed.
func (p *plane) reportKilled(ctx context.Context, pod *corev1.Pod) error {
	status := corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{{
		Name: pod.Spec.Containers[0].Name, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: 137, Reason: "Error", FinishedAt: metav1.Now()}}}}}
	body, err := json.Marshal(map[string]any{"status": map[string]any{
		"phase": status.Phase, "containerStatuses": status.ContainerStatuses}})
	if err != nil {
		return err
	}
	_, err = p.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, body,
		metav1.PatchOptions{}, "status")
	return err
}

// try repeats a write that fails, unless the pod is gone or has changed.
func (p *plane) try(ctx context.Context, write func() error) {
	backoff := wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Steps: 6}
	_ = retry.OnError(backoff, func(err error) bool { // the difference is reported
		return ctx.Err() == nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err)
	}, write)
}
