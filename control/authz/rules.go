package authz

import (
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// ruleAllows reports whether the rule allows the request.
func ruleAllows(r *rbacv1.PolicyRule, a authorizer.Attributes) bool {
	if !containsAny(r.Verbs, a.GetVerb(), rbacv1.VerbAll) {
		return false
	}
	if !a.IsResourceRequest() {
		return slices.ContainsFunc(r.NonResourceURLs, func(u string) bool { return coversPath(u, a.GetPath()) })
	}
	return containsAny(r.APIGroups, a.GetAPIGroup(), rbacv1.APIGroupAll) && coversResource(r.Resources, a.GetResource(),
		a.GetSubresource()) &&
		(len(r.ResourceNames) == 0 || slices.Contains(r.ResourceNames, a.GetName()))
}

func containsAny(have []string, want, all string) bool {
	return slices.Contains(have, want) || slices.Contains(have, all)
}

// coversPath matches a path exactly or, if rule ends in "*", by prefix.
func coversPath(rule, path string) bool {
	prefix, star := strings.CutSuffix(rule, "*")
	return rule == path || star && strings.HasPrefix(path, prefix)
}

// coversResource matches "pods", "pods/log", "*/scale" (a subresource of any resource) and "*"
// (everything).
func coversResource(have []string, resource, sub string) bool {
	full := resource
	if sub != "" {
		full += "/" + sub
	}
	return slices.Contains(have, rbacv1.ResourceAll) || slices.Contains(have, full) || sub != "" &&
		slices.Contains(have,
			"*/"+sub)
}

// subjectMatches reports whether the subject of a binding is the user. namespace is the binding's
// namespace, the default for service accounts without a namespace.
func subjectMatches(s *rbacv1.Subject, u user.Info, namespace string) bool {
	switch s.Kind {
	case rbacv1.UserKind:
		return u.GetName() == s.Name
	case rbacv1.GroupKind:
		return slices.Contains(u.GetGroups(), s.Name)
	case rbacv1.ServiceAccountKind:
		if s.Namespace != "" {
			namespace = s.Namespace
		}
		return namespace != "" && serviceaccount.MatchesUsername(namespace, s.Name, u.GetName())
	}
	return false
}
