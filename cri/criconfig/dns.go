package criconfig

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const formingDNS = "DNSConfigForming"

// Limits of the C library that Kubernetes promises to keep to.
const (
	maxNameservers   = 3
	maxSearches      = 32
	maxSearchesChars = 2048 // all of them with the spaces between
)

// DNS gives what the pod's resolv.conf says, by its dnsPolicy and dnsConfig. The
// warnings name what was left out, and a cluster policy on a node without
// cluster DNS: the pod then resolves as the host does.
func DNS(node Node, pod *corev1.Pod) (ResolvConf, []Warning) {
	var warnings []Warning
	r := hostResolv(node)
	switch policy := pod.Spec.DNSPolicy; {
	case policy == corev1.DNSNone:
		r = ResolvConf{}
	case !wantsCluster(pod):
	case len(node.ClusterDNS) == 0:
		if !node.Standalone || policy == corev1.DNSClusterFirstWithHostNet { // ClusterFirst is what a pod that says nothing has
			warnings = append(warnings, warn("MissingClusterDNS",
				"the node has no clusterDNS, so dnsPolicy %s falls back to %s", policyName(policy), corev1.DNSDefault))
		}
	default:
		r = clusterDNS(node, pod.Namespace)
	}
	if c := pod.Spec.DNSConfig; c != nil {
		r.Nameservers = append(r.Nameservers, c.Nameservers...)
		r.Searches = append(r.Searches, c.Searches...)
		r.Options = mergedOptions(r.Options, c.Options)
	}
	r.Nameservers = unique(r.Nameservers)
	r.Searches = unique(r.Searches)
	return fitted(r, warnings)
}

// hostResolv is what pods have of the host. Where it says nothing (resolvConf is empty)
// they ask their own loopback alone, as with a kubelet: nothing at all would be the
// runtime's to fill in, and containerd 1.6 does so with the host's /etc/resolv.conf.
func hostResolv(node Node) ResolvConf {
	r := clone(node.HostResolvConf)
	if len(r.Nameservers)+len(r.Searches)+len(r.Options) > 0 {
		return r
	}
	r.Searches = []string{"."}
	for _, ip := range node.HostIPs {
		if strings.Contains(ip, ":") {
			r.Nameservers = append(r.Nameservers, "::1")
		} else {
			r.Nameservers = append(r.Nameservers, "127.0.0.1")
		}
	}
	if len(r.Nameservers) == 0 {
		r.Nameservers = []string{"127.0.0.1"}
	}
	return r
}

// wantsCluster reports whether the pod asks for the cluster's DNS. An absent
// policy is ClusterFirst, which means the host's on the host network.
func wantsCluster(pod *corev1.Pod) bool {
	switch pod.Spec.DNSPolicy {
	case corev1.DNSClusterFirstWithHostNet:
		return true
	case corev1.DNSClusterFirst, "":
		return !pod.Spec.HostNetwork
	}
	return false
}

func policyName(p corev1.DNSPolicy) corev1.DNSPolicy {
	if p == "" {
		return corev1.DNSClusterFirst
	}
	return p
}

func clusterDNS(node Node, namespace string) ResolvConf {
	r := ResolvConf{Nameservers: slices.Clone(node.ClusterDNS), Options: []string{"ndots:5"}}
	if d := node.ClusterDomain; d != "" {
		r.Searches = []string{namespace + ".svc." + d, "svc." + d, d}
	}
	r.Searches = append(r.Searches, node.HostResolvConf.Searches...)
	return r
}

// mergedOptions puts the pod's options over those there are, name by name.
func mergedOptions(have []string, own []corev1.PodDNSConfigOption) []string {
	for _, o := range own {
		if o.Name == "" {
			continue
		}
		text := o.Name
		if o.Value != nil && *o.Value != "" {
			text += ":" + *o.Value
		}
		i := slices.IndexFunc(have, func(h string) bool {
			name, _, _ := strings.Cut(h, ":")
			return name == o.Name
		})
		if i >= 0 {
			have[i] = text
			continue
		}
		have = append(have, text)
	}
	return have
}

// fitted cuts r to the limits.
func fitted(r ResolvConf, warnings []Warning) (ResolvConf, []Warning) {
	if n := len(r.Nameservers); n > maxNameservers {
		r.Nameservers = r.Nameservers[:maxNameservers]
		warnings = append(warnings, warn(formingDNS, "%d nameservers, only the first %d are used: %s",
			n, maxNameservers, strings.Join(r.Nameservers, " ")))
	}
	if n := len(r.Searches); n > maxSearches {
		r.Searches = r.Searches[:maxSearches]
		warnings = append(warnings, warn(formingDNS, "%d search domains, only the first %d are used", n, maxSearches))
	}
	chars := 0
	for i, s := range r.Searches {
		if chars += len(s); i > 0 {
			chars++
		}
		if chars > maxSearchesChars {
			warnings = append(warnings, warn(formingDNS, "search domains take more than %d characters, only the first %d are used",
				maxSearchesChars, i))
			r.Searches = r.Searches[:i]
			break
		}
	}
	return r, warnings
}

func dnsConfig(r ResolvConf) *runtimeapi.DNSConfig {
	return &runtimeapi.DNSConfig{Servers: r.Nameservers, Searches: r.Searches, Options: r.Options}
}

func clone(r ResolvConf) ResolvConf {
	return ResolvConf{
		Nameservers: slices.Clone(r.Nameservers),
		Searches:    slices.Clone(r.Searches),
		Options:     slices.Clone(r.Options),
	}
}

// unique keeps the first of each.
func unique[T comparable](list []T) []T {
	var out []T
	for _, s := range list {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}
