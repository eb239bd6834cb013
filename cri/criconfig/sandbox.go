package criconfig

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
)

// Sandbox returns the configuration of the pod's sandbox. Errors are *plan.Error with reason
// FailedCreatePodSandBox and name the field.
func Sandbox(node Node, pod *corev1.Pod, setup plan.SandboxConfig) (*runtimeapi.PodSandboxConfig, error) {
	hostname, err := sandboxHostname(node, pod)
	if err != nil {
		return nil, err
	}
	ports, err := portMappings(pod)
	if err != nil {
		return nil, err
	}
	linux, err := sandboxLinux(node, pod, setup.CgroupParent)
	if err != nil {
		return nil, err
	}
	resolv, _ := DNS(node, pod)
	config := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{
			Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID), Attempt: setup.Attempt,
		},
		Hostname:     hostname,
		LogDirectory: setup.LogDir,
		DnsConfig:    dnsConfig(resolv),
		PortMappings: ports,
		Labels:       sandboxLabels(node, pod),
		Annotations:  sandboxAnnotations(pod, setup.Attempt),
		Linux:        linux,
	}
	if err := checkText(config); err != nil {
		return nil, invalid(reasonSandbox, "pod %q: %w", pod.Name, err)
	}
	return config, nil
}

func sandboxLinux(node Node, pod *corev1.Pod, cgroupParent string) (*runtimeapi.LinuxPodSandboxConfig, error) {
	options, err := namespaces(node, pod, reasonSandbox)
	if err != nil {
		return nil, err
	}
	security := &runtimeapi.LinuxSandboxSecurityContext{
		NamespaceOptions: options,
		Privileged:       anyPrivileged(pod),
		// The pause process only waits, so the strictest profile is enough.
		Seccomp: profile(runtimeapi.SecurityProfile_RuntimeDefault, ""),
	}
	if security.SupplementalGroups, security.SupplementalGroupsPolicy, err = supplementalGroups(node, pod,
		reasonSandbox); err != nil {
		return nil, err
	}
	out := &runtimeapi.LinuxPodSandboxConfig{
		CgroupParent:    cgroupParent,
		SecurityContext: security,
		Overhead:        overhead(node, pod),
		Resources:       sandboxResources(node, pod),
	}
	sc := pod.Spec.SecurityContext
	if sc == nil {
		return out, nil
	}
	security.SelinuxOptions = selinux(sc.SELinuxOptions)
	if sc.RunAsUser != nil {
		security.RunAsUser = int64Value(*sc.RunAsUser)
		if sc.RunAsGroup != nil { // the runtime rejects a group without a user
			security.RunAsGroup = int64Value(*sc.RunAsGroup)
		}
	}
	out.Sysctls, err = sysctls(sc.Sysctls)
	return out, err
}

// anyPrivileged reports whether a container is privileged, which requires a privileged sandbox.
func anyPrivileged(pod *corev1.Pod) bool {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if sc := list[i].SecurityContext; sc != nil && isTrue(sc.Privileged) {
				return true
			}
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if sc := pod.Spec.EphemeralContainers[i].SecurityContext; sc != nil && isTrue(sc.Privileged) {
			return true
		}
	}
	return false
}

// sysctls converts sysctl names to the form with dots that the runtime expects. In a name whose
// first separator is a slash, dots and slashes are swapped.
func sysctls(list []corev1.Sysctl) (map[string]string, error) {
	if len(list) == 0 {
		return nil, nil
	}
	swap := strings.NewReplacer("/", ".", ".", "/")
	out := make(map[string]string, len(list))
	for _, s := range list {
		name := s.Name
		if i := strings.IndexAny(name, "./"); i >= 0 && name[i] == '/' {
			name = swap.Replace(name)
		}
		if name == "" {
			return nil, invalid(reasonSandbox, "spec.securityContext.sysctls: a name is empty")
		}
		if had, again := out[name]; again && had != s.Value {
			return nil, invalid(reasonSandbox, "spec.securityContext.sysctls: %q is set twice", name)
		}
		out[name] = s.Value
	}
	return out, nil
}

// portMappings returns the ports of all containers that run as long as the pod. The host network
// needs no mappings.
func portMappings(pod *corev1.Pod) ([]*runtimeapi.PortMapping, error) {
	if pod.Spec.HostNetwork {
		return nil, nil
	}
	type mapping struct {
		protocol        runtimeapi.Protocol
		container, host int32
		ip              string
	}
	var out []*runtimeapi.PortMapping
	seen := map[mapping]bool{}
	add := func(c *corev1.Container) error {
		for _, p := range c.Ports {
			protocol, ok := protocolOf(p.Protocol)
			if !ok {
				return invalid(reasonSandbox, "container %q: port %d has the unknown protocol %q", c.Name,
					p.ContainerPort,
					p.Protocol)
			}
			m := mapping{protocol, p.ContainerPort, p.HostPort, p.HostIP}
			if seen[m] {
				continue
			}
			seen[m] = true
			out = append(out, &runtimeapi.PortMapping{
				Protocol: m.protocol, ContainerPort: m.container, HostPort: m.host, HostIp: m.ip,
			})
		}
		return nil
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; sidecar(c) {
			if err := add(c); err != nil {
				return nil, err
			}
		}
	}
	for i := range pod.Spec.Containers {
		if err := add(&pod.Spec.Containers[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func protocolOf(p corev1.Protocol) (runtimeapi.Protocol, bool) {
	switch p {
	case corev1.ProtocolTCP, "":
		return runtimeapi.Protocol_TCP, true
	case corev1.ProtocolUDP:
		return runtimeapi.Protocol_UDP, true
	case corev1.ProtocolSCTP:
		return runtimeapi.Protocol_SCTP, true
	}
	return 0, false
}
