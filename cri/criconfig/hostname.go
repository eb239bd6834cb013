package criconfig

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

const (
	maxHostname = 63 // a DNS label
	maxFQDN     = 64 // the kernel's limit for host names
)

// Hostname returns the pod's host name, at most 63 characters, and its domain, which is empty
// without a subdomain. With setHostnameAsFQDN, the host name in the sandbox is the FQDN.
func Hostname(node Node, pod *corev1.Pod) (hostname, domain string) {
	if o := pod.Spec.HostnameOverride; o != nil && *o != "" {
		return *o, ""
	}
	hostname = pod.Spec.Hostname
	if hostname == "" {
		hostname = pod.Name
	}
	if len(hostname) > maxHostname {
		hostname = strings.TrimRight(hostname[:maxHostname], "-.")
	}
	if sub := pod.Spec.Subdomain; sub != "" {
		domain = sub + "." + pod.Namespace + ".svc"
		if node.ClusterDomain != "" {
			domain += "." + node.ClusterDomain
		}
	}
	return hostname, domain
}

// sandboxHostname returns the host name that the kernel uses. It is empty on the host network.
func sandboxHostname(node Node, pod *corev1.Pod) (string, error) {
	if pod.Spec.HostNetwork {
		return "", nil
	}
	name, domain := Hostname(node, pod)
	if asFQDN := pod.Spec.SetHostnameAsFQDN; asFQDN != nil && *asFQDN && domain != "" {
		name += "." + domain
	}
	if len(name) > maxFQDN {
		return "", invalid(reasonSandbox, "spec.setHostnameAsFQDN: host name %q has %d characters, at most %d "+
			"are allowed",
			name, len(name), maxFQDN)
	}
	return name, nil
}
