package main

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

const (
	nameLabel    = "operators.example.com/website"
	versionLabel = "operators.example.com/version"
	maxReplicas  = 3
)

// reconciler creates a Deployment for each Website and reports its state in the status.
type reconciler struct {
	client.Client

	newWebsite func() website
	version    string // of the operator
	image      string // of the Deployments
}

// Reconcile implements reconcile.Reconciler.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	w := r.newWebsite()
	if err := r.Get(ctx, req.NamespacedName, w); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !w.GetDeletionTimestamp().IsZero() {
		return ctrl.Result{}, nil
	}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: w.GetName(), Namespace: w.GetNamespace()}}
	if _, err := controllerutil.CreateOrUpdate(ctx, r.Client, d, func() error {
		r.configure(d, w)
		return controllerutil.SetControllerReference(w, d, r.Scheme())
	}); err != nil {
		return ctrl.Result{}, fmt.Errorf("apply Deployment: %w", err)
	}
	available := metav1.Condition{Type: "Available", Status: metav1.ConditionFalse, Reason: "PodsNotReady",
		ObservedGeneration: w.GetGeneration()}
	if d.Status.ObservedGeneration == d.Generation && d.Status.UpdatedReplicas == *d.Spec.Replicas &&
		d.Status.Replicas == *d.Spec.Replicas && d.Status.ReadyReplicas == *d.Spec.Replicas {
		available.Status, available.Reason = metav1.ConditionTrue, "PodsReady"
	}
	s := w.status()
	changed := meta.SetStatusCondition(&s.Conditions, available)
	if !changed && s.ReadyReplicas == d.Status.ReadyReplicas {
		return ctrl.Result{}, nil
	}
	s.ReadyReplicas = d.Status.ReadyReplicas
	if err := r.Status().Update(ctx, w); err != nil {
		return ctrl.Result{}, fmt.Errorf("update status: %w", err)
	}
	return ctrl.Result{}, nil
}

// configure sets the fields of the Deployment that the operator owns.
func (r *reconciler) configure(d *appsv1.Deployment, w website) {
	labels := map[string]string{nameLabel: w.GetName()}
	if d.Labels == nil {
		d.Labels = map[string]string{}
	}
	d.Labels[nameLabel], d.Labels[versionLabel] = w.GetName(), r.version
	d.Spec.Replicas = w.replicas()
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	d.Spec.Template.Labels = labels
	d.Spec.Template.Spec.TerminationGracePeriodSeconds = new(int64(1))
	if len(d.Spec.Template.Spec.Containers) != 1 {
		d.Spec.Template.Spec.Containers = make([]corev1.Container, 1)
	}
	c := &d.Spec.Template.Spec.Containers[0]
	c.Name, c.Image, c.Args = "web", r.image, []string{"serve"}
	c.Env = []corev1.EnvVar{{Name: "MESSAGE", Value: w.message()}}
}

// webhooks implements the defaulting and the validating webhook of a version of the kind.
type webhooks[T website] struct{}

// Default implements admission.Defaulter.
func (webhooks[T]) Default(_ context.Context, w T) error {
	if w.replicas() == nil {
		w.setReplicas(1)
	}
	return nil
}

// ValidateCreate implements admission.Validator.
func (webhooks[T]) ValidateCreate(_ context.Context, w T) (admission.Warnings, error) {
	return validate(w)
}

// ValidateUpdate implements admission.Validator.
func (webhooks[T]) ValidateUpdate(_ context.Context, _, w T) (admission.Warnings, error) {
	return validate(w)
}

// ValidateDelete implements admission.Validator.
func (webhooks[T]) ValidateDelete(context.Context, T) (admission.Warnings, error) { return nil, nil }

func validate(w website) (warnings admission.Warnings, err error) {
	if w.message() == "" {
		warnings = append(warnings, "the message is empty")
	}
	if n := *w.replicas(); n > maxReplicas {
		return warnings, fmt.Errorf("a website has at most %d replicas, got %d", maxReplicas, n)
	}
	return warnings, nil
}
