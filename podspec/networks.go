package podspec

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Annotations about networks beside the one that every pod has: which a pod asks
// for, and what it has been given.
const (
	NetworksAnnotation      = "k8s.v1.cni.cncf.io/networks"
	NetworkStatusAnnotation = "k8s.v1.cni.cncf.io/network-status"
)

// Networks is what the pod asks for in its annotation; empty: nothing.
func Networks(pod *corev1.Pod) string { return strings.TrimSpace(pod.Annotations[NetworksAnnotation]) }
