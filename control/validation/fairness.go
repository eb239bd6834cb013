package validation

import (
	"slices"
	"strings"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"

	"berth/internal/rules"
)

// flowControlVerbs are the verbs that a FlowSchema can match besides "*".
var flowControlVerbs = []string{"create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update",
	"watch"}

// fairnessRules are the rules of API Priority and Fairness.
var fairnessRules = map[schema.GroupKind]rules.Rules{
	{Group: flowcontrolv1.GroupName, Kind: "FlowSchema"}: definition[*flowcontrolv1.FlowSchema]{
		ClusterScoped:  true,
		SetDefaults:    func(f *flowcontrolv1.FlowSchema) { rules.SetIfZero(&f.Spec.MatchingPrecedence, 1000) },
		Validate:       (*validator).flowSchema,
		ValidateStatus: func(k *validator, f, _ *flowcontrolv1.FlowSchema) { k.flowSchemaStatus(f) },
	}.Rules(newValidator),
	{Group: flowcontrolv1.GroupName,
		Kind: "PriorityLevelConfiguration"}: definition[*flowcontrolv1.PriorityLevelConfiguration]{
		ClusterScoped: true,
		SetDefaults:   defaultPriorityLevel,
		Validate:      (*validator).priorityLevel,
		ValidateStatus: func(k *validator, p, _ *flowcontrolv1.PriorityLevelConfiguration) {
			k.priorityLevelStatus(p)
		},
	}.Rules(newValidator),
}

func (k *validator) flowSchema(f *flowcontrolv1.FlowSchema) {
	at := spec.Child("matchingPrecedence")
	switch n := f.Spec.MatchingPrecedence; {
	case n <= 0:
		k.Invalid(at, n, "must be a positive value")
	case n > flowcontrolv1.FlowSchemaMaxMatchingPrecedence:
		k.Invalid(at, n, "must not be greater than %d", flowcontrolv1.FlowSchemaMaxMatchingPrecedence)
	case n == 1 && f.Name != flowcontrolv1.FlowSchemaNameExempt:
		k.Invalid(at, n, "only the schema named 'exempt' may have matchingPrecedence 1")
	}
	if m := f.Spec.DistinguisherMethod; m != nil {
		supported := []flowcontrolv1.FlowDistinguisherMethodType{
			flowcontrolv1.FlowDistinguisherMethodByNamespaceType, flowcontrolv1.FlowDistinguisherMethodByUserType}
		if !slices.Contains(supported, m.Type) {
			k.Add(field.NotSupported(spec.Child("distinguisherMethod", "type"), m.Type, supported))
		}
	}
	at = spec.Child("priorityLevelConfiguration", "name")
	if name := f.Spec.PriorityLevelConfiguration.Name; name == "" {
		k.Required(at, "must reference a priority level")
	} else {
		k.InvalidEach(at, name, validation.NameIsDNSSubdomain(name, false))
	}
	for i := range f.Spec.Rules {
		k.flowSchemaRule(spec.Child("rules").Index(i), &f.Spec.Rules[i])
	}
	for _, fixed := range bootstrap.MandatoryFlowSchemas {
		if fixed.Name == f.Name && !equality.Semantic.DeepEqual(f.Spec, fixed.Spec) {
			k.Invalid(spec, f.Spec, "spec of '%s' must equal the fixed value", f.Name)
		}
	}
	k.flowSchemaStatus(f)
}

func (k *validator) flowSchemaRule(at *field.Path, r *flowcontrolv1.PolicyRulesWithSubjects) {
	if len(r.Subjects) == 0 {
		k.Required(at.Child("subjects"), "subjects must contain at least one value")
	}
	for i, s := range r.Subjects {
		k.flowSubject(at.Child("subjects").Index(i), s)
	}
	if len(r.ResourceRules)+len(r.NonResourceRules) == 0 {
		k.Required(at, "at least one of resourceRules and nonResourceRules has to be non-empty")
	}
	for i, one := range r.ResourceRules {
		path := at.Child("resourceRules").Index(i)
		k.flowVerbs(path.Child("verbs"), one.Verbs)
		k.listWithWildcard(path.Child("apiGroups"), one.APIGroups, "resource rules must supply at least one api group",
			"api groups")
		k.listWithWildcard(path.Child("resources"), one.Resources, "resource rules must supply at least one resource",
			"resources")
		k.flowNamespaces(path.Child("namespaces"), one)
	}
	for i, one := range r.NonResourceRules {
		path := at.Child("nonResourceRules").Index(i)
		k.flowVerbs(path.Child("verbs"), one.Verbs)
		urls := path.Child("nonResourceURLs")
		k.listWithWildcard(urls, one.NonResourceURLs, "nonResourceURLs must contain at least one value",
			"non-resource URLs")
		for j, url := range one.NonResourceURLs {
			if problem := urlProblem(url); problem != "" {
				k.Invalid(urls.Index(j), url, "%s", problem)
			}
		}
	}
}

