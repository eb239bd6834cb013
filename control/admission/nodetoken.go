package admission

import (
	"context"
	"fmt"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// token allows a node to request tokens that are bound to a pod on the node.
func (n *nodeRestriction) token(ctx context.Context, node string, a admission.Attributes) error {
	r, ok := a.GetObject().(*authenticationv1.TokenRequest)
	if a.GetSubresource() != "token" || a.GetOperation() != admission.Create || !ok {
		return fmt.Errorf("unexpected operation %q on serviceaccounts/%s by node %q", a.GetOperation(),
			a.GetSubresource(),
			node)
	}
	ref := r.Spec.BoundObjectRef
	switch {
	case ref == nil || ref.APIVersion != "v1" || ref.Kind != "Pod" || ref.Name == "":
		return fmt.Errorf("node requested token not bound to a pod")
	case ref.UID == "":
		return fmt.Errorf("node requested token with a pod binding without a uid")
	}
	pod, err := n.getPod(ctx, a.GetNamespace(), ref.Name)
	if err != nil {
		return err
	}
	if ref.UID != pod.UID {
		return fmt.Errorf("the UID in the bound object reference (%s) does not match the UID in record. The "+
			"object might "+
			"have been deleted and then recreated", ref.UID)
	}
	if pod.Spec.NodeName != node {
		return fmt.Errorf("node requested token bound to a pod scheduled on a different node")
	}
	return n.validateAudience(ctx, a, pod, r.Spec.Audiences)
}

// driverRequestsAudience reports whether the CSI driver of a volume of the pod requests tokens with the audience.
func (n *nodeRestriction) driverRequestsAudience(ctx context.Context, pod *corev1.Pod,
	matches func(audience string) bool) (bool, error) {
	for i := range pod.Spec.Volumes {
		name, err := n.driverOf(ctx, pod, &pod.Spec.Volumes[i])
		if err != nil {
			return false, err
		}
		if name == "" {
			continue
		}
		driver, err := n.client.StorageV1().CSIDrivers().Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return false, fmt.Errorf("get CSI driver %s of volume %s: %w", name, pod.Spec.Volumes[i].Name, err)
		}
		if slices.ContainsFunc(driver.Spec.TokenRequests, func(r storagev1.TokenRequest) bool {
			return matches(r.Audience)
		}) {
			return true, nil
		}
	}
	return false, nil
}

// driverOf returns the CSI driver of a volume, or "".
func (n *nodeRestriction) driverOf(ctx context.Context, pod *corev1.Pod, v *corev1.Volume) (string, error) {
	var claim string
	switch {
	case v.CSI != nil:
		return v.CSI.Driver, nil
	case v.PersistentVolumeClaim != nil:
		claim = v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		claim = pod.Name + "-" + v.Name
	default:
		return "", nil
	}
	pvc, err := n.client.CoreV1().PersistentVolumeClaims(pod.Namespace).Get(ctx, claim, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && pvc.Spec.VolumeName == "" {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("get claim %s of volume %s: %w", claim, v.Name, err)
	}
	pv, err := n.client.CoreV1().PersistentVolumes().Get(ctx, pvc.Spec.VolumeName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("get persistent volume %s of volume %s: %w", pvc.Spec.VolumeName, v.Name, err)
	case pv.Spec.CSI == nil:
		return "", nil
	}
	return pv.Spec.CSI.Driver, nil
}

// validateAudience requires that the audience is in a projected volume of the pod or requested by the CSI driver of
// one of its volumes, or that RBAC grants it to the node. An empty audience in a volume means the API server's own,
// which TokenRequest has already filled in.
func (n *nodeRestriction) validateAudience(ctx context.Context, a admission.Attributes, pod *corev1.Pod,
	requested []string) error {
	if len(requested) > 1 {
		return fmt.Errorf("node may only request 0 or 1 audiences")
	}
	want := ""
	if len(requested) == 1 && requested[0] != n.audience {
		want = requested[0]
	}
	for i := range pod.Spec.Volumes {
		p := pod.Spec.Volumes[i].Projected
		if p == nil {
			continue
		}
		for j := range p.Sources {
			t := p.Sources[j].ServiceAccountToken
			if t != nil && (t.Audience == want || want == "" && t.Audience == n.audience) {
				return nil
			}
		}
	}
	allowed, err := n.driverRequestsAudience(ctx, pod, func(audience string) bool {
		return audience == want || want == "" && audience == n.audience
	})
	if err != nil || allowed {
		return err
	}
	d, _, err := n.authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: a.GetUserInfo(), Verb: "request-serviceaccounts-token-audience", Namespace: a.GetNamespace(),
		APIVersion: "*",
		Resource:   want, Name: a.GetName(), ResourceRequest: true,
	})
	if err == nil && d == authorizer.DecisionAllow {
		return nil
	}
	return fmt.Errorf("audience %q not found in pod spec volume, %s is not authorized to request tokens for "+
		"this audience",
		want, a.GetUserInfo().GetName())
}
