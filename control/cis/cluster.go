package cis

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/cis"
)

// clusterChecks returns the checks of sections 5.3 to 5.6.
func clusterChecks() map[string]check {
	return map[string]check{
		"5.3.1": ofCluster(policySupport),
		"5.3.2": ofCluster(networkPolicies),
		"5.4.1": ofCluster(secretVariables),
		"5.4.2": externalSecrets,
		"5.5.1": ofCluster(imageProvenance),
		"5.6.1": ofCluster(namespaces),
		"5.6.2": ofCluster(seccompProfiles),
		"5.6.3": ofCluster(securityContexts),
		"5.6.4": ofCluster(defaultNamespace),
	}
}

// berthVersion is the suffix of the kubelet version of nodes with berth.
const berthVersion = "+berth"

func policySupport(_ *Facts, c *Cluster) cis.Finding {
	var others []string
	for _, n := range c.Nodes {
		if !strings.HasSuffix(n.Status.NodeInfo.KubeletVersion, berthVersion) {
			others = append(others, n.Name)
		}
	}
	switch {
	case len(c.Nodes) == 0:
		return cis.Absent("the cluster has no nodes")
	case len(others) > 0:
		return cis.ToReview("that the network of these nodes supports NetworkPolicies", "nodes without berth: %s",
			cis.List(others))
	}
	return cis.Passed("%d nodes run berth, which enforces NetworkPolicies unless networkPolicy is off", len(c.Nodes))
}

func networkPolicies(_ *Facts, c *Cluster) cis.Finding {
	with := map[string]bool{}
	for _, p := range c.NetworkPolicies {
		with[p.Namespace] = true
	}
	var without []string
	for _, n := range c.userNamespaces() {
		if !with[n.Name] {
			without = append(without, n.Name)
		}
	}
	if len(without) > 0 {
		return cis.ToReview("which traffic these namespaces need, and create NetworkPolicies",
			"namespaces without a NetworkPolicy: %s", cis.List(without))
	}
	return cis.Passed("all %d namespaces of users have a NetworkPolicy", len(c.userNamespaces()))
}

func secretVariables(_ *Facts, c *Cluster) cis.Finding {
	using := c.podsWith(anyContainer(hasSecretVariable))
	if len(using) > 0 {
		return cis.ToReview("whether these programs can read a mounted file instead",
			"pods with Secrets in environment variables: %s", cis.List(using))
	}
	return cis.Passed("no pod of users has Secrets in environment variables")
}

func hasSecretVariable(c *corev1.Container) bool {
	return slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool {
		return e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil
	}) || slices.ContainsFunc(c.EnvFrom, func(e corev1.EnvFromSource) bool { return e.SecretRef != nil })
}

func externalSecrets(f *Facts) cis.Finding {
	if f.EncryptionErr != nil {
		return cis.Unknown("%v", f.EncryptionErr)
	}
	provider := f.encryptionFor()
	if provider == "kms" {
		return cis.Passed("a KMS keeps the key that encrypts Secrets")
	}
	return cis.ToReview("whether a KMS (--encryption-provider-config) or an external store of secrets is needed",
		"Secrets are in the store of the server, encrypted by %q with a key on this host", provider)
}

func imageProvenance(_ *Facts, c *Cluster) cis.Finding {
	const lookAt = "that a ValidatingAdmissionPolicy or a webhook, or the runtime of the nodes, verifies images; the " +
		"plugin ImagePolicyWebhook does not exist in berth-control"
	if len(c.Policies) == 0 {
		return cis.ToReview(lookAt, "no webhook and no policy checks pods")
	}
	return cis.ToReview(lookAt, "webhooks and policies for pods: %s", cis.List(c.Policies))
}

func namespaces(_ *Facts, c *Cluster) cis.Finding {
	var names []string
	for _, n := range c.userNamespaces() {
		if n.Name != metav1.NamespaceDefault {
			names = append(names, n.Name)
		}
	}
	if len(names) == 0 {
		return cis.ToReview("create a namespace for each team or application", "only the namespace default exists")
	}
	return cis.ToReview("that these separate teams and applications", "namespaces: %s", cis.List(names))
}

func seccompProfiles(_ *Facts, c *Cluster) cis.Finding {
	without := c.podsWith(withoutSeccomp)
	if len(without) > 0 {
		return cis.ToReview("seccompProfile of these pods, or seccompDefault: true in the configuration of nodes",
			"pods without the seccomp profile RuntimeDefault: %s", cis.List(without))
	}
	return cis.Passed("all pods of users have a seccomp profile")
}

func withoutSeccomp(s *corev1.PodSpec) bool {
	confined := func(p *corev1.SeccompProfile) bool {
		return p != nil && p.Type != corev1.SeccompProfileTypeUnconfined
	}
	pod := s.SecurityContext != nil && confined(s.SecurityContext.SeccompProfile)
	return slices.ContainsFunc(containers(s), func(c corev1.Container) bool {
		if own := securityContext(&c).SeccompProfile; own != nil {
			return !confined(own)
		}
		return !pod
	})
}

func securityContexts(_ *Facts, c *Cluster) cis.Finding {
	without := c.podsWith(func(s *corev1.PodSpec) bool {
		pod := s.SecurityContext != nil &&
			!equality.Semantic.DeepEqual(*s.SecurityContext, corev1.PodSecurityContext{})
		return !pod && slices.ContainsFunc(containers(s), func(c corev1.Container) bool {
			return c.SecurityContext == nil
		})
	})
	if len(without) > 0 {
		return cis.ToReview("which security context these pods can have", "pods without a security context: %s",
			cis.List(without))
	}
	return cis.Passed("all pods of users have a security context")
}

func defaultNamespace(_ *Facts, c *Cluster) cis.Finding {
	if len(c.DefaultNamespace) > 0 {
		return cis.ToReview("move these objects to a namespace of their own", "objects in the namespace default: %s",
			cis.List(c.DefaultNamespace))
	}
	return cis.Passed("the namespace default contains only objects of the server")
}
