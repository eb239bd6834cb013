package cis

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/cis"
)

// Levels of the Pod Security Standards, from the weakest.
const (
	privileged = "privileged"
	baseline   = "baseline"
	restricted = "restricted"
)

var levels = []string{privileged, baseline, restricted}

// enforceLabel selects the level of a namespace.
const enforceLabel = "pod-security.kubernetes.io/enforce"

// systemNamespaces have the workloads of the cluster itself.
var systemNamespaces = []string{metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease}

// podChecks returns the checks of section 5.2.
func podChecks() map[string]check {
	return map[string]check{
		"5.2.1":  ofCluster(policyControl),
		"5.2.2":  admissionOf("privileged containers", baseline, anyContainer(isPrivileged)),
		"5.2.3":  admissionOf("pods with hostPID", baseline, func(s *corev1.PodSpec) bool { return s.HostPID }),
		"5.2.4":  admissionOf("pods with hostIPC", baseline, func(s *corev1.PodSpec) bool { return s.HostIPC }),
		"5.2.5":  admissionOf("pods with hostNetwork", baseline, func(s *corev1.PodSpec) bool { return s.HostNetwork }),
		"5.2.6":  admissionOf("containers that allow privilege escalation", restricted, anyContainer(canEscalate)),
		"5.2.7":  admissionOf("containers that may run as root", restricted, mayRunAsRoot),
		"5.2.8":  admissionOf("containers with NET_RAW", restricted, anyContainer(hasNetRaw)),
		"5.2.9":  admissionOf("containers with capabilities", restricted, anyContainer(hasCapabilities)),
		"5.2.10": absent("nodes run Linux only: pods with windowsOptions.hostProcess cannot start"),
		"5.2.11": admissionOf("pods with hostPath volumes", baseline, func(s *corev1.PodSpec) bool {
			return slices.ContainsFunc(s.Volumes, func(v corev1.Volume) bool { return v.HostPath != nil })
		}),
		"5.2.12": admissionOf("containers with hostPort", baseline, anyContainer(hasHostPort)),
	}
}

// userNamespaces returns the namespaces of users.
func (c *Cluster) userNamespaces() (out []corev1.Namespace) {
	for _, n := range c.Namespaces {
		if !slices.Contains(systemNamespaces, n.Name) {
			out = append(out, n)
		}
	}
	return out
}

// level returns the level that is enforced in a namespace.
func (f *Facts) level(n *corev1.Namespace) string {
	if !f.pluginEnabled("PodSecurity") || slices.Contains(f.PodSecurityExempt, n.Name) {
		return privileged
	}
	if level := n.Labels[enforceLabel]; slices.Contains(levels, level) {
		return level
	}
	if f.PodSecurityLevel == "" {
		return privileged
	}
	return f.PodSecurityLevel
}

// below returns the namespaces of users in which a weaker level is enforced.
func (f *Facts) below(c *Cluster, level string) (out []string) {
	for _, n := range c.userNamespaces() {
		if slices.Index(levels, f.level(&n)) < slices.Index(levels, level) {
			out = append(out, n.Name)
		}
	}
	return out
}

func policyControl(f *Facts, c *Cluster) cis.Finding {
	if f.AdmissionErr != nil {
		return cis.Unknown("%v", f.AdmissionErr)
	}
	open := f.below(c, baseline)
	switch {
	case !f.pluginEnabled("PodSecurity") && len(c.Policies) == 0:
		return cis.Failed("remove PodSecurity from --disable-admission-plugins",
			"PodSecurity is disabled, and there are no webhooks and policies for pods")
	case len(open) == 0:
		return cis.Passed("PodSecurity enforces at least baseline in all %d namespaces of users",
			len(c.userNamespaces()))
	case len(c.Policies) > 0:
		return cis.ToReview("that these reject unsafe pods in the namespaces without a level",
			"webhooks and policies for pods: %s; namespaces without a level: %s", cis.List(c.Policies), cis.List(open))
	}
	return cis.ToReview("kubectl label namespace NAME "+enforceLabel+"=baseline, or the defaults of PodSecurity in "+
		"--admission-control-config-file", "PodSecurity runs, but enforces no level in %s", cis.List(open))
}

