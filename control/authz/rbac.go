package authz

import (
	"context"
	"errors"
	"fmt"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	rbaclisters "k8s.io/client-go/listers/rbac/v1"
	"k8s.io/component-helpers/auth/rbac/validation"
)

// RBAC authorizes by the stored roles and bindings.
type RBAC struct {
	authorizer.AuthorizerFunc // implements Authorize; decisions are unconditional

	roles           rbaclisters.RoleLister
	bindings        rbaclisters.RoleBindingLister
	clusterRoles    rbaclisters.ClusterRoleLister
	clusterBindings rbaclisters.ClusterRoleBindingLister
}

var (
	_ authorizer.Authorizer   = (*RBAC)(nil)
	_ authorizer.RuleResolver = (*RBAC)(nil)
)

// NewRBAC returns an authorizer that reads from the factory's informers of
// rbac.authorization.k8s.io.
func NewRBAC(f informers.SharedInformerFactory) *RBAC {
	v1 := f.Rbac().V1()
	r := &RBAC{
		roles: v1.Roles().Lister(), bindings: v1.RoleBindings().Lister(),
		clusterRoles: v1.ClusterRoles().Lister(), clusterBindings: v1.ClusterRoleBindings().Lister(),
	}
	r.AuthorizerFunc = r.authorize
	return r
}

func (r *RBAC) authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	allowed, reason := false, ""
	errs := r.visit(a.GetUser(), a.GetNamespace(), func(by fmt.Stringer, rule *rbacv1.PolicyRule) bool {
		if ruleAllows(rule, a) {
			allowed, reason = true, "RBAC: allowed by "+by.String()
		}
		return !allowed
	})
	if allowed {
		return authorizer.DecisionAllow, reason, nil
	}
	// A binding to a missing role goes into the reason and is not an error: the response is 403
	// instead of 500.
	if len(errs) > 0 {
		reason = "RBAC: " + errors.Join(errs...).Error()
	}
	return authorizer.DecisionNoOpinion, reason, nil
}

// grant describes the binding through which a rule applies to a user. It is formatted only when
// needed.
type grant struct {
	binding, namespace string
	ref                rbacv1.RoleRef
	subject            rbacv1.Subject
}

func (g grant) String() string {
	subject := fmt.Sprintf("%s %q", g.subject.Kind, g.subject.Name)
	if g.subject.Kind == rbacv1.ServiceAccountKind {
		subject = fmt.Sprintf("%s %q", g.subject.Kind, g.subject.Name+"/"+g.subject.Namespace)
	}
	binding := fmt.Sprintf("ClusterRoleBinding %q", g.binding)
	if g.namespace != "" {
		binding = fmt.Sprintf("RoleBinding %q", g.binding+"/"+g.namespace)
	}
	return fmt.Sprintf("%s of %s %q to %s", binding, g.ref.Kind, g.ref.Name, subject)
}

// visit calls each for every rule that applies to the user, from cluster role bindings and, if
// namespace is not empty, from its role bindings, until each returns false.
func (r *RBAC) visit(u user.Info, namespace string, each func(fmt.Stringer, *rbacv1.PolicyRule) bool) (errs []error) {
	visitSubjects := func(g grant, subjects []rbacv1.Subject) bool {
		for i := range subjects {
			if !subjectMatches(&subjects[i], u, g.namespace) {
				continue
			}
			g.subject = subjects[i]
			rules, err := r.rulesOf(g.ref, g.namespace)
			if err != nil {
				errs = append(errs, err)
				return true
			}
			for j := range rules {
				if !each(g, &rules[j]) {
					return false
				}
			}
			return true // further subjects of the same binding add no rules
		}
		return true
	}
	all, err := r.clusterBindings.List(labels.Everything())
	if err != nil {
		errs = append(errs, err)
	}
	for _, b := range all {
		if !visitSubjects(grant{binding: b.Name, ref: b.RoleRef}, b.Subjects) {
			return errs
		}
	}
	if namespace == "" {
		return errs
	}
	local, err := r.bindings.RoleBindings(namespace).List(labels.Everything())
	if err != nil {
		errs = append(errs, err)
	}
	for _, b := range local {
		if !visitSubjects(grant{binding: b.Name, namespace: namespace, ref: b.RoleRef}, b.Subjects) {
			return errs
		}
	}
	return errs
}

// rulesOf returns the rules of the role that a binding in the namespace refers to.
func (r *RBAC) rulesOf(ref rbacv1.RoleRef, namespace string) ([]rbacv1.PolicyRule, error) {
	switch ref.Kind {
	case "Role":
		role, err := r.roles.Roles(namespace).Get(ref.Name)
		if err != nil {
			return nil, err
		}
		return role.Rules, nil
	case "ClusterRole":
		role, err := r.clusterRoles.Get(ref.Name)
		if err != nil {
			return nil, err
		}
		return role.Rules, nil
	}
	return nil, fmt.Errorf("unsupported role reference kind: %q", ref.Kind)
}

// RulesFor returns all rules that apply to the user in the namespace, for SelfSubjectRulesReview
// ("kubectl auth can-i --list").
func (r *RBAC) RulesFor(_ context.Context, u user.Info,
	namespace string) (resources []authorizer.ResourceRuleInfo, paths []authorizer.NonResourceRuleInfo, incomplete bool,
	err error) {
	errs := r.visit(u, namespace, func(_ fmt.Stringer, rule *rbacv1.PolicyRule) bool {
		if len(rule.Resources) > 0 {
			resources = append(resources, &authorizer.DefaultResourceRuleInfo{
				Verbs: rule.Verbs, APIGroups: rule.APIGroups, Resources: rule.Resources,
				ResourceNames: rule.ResourceNames,
			})
		}
		if len(rule.NonResourceURLs) > 0 {
			paths = append(paths, &authorizer.DefaultNonResourceRuleInfo{Verbs: rule.Verbs,
				NonResourceURLs: rule.NonResourceURLs})
		}
		return true
	})
	return resources, paths, len(errs) > 0, errors.Join(errs...)
}

// ConfirmNoEscalation returns an error with the missing permissions unless the user has all of the
// rules in the namespace, or cluster-wide if namespace is empty (invariant Z3).
func (r *RBAC) ConfirmNoEscalation(u user.Info, namespace string, rules []rbacv1.PolicyRule) error {
	var own []rbacv1.PolicyRule
	errs := r.visit(u, namespace, func(_ fmt.Stringer, rule *rbacv1.PolicyRule) bool {
		own = append(own, *rule)
		return true
	})
	covered, missing := validation.Covers(own, rules)
	if covered {
		return nil
	}
	lines := make([]string, 0, len(missing))
	for i := range missing {
		lines = append(lines, compactRule(&missing[i]))
	}
	text := fmt.Sprintf("user %q (groups=%q) is attempting to grant RBAC permissions not currently held:\n%s",
		u.GetName(),
		u.GetGroups(), strings.Join(lines, "\n"))
	if len(errs) > 0 {
		text += fmt.Sprintf("; resolution errors: %v", errs)
	}
	return errors.New(text)
}

func compactRule(r *rbacv1.PolicyRule) string {
	var parts []string
	for _, p := range []struct {
		name string
		list []string
	}{{"APIGroups", r.APIGroups}, {"Resources", r.Resources}, {"ResourceNames", r.ResourceNames}, {"NonResourceURLs",
		r.NonResourceURLs}, {"Verbs", r.Verbs}} {
		if len(p.list) > 0 {
			parts = append(parts, fmt.Sprintf("%s:%q", p.name, p.list))
		}
	}
	return "{" + strings.Join(parts, ", ") + "}"
}
