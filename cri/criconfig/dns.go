package criconfig

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const reasonDNSConfigForming = "DNSConfigForming"

// Limits of the C library that Kubernetes guarantees.
const (
	maxNameservers   = 3
	maxSearches      = 32
	maxSearchesChars = 2048 // all search domains together, with the spaces between them
)

// DNS returns the content of the pod's resolv.conf according to its dnsPolicy and dnsConfig. The
// warnings name what was omitted, and a cluster policy on a node without cluster DNS: that pod
// resolves names as the host does.
func DNS(node Node, pod *corev1.Pod) (ResolvConf, []Warning) {
	var warnings []Warning
	r := hostResolv(node)
	switch policy := pod.Spec.DNSPolicy; {
	case policy == corev1.DNSNone:
		r = ResolvConf{}
	case !wantsClusterDNS(pod):
	case len(node.ClusterDNS) == 0:
		// ClusterFirst is the default of a pod without dnsPolicy
		if !node.Standalone || policy == corev1.DNSClusterFirstWithHostNet {
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
	return truncateDNS(r, warnings)
}

// hostResolv returns the host's resolv.conf for a pod. If it is empty (resolvConf is empty), pods
// use their own loopback address, as with the kubelet. An empty DNS configuration would let the
// runtime decide, and containerd 1.6 uses the host's /etc/resolv.conf.
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

// wantsClusterDNS reports whether the pod uses the cluster DNS. An absent policy is ClusterFirst,
// which means the host's DNS on the host network.
func wantsClusterDNS(pod *corev1.Pod) bool {
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

// mergedOptions overrides options by name with those of the pod.
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

// truncateDNS truncates r to the limits.
func truncateDNS(r ResolvConf, warnings []Warning) (ResolvConf, []Warning) {
	if n := len(r.Nameservers); n > maxNameservers {
		r.Nameservers = r.Nameservers[:maxNameservers]
		warnings = append(warnings, warn(reasonDNSConfigForming, "%d nameservers, only the first %d are used: %s",
			n, maxNameservers, strings.Join(r.Nameservers, " ")))
	}
	if n := len(r.Searches); n > maxSearches {
		r.Searches = r.Searches[:maxSearches]
		warnings = append(warnings, warn(reasonDNSConfigForming, "%d search domains, only the first %d are used", n,
			maxSearches))
	}
	chars := 0
	for i, s := range r.Searches {
		if chars += len(s); i > 0 {
			chars++
		}
		if chars > maxSearchesChars {
			warnings = append(warnings,
				warn(reasonDNSConfigForming, "search domains take more than %d characters, only the first %d are used",
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

// unique returns the list without duplicates.
func unique[T comparable](list []T) []T {
	var out []T
	for _, s := range list {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}
