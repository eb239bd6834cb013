package validation

import (
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"berth/internal/rules"
)

func admissionKind(kind string) schema.GroupKind {
	return schema.GroupKind{Group: admissionv1.GroupName, Kind: kind}
}

// newAdmissionName validates the name of a new object of this group.
func newAdmissionName(name string, prefix bool) []string {
	out := apivalidation.NameIsDNSSubdomain(name, prefix)
	if strings.HasSuffix(name, reservedAdmissionConfigSuffix) {
		out = append(out, "names ending with \""+reservedAdmissionConfigSuffix+
			"\" are reserved for static manifest-based configurations and cannot be managed via the API")
	}
	return out
}

// defaultRules sets the scope of rules.
func defaultRules(list []admissionv1.NamedRuleWithOperations) {
	for i := range list {
		rules.SetIfNil(&list[i].Scope, admissionv1.AllScopes)
	}
}

func defaultMatchResources(m *admissionv1.MatchResources) {
	if m == nil {
		return
	}
	rules.SetIfNil(&m.MatchPolicy, admissionv1.Equivalent)
	rules.SetIfNil(&m.NamespaceSelector, metav1.LabelSelector{})
	rules.SetIfNil(&m.ObjectSelector, metav1.LabelSelector{})
	defaultRules(m.ResourceRules)
	defaultRules(m.ExcludeResourceRules)
}

// Operations that webhooks and policies can match.
var (
	allOperations = []admissionv1.OperationType{admissionv1.OperationAll, admissionv1.Connect, admissionv1.Create,
		admissionv1.Delete, admissionv1.Update}
	mutatedOperations = []admissionv1.OperationType{admissionv1.OperationAll, admissionv1.Connect, admissionv1.Create,
		admissionv1.Update}
)

// matchResources validates which requests a policy or a binding applies to.
func (k *validator) matchResources(at *field.Path, m *admissionv1.MatchResources,
	operations []admissionv1.OperationType) {
	if m == nil {
		return
	}
	if m.MatchPolicy == nil {
		k.Required(at.Child("matchPolicy"), "")
	}
	rules.OneOfIfSet(k, at.Child("matchPolicy"), m.MatchPolicy, admissionv1.Equivalent, admissionv1.Exact)
	k.requiredSelector(at.Child("namespaceSelector"), m.NamespaceSelector)
	k.requiredSelector(at.Child("objectSelector"), m.ObjectSelector)
	k.namedRules(at.Child("resourceRules"), m.ResourceRules, operations)
	k.namedRules(at.Child("excludeResourceRules"), m.ExcludeResourceRules, operations)
}

func (k *validator) requiredSelector(at *field.Path, s *metav1.LabelSelector) {
	if s == nil {
		k.Required(at, "")
		return
	}
	k.Selector(at, s)
}

func (k *validator) namedRules(at *field.Path, list []admissionv1.NamedRuleWithOperations,
	operations []admissionv1.OperationType) {
	for i := range list {
		at, names := at.Index(i), map[string]bool{}
		for j, name := range list[i].ResourceNames {
			at := at.Child("resourceNames").Index(j)
			k.InvalidEach(at, name, content.IsPathSegmentName(name))
			k.unique(at, names, name)
		}
		k.admissionRule(at, &list[i].RuleWithOperations, operations)
	}
}

// admissionRule validates a rule that selects requests.
func (k *validator) admissionRule(at *field.Path, r *admissionv1.RuleWithOperations,
	operations []admissionv1.OperationType) {
	wildcardAlone(k, at.Child("operations"), r.Operations, "operations")
	for i, o := range r.Operations {
		rules.OneOf(k, at.Child("operations").Index(i), o, operations...)
	}
	wildcardAlone(k, at.Child("apiGroups"), r.APIGroups, "API groups")
	wildcardAlone(k, at.Child("apiVersions"), r.APIVersions, "API versions")
	for i, v := range r.APIVersions {
		if v == "" {
			k.Required(at.Child("apiVersions").Index(i), "")
		}
	}
	k.ruleResources(at.Child("resources"), r.Resources)
	rules.OneOfIfSet(k, at.Child("scope"), r.Scope, admissionv1.AllScopes, admissionv1.ClusterScope,
		admissionv1.NamespacedScope)
}

// wildcardAlone requires a list that is not empty, in which "*" has no other values beside it.
func wildcardAlone[T ~string](k *validator, at *field.Path, list []T, what string) {
	switch {
	case len(list) == 0:
		k.Required(at, "")
	case len(list) > 1 && slices.Contains(list, "*"):
		k.Invalid(at, list, "if '*' is present, must not specify other %s", what)
	}
}

// ruleResources validates resources and subresources, such as pods, pods/log, pods/*, */scale, * and */*.
func (k *validator) ruleResources(at *field.Path, list []string) {
	if len(list) == 0 {
		k.Required(at, "")
	}
	if len(list) > 1 && slices.Contains(list, "*/*") {
		k.Invalid(at, list, "if '*/*' is present, must not specify other resources")
	}
	if slices.Contains(list, "*") && slices.ContainsFunc(list, func(r string) bool {
		return r != "" && r != "*" && !strings.Contains(r, "/")
	}) {
		k.Invalid(at, list, "if '*' is present, must not specify other resources without subresources")
	}
	before := map[string]bool{}
	for i, r := range list {
		resource, subresource, found := strings.Cut(r, "/")
		switch covering := resource + "/*"; {
		case r == "":
			k.Required(at.Index(i), "")
		case !found:
		case before[covering]:
			k.Invalid(at.Index(i), r, "if '%s' is present, must not specify %s", covering, r)
		case before["*/"+subresource]:
			k.Invalid(at.Index(i), r, "if '*/%s' is present, must not specify %s", subresource, r)
		}
		before[r] = true
	}
}
