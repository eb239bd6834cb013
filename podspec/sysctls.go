package podspec

import "strings"

// The namespaces of a pod that have kernel parameters of their own.
const (
	NetworkNamespace = "network"
	IPCNamespace     = "ipc"
)

// SysctlName writes the name of a kernel parameter with dots between its parts,
// as net.ipv4.conf.eth0/1.rp_filter is written: where the first separator is a
// slash, slashes and dots change places.
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

// SysctlNamespace tells which namespace of the pod a parameter (with dots)
// belongs to; empty: it is the whole host's.
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
