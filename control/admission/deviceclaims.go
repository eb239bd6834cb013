package admission

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes"
)

// deviceClaims restricts admin access to devices to labeled namespaces, and status changes of
// ResourceClaims to the scheduler and the driver of each device.
type deviceClaims struct {
	*admission.Handler

	client     kubernetes.Interface
	authorizer authorizer.Authorizer
}

func newDeviceClaims(c Config) (admission.Interface, error) {
	return &deviceClaims{admission.NewHandler(admission.Create, admission.Update), c.Client, c.Authorizer}, nil
}

// Validate checks new claims and templates, whose specs are immutable, and changes of a claim's
// status.
func (d *deviceClaims) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	spec := field.NewPath("spec")
	switch o := a.GetObject().(type) {
	case *resourcev1.ResourceClaim:
		old, changed := a.GetOldObject().(*resourcev1.ResourceClaim)
		if a.GetSubresource() == "status" && changed {
			return d.validateStatus(ctx, a, o, old)
		}
		if a.GetOperation() == admission.Create {
			return d.requireAdminNamespace(ctx, a, adminAccessRequest(spec.Child("devices"), &o.Spec.Devices))
		}
	case *resourcev1.ResourceClaimTemplate:
		if a.GetOperation() == admission.Create {
			return d.requireAdminNamespace(ctx, a, adminAccessRequest(spec.Child("spec", "devices"),
				&o.Spec.Spec.Devices))
		}
	}
	return nil
}

// adminAccessRequest returns the path of the first request for admin access, or nil.
func adminAccessRequest(path *field.Path, c *resourcev1.DeviceClaim) *field.Path {
	for i, r := range c.Requests {
		if r.Exactly != nil && r.Exactly.AdminAccess != nil && *r.Exactly.AdminAccess {
			return path.Child("requests").Index(i).Child("exactly", "adminAccess")
		}
	}
	return nil
}

func adminAccessResult(s *resourcev1.ResourceClaimStatus) *field.Path {
	if s.Allocation == nil {
		return nil
	}
	for i, r := range s.Allocation.Devices.Results {
		if r.AdminAccess != nil && *r.AdminAccess {
			return field.NewPath("status", "allocation", "devices", "results").Index(i).Child("adminAccess")
		}
	}
	return nil
}

// requireAdminNamespace returns an error if path is not nil and the namespace does not allow admin
// access. It reads the namespace from the API server, because the label may be newer than the
// cache.
func (d *deviceClaims) requireAdminNamespace(ctx context.Context, a admission.Attributes, path *field.Path) error {
	if path == nil {
		return nil
	}
	namespace, err := d.client.CoreV1().Namespaces().Get(ctx, a.GetNamespace(), metav1.GetOptions{})
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("could not retrieve namespace to verify admin access: %w", err))
	}
	if namespace.Labels[resourcev1.DRAAdminNamespaceLabelKey] == "true" {
		return nil
	}
	message := fmt.Sprintf("admin access to devices requires the `%s: true` label on the containing namespace",
		resourcev1.DRAAdminNamespaceLabelKey)
	return apierrors.NewInvalid(a.GetKind().GroupKind(), a.GetName(), field.ErrorList{field.Forbidden(path, message)})
}

// validateStatus requires a separate permission for each changed part of the status.
func (d *deviceClaims) validateStatus(ctx context.Context, a admission.Attributes, now,
	old *resourcev1.ResourceClaim) error {
	if adminAccessResult(&old.Status) == nil {
		if err := d.requireAdminNamespace(ctx, a, adminAccessResult(&now.Status)); err != nil {
			return err
		}
	}
	verb := "update"
	if info, ok := genericapirequest.RequestInfoFrom(ctx); ok {
		verb = info.Verb
	}
	same := equality.Semantic.DeepEqual
	if !same(now.Status.Allocation, old.Status.Allocation) || !same(now.Status.ReservedFor, old.Status.ReservedFor) {
		if !d.allowed(ctx, a, verb, resourcev1.SubresourceBinding, now.Name) {
			return admission.NewForbidden(a,
				fmt.Errorf("changing status.allocation or status.reservedFor requires the "+
					"permission to %s resourceclaims/%s", verb, resourcev1.SubresourceBinding))
		}
	}
	oldDevices := byDriver(stillAllocated(old.Status.Devices, now.Status.Allocation))
	newDevices := byDriver(now.Status.Devices)
	for _, driver := range slices.Sorted(maps.Keys(union(oldDevices, newDevices))) {
		if same(oldDevices[driver], newDevices[driver]) || d.mayUpdateDriver(ctx, a, verb, driver, old) {
			continue
		}
		return admission.NewForbidden(a,
			fmt.Errorf("changing status.devices of driver %s requires the permission to %s%s "+
				"or, on the claim's node, to %s%s resourceclaims/%s of that name",
				driver, resourcev1.VerbPrefixArbitraryNode, verb, resourcev1.VerbPrefixAssociatedNode, verb,
				resourcev1.SubresourceDriver))
	}
	return nil
}

