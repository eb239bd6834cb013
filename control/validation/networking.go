package validation

import (
	"net/netip"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"berth/internal/rules"
)

// ingressClassAnnotation is the deprecated annotation in place of ingressClassName.
const ingressClassAnnotation = "kubernetes.io/ingress.class"

// maxControllerName is the maximum length of the controller of an IngressClass.
const maxControllerName = 250

var networkingRules = map[schema.GroupKind]rules.Rules{
	{Group: "networking.k8s.io", Kind: "NetworkPolicy"}: definition[*networkingv1.NetworkPolicy]{
		SetDefaults: defaultPolicy,
		Validate:    (*validator).networkPolicy,
	}.Rules(newValidator),
	{Group: "networking.k8s.io", Kind: "Ingress"}: definition[*networkingv1.Ingress]{
		Validate: (*validator).ingress,
		ValidateCreate: func(k *validator, i *networkingv1.Ingress) {
			if class, set := i.Annotations[ingressClassAnnotation]; set && i.Spec.IngressClassName != nil {
				k.Invalid(metadata.Child("annotations").Child(ingressClassAnnotation), class,
					"can not be set when the class field is also set")
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
		Validate: (*validator).serviceCIDR,
		ValidateUpdate: func(k *validator, c, old *networkingv1.ServiceCIDR) {
			// A second family may be added, nothing else may change.
			if !slices.Equal(c.Spec.CIDRs, old.Spec.CIDRs) &&
				(len(old.Spec.CIDRs) != 1 || len(c.Spec.CIDRs) != 2 || c.Spec.CIDRs[0] != old.Spec.CIDRs[0]) {
				k.Invalid(spec.Child("cidrs"), c.Spec.CIDRs, "field is immutable")
			}
		},
	}.Rules(newValidator),
	{Group: "networking.k8s.io", Kind: "IPAddress"}: definition[*networkingv1.IPAddress]{ClusterScoped: true,
		ValidateName: func(name string, _ bool) []string {
			if a, err := netip.ParseAddr(name); err != nil || a.String() != name || a.Zone() != "" {
				return []string{"must be a valid IP address in canonical form"}
			}
			return nil
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
			if _, err := netip.ParseAddr(r.Host); err == nil {
				k.Invalid(at.Child("host"), r.Host, "must be a DNS name, not an IP address")
			} else {
				k.hostOrWildcard(at.Child("host"), r.Host)
			}
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
		at = at.Child("service")
		k.Name(at.Child("name"), b.Service.Name, validation.IsDNS1123Label)
		switch port := b.Service.Port; {
		case port.Name != "" && port.Number != 0:
			k.Invalid(at, "", "cannot set both port name & port number")
		case port.Name != "":
			k.InvalidEach(at.Child("port", "name"), port.Name, validation.IsValidPortName(port.Name))
		case port.Number != 0:
			k.port(at.Child("port", "number"), port.Number)
		default:
			k.Required(at, "port name or number is required")
		}
	default:
		k.Invalid(at, "", "resource or service backend is required")
	}
}

func (k *validator) ingressStatus(i, _ *networkingv1.Ingress) {
	for n, in := range i.Status.LoadBalancer.Ingress {
		at := status.Child("loadBalancer", "ingress").Index(n)
		if in.IP != "" {
			k.InvalidEach(at.Child("ip"), in.IP, ipMessages(in.IP))
		}
		if in.Hostname != "" {
			k.InvalidEach(at.Child("hostname"), in.Hostname, validation.IsDNS1123Subdomain(in.Hostname))
			if len(ipMessages(in.Hostname)) == 0 {
				k.Invalid(at.Child("hostname"), in.Hostname, "must be a DNS name, not an IP address")
			}
		}
	}
}

// ipMessages returns what is wrong with an IP address.
func ipMessages(text string) []string {
	if _, err := netip.ParseAddr(text); err != nil {
		return []string{"must be a valid IP address"}
	}
	return nil
}

func (k *validator) ingressClass(c *networkingv1.IngressClass) {
	at := spec.Child("controller")
	if c.Spec.Controller == "" {
		k.Required(at, "")
	} else {
		if len(c.Spec.Controller) > maxControllerName {
			k.Add(field.TooLong(at, c.Spec.Controller, maxControllerName))
		}
		k.AddAll(validation.IsDomainPrefixedPath(at, c.Spec.Controller))
	}
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
	rules.OneOf(k, at.Child("scope"), *p.Scope, networkingv1.IngressClassParametersReferenceScopeCluster,
		networkingv1.IngressClassParametersReferenceScopeNamespace)
	switch {
	case *p.Scope == networkingv1.IngressClassParametersReferenceScopeNamespace && p.Namespace == nil:
		k.Required(at.Child("namespace"), "`parameters.scope` is set to 'Namespace'")
	case *p.Scope == networkingv1.IngressClassParametersReferenceScopeNamespace:
		k.Name(at.Child("namespace"), *p.Namespace, validation.IsDNS1123Label)
	case p.Namespace != nil:
		k.Forbidden(at.Child("namespace"), "`parameters.scope` is set to 'Cluster'")
	}
}

func (k *validator) serviceCIDR(c *networkingv1.ServiceCIDR) {
	at := spec.Child("cidrs")
	switch n := len(c.Spec.CIDRs); {
	case n == 0:
		k.Required(at, "at least one CIDR required")
	case n > 2:
		k.Add(field.TooMany(at, n, 2))
	}
	families := map[bool]bool{}
	for i, text := range c.Spec.CIDRs {
		p, err := netip.ParsePrefix(text)
		switch {
		case err != nil:
			k.network(at.Index(i), text)
		case p.Masked().String() != text:
			k.Invalid(at.Index(i), text, "must be in canonical form (%q)", p.Masked())
		case families[p.Addr().Is4()]:
			k.Invalid(at, c.Spec.CIDRs, "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and "+
				"2001:db8::/96")
		default:
			families[p.Addr().Is4()] = true
		}
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
