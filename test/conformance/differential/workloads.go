package differential

import (
	"context"
	"fmt"
	"math/rand/v2"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/util/retry"
)

// amount returns a value of maxSurge or maxUnavailable.
func amount(r *rand.Rand) intstr.IntOrString {
	return pick(r, intstr.FromInt32(1), intstr.FromInt32(2), intstr.FromString("25%"), intstr.FromString("50%"))
}

func deployment(r *rand.Rand) (edit, func(*rand.Rand) edit) {
	replicas, limit := int32(r.IntN(5)), int32(r.IntN(3))
	surge, unavailable := amount(r), amount(r)
	object := &appsv1.Deployment{ObjectMeta: objectMeta(r), Spec: appsv1.DeploymentSpec{
		Replicas: &replicas, Selector: selector(), Template: template(servingImage(r)), RevisionHistoryLimit: &limit,
		Paused: r.IntN(6) == 0,
		Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType,
			RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &surge, MaxUnavailable: &unavailable}}}}
	if r.IntN(4) == 0 {
		object.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
	}
	create := edit{fmt.Sprintf("create Deployment %+v", object.Spec), func(ctx context.Context, p *plane,
		namespace string) error {
		_, err := p.client.AppsV1().Deployments(namespace).Create(ctx, object.DeepCopy(), metav1.CreateOptions{})
		return err
	}}
	change := func(what string, f func(*appsv1.Deployment)) edit {
		return edit{what, func(ctx context.Context, p *plane, namespace string) error {
			return updated(func() error {
				d, err := p.client.AppsV1().Deployments(namespace).Get(ctx, "w", metav1.GetOptions{})
				if err != nil {
					return err
				}
				f(d)
				_, err = p.client.AppsV1().Deployments(namespace).Update(ctx, d, metav1.UpdateOptions{})
				return err
			})
		}}
	}
	return create, func(r *rand.Rand) edit {
		image, replicas, paused, limit := servingImage(r), int32(r.IntN(6)), r.IntN(2) == 0, int32(r.IntN(3))
		switch r.IntN(10) {
		case 0, 1, 2, 3:
			return change("set image "+image, func(d *appsv1.Deployment) { setImage(&d.Spec.Template, image) })
		case 4, 5:
			return change(fmt.Sprint("scale to ", replicas), func(d *appsv1.Deployment) { d.Spec.Replicas = &replicas })
		case 6:
			return change(fmt.Sprint("set paused ", paused), func(d *appsv1.Deployment) { d.Spec.Paused = paused })
		case 7:
			return change(fmt.Sprint("keep revisions ", limit), func(d *appsv1.Deployment) {
				d.Spec.RevisionHistoryLimit = &limit
			})
		case 8:
			return deleteWorkload(r, func(ctx context.Context, p *plane, namespace string,
				o metav1.DeleteOptions) error {
				return gone(p.client.AppsV1().Deployments(namespace).Delete(ctx, "w", o))
			})
		default:
			return deletePod(r)
		}
	}
}

