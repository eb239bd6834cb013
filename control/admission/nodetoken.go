package admission

import (
	"context"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// token lets a node ask for tokens that are bound to a pod that runs on it, and
// for the audiences that this pod's volumes ask for.
func (n *nodeRestriction) token(ctx context.Context, node string, a admission.Attributes) error {
	r, ok := a.GetObject().(*authenticationv1.TokenRequest)
	if a.GetSubresource() != "token" || a.GetOperation() != admission.Create || !ok {
		return fmt.Errorf("unexpected operation %q on serviceaccounts/%s by node %q", a.GetOperation(), a.GetSubresource(), node)
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
		return fmt.Errorf("the UID in the bound object reference (%s) does not match the UID in record. The object might have been deleted and then recreated", ref.UID)
	}
	if pod.Spec.NodeName != node {
		return fmt.Errorf("node requested token bound to a pod scheduled on a different node")
	}
	return n.validateAudience(ctx, a, pod, r.Spec.Audiences)
}

// validateAudience is that of a projected volume of the pod (an empty one is the API
// server's own, which TokenRequest has filled in by now), or one that the node
// was given by RBAC.
func (n *nodeRestriction) validateAudience(ctx context.Context, a admission.Attributes, pod *corev1.Pod, asked []string) error {
	if len(asked) > 1 {
		return fmt.Errorf("node may only request 0 or 1 audiences")
	}
	want := ""
	if len(asked) == 1 && asked[0] != n.audience {
		want = asked[0]
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
		User: a.GetUserInfo(), Verb: "request-serviceaccounts-token-audience", Namespace: a.GetNamespace(), APIVersion: "*",
		Resource: want, Name: a.GetName(), ResourceRequest: true,
	})
	if err == nil && d == authorizer.DecisionAllow {
		return nil
	}
	return fmt.Errorf("audience %q not found in pod spec volume, %s is not authorized to request tokens for this audience", want, a.GetUserInfo().GetName())
}
