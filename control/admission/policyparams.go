package admission

import (
	"context"
	"fmt"
	"slices"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	client "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
)

// policyParams requires of the user who writes a policy or its binding the permission to read the parameters.
// Expressions could otherwise reveal them.
type policyParams struct {
	*admission.Handler

	client     client.AdmissionregistrationV1Interface
	authorizer authorizer.Authorizer
	mapper     meta.RESTMapper
}

func newPolicyParams(c Config) (admission.Interface, error) {
	return &policyParams{admission.NewHandler(admission.Create, admission.Update), c.Client.AdmissionregistrationV1(),
		c.Authorizer, c.Mapper}, nil
}

// Validate checks new parameters.
func (p *policyParams) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().Group != admissionv1.GroupName || a.GetSubresource() != "" ||
		slices.Contains(a.GetUserInfo().GetGroups(), user.SystemPrivilegedGroup) {
		return nil
	}
	if kind, isPolicy := paramKindOf(a.GetObject()); isPolicy {
		old, updated := paramKindOf(a.GetOldObject())
		if kind == nil || updated && equality.Semantic.DeepEqual(old, kind) {
			return nil
		}
		return p.policy(ctx, a, kind)
	}
	if policy, ref, isBinding := paramRefOf(a.GetObject()); isBinding {
		oldPolicy, oldRef, updated := paramRefOf(a.GetOldObject())
		if ref == nil || updated && oldPolicy == policy && equality.Semantic.DeepEqual(oldRef, ref) {
			return nil
		}
		return p.binding(ctx, a, policy, ref)
	}
	return nil
}

// paramKindOf returns the kind of the parameters of a policy, which may be nil. It reports false for other objects.
func paramKindOf(obj runtime.Object) (*admissionv1.ParamKind, bool) {
	switch o := obj.(type) {
	case *admissionv1.ValidatingAdmissionPolicy:
		return o.Spec.ParamKind, true
	case *admissionv1.MutatingAdmissionPolicy:
		return o.Spec.ParamKind, true
	}
	return nil, false
}

// paramRefOf returns the policy and the parameters of a binding, which may be nil. It reports false for other objects.
func paramRefOf(obj runtime.Object) (policy string, ref *admissionv1.ParamRef, isBinding bool) {
	switch o := obj.(type) {
	case *admissionv1.ValidatingAdmissionPolicyBinding:
		return o.Spec.PolicyName, o.Spec.ParamRef, true
	case *admissionv1.MutatingAdmissionPolicyBinding:
		return o.Spec.PolicyName, o.Spec.ParamRef, true
	}
	return "", nil, false
}

// policy requires permission to read all objects of a kind.
func (p *policyParams) policy(ctx context.Context, a admission.Attributes, kind *admissionv1.ParamKind) error {
	if p.canRead(ctx, a, kind, "*", "*") {
		return nil
	}
	return admission.NewForbidden(a, fmt.Errorf("user %q must have \"get\" permission on all objects of the "+
		"referenced paramKind (kind=%s, apiVersion=%s)", a.GetUserInfo().GetName(), kind.Kind, kind.APIVersion))
}

// binding requires permission to read the object that a binding refers to. If the policy does not exist, the object
// may be of any kind.
func (p *policyParams) binding(ctx context.Context, a admission.Attributes, policy string,
	ref *admissionv1.ParamRef) error {
	if p.canRead(ctx, a, p.kindOf(ctx, a, policy), ref.Namespace, ref.Name) {
		return nil
	}
	return admission.NewForbidden(a, fmt.Errorf("user %q does not have \"get\" permission on the object referenced by "+
		"paramRef", a.GetUserInfo().GetName()))
}

// kindOf returns the kind of the parameters of the policy of a binding. It is nil if there is no such policy.
func (p *policyParams) kindOf(ctx context.Context, a admission.Attributes, name string) *admissionv1.ParamKind {
	if _, mutating := a.GetObject().(*admissionv1.MutatingAdmissionPolicyBinding); mutating {
		if policy, err := p.client.MutatingAdmissionPolicies().Get(ctx, name, metav1.GetOptions{}); err == nil {
			return policy.Spec.ParamKind
		}
		return nil
	}
	if policy, err := p.client.ValidatingAdmissionPolicies().Get(ctx, name, metav1.GetOptions{}); err == nil {
		return policy.Spec.ParamKind
	}
	return nil
}

// canRead reports whether the user may read an object. An unknown kind requires permission for all resources.
func (p *policyParams) canRead(ctx context.Context, a admission.Attributes, kind *admissionv1.ParamKind,
	namespace, name string) bool {
	of := schema.GroupVersionResource{Group: "*", Version: "*", Resource: "*"}
	if kind != nil {
		if gv, err := schema.ParseGroupVersion(kind.APIVersion); err == nil {
			of.Group, of.Version = gv.Group, gv.Version
			if mapping, err := p.mapper.RESTMapping(gv.WithKind(kind.Kind).GroupKind(), gv.Version); err == nil {
				of = mapping.Resource
			}
		}
	}
	decision, _, err := p.authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: a.GetUserInfo(), Verb: "get", ResourceRequest: true, Namespace: namespace, Name: name,
		APIGroup: of.Group, APIVersion: of.Version, Resource: of.Resource,
	})
	return err == nil && decision == authorizer.DecisionAllow
}
