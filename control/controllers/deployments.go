package controllers

import (
	"context"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"berth/workloads"
	"berth/workloads/deployment"
)

const deploymentWorkers = 5

// newDeploymentController runs workloads/deployment: it manages the ReplicaSets of Deployments.
func newDeploymentController(c Config) ([]*controller, error) {
	apps := c.Informers.Apps().V1()
	deployments, sets := apps.Deployments().Informer(), apps.ReplicaSets().Informer()
	pods := c.Informers.Core().V1().Pods().Informer()
	if err := c.indexPods(); err != nil {
		return nil, err
	}
	ctrl, err := newReconciler(c, workload[*appsv1.Deployment, appsv1.DeploymentStatus]{
		kind:     deployment.Kind.GroupVersionKind(),
		objects:  newObjectType[*appsv1.Deployment](deployments, c.Client.AppsV1().Deployments),
		children: []*objectType{newObjectType[*appsv1.ReplicaSet](sets, c.Client.AppsV1().ReplicaSets)},
		related: []related{{informer: pods, keys: func(obj any) []string {
			return recreatedBy(deployments, sets, obj)
		}}},
		selector: func(d *appsv1.Deployment) *metav1.LabelSelector { return d.Spec.Selector },
		decide: func(d *appsv1.Deployment, now time.Time,
			failed *workloads.WriteError) workloads.Decision[appsv1.DeploymentStatus] {
			in := deployment.Input{
				Now: now, Deployment: d, ReplicaSets: namespaced[*appsv1.ReplicaSet](sets, d.Namespace),
				WriteError: failed,
			}
			if d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
				for _, set := range childrenOf[*appsv1.ReplicaSet](sets, d) {
					in.Pods = append(in.Pods, childrenOf[*corev1.Pod](pods, set)...)
				}
			}
			return deployment.Decide(in)
		},
		status: func(d *appsv1.Deployment) *appsv1.DeploymentStatus { return &d.Status },
		updateStatus: func(ctx context.Context, d *appsv1.Deployment) (*appsv1.Deployment, error) {
			//nolint:wrapcheck // wrapped by the reconciler
			return c.Client.AppsV1().Deployments(d.Namespace).UpdateStatus(ctx, d, metav1.UpdateOptions{})
		},
		workers: deploymentWorkers,
	})
	return []*controller{ctrl}, err
}

// recreatedBy returns the key of the Deployment with the strategy Recreate that a pod belongs to: it waits for the end
// of its pods.
func recreatedBy(deployments, sets cache.SharedIndexInformer, obj any) []string {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return nil
	}
	set, ok := controllerIn[*appsv1.ReplicaSet](sets, "ReplicaSet", pod)
	if !ok {
		return nil
	}
	d, ok := controllerIn[*appsv1.Deployment](deployments, "Deployment", set)
	if !ok || d.Spec.Strategy.Type != appsv1.RecreateDeploymentStrategyType {
		return nil
	}
	return objectKey(d)
}