// flowSubject validates a subject, of which only the field for its kind may be set.
func (k *validator) flowSubject(at *field.Path, s flowcontrolv1.Subject) {
	forbid := func(name string, isSet bool, kind flowcontrolv1.SubjectKind) {
		if isSet && s.Kind != kind {
			k.Forbidden(at.Child(name), name+" is forbidden when subject kind is not '"+string(kind)+"'")
		}
	}
	require := func(name, detail string) { k.Required(at.Child(name), detail) }
	switch s.Kind {
	case flowcontrolv1.SubjectKindServiceAccount:
		if s.ServiceAccount == nil {
			require("serviceAccount", "serviceAccount is required when subject kind is 'ServiceAccount'")
			break
		}
		k.flowServiceAccount(at.Child("serviceAccount"), *s.ServiceAccount)
	case flowcontrolv1.SubjectKindUser:
		if s.User == nil {
			require("user", "user is required when subject kind is 'User'")
		} else if s.User.Name == "" {
			k.Required(at.Child("user", "name"), "")
		}
	case flowcontrolv1.SubjectKindGroup:
		if s.Group == nil {
			require("group", "group is required when subject kind is 'Group'")
		} else if s.Group.Name == "" {
			k.Required(at.Child("group", "name"), "")
		}
	default:
		k.Add(field.NotSupported(at.Child("kind"), s.Kind, []flowcontrolv1.SubjectKind{
			flowcontrolv1.SubjectKindGroup, flowcontrolv1.SubjectKindServiceAccount, flowcontrolv1.SubjectKindUser}))
		return
	}
	forbid("serviceAccount", s.ServiceAccount != nil, flowcontrolv1.SubjectKindServiceAccount)
	forbid("user", s.User != nil, flowcontrolv1.SubjectKindUser)
	forbid("group", s.Group != nil, flowcontrolv1.SubjectKindGroup)
}

func (k *validator) flowServiceAccount(at *field.Path, s flowcontrolv1.ServiceAccountSubject) {
	switch s.Name {
	case "":
		k.Required(at.Child("name"), "")
	case flowcontrolv1.NameAll:
	default:
		k.InvalidEach(at.Child("name"), s.Name, validation.ValidateServiceAccountName(s.Name, false))
	}
	if s.Namespace == "" {
		k.Required(at.Child("namespace"), "must specify namespace for service account")
	} else {
		k.InvalidEach(at.Child("namespace"), s.Namespace, validation.ValidateNamespaceName(s.Namespace, false))
	}
}

// listWithWildcard validates a list that is not empty and has no other elements besides "*".
func (k *validator) listWithWildcard(at *field.Path, list []string, required, others string) {
	if len(list) == 0 {
		k.Required(at, required)
	} else if len(list) > 1 && slices.Contains(list, "*") {
		k.Invalid(at, list, "if '*' is present, must not specify other %s", others)
	}
}

func (k *validator) flowVerbs(at *field.Path, verbs []string) {
	k.listWithWildcard(at, verbs, "verbs must contain at least one value", "verbs")
	if slices.Contains(verbs, flowcontrolv1.VerbAll) {
		return
	}
	for _, verb := range verbs {
		if !slices.Contains(flowControlVerbs, verb) {
			k.Add(field.NotSupported(at, verbs, flowControlVerbs))
			return
		}
	}
}

func (k *validator) flowNamespaces(at *field.Path, r flowcontrolv1.ResourcePolicyRule) {
	if len(r.Namespaces) == 0 && !r.ClusterScope {
		k.Required(at, "resource rules that are not cluster scoped must supply at least one namespace")
		return
	}
	if slices.Contains(r.Namespaces, flowcontrolv1.NamespaceEvery) {
		k.listWithWildcard(at, r.Namespaces, "", "namespaces")
		return
	}
	for i, name := range r.Namespaces {
		for _, problem := range validation.ValidateNamespaceName(name, false) {
			k.Invalid(at.Index(i), name, "each member of this list must be '*' or a DNS-1123 label; %s", problem)
		}
	}
}

// urlProblem returns what is wrong with a path that may end with a wildcard, or an empty string.
func urlProblem(url string) string {
	switch {
	case url == "*", url == "/":
		return ""
	case url == "":
		return "must not be empty"
	case !strings.HasPrefix(url, "/"):
		return "must start with slash"
	case strings.Contains(url, " "):
		return "must not contain white-space"
	case strings.Contains(url, "//"):
		return "must not contain double slash"
	case strings.Contains(strings.TrimSuffix(url, "/*"), "*"):
		return "wildcard can only do suffix matching"
	}
	return ""
}

func (k *validator) flowSchemaStatus(f *flowcontrolv1.FlowSchema) {
	types := make([]string, 0, len(f.Status.Conditions))
	for _, c := range f.Status.Conditions {
		types = append(types, string(c.Type))
	}
	k.conditionTypes(types)
}

// conditionTypes validates the types of conditions.
func (k *validator) conditionTypes(types []string) {
	for i, name := range types {
		at := status.Child("conditions").Index(i).Child("type")
		if slices.Contains(types[:i], name) {
			k.Add(field.Duplicate(at, name))
		}
		if name == "" {
			k.Required(at, "must not be empty")
		}
	}
}
