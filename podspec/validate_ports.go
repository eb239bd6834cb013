package podspec

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ports validates the ports of one container.
func (k *validator) ports(at *field.Path, ports []corev1.ContainerPort) {
	names := map[string]bool{}
	for i, p := range ports {
		path := at.Index(i)
		if p.Name != "" {
			complaints := validation.IsValidPortName(p.Name)
			k.each(path.Child("name"), p.Name, complaints)
			if len(complaints) == 0 && names[p.Name] {
				k.duplicate(path.Child("name"), p.Name)
			}
			names[p.Name] = true
		}
		if p.ContainerPort == 0 {
			k.required(path.Child("containerPort"), "")
		} else {
			k.each(path.Child("containerPort"), p.ContainerPort, validation.IsValidPortNum(int(p.ContainerPort)))
		}
		if p.HostPort != 0 {
			k.each(path.Child("hostPort"), p.HostPort, validation.IsValidPortNum(int(p.HostPort)))
		}
		if k.spec.HostNetwork && p.HostPort != p.ContainerPort && !(k.template && p.HostPort == 0) {
			k.invalid(path.Child("hostPort"), p.HostPort, "must match `containerPort` when `hostNetwork` is true")
		}
		oneOf(k, path.Child("protocol"), p.Protocol, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)
		if p.HostIP != "" {
			k.address(path.Child("hostIP"), p.HostIP)
		}
	}
}

// hostPortConflicts finds duplicate host ports among the main containers, which run together, and
// within each init container.
func (k *validator) hostPortConflicts() {
	together := map[HostPort]bool{}
	for c, where := range containersOf(k.spec) {
		seen := together
		if where.kind != main {
			seen = map[HostPort]bool{}
		}
		for i, p := range c.Ports {
			if p.HostPort == 0 {
				continue
			}
			if seen[hostPort(p)] {
				k.duplicate(where.path.Child("ports").Index(i).Child("hostPort"), p.HostPort)
			}
			seen[hostPort(p)] = true
		}
	}
}

// portNameOrNumber validates a port given by number or name.
func (k *validator) portNameOrNumber(at *field.Path, p intstr.IntOrString) {
	if p.Type == intstr.String {
		k.each(at, p.StrVal, validation.IsValidPortName(p.StrVal))
		return
	}
	k.each(at, p.IntVal, validation.IsValidPortNum(int(p.IntVal)))
}
