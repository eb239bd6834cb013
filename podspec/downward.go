package podspec

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// RuntimeInfo is what the downward API exposes in addition to the pod object. The primary address
// comes first. Addresses are empty while unknown.
type RuntimeInfo struct {
	NodeName string
	HostIPs  []string
	PodIPs   []string // the addresses of the host for a host network pod
}

// FieldRef returns the value of a fieldRef: one of metadata.name, .namespace, .uid, .labels,
// .annotations, .labels['KEY'], .annotations['KEY'], spec.nodeName, spec.serviceAccountName,
// status.hostIP, .hostIPs, .podIP, .podIPs. An absent label or annotation is empty, like an unknown
// address.
func FieldRef(pod *corev1.Pod, fieldPath string, facts RuntimeInfo) (string, error) {
	if path, key, ok := mapKey(fieldPath); ok {
		switch path {
		case "metadata.labels":
			return pod.Labels[key], nil
		case "metadata.annotations":
			return pod.Annotations[key], nil
		}
		return "", fmt.Errorf("fieldPath %q: only metadata.labels and metadata.annotations support a key", fieldPath)
	}
	switch fieldPath {
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return string(pod.UID), nil
	case "metadata.labels":
		return mapLines(pod.Labels), nil
	case "metadata.annotations":
		return mapLines(pod.Annotations), nil
	case "spec.nodeName":
		if pod.Spec.NodeName != "" {
			return pod.Spec.NodeName, nil
		}
		return facts.NodeName, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "status.hostIP":
		return firstAddress(facts.HostIPs), nil
	case "status.hostIPs":
		return strings.Join(facts.HostIPs, ","), nil
	case "status.podIP":
		return firstAddress(facts.PodIPs), nil
	case "status.podIPs":
		return strings.Join(facts.PodIPs, ","), nil
	}
	return "", fmt.Errorf("fieldPath %q is not supported", fieldPath)
}

// mapKey splits path['key'].
func mapKey(fieldPath string) (path, key string, ok bool) {
	rest, found := strings.CutSuffix(fieldPath, "']")
	if !found {
		return "", "", false
	}
	return strings.Cut(rest, "['")
}

// mapLines formats a map like a file of a downwardAPI volume: key="value" lines, sorted, without a
// final newline.
func mapLines(m map[string]string) string {
	out := make([]string, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, k+"="+strconv.Quote(m[k]))
	}
	return strings.Join(out, "\n")
}

func firstAddress(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[0]
}

// ResourceRef returns the value of a resourceFieldRef in units of its divisor, rounded up. The
// container is the one that the selector names, else c. A missing CPU, memory or ephemeral storage
// limit is that of the pod, else the node's allocatable amount. A missing request is 0.
func ResourceRef(
	pod *corev1.Pod,
	c *corev1.Container,
	selector *corev1.ResourceFieldSelector,
	allocatable corev1.ResourceList,
) (string, error) {
	if name := selector.ContainerName; name != "" && (c == nil || c.Name != name) {
		if c = downwardContainer(pod, name); c == nil {
			return "", fmt.Errorf("containerName %q: the pod has no such container", name)
		}
	}
	if c == nil {
		return "", fmt.Errorf("resource %q: containerName is required", selector.Resource)
	}
	list, name, ok := strings.Cut(selector.Resource, ".")
	res := corev1.ResourceName(name)
	if !ok || !downwardResource(res) {
		return "", fmt.Errorf("resource %q is not supported", selector.Resource)
	}
	var q resource.Quantity
	switch list {
	case "limits":
		q = downwardLimit(pod, c, res, allocatable)
	case "requests":
		q = downwardRequest(c, res)
	default:
		return "", fmt.Errorf("resource %q: must start with limits or requests", selector.Resource)
	}
	return inUnits(q, res, selector.Divisor)
}

// downwardResource reports whether the downward API supports the resource.
func downwardResource(res corev1.ResourceName) bool {
	switch res {
	case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
		return true
	}
	return strings.HasPrefix(string(res), corev1.ResourceHugePagesPrefix)
}

func downwardLimit(
	pod *corev1.Pod,
	c *corev1.Container,
	res corev1.ResourceName,
	allocatable corev1.ResourceList,
) resource.Quantity {
	if q, ok := c.Resources.Limits[res]; ok && !q.IsZero() {
		return q
	}
	if strings.HasPrefix(string(res), corev1.ResourceHugePagesPrefix) {
		return resource.Quantity{}
	}
	if pod.Spec.Resources != nil {
		if q, ok := pod.Spec.Resources.Limits[res]; ok && !q.IsZero() {
			return q
		}
	}
	return allocatable[res]
}

// downwardRequest is the request. As in the API server, it defaults to the limit.
func downwardRequest(c *corev1.Container, res corev1.ResourceName) resource.Quantity {
	if q, ok := c.Resources.Requests[res]; ok {
		return q
	}
	return c.Resources.Limits[res]
}

// inUnits is ceil(q/divisor). A missing divisor is 1. CPU is computed in millicores.
func inUnits(q resource.Quantity, res corev1.ResourceName, divisor resource.Quantity) (string, error) {
	value, unit := q.Value(), divisor.Value()
	if res == corev1.ResourceCPU {
		value, unit = q.MilliValue(), divisor.MilliValue()
	}
	if divisor.IsZero() {
		unit = 1
		if res == corev1.ResourceCPU {
			unit = 1000
		}
	}
	if unit <= 0 {
		return "", fmt.Errorf("divisor %q: must be a positive quantity", divisor.String())
	}
	n := value / unit
	if value%unit > 0 {
		n++
	}
	return strconv.FormatInt(n, 10), nil
}

// downwardContainer returns the container of that name, except ephemeral ones, which have no
// resources.
func downwardContainer(pod *corev1.Pod, name string) *corev1.Container {
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}
