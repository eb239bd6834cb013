package printers

import (
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func admission(kind string) schema.GroupKind {
	return schema.GroupKind{Group: admissionv1.GroupName, Kind: kind}
}

var (
	webhookDefinitions = []metav1.TableColumnDefinition{
		nameColumn, integerColumn("Webhooks", "Number of webhooks."), ageColumn,
	}
	paramKindColumn          = stringColumn("ParamKind", "Kind of the parameters.")
	policyBindingDefinitions = []metav1.TableColumnDefinition{
		nameColumn, stringColumn("PolicyName", "Policy of the binding."),
		stringColumn("ParamRef", "Parameters of the policy."), ageColumn,
	}
)

// admissionKinds are webhook configurations and admission policies.
var admissionKinds = map[schema.GroupKind]Columns{
	admission("ValidatingWebhookConfiguration"): columnsOf(
		func(c *admissionv1.ValidatingWebhookConfiguration, now time.Time) []any {
			return []any{c.Name, int64(len(c.Webhooks)), age(c.CreationTimestamp, now)}
		}, webhookDefinitions...),
	admission("MutatingWebhookConfiguration"): columnsOf(
		func(c *admissionv1.MutatingWebhookConfiguration, now time.Time) []any {
			return []any{c.Name, int64(len(c.Webhooks)), age(c.CreationTimestamp, now)}
		}, webhookDefinitions...),
	admission("ValidatingAdmissionPolicy"): columnsOf(
		func(p *admissionv1.ValidatingAdmissionPolicy, now time.Time) []any {
			return []any{p.Name, int64(len(p.Spec.Validations)), formatParamKind(p.Spec.ParamKind),
				age(p.CreationTimestamp, now)}
		}, nameColumn, integerColumn("Validations", "Number of validations."), paramKindColumn, ageColumn),
	admission("ValidatingAdmissionPolicyBinding"): columnsOf(
		func(b *admissionv1.ValidatingAdmissionPolicyBinding, now time.Time) []any {
			return []any{b.Name, b.Spec.PolicyName, formatParamRef(b.Spec.ParamRef), age(b.CreationTimestamp, now)}
		}, policyBindingDefinitions...),
	admission("MutatingAdmissionPolicy"): columnsOf(
		func(p *admissionv1.MutatingAdmissionPolicy, now time.Time) []any {
			return []any{p.Name, int64(len(p.Spec.Mutations)), formatParamKind(p.Spec.ParamKind),
				age(p.CreationTimestamp, now)}
		}, nameColumn, integerColumn("Mutations", "Number of mutations."), paramKindColumn, ageColumn),
	admission("MutatingAdmissionPolicyBinding"): columnsOf(
		func(b *admissionv1.MutatingAdmissionPolicyBinding, now time.Time) []any {
			return []any{b.Name, b.Spec.PolicyName, formatParamRef(b.Spec.ParamRef), age(b.CreationTimestamp, now)}
		}, policyBindingDefinitions...),
}

func formatParamKind(k *admissionv1.ParamKind) string {
	if k == nil {
		return unset
	}
	return k.APIVersion + "/" + k.Kind
}

func formatParamRef(r *admissionv1.ParamRef) string {
	switch {
	case r == nil:
		return unset
	case r.Name != "" && r.Namespace != "":
		return r.Namespace + "/" + r.Name
	case r.Name != "":
		return "*/" + r.Name
	case r.Selector != nil:
		return formatSelector(r.Selector)
	}
	return unset
}
