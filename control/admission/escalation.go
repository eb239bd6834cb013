package admission

import (
	"context"
	"fmt"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	rbacclient "k8s.io/client-go/kubernetes/typed/rbac/v1"

	"berth/control/authz"
)

// escalation prevents users from granting permissions that they do not have, by a role or a
// binding, unless they have the verb "escalate" on the role or "bind" for the binding.
type escalation struct {
	*admission.Handler

	rbac       *authz.RBAC
	client     rbacclient.RbacV1Interface
	authorizer authorizer.Authorizer
}

func newEscalation(c Config) (admission.Interface, error) {
	return &escalation{admission.NewHandler(admission.Create, admission.Update), c.RBAC, c.Client.RbacV1(),
			c.Authorizer},
		nil
}

// Validate checks new roles and bindings and those with changed permissions.
func (e *escalation) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().Group != rbacv1.GroupName || a.GetSubresource() != "" ||
		slices.Contains(a.GetUserInfo().GetGroups(), user.SystemPrivilegedGroup) {
		return nil
	}
	switch o := a.GetObject().(type) {
	case *rbacv1.Role:
		if old, ok := a.GetOldObject().(*rbacv1.Role); ok && equality.Semantic.DeepEqual(old.Rules, o.Rules) {
			return nil
		}
		return e.role(ctx, a, o.Name, o.Rules)
	case *rbacv1.ClusterRole:
		old, _ := a.GetOldObject().(*rbacv1.ClusterRole)
		if old != nil && onlyMetadataChanged(old, o) {
			return nil
		}
		return e.clusterRole(ctx, a, o, aggregates(o) || old != nil && aggregates(old))
	case *rbacv1.RoleBinding:
		if old, ok := a.GetOldObject().(*rbacv1.RoleBinding); ok &&
			equality.Semantic.DeepEqual(old.RoleRef, o.RoleRef) &&
			equality.Semantic.DeepEqual(old.Subjects, o.Subjects) {
			return nil
		}
		return e.binding(ctx, a, o.RoleRef)
	case *rbacv1.ClusterRoleBinding:
		if old, ok := a.GetOldObject().(*rbacv1.ClusterRoleBinding); ok && equality.Semantic.DeepEqual(old.RoleRef,
			o.RoleRef) && equality.Semantic.DeepEqual(old.Subjects, o.Subjects) {
			return nil
		}
		return e.binding(ctx, a, o.RoleRef)
	}
	return nil
}

func (e *escalation) role(ctx context.Context, a admission.Attributes, name string, rules []rbacv1.PolicyRule) error {
	if e.allowed(ctx, a, "escalate", a.GetResource().Resource, name) {
		return nil
	}
	if err := e.rbac.ConfirmNoEscalation(a.GetUserInfo(), a.GetNamespace(), rules); err != nil {
		return admission.NewForbidden(a, err)
	}
	return nil
}

// onlyMetadataChanged reports whether the update changes only finalizers, owner references and
// managed fields. Labels are not among them, because a label can add a cluster role to an
// aggregated one.
func onlyMetadataChanged(old, changed *rbacv1.ClusterRole) bool {
	same := changed.DeepCopy()
	same.Finalizers, same.OwnerReferences, same.ManagedFields = old.Finalizers, old.OwnerReferences, old.ManagedFields
	return equality.Semantic.DeepEqual(old, same)
}

func aggregates(r *rbacv1.ClusterRole) bool {
	return r.AggregationRule != nil && len(r.AggregationRule.ClusterRoleSelectors) > 0
}

// clusterRole checks a cluster role. An aggregated role can receive any rule, so creating or
// changing one requires all permissions.
func (e *escalation) clusterRole(ctx context.Context, a admission.Attributes, o *rbacv1.ClusterRole,
	aggregated bool) error {
	if !aggregated {
		return e.role(ctx, a, o.Name, o.Rules)
	}
	all := []rbacv1.PolicyRule{
		{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}},
		{Verbs: []string{"*"}, NonResourceURLs: []string{"*"}},
	}
	if e.allowed(ctx, a, "escalate", a.GetResource().Resource, o.Name) {
		return nil
	}
	if err := e.rbac.ConfirmNoEscalation(a.GetUserInfo(), "", all); err != nil {
		return admission.NewForbidden(a, fmt.Errorf("must have cluster-admin privileges to use an aggregationRule: %w",
			err))
	}
	return nil
}

func (e *escalation) binding(ctx context.Context, a admission.Attributes, ref rbacv1.RoleRef) error {
	resource := "clusterroles"
	if ref.Kind == "Role" {
		resource = "roles"
	}
	if e.allowed(ctx, a, "bind", resource, ref.Name) {
		return nil
	}
	// Without the bind permission, the role must exist, so that its rules can be checked.
	rules, err := e.rules(ctx, ref, a.GetNamespace())
	if err != nil {
		return err
	}
	if err := e.rbac.ConfirmNoEscalation(a.GetUserInfo(), a.GetNamespace(), rules); err != nil {
		return admission.NewForbidden(a, err)
	}
	return nil
}

// rules reads the rules of a role from the API server, because the cache may not have a role that
// was created or changed just before its binding.
func (e *escalation) rules(ctx context.Context, ref rbacv1.RoleRef, namespace string) ([]rbacv1.PolicyRule, error) {
	if ref.Kind == "Role" {
		role, err := e.client.Roles(namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		return role.Rules, nil
	}
	role, err := e.client.ClusterRoles().Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return role.Rules, nil
}

func (e *escalation) allowed(ctx context.Context, a admission.Attributes, verb, resource, name string) bool {
	d, _, err := e.authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: a.GetUserInfo(), Verb: verb, Namespace: a.GetNamespace(), APIGroup: rbacv1.GroupName, APIVersion: "*",
		Resource: resource, Name: name, ResourceRequest: true,
	})
	return err == nil && d == authorizer.DecisionAllow
}
