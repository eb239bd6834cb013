package podspec

import "strings"

// Namespaces of a pod with namespaced sysctls.
const (
	NetworkNamespace = "network"
	IPCNamespace     = "ipc"
)

// SysctlName returns the name of a sysctl with dots as separators, such as
// net.ipv4.conf.eth0/1.rp_filter. If the first separator is a slash, slashes and dots are swapped.
func SysctlName(name string) string {
	first := strings.IndexAny(name, "./")
	if first < 0 || name[first] == '.' {
		return name
	}
	return strings.Map(func(r rune) rune {
		switch r {
		case '/':
			return '.'
		case '.':
			return '/'
		}
		return r
	}, name)
}

// SysctlNamespace returns the namespace that a sysctl (with dots) belongs to, or an empty string
// for one of the host.
func SysctlNamespace(name string) string {
	switch {
	case strings.HasPrefix(name, "net."):
		return NetworkNamespace
	case name == "kernel.sem",
		strings.HasPrefix(name, "kernel.shm"),
		strings.HasPrefix(name, "kernel.msg"),
		strings.HasPrefix(name, "fs.mqueue."):
		return IPCNamespace
	}
	return ""
}