// mayUpdateDriver reports whether the user may write the device status of the driver: on any node,
// or as a service account on the node of the claim's devices.
func (d *deviceClaims) mayUpdateDriver(ctx context.Context, a admission.Attributes, verb, driver string,
	claim *resourcev1.ResourceClaim) bool {
	if d.allowed(ctx, a, resourcev1.VerbPrefixArbitraryNode+verb, resourcev1.SubresourceDriver, driver) {
		return true
	}
	return onClaimNode(a.GetUserInfo(), claim) && d.allowed(ctx, a, resourcev1.VerbPrefixAssociatedNode+verb,
		resourcev1.SubresourceDriver, driver)
}

// onClaimNode reports whether the pod of the service account runs on the only node of the claim.
func onClaimNode(u user.Info, claim *resourcev1.ResourceClaim) bool {
	nodes := u.GetExtra()[serviceaccount.NodeNameKey]
	if _, _, err := serviceaccount.SplitUsername(u.GetName()); err != nil || len(nodes) != 1 {
		return false
	}
	if claim.Status.Allocation == nil || claim.Status.Allocation.NodeSelector == nil ||
		len(claim.Status.Allocation.NodeSelector.NodeSelectorTerms) != 1 {
		return false
	}
	return slices.ContainsFunc(claim.Status.Allocation.NodeSelector.NodeSelectorTerms[0].MatchFields,
		func(r corev1.NodeSelectorRequirement) bool {
			return r.Key == metav1.ObjectNameField && r.Operator == corev1.NodeSelectorOpIn &&
				slices.Equal(r.Values, nodes)
		})
}

func (d *deviceClaims) allowed(ctx context.Context, a admission.Attributes, verb, subresource, name string) bool {
	decision, _, err := d.authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: a.GetUserInfo(), Verb: verb, Namespace: a.GetNamespace(), APIGroup: resourcev1.GroupName, APIVersion: "*",
		Resource: "resourceclaims", Subresource: subresource, Name: name, ResourceRequest: true,
	})
	return err == nil && decision == authorizer.DecisionAllow
}

// stillAllocated returns the entries of devices that are still allocated. A user who
// may release devices may also remove their entries.
func stillAllocated(list []resourcev1.AllocatedDeviceStatus,
	a *resourcev1.AllocationResult) (out []resourcev1.AllocatedDeviceStatus) {
	if a == nil {
		return nil
	}
	for _, d := range list {
		if slices.ContainsFunc(a.Devices.Results, func(r resourcev1.DeviceRequestAllocationResult) bool {
			same := r.ShareID == nil && d.ShareID == nil || r.ShareID != nil && d.ShareID != nil &&
				string(*r.ShareID) == *d.ShareID
			return same && r.Driver == d.Driver && r.Pool == d.Pool && r.Device == d.Device
		}) {
			out = append(out, d)
		}
	}
	return out
}

func byDriver(list []resourcev1.AllocatedDeviceStatus) map[string][]resourcev1.AllocatedDeviceStatus {
	out := map[string][]resourcev1.AllocatedDeviceStatus{}
	for _, d := range list {
		out[d.Driver] = append(out[d.Driver], d)
	}
	return out
}

func union[V any](a, b map[string]V) map[string]V {
	out := maps.Clone(a)
	maps.Copy(out, b)
	return out
}
