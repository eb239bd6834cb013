package authz

import (
	"maps"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Defaults are the default roles and bindings of a cluster, with the names that Kubernetes gives
// them.
type Defaults struct {
	ClusterRoles        []rbacv1.ClusterRole
	ClusterRoleBindings []rbacv1.ClusterRoleBinding
	Roles               []rbacv1.Role
	RoleBindings        []rbacv1.RoleBinding
}

// DefaultPolicy returns the default roles and bindings.
func DefaultPolicy() *Defaults {
	d := &Defaults{}
	d.users()
	d.system()
	d.nodes()
	d.controllers()
	return d
}

// resourceRule returns a rule. Its lists are separated by spaces. The verb "read" means get, list
// and watch, "write" means create, update, patch, delete and deletecollection. The group "core" is
// the API group "".
func resourceRule(verbs, groups, resources string, names ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: verbsOf(verbs), APIGroups: groupsOf(groups), Resources: strings.Fields(resources),
		ResourceNames: names}
}

// nonResourceRule allows GET for the paths.
func nonResourceRule(paths string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: []string{"get"}, NonResourceURLs: strings.Fields(paths)}
}

func verbsOf(s string) (out []string) {
	for v := range strings.FieldsSeq(s) {
		switch v {
		case "read":
			out = append(out, "get", "list", "watch")
		case "write":
			out = append(out, "create", "delete", "deletecollection", "patch", "update")
		default:
			out = append(out, v)
		}
	}
	return out
}

// groupsOf expands the names of Kubernetes' own API groups.
func groupsOf(s string) (out []string) {
	for g := range strings.FieldsSeq(s) {
		switch g {
		case "core":
			g = ""
		case "admissionregistration", "authentication", "authorization", "certificates", "coordination", "discovery",
			"events", "networking",
			"node",
			"rbac.authorization", "resource", "scheduling", "storage", "storagemigration", "metrics":
			g += ".k8s.io"
		}
		out = append(out, g)
	}
	return out
}

func meta(namespace, name string, more map[string]string) metav1.ObjectMeta {
	labels := map[string]string{"kubernetes.io/bootstrapping": "rbac-defaults"}
	maps.Copy(labels, more)
	return metav1.ObjectMeta{
		Namespace: namespace, Name: name, Labels: labels,
		Annotations: map[string]string{rbacv1.AutoUpdateAnnotationKey: "true"},
	}
}

func (d *Defaults) role(name string, rules ...rbacv1.PolicyRule) {
	d.ClusterRoles = append(d.ClusterRoles, rbacv1.ClusterRole{ObjectMeta: meta("", name, nil), Rules: rules})
}

// aggregatedRole adds a role that is aggregated into others.
func (d *Defaults) aggregatedRole(name, of string, rules ...rbacv1.PolicyRule) {
	d.ClusterRoles = append(d.ClusterRoles, rbacv1.ClusterRole{ObjectMeta: meta("", name, aggregateLabels(of)),
		Rules: rules})
}

// aggregatingRole adds a role that aggregates the roles with its label. It may itself be
// aggregated.
func (d *Defaults) aggregatingRole(name, of string) {
	d.ClusterRoles = append(d.ClusterRoles, rbacv1.ClusterRole{
		ObjectMeta: meta("", name, aggregateLabels(of)),
		AggregationRule: &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{
			{MatchLabels: aggregateLabels(name)}}},
	})
}

func aggregateLabels(to string) map[string]string {
	out := map[string]string{}
	for role := range strings.FieldsSeq(to) {
		out["rbac.authorization.k8s.io/aggregate-to-"+role] = "true"
	}
	return out
}

func (d *Defaults) bind(role string, subjects ...rbacv1.Subject) { d.bindAs(role, role, subjects...) }

func (d *Defaults) bindAs(name, role string, subjects ...rbacv1.Subject) {
	d.ClusterRoleBindings = append(d.ClusterRoleBindings, rbacv1.ClusterRoleBinding{
		ObjectMeta: meta("", name, nil), Subjects: subjects, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName,
			Kind: "ClusterRole", Name: role},
	})
}

// namespacedRole adds a role in a namespace, bound to the subjects.
func (d *Defaults) namespacedRole(namespace, name string, subjects []rbacv1.Subject, rules ...rbacv1.PolicyRule) {
	d.Roles = append(d.Roles, rbacv1.Role{ObjectMeta: meta(namespace, name, nil), Rules: rules})
	if len(subjects) > 0 {
		d.RoleBindings = append(d.RoleBindings, rbacv1.RoleBinding{
			ObjectMeta: meta(namespace, name, nil), Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName,
				Kind: "Role", Name: name},
		})
	}
}

func userNamed(name string) rbacv1.Subject {
	return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}
}

func group(name string) rbacv1.Subject {
	return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: name}
}

func account(name string) rbacv1.Subject {
	return rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: metav1.NamespaceSystem, Name: name}
}
