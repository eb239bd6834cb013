package cis

import (
	"context"
	"errors"
	"fmt"
	"slices"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// readCluster lists the objects. Of Secrets and ConfigMaps it reads only the metadata.
func (c *clients) readCluster(ctx context.Context) (*Cluster, error) {
	out, core, rbac := &Cluster{}, c.client.CoreV1(), c.client.RbacV1()
	err := errors.Join(
		list(ctx, "namespaces", &out.Namespaces, core.Namespaces().List,
			func(l *corev1.NamespaceList) []corev1.Namespace { return l.Items }),
		list(ctx, "nodes", &out.Nodes, core.Nodes().List,
			func(l *corev1.NodeList) []corev1.Node { return l.Items }),
		list(ctx, "pods", &out.Pods, core.Pods(metav1.NamespaceAll).List,
			func(l *corev1.PodList) []corev1.Pod { return l.Items }),
		list(ctx, "service accounts", &out.ServiceAccounts, core.ServiceAccounts(metav1.NamespaceAll).List,
			func(l *corev1.ServiceAccountList) []corev1.ServiceAccount { return l.Items }),
		list(ctx, "network policies", &out.NetworkPolicies,
			c.client.NetworkingV1().NetworkPolicies(metav1.NamespaceAll).List,
			func(l *networkingv1.NetworkPolicyList) []networkingv1.NetworkPolicy { return l.Items }),
		list(ctx, "cluster roles", &out.ClusterRoles, rbac.ClusterRoles().List,
			func(l *rbacv1.ClusterRoleList) []rbacv1.ClusterRole { return l.Items }),
		list(ctx, "roles", &out.Roles, rbac.Roles(metav1.NamespaceAll).List,
			func(l *rbacv1.RoleList) []rbacv1.Role { return l.Items }),
		list(ctx, "cluster role bindings", &out.ClusterRoleBindings, rbac.ClusterRoleBindings().List,
			func(l *rbacv1.ClusterRoleBindingList) []rbacv1.ClusterRoleBinding { return l.Items }),
		list(ctx, "role bindings", &out.RoleBindings, rbac.RoleBindings(metav1.NamespaceAll).List,
			func(l *rbacv1.RoleBindingList) []rbacv1.RoleBinding { return l.Items }),
		c.readPolicies(ctx, out), c.readTokens(ctx, out), c.readRootCA(ctx, out), c.readDefaultNamespace(ctx, out),
	)
	if err != nil {
		return nil, err
	}
	return out, nil
}

// list lists objects into a slice.
func list[T, L any](ctx context.Context, what string, to *[]T, get func(context.Context, metav1.ListOptions) (L, error),
	items func(L) []T) error {
	l, err := get(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list %s: %w", what, err)
	}
	*to = items(l)
	return nil
}

// names lists the namespaces and names of objects in a namespace, or in all.
func (c *clients) names(ctx context.Context, resource schema.GroupVersionResource, namespace string,
	selector fields.Selector) (out []metav1.ObjectMeta, err error) {
	l, err := c.metadata.Resource(resource).Namespace(namespace).List(ctx,
		metav1.ListOptions{FieldSelector: selector.String()})
	if err != nil {
		return nil, fmt.Errorf("list metadata of %s: %w", resource.Resource, err)
	}
	for i := range l.Items {
		out = append(out, l.Items[i].ObjectMeta)
	}
	return out, nil
}

var (
	secrets    = corev1.SchemeGroupVersion.WithResource("secrets")
	configMaps = corev1.SchemeGroupVersion.WithResource("configmaps")
)

// rootCAName is the ConfigMap with the CA of the server in each namespace.
const rootCAName = "kube-root-ca.crt"

func (c *clients) readTokens(ctx context.Context, out *Cluster) error {
	for kind, to := range map[corev1.SecretType]*[]string{
		corev1.SecretTypeServiceAccountToken: &out.TokenSecrets, corev1.SecretTypeBootstrapToken: &out.BootstrapTokens,
	} {
		found, err := c.names(ctx, secrets, metav1.NamespaceAll, fields.OneTermEqualSelector("type", string(kind)))
		if err != nil {
			return err
		}
		for _, m := range found {
			*to = append(*to, m.Namespace+"/"+m.Name)
		}
	}
	return nil
}

func (c *clients) readRootCA(ctx context.Context, out *Cluster) error {
	found, err := c.names(ctx, configMaps, metav1.NamespaceAll,
		fields.OneTermEqualSelector("metadata.name", rootCAName))
	if err != nil {
		return err
	}
	for _, m := range found {
		out.WithRootCA = append(out.WithRootCA, m.Namespace)
	}
	return nil
}

// readDefaultNamespace lists the objects in the namespace default that users have created.
func (c *clients) readDefaultNamespace(ctx context.Context, out *Cluster) error {
	own := map[string][]string{"services": {"kubernetes"}, "configmaps": {rootCAName}}
	for _, r := range []schema.GroupVersionResource{
		configMaps, secrets, corev1.SchemeGroupVersion.WithResource("services"),
		corev1.SchemeGroupVersion.WithResource("pods"),
		corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"),
		{Group: "apps", Version: "v1", Resource: "deployments"},
		{Group: "apps", Version: "v1", Resource: "statefulsets"},
		{Group: "apps", Version: "v1", Resource: "daemonsets"},
		{Group: "batch", Version: "v1", Resource: "jobs"},
		{Group: "batch", Version: "v1", Resource: "cronjobs"},
	} {
		found, err := c.names(ctx, r, metav1.NamespaceDefault, fields.Everything())
		if err != nil {
			return err
		}
		for _, m := range found {
			if !slices.Contains(own[r.Resource], m.Name) {
				out.DefaultNamespace = append(out.DefaultNamespace, r.Resource+"/"+m.Name)
			}
		}
	}
	return nil
}

// readPolicies lists webhooks for pods, and policies for pods that are bound.
func (c *clients) readPolicies(ctx context.Context, out *Cluster) error {
	registration := c.client.AdmissionregistrationV1()
	var webhooks []admissionv1.ValidatingWebhookConfiguration
	var policies []admissionv1.ValidatingAdmissionPolicy
	var bindings []admissionv1.ValidatingAdmissionPolicyBinding
	if err := errors.Join(
		list(ctx, "validating webhooks", &webhooks, registration.ValidatingWebhookConfigurations().List,
			func(l *admissionv1.ValidatingWebhookConfigurationList) []admissionv1.ValidatingWebhookConfiguration {
				return l.Items
			}),
		list(ctx, "validating policies", &policies, registration.ValidatingAdmissionPolicies().List,
			func(l *admissionv1.ValidatingAdmissionPolicyList) []admissionv1.ValidatingAdmissionPolicy {
				return l.Items
			}),
		list(ctx, "bindings of validating policies", &bindings, registration.ValidatingAdmissionPolicyBindings().List,
			func(l *admissionv1.ValidatingAdmissionPolicyBindingList) []admissionv1.ValidatingAdmissionPolicyBinding {
				return l.Items
			}),
	); err != nil {
		return err
	}
	out.Policies = podPolicies(webhooks, policies, bindings)
	return nil
}

// podPolicies returns the names of webhooks for pods, and of policies for pods that a binding enforces.
func podPolicies(webhooks []admissionv1.ValidatingWebhookConfiguration,
	policies []admissionv1.ValidatingAdmissionPolicy,
	bindings []admissionv1.ValidatingAdmissionPolicyBinding) (out []string) {
	for _, w := range webhooks {
		if slices.ContainsFunc(w.Webhooks, func(one admissionv1.ValidatingWebhook) bool {
			return slices.ContainsFunc(one.Rules, func(r admissionv1.RuleWithOperations) bool {
				return selectsPods(r.Rule)
			})
		}) {
			out = append(out, "ValidatingWebhookConfiguration "+w.Name)
		}
	}
	for _, p := range policies {
		enforced := slices.ContainsFunc(bindings, func(b admissionv1.ValidatingAdmissionPolicyBinding) bool {
			return b.Spec.PolicyName == p.Name &&
				slices.Contains(b.Spec.ValidationActions, admissionv1.Deny)
		})
		if enforced && p.Spec.MatchConstraints != nil && slices.ContainsFunc(p.Spec.MatchConstraints.ResourceRules,
			func(r admissionv1.NamedRuleWithOperations) bool { return selectsPods(r.Rule) }) {
			out = append(out, "ValidatingAdmissionPolicy "+p.Name)
		}
	}
	return out
}

func selectsPods(r admissionv1.Rule) bool {
	has := func(values []string, wanted ...string) bool {
		return slices.ContainsFunc(values, func(v string) bool { return slices.Contains(wanted, v) })
	}
	return has(r.APIGroups, "", "*") && has(r.Resources, "pods", "*", "*/*")
}
