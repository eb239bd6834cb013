package admission

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"berth/podspec"
)

// safeSysctls are namespaced and cannot affect other pods. They exist on every kernel since 4.15.
var safeSysctls = []string{
	"kernel.shm_rmid_forced",
	"net.ipv4.ip_local_port_range",
	"net.ipv4.ip_local_reserved_ports",
	"net.ipv4.ip_unprivileged_port_start",
	"net.ipv4.ping_group_range",
	"net.ipv4.tcp_fin_timeout",
	"net.ipv4.tcp_keepalive_intvl",
	"net.ipv4.tcp_keepalive_probes",
	"net.ipv4.tcp_keepalive_time",
	"net.ipv4.tcp_rmem",
	"net.ipv4.tcp_syncookies",
	"net.ipv4.tcp_wmem",
}

// sysctls rejects a pod with a sysctl that is neither safe nor allowed on this node, or that
// belongs to the host.
func sysctls(node Node, _ Used, pod *corev1.Pod) []Rejection {
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	for _, s := range pod.Spec.SecurityContext.Sysctls {
		if why := forbidden(node, pod, podspec.SysctlName(s.Name)); why != "" {
			return []Rejection{{Reason: "SysctlForbidden", Message: why}}
		}
	}
	return nil
}

func forbidden(node Node, pod *corev1.Pod, name string) string {
	space := podspec.SysctlNamespace(name)
	allowed := slices.Contains(safeSysctls, name) ||
		slices.ContainsFunc(node.UnsafeSysctls, func(pattern string) bool {
			prefix, open := strings.CutSuffix(pattern, "*")
			prefix = podspec.SysctlName(prefix)
			return name == prefix || open && strings.HasPrefix(name, prefix)
		})
	switch {
	case space == "" || !allowed:
		return fmt.Sprintf("forbidden sysctl: %q not allowlisted", name)
	case space == podspec.NetworkNamespace && pod.Spec.HostNetwork:
		return fmt.Sprintf("forbidden sysctl: %q not allowed with host net enabled", name)
	case space == podspec.IPCNamespace && pod.Spec.HostIPC:
		return fmt.Sprintf("forbidden sysctl: %q not allowed with host ipc enabled", name)
	}
	return ""
}
