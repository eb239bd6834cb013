package cis

import (
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"

	"berth/control/authz"
	"berth/control/pki"
	"berth/internal/cis"
)

// permissionChecks returns the checks of section 5.1.
func permissionChecks() map[string]check {
	return map[string]check{
		"5.1.1": ofCluster(clusterAdmins),
		"5.1.2": permission("Secrets", access{"", []string{"secrets"}, []string{"get", "list", "watch"}}),
		"5.1.3": ofCluster(wildcards),
		"5.1.4": permission("pods", access{"", []string{"pods"}, []string{"create"}}),
		"5.1.5": ofCluster(defaultAccounts),
		"5.1.6": ofCluster(mountedTokens),
		"5.1.7": ofFiles(masters),
		"5.1.8": permission("bind, impersonate or escalate", access{"*",
			[]string{"users", "groups", "serviceaccounts", "roles", "clusterroles"},
			[]string{"bind", "impersonate", "escalate"}}),
		"5.1.9": permission("persistent volumes", access{"", []string{"persistentvolumes"}, []string{"create"}}),
		"5.1.10": permission("nodes/proxy", access{"", []string{"nodes/proxy"},
			[]string{"get", "create", "update", "patch", "delete"}}),
		"5.1.11": permission("the approval of certificates", access{"certificates.k8s.io",
			[]string{"certificatesigningrequests/approval"}, []string{"update", "patch"}}),
		"5.1.12": permission("webhook configurations", access{"admissionregistration.k8s.io",
			[]string{"validatingwebhookconfigurations", "mutatingwebhookconfigurations"},
			[]string{"create", "update", "patch", "delete"}}),
		"5.1.13": permission("tokens of service accounts", access{"", []string{"serviceaccounts/token"},
			[]string{"create"}}),
	}
}

// access is a permission: any of the verbs on any of the resources of a group. The group * is any group.
type access struct {
	group     string
	resources []string
	verbs     []string
}

// grantedBy reports whether a rule grants the permission, possibly for some names only.
func (a access) grantedBy(r rbacv1.PolicyRule) bool {
	group := a.group == rbacv1.APIGroupAll && len(r.APIGroups) > 0 || slices.Contains(r.APIGroups, a.group) ||
		slices.Contains(r.APIGroups, rbacv1.APIGroupAll)
	return group && a.hasVerb(r) && a.hasResource(r)
}

func (a access) hasVerb(r rbacv1.PolicyRule) bool {
	return slices.ContainsFunc(r.Verbs, func(v string) bool {
		return v == rbacv1.VerbAll || slices.Contains(a.verbs, v)
	})
}

func (a access) hasResource(r rbacv1.PolicyRule) bool {
	return slices.ContainsFunc(r.Resources, func(granted string) bool {
		return granted == rbacv1.ResourceAll || slices.ContainsFunc(a.resources, func(wanted string) bool {
			return matches(granted, wanted)
		})
	})
}

// matches reports whether a resource of a rule includes a resource. The rule */proxy includes nodes/proxy.
func matches(granted, wanted string) bool {
	_, sub, found := strings.Cut(wanted, "/")
	return granted == wanted || found && granted == rbacv1.ResourceAll+"/"+sub
}

// binding is a ClusterRoleBinding or RoleBinding.
type binding struct {
	namespace, name string // no namespace: in all namespaces
	ref             rbacv1.RoleRef
	subjects        []rbacv1.Subject
	rules           []rbacv1.PolicyRule
}

func (b binding) String() string {
	if b.namespace == "" {
		return "ClusterRoleBinding " + b.name
	}
	return "RoleBinding " + b.namespace + "/" + b.name
}

// isDefault reports whether the server has created an object of RBAC.
func isDefault(labels map[string]string) bool {
	return labels["kubernetes.io/bootstrapping"] == "rbac-defaults"
}

// bindings returns the bindings that the server has not created by itself.
func (c *Cluster) bindings() (out []binding) {
	clusterRoles, roles := map[string][]rbacv1.PolicyRule{}, map[string][]rbacv1.PolicyRule{}
	for _, r := range c.ClusterRoles {
		clusterRoles[r.Name] = r.Rules
	}
	for _, r := range c.Roles {
		roles[r.Namespace+"/"+r.Name] = r.Rules
	}
	for _, b := range c.ClusterRoleBindings {
		if !isDefault(b.Labels) && b.Name != authz.AdminBinding {
			out = append(out, binding{"", b.Name, b.RoleRef, b.Subjects, clusterRoles[b.RoleRef.Name]})
		}
	}
	for _, b := range c.RoleBindings {
		if isDefault(b.Labels) {
			continue
		}
		rules := roles[b.Namespace+"/"+b.RoleRef.Name]
		if b.RoleRef.Kind == "ClusterRole" {
			rules = clusterRoles[b.RoleRef.Name]
		}
		out = append(out, binding{b.Namespace, b.Name, b.RoleRef, b.Subjects, rules})
	}
	return out
}

// everyone are groups and users that stand for all clients.
var everyone = []string{"system:authenticated", "system:unauthenticated", "system:anonymous", "system:serviceaccounts"}

// forEveryone reports whether a binding is for all clients.
func (b binding) forEveryone() bool {
	return slices.ContainsFunc(b.subjects, func(s rbacv1.Subject) bool { return slices.Contains(everyone, s.Name) })
}

// judge returns the finding for bindings that grant a permission.
func judge(what string, granting []binding) cis.Finding {
	var names, open []string
	for _, b := range granting {
		names = append(names, b.String())
		if b.forEveryone() {
			open = append(open, b.String())
		}
	}
	switch {
	case len(open) > 0:
		return cis.Failed("bind the role to users or service accounts that need it",
			"%s is granted to all clients: %s", what, cis.List(open))
	case len(names) > 0:
		return cis.ToReview("whether the subjects of these bindings need the permission", "%s is granted by %s", what,
			cis.List(names))
	}
	return cis.Passed("only default roles and the administrator have %s", what)
}

