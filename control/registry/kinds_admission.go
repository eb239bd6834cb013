package registry

import (
	"context"
	"fmt"
	"slices"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// admissionKinds returns the kinds of webhook configurations and admission policies.
func admissionKinds() []*Kind {
	kind := func(resource, singular string, newObject, newList func() runtime.Object) *Kind {
		return &Kind{
			GroupVersion: admissionv1.SchemeGroupVersion, Resource: resource, Singular: singular,
			ClusterScoped: true, Generation: true, RequireResourceVersion: true, New: newObject, NewList: newList,
		}
	}
	mutating := kind("mutatingwebhookconfigurations", "mutatingwebhookconfiguration",
		func() runtime.Object { return &admissionv1.MutatingWebhookConfiguration{} },
		func() runtime.Object { return &admissionv1.MutatingWebhookConfigurationList{} })
	mutating.Warnings = mutatingWebhookWarnings
	validating := kind("validatingwebhookconfigurations", "validatingwebhookconfiguration",
		func() runtime.Object { return &admissionv1.ValidatingWebhookConfiguration{} },
		func() runtime.Object { return &admissionv1.ValidatingWebhookConfigurationList{} })
	validating.Warnings = validatingWebhookWarnings
	policy := kind("validatingadmissionpolicies", "validatingadmissionpolicy",
		func() runtime.Object { return &admissionv1.ValidatingAdmissionPolicy{} },
		func() runtime.Object { return &admissionv1.ValidatingAdmissionPolicyList{} })
	policy.Status = true
	policy.PrepareStatus = func(_ context.Context, obj, old runtime.Object) {
		now := MustCast[*admissionv1.ValidatingAdmissionPolicy](obj)
		before := MustCast[*admissionv1.ValidatingAdmissionPolicy](old)
		now.Labels, now.Annotations = before.Labels, before.Annotations
	}
	return []*Kind{
		mutating, validating, policy,
		kind("validatingadmissionpolicybindings", "validatingadmissionpolicybinding",
			func() runtime.Object { return &admissionv1.ValidatingAdmissionPolicyBinding{} },
			func() runtime.Object { return &admissionv1.ValidatingAdmissionPolicyBindingList{} }),
		kind("mutatingadmissionpolicies", "mutatingadmissionpolicy",
			func() runtime.Object { return &admissionv1.MutatingAdmissionPolicy{} },
			func() runtime.Object { return &admissionv1.MutatingAdmissionPolicyList{} }),
		kind("mutatingadmissionpolicybindings", "mutatingadmissionpolicybinding",
			func() runtime.Object { return &admissionv1.MutatingAdmissionPolicyBinding{} },
			func() runtime.Object { return &admissionv1.MutatingAdmissionPolicyBindingList{} }),
	}
}

// NotIntercepted returns the resources that neither webhooks nor policies intercept, as in Kubernetes: requests
// that authenticate and authorize others must not depend on them.
func NotIntercepted() []schema.GroupResource {
	return []schema.GroupResource{
		{Group: authenticationv1.GroupName, Resource: "selfsubjectreviews"},
		{Group: authenticationv1.GroupName, Resource: "tokenreviews"},
		{Group: authorizationv1.GroupName, Resource: "localsubjectaccessreviews"},
		{Group: authorizationv1.GroupName, Resource: "selfsubjectaccessreviews"},
		{Group: authorizationv1.GroupName, Resource: "selfsubjectrulesreviews"},
		{Group: authorizationv1.GroupName, Resource: "subjectaccessreviews"},
	}
}

func mutatingWebhookWarnings(obj runtime.Object) (out []string) {
	for i, w := range MustCast[*admissionv1.MutatingWebhookConfiguration](obj).Webhooks {
		out = append(out, ruleWarnings(i, w.Rules)...)
	}
	return out
}

func validatingWebhookWarnings(obj runtime.Object) (out []string) {
	for i, w := range MustCast[*admissionv1.ValidatingWebhookConfiguration](obj).Webhooks {
		out = append(out, ruleWarnings(i, w.Rules)...)
	}
	return out
}

// ruleWarnings warns of rules without wildcards that name a resource that webhooks do not intercept.
func ruleWarnings(webhook int, list []admissionv1.RuleWithOperations) (out []string) {
	for i, r := range list {
		if slices.Contains(r.APIGroups, "*") || slices.Contains(r.APIVersions, "*") ||
			slices.Contains(r.Resources, "*") {
			continue
		}
		for _, gr := range NotIntercepted() {
			if slices.Contains(r.APIGroups, gr.Group) && slices.Contains(r.Resources, gr.Resource) {
				out = append(out, fmt.Sprintf("%s: %s is excluded from admission webhooks; this rule will have no "+
					"effect", field.NewPath("webhooks").Index(webhook).Child("rules").Index(i), gr))
			}
		}
	}
	return out
}
