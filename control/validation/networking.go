package validation

import (
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"

	"berth/internal/rules"
)

// ingressClassAnnotation is the deprecated annotation in place of ingressClassName.
const ingressClassAnnotation = "kubernetes.io/ingress.class"

// maxControllerName is the maximum length of the controller of an IngressClass.
const maxControllerName = 250

var networkingRules = map[schema.GroupKind]rules.Rules{
	{Group: "networking.k8s.io", Kind: "NetworkPolicy"}: definition[*networkingv1.NetworkPolicy]{
		SetDefaults:    defaultPolicy,
		ValidateCreate: func(k *validator, p *networkingv1.NetworkPolicy) { k.networkPolicy(p, nil) },
		ValidateUpdate: (*validator).networkPolicy,
	}.Rules(newValidator),
	{Group: "networking.k8s.io", Kind: "Ingress"}: definition[*networkingv1.Ingress]{
		Validate: (*validator).ingress,
		ValidateCreate: func(k *validator, i *networkingv1.Ingress) {
			if class, set := i.Annotations[ingressClassAnnotation]; set && i.Spec.IngressClassName != nil &&
				class != *i.Spec.IngressClassName {
				k.Invalid(field.NewPath("annotations").Child(ingressClassAnnotation), class,
					"must match `ingressClassName` when both are specified")
			}
		},
		ValidateStatus: (*validator).ingressStatus,
	}.Rules(newValidator),
	{Group: "networking.k8s.io", Kind: "IngressClass"}: definition[*networkingv1.IngressClass]{ClusterScoped: true,
		SetDefaults: func(c *networkingv1.IngressClass) {
			if p := c.Spec.Parameters; p != nil {
				rules.SetIfNil(&p.Scope, networkingv1.IngressClassParametersReferenceScopeCluster)
			}
		},
		Validate: (*validator).ingressClass,
		ValidateUpdate: func(k *validator, c, old *networkingv1.IngressClass) {
			k.Immutable(spec.Child("controller"), c.Spec.Controller, old.Spec.Controller)
		},
	}.Rules(newValidator),
	{Group: "networking.k8s.io", Kind: "ServiceCIDR"}: definition[*networkingv1.ServiceCIDR]{ClusterScoped: true,
		ValidateCreate: (*validator).serviceCIDR,
		ValidateUpdate: (*validator).serviceCIDRChange,
	}.Rules(newValidator),
	{Group: "networking.k8s.io", Kind: "IPAddress"}: definition[*networkingv1.IPAddress]{ClusterScoped: true,
		ValidateName: func(name string, _ bool) (out []string) {
			for _, err := range validation.IsValidIP(field.NewPath("name"), name) {
				out = append(out, err.Detail)
			}
			return out
		},
		Validate: (*validator).ipAddress,
		ValidateUpdate: func(k *validator, a, old *networkingv1.IPAddress) {
			k.Immutable(spec.Child("parentRef"), a.Spec.ParentRef, old.Spec.ParentRef)
		},
	}.Rules(newValidator),
}

func (k *validator) ingress(i *networkingv1.Ingress) {
	for n, t := range i.Spec.TLS {
		at := spec.Child("tls").Index(n)
		for m, host := range t.Hosts {
			k.hostOrWildcard(at.Child("hosts").Index(m), host)
		}
		if t.SecretName != "" {
			k.InvalidEach(at.Child("secretName"), t.SecretName, validation.IsDNS1123Subdomain(t.SecretName))
		}
	}
	if i.Spec.DefaultBackend == nil && len(i.Spec.Rules) == 0 {
		k.Invalid(spec, i.Spec.Rules, "either `defaultBackend` or `rules` must be specified")
	}
	if i.Spec.DefaultBackend != nil {
		k.ingressBackend(spec.Child("defaultBackend"), i.Spec.DefaultBackend)
	}
	for n, r := range i.Spec.Rules {
		at := spec.Child("rules").Index(n)
		if r.Host != "" {
			if netutils.ParseIPSloppy(r.Host) != nil {
				k.Invalid(at.Child("host"), r.Host, "must be a DNS name, not an IP address")
			}
			k.hostOrWildcard(at.Child("host"), r.Host)
		}
		if r.HTTP == nil {
			continue
		}
		paths := at.Child("http", "paths")
		if len(r.HTTP.Paths) == 0 {
			k.Required(paths, "")
		}
		for m := range r.HTTP.Paths {
			k.ingressPath(paths.Index(m), &r.HTTP.Paths[m])
		}
	}
	if c := i.Spec.IngressClassName; c != nil {
		k.InvalidEach(spec.Child("ingressClassName"), *c, validation.IsDNS1123Subdomain(*c))
	}
}

