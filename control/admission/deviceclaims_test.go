package admission

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// TestDeviceClaimsStatusPermissions uses accounts with a single permission.
func TestDeviceClaimsStatusPermissions(t *testing.T) {
	t.Parallel()
	claim := func(changes ...func(*resourcev1.ResourceClaim)) *resourcev1.ResourceClaim {
		c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "ns"}}
		c.Status.Allocation = &resourcev1.AllocationResult{
			NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
				{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn,
					Values: []string{"n1"}}}}}},
			Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
				{Request: "r", Driver: "gpu", Pool: "p", Device: "d"},
				{Request: "r", Driver: "nic", Pool: "p", Device: "d"}}},
		}
		c.Status.Devices = []resourcev1.AllocatedDeviceStatus{{Driver: "nic", Pool: "p", Device: "d"}}
		for _, change := range changes {
			change(c)
		}
		return c
	}
	withStatus := func(driver string) func(*resourcev1.ResourceClaim) {
		return func(c *resourcev1.ResourceClaim) {
			c.Status.Devices = append(c.Status.Devices, resourcev1.AllocatedDeviceStatus{Driver: driver, Pool: "p",
				Device: "d"})
		}
	}
	noStatus := func(c *resourcev1.ResourceClaim) { c.Status.Devices = nil }
	anywhere := func(c *resourcev1.ResourceClaim) { c.Status.Allocation.NodeSelector = nil }
	reserved := func(c *resourcev1.ResourceClaim) {
		c.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: "u"}}
	}
	freed := func(c *resourcev1.ResourceClaim) { c.Status.Allocation, c.Status.Devices = nil, nil }
	account := func(node string) user.Info {
		return &user.DefaultInfo{Name: "system:serviceaccount:ns:driver", Extra: map[string][]string{
			serviceaccount.NodeNameKey: {node}}}
	}
	for _, row := range []struct {
		name       string
		requester  user.Info
		permission string // verb and subresource/name
		old, now   *resourcev1.ResourceClaim
		want       bool
	}{
		{"no change", account("n1"), "", claim(), claim(), true},
		{"an account on the claim's node", account("n1"), "associated-node:update driver/gpu", claim(),
			claim(withStatus("gpu")),
			true},
		{"an account on another node", account("n2"), "associated-node:update driver/gpu", claim(),
			claim(withStatus("gpu")),
			false},
		{"an account on a node, for a claim without a node", account("n1"), "associated-node:update driver/gpu",
			claim(anywhere), claim(anywhere, withStatus("gpu")), false},
		{"a user with an account's extra", &user.DefaultInfo{Name: "ann", Extra: map[string][]string{
			serviceaccount.NodeNameKey: {"n1"}}}, "associated-node:update driver/gpu", claim(),
			claim(withStatus("gpu")), false},
		{"a controller", account("n2"), "arbitrary-node:update driver/gpu", claim(), claim(withStatus("gpu")), true},
		{"a driver for another driver", account("n1"), "associated-node:update driver/gpu", claim(), claim(noStatus),
			false},
		{"a driver that allocates", account("n1"), "associated-node:update driver/gpu", claim(), claim(reserved),
			false},
		{"a scheduler", account("n2"), "update binding/c", claim(), claim(reserved), true},
		{"a scheduler that releases devices", account("n2"), "update binding/c", claim(), claim(freed), true},
		{"a scheduler that removes a driver's status", account("n2"), "update binding/c", claim(), claim(noStatus),
			false},
	} {
		c := newTestConfig(t)
		c.Authorizer = authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision,
			string, error) {
			if a.GetAPIGroup() == "resource.k8s.io" && a.GetResource() == "resourceclaims" &&
				a.GetNamespace() == "ns" &&
				a.GetVerb()+" "+a.GetSubresource()+"/"+a.GetName() == row.permission {
				return authorizer.DecisionAllow, "", nil
			}
			return authorizer.DecisionNoOpinion, "", nil
		})
		p, ok := newTestPlugin(t, newDeviceClaims, c).(admission.ValidationInterface)
		if !ok {
			t.Fatal("the plugin does not validate")
		}
		err := p.Validate(t.Context(), admission.NewAttributesRecord(row.now, row.old,
			resourcev1.SchemeGroupVersion.WithKind("ResourceClaim"), "ns", "c",
			resourcev1.SchemeGroupVersion.WithResource("resourceclaims"), "status", admission.Update,
			&metav1.UpdateOptions{},
			false, row.requester), nil)
		if (err == nil) != row.want || err != nil && !strings.Contains(err.Error(), "requires the permission") {
			t.Errorf("%s: got %v", row.name, err)
		}
	}
}