func statefulSet(r *rand.Rand) (edit, func(*rand.Rand) edit) {
	replicas, partition, limit, start := int32(r.IntN(4)), int32(r.IntN(3)), int32(r.IntN(3)), int32(r.IntN(2))
	object := &appsv1.StatefulSet{ObjectMeta: objectMeta(r), Spec: appsv1.StatefulSetSpec{
		Replicas: &replicas, Selector: selector(), Template: template(servingImage(r)), ServiceName: "w",
		RevisionHistoryLimit: &limit, Ordinals: &appsv1.StatefulSetOrdinals{Start: start},
		PodManagementPolicy: pick(r, appsv1.OrderedReadyPodManagement, appsv1.ParallelPodManagement),
		UpdateStrategy: appsv1.StatefulSetUpdateStrategy{Type: appsv1.RollingUpdateStatefulSetStrategyType,
			RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: &partition}}}}
	if r.IntN(5) == 0 {
		object.Spec.UpdateStrategy = appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType}
	}
	create := edit{fmt.Sprintf("create StatefulSet %+v", object.Spec), func(ctx context.Context, p *plane,
		namespace string) error {
		_, err := p.client.AppsV1().StatefulSets(namespace).Create(ctx, object.DeepCopy(), metav1.CreateOptions{})
		return err
	}}
	change := func(what string, f func(*appsv1.StatefulSet)) edit {
		return edit{what, func(ctx context.Context, p *plane, namespace string) error {
			return updated(func() error {
				s, err := p.client.AppsV1().StatefulSets(namespace).Get(ctx, "w", metav1.GetOptions{})
				if err != nil {
					return err
				}
				f(s)
				_, err = p.client.AppsV1().StatefulSets(namespace).Update(ctx, s, metav1.UpdateOptions{})
				return err
			})
		}}
	}
	return create, func(r *rand.Rand) edit {
		image, replicas, partition := servingImage(r), int32(r.IntN(5)), int32(r.IntN(4))
		switch r.IntN(10) {
		case 0, 1, 2, 3:
			return change("set image "+image, func(s *appsv1.StatefulSet) { setImage(&s.Spec.Template, image) })
		case 4, 5:
			return change(fmt.Sprint("scale to ", replicas),
				func(s *appsv1.StatefulSet) { s.Spec.Replicas = &replicas })
		case 6, 7:
			return change(fmt.Sprint("set partition ", partition), func(s *appsv1.StatefulSet) {
				if s.Spec.UpdateStrategy.RollingUpdate != nil {
					s.Spec.UpdateStrategy.RollingUpdate.Partition = &partition
				}
			})
		case 8:
			return deleteWorkload(r, func(ctx context.Context, p *plane, namespace string,
				o metav1.DeleteOptions) error {
				return gone(p.client.AppsV1().StatefulSets(namespace).Delete(ctx, "w", o))
			})
		default:
			return deletePod(r)
		}
	}
}

func daemonSet(r *rand.Rand) (edit, func(*rand.Rand) edit) {
	limit, unavailable := int32(r.IntN(3)), amount(r)
	object := &appsv1.DaemonSet{ObjectMeta: objectMeta(r), Spec: appsv1.DaemonSetSpec{
		Selector: selector(), Template: template(servingImage(r)), RevisionHistoryLimit: &limit,
		UpdateStrategy: appsv1.DaemonSetUpdateStrategy{Type: appsv1.RollingUpdateDaemonSetStrategyType,
			RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxUnavailable: &unavailable}}}}
	if r.IntN(3) == 0 {
		zero := intstr.FromInt32(0)
		object.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{MaxSurge: &unavailable,
			MaxUnavailable: &zero}
	}
	if r.IntN(5) == 0 {
		object.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}
	}
	create := edit{fmt.Sprintf("create DaemonSet %+v", object.Spec), func(ctx context.Context, p *plane,
		namespace string) error {
		_, err := p.client.AppsV1().DaemonSets(namespace).Create(ctx, object.DeepCopy(), metav1.CreateOptions{})
		return err
	}}
	change := func(what string, f func(*appsv1.DaemonSet)) edit {
		return edit{what, func(ctx context.Context, p *plane, namespace string) error {
			return updated(func() error {
				d, err := p.client.AppsV1().DaemonSets(namespace).Get(ctx, "w", metav1.GetOptions{})
				if err != nil {
					return err
				}
				f(d)
				_, err = p.client.AppsV1().DaemonSets(namespace).Update(ctx, d, metav1.UpdateOptions{})
				return err
			})
		}}
	}
	return create, func(r *rand.Rand) edit {
		image := servingImage(r)
		nodeSelector := pick(r, map[string]string{}, map[string]string{"disk": "ssd"}, map[string]string{"disk": "hdd"},
			map[string]string{"disk": "none"})
		switch r.IntN(10) {
		case 0, 1, 2, 3:
			return change("set image "+image, func(d *appsv1.DaemonSet) { setImage(&d.Spec.Template, image) })
		case 4, 5, 6:
			return change(fmt.Sprint("set node selector ", nodeSelector), func(d *appsv1.DaemonSet) {
				d.Spec.Template.Spec.NodeSelector = nodeSelector
			})
		case 7:
			return deleteWorkload(r, func(ctx context.Context, p *plane, namespace string,
				o metav1.DeleteOptions) error {
				return gone(p.client.AppsV1().DaemonSets(namespace).Delete(ctx, "w", o))
			})
		default:
			return deletePod(r)
		}
	}
}

// updated repeats f while the object changes meanwhile. An object that is deleted by an earlier edit is no error.
func updated(f func() error) error { return gone(retry.RetryOnConflict(retry.DefaultBackoff, f)) }

func gone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