func (k *validator) hostOrWildcard(at *field.Path, host string) {
	if strings.Contains(host, "*") {
		k.InvalidEach(at, host, validation.IsWildcardDNS1123Subdomain(host))
	} else {
		k.InvalidEach(at, host, validation.IsDNS1123Subdomain(host))
	}
}

func (k *validator) ingressPath(at *field.Path, p *networkingv1.HTTPIngressPath) {
	switch {
	case p.PathType == nil:
		k.Required(at.Child("pathType"), "pathType must be specified")
		return
	case *p.PathType == networkingv1.PathTypeExact || *p.PathType == networkingv1.PathTypePrefix:
		k.absolutePath(at.Child("path"), p.Path)
		for _, part := range []string{"//", "/./", "/../", "%2f", "%2F"} {
			if strings.Contains(p.Path, part) {
				k.Invalid(at.Child("path"), p.Path, "must not contain '%s'", part)
			}
		}
		for _, end := range []string{"/..", "/."} {
			if strings.HasSuffix(p.Path, end) {
				k.Invalid(at.Child("path"), p.Path, "cannot end with '%s'", end)
			}
		}
	case *p.PathType == networkingv1.PathTypeImplementationSpecific:
		if p.Path != "" {
			k.absolutePath(at.Child("path"), p.Path)
		}
	default:
		k.Add(field.NotSupported(at.Child("pathType"), *p.PathType, []networkingv1.PathType{
			networkingv1.PathTypeExact, networkingv1.PathTypeImplementationSpecific, networkingv1.PathTypePrefix,
		}))
	}
	k.ingressBackend(at.Child("backend"), &p.Backend)
}

func (k *validator) absolutePath(at *field.Path, path string) {
	if !strings.HasPrefix(path, "/") {
		k.Invalid(at, path, "must be an absolute path")
	}
}

func (k *validator) ingressBackend(at *field.Path, b *networkingv1.IngressBackend) {
	switch {
	case b.Resource != nil && b.Service != nil:
		k.Invalid(at, "", "cannot set both resource and service backends")
	case b.Resource != nil:
		if b.Resource.APIGroup != nil {
			k.InvalidEach(at.Child("resource", "apiGroup"), *b.Resource.APIGroup,
				validation.IsDNS1123Subdomain(*b.Resource.APIGroup))
		}
		k.Name(at.Child("resource", "kind"), b.Resource.Kind, content.IsPathSegmentName)
		k.Name(at.Child("resource", "name"), b.Resource.Name, content.IsPathSegmentName)
	case b.Service != nil:
		whole := at // of errors about name and number together
		at = at.Child("service")
		k.Name(at.Child("name"), b.Service.Name, validation.IsDNS1123Label)
		switch port := b.Service.Port; {
		case port.Name != "" && port.Number != 0:
			k.Invalid(whole, "", "cannot set both port name & port number")
		case port.Name != "":
			k.InvalidEach(at.Child("port", "name"), port.Name, validation.IsValidPortName(port.Name))
		case port.Number != 0:
			k.port(at.Child("port", "number"), port.Number)
		default:
			k.Required(whole, "port name or number is required")
		}
	default:
		k.Invalid(at, "", "resource or service backend is required")
	}
}

func (k *validator) ingressStatus(i, old *networkingv1.Ingress) {
	var accepted []string
	for _, in := range old.Status.LoadBalancer.Ingress {
		accepted = append(accepted, in.IP)
	}
	for n, in := range i.Status.LoadBalancer.Ingress {
		at := status.Child("loadBalancer", "ingress").Index(n)
		if in.IP != "" {
			k.address(at.Child("ip"), in.IP, accepted...)
		}
		if in.Hostname != "" {
			k.InvalidEach(at.Child("hostname"), in.Hostname, validation.IsDNS1123Subdomain(in.Hostname))
			if netutils.ParseIPSloppy(in.Hostname) != nil {
				k.Invalid(at.Child("hostname"), in.Hostname, "must be a DNS name, not an IP address")
			}
		}
	}
}

