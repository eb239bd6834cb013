package serviceips

import (
	"context"
	"log/slog"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// defaultCIDRName is the name of the ServiceCIDR of the server's flags, as in every Kubernetes cluster.
const defaultCIDRName = "kubernetes"

// ServiceCIDR maintains the ServiceCIDR kubernetes, which shows the ranges that the server uses.
type ServiceCIDR struct {
	Client kubernetes.Interface
	Ranges Ranges
	Log    *slog.Logger
}

// Run syncs until ctx is done.
func (c *ServiceCIDR) Run(ctx context.Context) error {
	syncUntilDone(ctx, c.Log.With("serviceCIDR", defaultCIDRName), c.Sync)
	return nil
}

// Sync creates the object or replaces it if the ranges have changed, which are immutable, and sets its
// condition Ready.
func (c *ServiceCIDR) Sync(ctx context.Context) error {
	objects := c.Client.NetworkingV1().ServiceCIDRs()
	want := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: defaultCIDRName}}
	for _, p := range c.Ranges.Addresses {
		want.Spec.CIDRs = append(want.Spec.CIDRs, p.Masked().String())
	}
	have, err := objects.Get(ctx, defaultCIDRName, metav1.GetOptions{})
	if err == nil && !slices.Equal(have.Spec.CIDRs, want.Spec.CIDRs) {
		if err := objects.Delete(ctx, defaultCIDRName, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &have.UID},
		}); err != nil {
			return ignoreConcurrentWrite(err)
		}
		have, err = objects.Create(ctx, want, metav1.CreateOptions{})
	} else if apierrors.IsNotFound(err) {
		have, err = objects.Create(ctx, want, metav1.CreateOptions{})
	}
	if err != nil {
		return ignoreConcurrentWrite(err)
	}
	next := have.DeepCopy()
	meta.SetStatusCondition(&next.Status.Conditions, metav1.Condition{
		Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue,
		Message: "Kubernetes Service CIDR is ready",
	})
	if equality.Semantic.DeepEqual(have.Status, next.Status) {
		return nil
	}
	_, err = objects.UpdateStatus(ctx, next, metav1.UpdateOptions{})
	return ignoreConcurrentWrite(err)
}
