package admission

import (
	"context"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
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

// validateAudience requires that the audience is in a projected volume of the pod, or that RBAC
// grants it to the node. An empty audience in a volume means the API server's own, which
// TokenRequest has already filled in.
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