func (k *validator) ingressClass(c *networkingv1.IngressClass) {
	at := spec.Child("controller")
	if len(c.Spec.Controller) > maxControllerName {
		k.Add(field.TooLong(at, c.Spec.Controller, maxControllerName))
	}
	k.AddAll(validation.IsDomainPrefixedPath(at, c.Spec.Controller))
	p := c.Spec.Parameters
	if p == nil {
		return
	}
	at = spec.Child("parameters")
	if p.APIGroup != nil {
		k.InvalidEach(at.Child("apiGroup"), *p.APIGroup, validation.IsDNS1123Subdomain(*p.APIGroup))
	}
	k.Name(at.Child("kind"), p.Kind, content.IsPathSegmentName)
	k.Name(at.Child("name"), p.Name, content.IsPathSegmentName)
	if p.Scope == nil {
		k.Required(at.Child("scope"), "")
		return
	}
	rules.OneOfIfSet(k, at.Child("scope"), p.Scope, networkingv1.IngressClassParametersReferenceScopeCluster,
		networkingv1.IngressClassParametersReferenceScopeNamespace)
	switch {
	case *p.Scope == networkingv1.IngressClassParametersReferenceScopeNamespace && p.Namespace == nil:
		k.Required(at.Child("namespace"), "`parameters.scope` is set to 'Namespace'")
	case *p.Scope == networkingv1.IngressClassParametersReferenceScopeNamespace:
		k.InvalidEach(at.Child("namespace"), *p.Namespace, validation.IsDNS1123Label(*p.Namespace))
	case *p.Scope == networkingv1.IngressClassParametersReferenceScopeCluster && p.Namespace != nil:
		k.Forbidden(at.Child("namespace"), "`parameters.scope` is set to 'Cluster'")
	}
}

func (k *validator) serviceCIDR(c *networkingv1.ServiceCIDR) {
	at, list := spec.Child("cidrs"), c.Spec.CIDRs
	switch {
	case len(list) == 0:
		k.Required(at, "at least one CIDR required")
		return
	case len(list) > 2:
		k.Invalid(at, list, "may only hold up to 2 values")
		return
	}
	for i, text := range list {
		k.AddAll(validation.IsValidCIDR(at.Index(i), text))
	}
	if len(list) == 2 && netutils.IPFamilyOfCIDRString(list[0]) == netutils.IPFamilyOfCIDRString(list[1]) &&
		netutils.IPFamilyOfCIDRString(list[0]) != netutils.IPFamilyUnknown {
		k.Invalid(at, list, "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64")
	}
}

// serviceCIDRChange validates that only a second range is added.
func (k *validator) serviceCIDRChange(c, old *networkingv1.ServiceCIDR) {
	at, now, before := spec.Child("cidrs"), c.Spec.CIDRs, old.Spec.CIDRs
	const problem = "field is immutable"
	if len(now) != len(before) && (len(before) != 1 || len(now) != 2) {
		k.Invalid(at, now, problem)
		return
	}
	for i := range before {
		if now[i] != before[i] {
			k.Invalid(at.Index(i), now[i], problem)
		}
	}
	if len(now) > len(before) {
		k.serviceCIDR(c)
	}
}

func (k *validator) ipAddress(a *networkingv1.IPAddress) {
	at, r := spec.Child("parentRef"), a.Spec.ParentRef
	if r == nil {
		k.Required(at, "")
		return
	}
	if r.Group != "" {
		k.InvalidEach(at.Child("group"), r.Group, validation.IsDNS1123Subdomain(r.Group))
	}
	k.Name(at.Child("resource"), r.Resource, content.IsPathSegmentName)
	k.Name(at.Child("name"), r.Name, content.IsPathSegmentName)
	if r.Namespace != "" {
		k.InvalidEach(at.Child("namespace"), r.Namespace, content.IsPathSegmentName(r.Namespace))
	}
}