// admissionOf checks that the level that rejects pods with a property is enforced.
func admissionOf(what, level string, has func(*corev1.PodSpec) bool) check {
	return ofCluster(func(f *Facts, c *Cluster) cis.Finding {
		if f.AdmissionErr != nil {
			return cis.Unknown("%v", f.AdmissionErr)
		}
		open := f.below(c, level)
		if len(open) == 0 {
			return cis.Passed("PodSecurity enforces %s in all %d namespaces of users", level, len(c.userNamespaces()))
		}
		using := c.podsWith(has)
		now := "no pod of users has it now"
		if len(using) > 0 {
			now = "pods that have it: " + cis.List(using)
		}
		return cis.ToReview("whether these namespaces can have the label "+enforceLabel+"="+level,
			"%s are admitted in %s; %s", what, cis.List(open), now)
	})
}

// podsWith returns the pods of users with a property.
func (c *Cluster) podsWith(has func(*corev1.PodSpec) bool) (out []string) {
	for i := range c.Pods {
		p := &c.Pods[i]
		if !slices.Contains(systemNamespaces, p.Namespace) && has(&p.Spec) {
			out = append(out, p.Namespace+"/"+p.Name)
		}
	}
	return out
}

// containers returns all containers of a pod.
func containers(s *corev1.PodSpec) []corev1.Container {
	all := slices.Concat(s.InitContainers, s.Containers)
	for i := range s.EphemeralContainers {
		all = append(all, corev1.Container(s.EphemeralContainers[i].EphemeralContainerCommon))
	}
	return all
}

func anyContainer(has func(*corev1.Container) bool) func(*corev1.PodSpec) bool {
	return func(s *corev1.PodSpec) bool {
		return slices.ContainsFunc(containers(s), func(c corev1.Container) bool { return has(&c) })
	}
}

// securityContext returns the context of a container, which is never nil.
func securityContext(c *corev1.Container) *corev1.SecurityContext {
	if c.SecurityContext != nil {
		return c.SecurityContext
	}
	return &corev1.SecurityContext{}
}

func isTrue(p *bool) bool { return p != nil && *p }

func isPrivileged(c *corev1.Container) bool { return isTrue(securityContext(c).Privileged) }

func canEscalate(c *corev1.Container) bool {
	p := securityContext(c).AllowPrivilegeEscalation
	return p == nil || *p
}

func mayRunAsRoot(s *corev1.PodSpec) bool {
	pod := s.SecurityContext
	if pod == nil {
		pod = &corev1.PodSecurityContext{}
	}
	return slices.ContainsFunc(containers(s), func(c corev1.Container) bool {
		nonRoot, user := securityContext(&c).RunAsNonRoot, securityContext(&c).RunAsUser
		if nonRoot == nil {
			nonRoot = pod.RunAsNonRoot
		}
		if user == nil {
			user = pod.RunAsUser
		}
		return !isTrue(nonRoot) && (user == nil || *user == 0)
	})
}

// drops reports whether a container drops a capability.
func drops(c *corev1.Container, names ...corev1.Capability) bool {
	capabilities := securityContext(c).Capabilities
	return capabilities != nil && slices.ContainsFunc(capabilities.Drop, func(dropped corev1.Capability) bool {
		return slices.Contains(names, dropped)
	})
}

func hasNetRaw(c *corev1.Container) bool {
	capabilities := securityContext(c).Capabilities
	if capabilities != nil && slices.Contains(capabilities.Add, "NET_RAW") {
		return true
	}
	return !drops(c, "ALL", "NET_RAW")
}

func hasCapabilities(c *corev1.Container) bool { return !drops(c, "ALL") }

func hasHostPort(c *corev1.Container) bool {
	return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.HostPort != 0 })
}
