package source

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ServiceKey identifies a Service of a file.
type ServiceKey struct{ types.NamespacedName }

func (k ServiceKey) String() string { return "Service " + k.NamespacedName.String() }

// serviceKey returns the key of a Service.
func serviceKey(s *corev1.Service) ServiceKey {
	return ServiceKey{types.NamespacedName{Namespace: s.Namespace, Name: s.Name}}
}

// service adds a Service, or the preceding one if the manifest is the same.
func (v *validator) service(s *corev1.Service, before *DesiredState) {
	s.ObjectMeta = metav1.ObjectMeta{
		Name: s.Name, Namespace: s.Namespace, Labels: s.Labels, Annotations: s.Annotations,
	}
	s.Status = corev1.ServiceStatus{}
	setServiceDefaults(s)
	if errs := validateService(s); len(errs) > 0 {
		v.complain(s, errs)
		return
	}
	key := serviceKey(s)
	v.out.lines[key] = v.m.Line(s, "metadata.name")
	s.ResourceVersion = contentVersion("Service", s.Labels, s.Annotations, s.Spec)
	if before != nil {
		for _, old := range before.Services {
			if serviceKey(old) == key && old.ResourceVersion == s.ResourceVersion {
				s = old
			}
		}
	}
	v.out.Services = append(v.out.Services, s)
}

// setServiceDefaults sets the defaults of the API server that do not depend on the cluster.
func setServiceDefaults(s *corev1.Service) {
	if s.Spec.Type == "" {
		s.Spec.Type = corev1.ServiceTypeClusterIP
	}
	if s.Spec.SessionAffinity == "" {
		s.Spec.SessionAffinity = corev1.ServiceAffinityNone
	}
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		if p.Protocol == "" {
			p.Protocol = corev1.ProtocolTCP
		}
		if p.TargetPort == (intstr.IntOrString{}) {
			p.TargetPort = intstr.FromInt32(p.Port)
		}
	}
	if s.Spec.ClusterIP == "" && len(s.Spec.ClusterIPs) > 0 {
		s.Spec.ClusterIP = s.Spec.ClusterIPs[0]
	}
}

// validateService validates a Service with the rules of the API server.
func validateService(s *corev1.Service) (errs field.ErrorList) {
	spec := field.NewPath("spec")
	for _, m := range validation.IsDNS1123Label(s.Name) {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), s.Name, m))
	}
	switch s.Spec.Type {
	case corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer:
	case corev1.ServiceTypeExternalName:
		for _, m := range validation.IsDNS1123Subdomain(s.Spec.ExternalName) {
			errs = append(errs, field.Invalid(spec.Child("externalName"), s.Spec.ExternalName, m))
		}
		return errs
	default:
		errs = append(errs, field.NotSupported(spec.Child("type"), s.Spec.Type, []corev1.ServiceType{
			corev1.ServiceTypeClusterIP, corev1.ServiceTypeExternalName, corev1.ServiceTypeLoadBalancer,
			corev1.ServiceTypeNodePort,
		}))
	}
	if !slices.Contains([]corev1.ServiceAffinity{corev1.ServiceAffinityNone, corev1.ServiceAffinityClientIP},
		s.Spec.SessionAffinity) {
		errs = append(errs, field.NotSupported(spec.Child("sessionAffinity"), s.Spec.SessionAffinity,
			[]corev1.ServiceAffinity{corev1.ServiceAffinityClientIP, corev1.ServiceAffinityNone}))
	}
	if ip := s.Spec.ClusterIP; ip != "" && ip != corev1.ClusterIPNone {
		if _, err := netip.ParseAddr(ip); err != nil {
			errs = append(errs, field.Invalid(spec.Child("clusterIP"), ip, "must be a valid IP address or None"))
		}
	}
	for i, ip := range s.Spec.ExternalIPs {
		if _, err := netip.ParseAddr(ip); err != nil {
			errs = append(errs, field.Invalid(spec.Child("externalIPs").Index(i), ip, "must be a valid IP address"))
		}
	}
	for i, r := range s.Spec.LoadBalancerSourceRanges {
		at := spec.Child("loadBalancerSourceRanges").Index(i)
		if s.Spec.Type != corev1.ServiceTypeLoadBalancer {
			errs = append(errs, field.Forbidden(at, "may only be used when `type` is 'LoadBalancer'"))
		} else if _, err := netip.ParsePrefix(strings.TrimSpace(r)); err != nil {
			errs = append(errs, field.Invalid(at, r, "must be a valid CIDR value"))
		}
	}
	for key, value := range s.Spec.Selector {
		at := spec.Child("selector").Key(key)
		for _, m := range append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...) {
			errs = append(errs, field.Invalid(at, value, m))
		}
	}
	if len(s.Spec.Ports) == 0 && s.Spec.ClusterIP != corev1.ClusterIPNone {
		errs = append(errs, field.Required(spec.Child("ports"), ""))
	}
	return append(errs, validateServicePorts(s, spec.Child("ports"))...)
}

func validateServicePorts(s *corev1.Service, at *field.Path) (errs field.ErrorList) {
	names, numbers := map[string]bool{}, map[string]bool{}
	invalid := func(at *field.Path, value any, messages []string) {
		for _, m := range messages {
			errs = append(errs, field.Invalid(at, value, m))
		}
	}
	for i, p := range s.Spec.Ports {
		at := at.Index(i)
		switch {
		case p.Name == "" && len(s.Spec.Ports) > 1:
			errs = append(errs, field.Required(at.Child("name"), ""))
		case p.Name != "":
			invalid(at.Child("name"), p.Name, validation.IsDNS1123Label(p.Name))
		}
		if names[p.Name] {
			errs = append(errs, field.Duplicate(at.Child("name"), p.Name))
		}
		names[p.Name] = true
		invalid(at.Child("port"), p.Port, validation.IsValidPortNum(int(p.Port)))
		if key := fmt.Sprint(p.Protocol, "/", p.Port); numbers[key] {
			errs = append(errs, field.Duplicate(at, key))
		} else {
			numbers[key] = true
		}
		switch p.Protocol {
		case corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP:
		default:
			errs = append(errs, field.NotSupported(at.Child("protocol"), p.Protocol,
				[]corev1.Protocol{corev1.ProtocolSCTP, corev1.ProtocolTCP, corev1.ProtocolUDP}))
		}
		if p.TargetPort.Type == intstr.String {
			invalid(at.Child("targetPort"), p.TargetPort.StrVal, validation.IsValidPortName(p.TargetPort.StrVal))
		} else {
			invalid(at.Child("targetPort"), p.TargetPort.IntVal, validation.IsValidPortNum(int(p.TargetPort.IntVal)))
		}
		if p.NodePort == 0 {
			continue
		}
		invalid(at.Child("nodePort"), p.NodePort, validation.IsValidPortNum(int(p.NodePort)))
		if s.Spec.Type != corev1.ServiceTypeNodePort && s.Spec.Type != corev1.ServiceTypeLoadBalancer {
			errs = append(errs, field.Forbidden(at.Child("nodePort"),
				"may not be used when `type` is '"+string(s.Spec.Type)+"'"))
		}
	}
	return errs
}