func permission(what string, a access) check {
	return ofCluster(func(_ *Facts, c *Cluster) cis.Finding {
		var granting []binding
		for _, b := range c.bindings() {
			if slices.ContainsFunc(b.rules, a.grantedBy) {
				granting = append(granting, b)
			}
		}
		return judge("access to "+what, granting)
	})
}

func clusterAdmins(_ *Facts, c *Cluster) cis.Finding {
	var granting []binding
	for _, b := range c.bindings() {
		if b.ref.Kind == "ClusterRole" && b.ref.Name == "cluster-admin" {
			granting = append(granting, b)
		}
	}
	return judge("cluster-admin", granting)
}

func wildcards(_ *Facts, c *Cluster) cis.Finding {
	var names, everything []string
	add := func(name string, rules []rbacv1.PolicyRule) {
		if slices.ContainsFunc(rules, hasWildcard) {
			names = append(names, name)
		}
		if slices.ContainsFunc(rules, grantsEverything) {
			everything = append(everything, name)
		}
	}
	for _, r := range c.ClusterRoles {
		if !isDefault(r.Labels) {
			add("ClusterRole "+r.Name, r.Rules)
		}
	}
	for _, r := range c.Roles {
		if !isDefault(r.Labels) {
			add("Role "+r.Namespace+"/"+r.Name, r.Rules)
		}
	}
	const remedy = "replace the wildcards by the groups, resources and verbs that are needed"
	switch {
	case len(everything) > 0:
		return cis.ToReview("whether these roles can be replaced by cluster-admin or by narrow ones",
			"everything is granted by %s; other roles with wildcards: %d", cis.List(everything),
			len(names)-len(everything))
	case len(names) > 0:
		return cis.ToReview(remedy, "wildcards are in %s", cis.List(names))
	}
	return cis.Passed("only default roles have wildcards")
}

func hasWildcard(r rbacv1.PolicyRule) bool {
	return slices.Contains(r.APIGroups, rbacv1.APIGroupAll) || slices.Contains(r.Resources, rbacv1.ResourceAll) ||
		slices.Contains(r.Verbs, rbacv1.VerbAll)
}

func grantsEverything(r rbacv1.PolicyRule) bool {
	return slices.Contains(r.APIGroups, rbacv1.APIGroupAll) && slices.Contains(r.Resources, rbacv1.ResourceAll) &&
		slices.Contains(r.Verbs, rbacv1.VerbAll)
}

// defaultAccount is the name of the service account that pods have by default.
const defaultAccount = "default"

func defaultAccounts(_ *Facts, c *Cluster) cis.Finding {
	var bound, mounting []string
	for _, b := range c.bindings() {
		for _, s := range b.subjects {
			if s.Kind == rbacv1.ServiceAccountKind && s.Name == defaultAccount {
				bound = append(bound, b.String())
			}
		}
	}
	if len(bound) > 0 {
		return cis.Failed("create a service account for the workload and bind the role to it",
			"default service accounts have permissions by %s", cis.List(bound))
	}
	for _, a := range c.ServiceAccounts {
		if a.Name == defaultAccount && (a.AutomountServiceAccountToken == nil || *a.AutomountServiceAccountToken) {
			mounting = append(mounting, a.Namespace)
		}
	}
	if len(mounting) > 0 {
		return cis.ToReview("whether pods need the token: set automountServiceAccountToken: false in the "+
			"ServiceAccount default", "default service accounts have no permissions, but pods get their tokens in %s",
			cis.List(mounting))
	}
	return cis.Passed("default service accounts have no permissions, and pods do not get their tokens")
}

func mountedTokens(_ *Facts, c *Cluster) cis.Finding {
	off := map[string]bool{} // service accounts without automatic tokens
	for _, a := range c.ServiceAccounts {
		if a.AutomountServiceAccountToken != nil && !*a.AutomountServiceAccountToken {
			off[a.Namespace+"/"+a.Name] = true
		}
	}
	var mounted []string
	for _, p := range c.Pods {
		account := p.Spec.ServiceAccountName
		if account == "" {
			account = defaultAccount
		}
		mounts := !off[p.Namespace+"/"+account]
		if p.Spec.AutomountServiceAccountToken != nil {
			mounts = *p.Spec.AutomountServiceAccountToken
		}
		if mounts {
			mounted = append(mounted, p.Namespace+"/"+p.Name)
		}
	}
	if len(mounted) > 0 {
		return cis.ToReview("whether these pods use the API; otherwise set automountServiceAccountToken: false",
			"pods with automatically mounted tokens: %s", cis.List(mounted))
	}
	return cis.Passed("none of %d pods has an automatically mounted token", len(c.Pods))
}

func masters(f *Facts) cis.Finding {
	switch {
	case f.Files.Admin.Missing():
		return cis.Unknown("%s does not exist", f.Files.Admin.Path)
	case slices.Contains(f.Files.AdminGroups, pki.MastersGroup):
		return cis.Failed("restart the server, which replaces the file", "%s is in the group %s", f.Files.Admin.Path,
			pki.MastersGroup)
	case f.Files.SuperAdmin.Missing():
		return cis.Passed("the administrator is in the groups %s", cis.List(f.Files.AdminGroups))
	}
	return cis.Deviation("the administrator is in the groups %s, which RBAC limits; only %s, for emergencies on this "+
		"host, is in %s", cis.List(f.Files.AdminGroups), f.Files.SuperAdmin.Path, pki.MastersGroup)
}
