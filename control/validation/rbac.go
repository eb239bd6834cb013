package validation

import (
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"berth/internal/rules"
)

func rbac(kind string) schema.GroupKind { return schema.GroupKind{Group: rbacv1.GroupName, Kind: kind} }

var rbacRules = map[schema.GroupKind]rules.Rules{
	rbac("Role"): definition[*rbacv1.Role]{ValidateName: pathSegment,
		Validate: func(k *validator, r *rbacv1.Role) { k.policies(field.NewPath("rules"), r.Rules, true) },
	}.Rules(newValidator),
	rbac("ClusterRole"): definition[*rbacv1.ClusterRole]{
		ClusterScoped: true,
		ValidateName:  pathSegment,
		Validate:      (*validator).clusterRole,
	}.Rules(newValidator),
	rbac("RoleBinding"): definition[*rbacv1.RoleBinding]{ValidateName: pathSegment,
		SetDefaults: func(b *rbacv1.RoleBinding) { defaultBinding(&b.RoleRef, b.Subjects) },
		Validate: func(k *validator, b *rbacv1.RoleBinding) {
			k.roleRef(b.RoleRef, "Role", "ClusterRole")
			k.subjects(b.Subjects)
		},
		ValidateUpdate: func(k *validator, b, old *rbacv1.RoleBinding) {
			k.roleRefChange(b.RoleRef, old.RoleRef)
		}}.Rules(newValidator),
	rbac("ClusterRoleBinding"): definition[*rbacv1.ClusterRoleBinding]{ClusterScoped: true, ValidateName: pathSegment,
		SetDefaults: func(b *rbacv1.ClusterRoleBinding) { defaultBinding(&b.RoleRef, b.Subjects) },
		Validate: func(k *validator, b *rbacv1.ClusterRoleBinding) {
			k.roleRef(b.RoleRef, "ClusterRole")
			k.subjects(b.Subjects)
		},
		ValidateUpdate: func(k *validator, b, old *rbacv1.ClusterRoleBinding) {
			k.roleRefChange(b.RoleRef,
				old.RoleRef)
		}}.Rules(newValidator),
}

// pathSegment validates names that need only be path segments, not DNS names.
func pathSegment(name string, prefix bool) []string {
	if prefix {
		return content.IsPathSegmentPrefix(name)
	}
	return content.IsPathSegmentName(name)
}

func defaultBinding(role *rbacv1.RoleRef, subjects []rbacv1.Subject) {
	rules.SetIfZero(&role.APIGroup, rbacv1.GroupName)
	for i := range subjects {
		if subjects[i].Kind == rbacv1.UserKind || subjects[i].Kind == rbacv1.GroupKind {
			rules.SetIfZero(&subjects[i].APIGroup, rbacv1.GroupName)
		}
	}
}

func (k *validator) clusterRole(r *rbacv1.ClusterRole) {
	k.policies(field.NewPath("rules"), r.Rules, false)
	if r.AggregationRule == nil {
		return
	}
	at := field.NewPath("aggregationRule", "clusterRoleSelectors")
	if len(r.AggregationRule.ClusterRoleSelectors) == 0 {
		k.Required(at, "at least one clusterRoleSelector required if aggregationRule is non-nil")
	}
	for i := range r.AggregationRule.ClusterRoleSelectors {
		selector := &r.AggregationRule.ClusterRoleSelectors[i]
		k.Selector(at.Index(i), selector)
		if _, err := metav1.LabelSelectorAsSelector(selector); err != nil {
			k.Invalid(at.Index(i), selector, "invalid label selector: %v", err)
		}
	}
}

// policies validates the rules of a role.
func (k *validator) policies(at *field.Path, rules []rbacv1.PolicyRule, namespaced bool) {
	for i, r := range rules {
		path := at.Index(i)
		if len(r.Verbs) == 0 {
			k.Required(path.Child("verbs"), "verbs must contain at least one value")
		}
		if len(r.NonResourceURLs) > 0 {
			if namespaced {
				k.Invalid(path.Child("nonResourceURLs"), r.NonResourceURLs,
					"namespaced rules cannot apply to non-resource URLs")
			}
			if len(r.APIGroups)+len(r.Resources)+len(r.ResourceNames) > 0 {
				k.Invalid(
					path.Child("nonResourceURLs"),
					r.NonResourceURLs,
					"rules cannot apply to both regular resources and non-resource URLs",
				)
			}
			continue
		}
		if len(r.APIGroups) == 0 {
			k.Required(path.Child("apiGroups"), "resource rules must supply at least one api group")
		}
		if len(r.Resources) == 0 {
			k.Required(path.Child("resources"), "resource rules must supply at least one resource")
		}
	}
}

func (k *validator) roleRef(r rbacv1.RoleRef, kinds ...string) {
	at := field.NewPath("roleRef")
	if r.APIGroup != rbacv1.GroupName {
		k.Add(field.NotSupported(at.Child("apiGroup"), r.APIGroup, []string{rbacv1.GroupName}))
	}
	oneOfOrEmpty(k, at.Child("kind"), r.Kind, kinds)
	k.Name(at.Child("name"), r.Name, content.IsPathSegmentName)
}

// oneOfOrEmpty adds NotSupported errors for unsupported values, including an empty one.
func oneOfOrEmpty(k *validator, at *field.Path, value string, supported []string) {
	if !slices.Contains(supported, value) {
		k.Add(field.NotSupported(at, value, supported))
	}
}

func (k *validator) roleRefChange(now, old rbacv1.RoleRef) {
	if !equality.Semantic.DeepEqual(now, old) {
		k.Invalid(field.NewPath("roleRef"), now, "cannot change roleRef")
	}
}

// subjects validates the subjects of a binding.
func (k *validator) subjects(subjects []rbacv1.Subject) {
	for i, s := range subjects {
		at := field.NewPath("subjects").Index(i)
		if s.Name == "" {
			k.Required(at.Child("name"), "")
		}
		switch s.Kind {
		case rbacv1.ServiceAccountKind:
			if s.Name != "" {
				k.InvalidEach(at.Child("name"), s.Name, validation.ValidateServiceAccountName(s.Name, false))
			}
			if s.APIGroup != "" {
				k.Add(field.NotSupported(at.Child("apiGroup"), s.APIGroup, []string{""}))
			}
			if s.Namespace == "" {
				k.Required(at.Child("namespace"), "")
			}
		case rbacv1.UserKind, rbacv1.GroupKind:
			if s.APIGroup != rbacv1.GroupName {
				k.Add(field.NotSupported(at.Child("apiGroup"), s.APIGroup, []string{rbacv1.GroupName}))
			}
		default:
			k.Add(
				field.NotSupported(
					at.Child("kind"),
					s.Kind,
					[]string{rbacv1.ServiceAccountKind, rbacv1.UserKind, rbacv1.GroupKind},
				),
			)
		}
	}
}
