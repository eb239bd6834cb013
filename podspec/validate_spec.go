package podspec

import (
	"math"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Limits of the resolver and of host names.
const (
	maxNameservers  = 3
	maxSearches     = 32
	maxSearchLength = 2048
	maxHostname     = 64 // limit of Linux
)

func (k *validator) podSpec(at *field.Path) {
	k.volumes(at.Child("volumes"))
	k.resourceClaims(at.Child("resourceClaims"))
	k.containers(at)
	k.podLifecycle(at)
	k.dns(at)
	k.hostnames(at)
	k.namespaces(at)
	k.podSecurity(at.Child("securityContext"))
	k.podResources(at)
	k.scheduling(at)
	k.operatingSystem(at)
}

// podLifecycle validates the fields about the lifecycle and identity of the pod.
func (k *validator) podLifecycle(at *field.Path) {
	s := k.spec
	oneOf(k, at.Child("restartPolicy"), s.RestartPolicy,
		corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever)
	if d := s.ActiveDeadlineSeconds; d != nil {
		k.between(at.Child("activeDeadlineSeconds"), *d, 1, math.MaxInt32)
	}
	if g := s.TerminationGracePeriodSeconds; g != nil {
		k.notNegative(at.Child("terminationGracePeriodSeconds"), *g)
	}
	if s.ServiceAccountName != "" {
		k.each(
			at.Child("serviceAccountName"),
			s.ServiceAccountName,
			validation.IsDNS1123Subdomain(s.ServiceAccountName),
		)
	}
	if s.NodeName != "" {
		k.each(at.Child("nodeName"), s.NodeName, validation.IsDNS1123Subdomain(s.NodeName))
	}
	if s.PriorityClassName != "" {
		k.each(at.Child("priorityClassName"), s.PriorityClassName, validation.IsDNS1123Subdomain(s.PriorityClassName))
	}
	if r := s.RuntimeClassName; r != nil {
		k.each(at.Child("runtimeClassName"), *r, validation.IsDNS1123Subdomain(*r))
	}
	oneOfIfSet(k, at.Child("preemptionPolicy"), s.PreemptionPolicy, corev1.PreemptLowerPriority, corev1.PreemptNever)
	for i, g := range s.ReadinessGates {
		k.each(at.Child("readinessGates").Index(i).Child("conditionType"), g.ConditionType,
			validation.IsQualifiedName(string(g.ConditionType)))
	}
	for i, p := range s.ImagePullSecrets {
		if p.Name != "" {
			k.each(at.Child("imagePullSecrets").Index(i).Child("name"), p.Name, validation.IsDNS1123Subdomain(p.Name))
		}
	}
}

func (k *validator) dns(at *field.Path) {
	policy, config := k.spec.DNSPolicy, k.spec.DNSConfig
	oneOf(k, at.Child("dnsPolicy"), policy,
		corev1.DNSClusterFirstWithHostNet, corev1.DNSClusterFirst, corev1.DNSDefault, corev1.DNSNone)
	at = at.Child("dnsConfig")
	if policy == corev1.DNSNone {
		if config == nil {
			k.required(at, "must provide `dnsConfig` when `dnsPolicy` is None")
			return
		}
		if len(config.Nameservers) == 0 {
			k.required(at.Child("nameservers"), "must provide at least one DNS nameserver when `dnsPolicy` is None")
		}
	}
	if config == nil {
		return
	}
	if n := len(config.Nameservers); n > maxNameservers {
		k.invalid(
			at.Child("nameservers"),
			config.Nameservers,
			"must not have more than %d nameservers",
			maxNameservers,
		)
	}
	for i, ip := range config.Nameservers {
		k.address(at.Child("nameservers").Index(i), ip)
	}
	if n := len(config.Searches); n > maxSearches {
		k.invalid(at.Child("searches"), config.Searches, "must not have more than %d search paths", maxSearches)
	}
	if n := len(strings.Join(config.Searches, " ")); n > maxSearchLength {
		k.invalid(at.Child("searches"), config.Searches,
			"must not have more than %d characters (including spaces) in the search list", maxSearchLength)
	}
	for i, s := range config.Searches {
		// The root is a dot, and any name may end with a dot.
		if s != "." {
			k.each(
				at.Child("searches").Index(i),
				s,
				validation.IsDNS1123SubdomainWithUnderscore(strings.TrimSuffix(s, ".")),
			)
		}
	}
	for i, o := range config.Options {
		if o.Name == "" {
			k.required(at.Child("options").Index(i).Child("name"), "must not be empty")
		}
	}
}

// address validates an IP address. Zones are not allowed, because they name an interface of one
// host.
func (k *validator) address(at *field.Path, value string) {
	if a, err := netip.ParseAddr(value); err != nil || a.Zone() != "" {
		k.invalid(at, value, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")
	}
}

func (k *validator) hostnames(at *field.Path) {
	s := k.spec
	if s.Hostname != "" {
		k.each(at.Child("hostname"), s.Hostname, validation.IsDNS1123Label(s.Hostname))
	}
	if s.Subdomain != "" {
		k.each(at.Child("subdomain"), s.Subdomain, validation.IsDNS1123Label(s.Subdomain))
	}
	if o := s.HostnameOverride; o != nil && *o != "" {
		path := at.Child("hostnameOverride")
		k.each(path, *o, validation.IsDNS1123Subdomain(*o))
		if len(*o) > maxHostname {
			k.add(field.TooLong(path, *o, maxHostname))
		}
		if isTrue(s.SetHostnameAsFQDN) {
			k.forbidden(path, "may not be set when `setHostnameAsFQDN` is true")
		}
		if s.HostNetwork {
			k.forbidden(path, "may not be set when `hostNetwork` is true")
		}
	}
	for i, a := range s.HostAliases {
		path := at.Child("hostAliases").Index(i)
		k.address(path.Child("ip"), a.IP)
		for j, name := range a.Hostnames {
			k.each(path.Child("hostnames").Index(j), name, validation.IsDNS1123Subdomain(name))
		}
	}
}

// namespaces validates which namespaces of the host the pod shares.
func (k *validator) namespaces(at *field.Path) {
	s := k.spec
	if isTrue(s.ShareProcessNamespace) && s.HostPID {
		k.invalid(at.Child("shareProcessNamespace"), true, "shareProcessNamespace and hostPID cannot both be enabled")
	}
	if s.HostUsers == nil || *s.HostUsers {
		return
	}
	for _, shared := range []struct {
		name string
		on   bool
	}{{"hostNetwork", s.HostNetwork}, {"hostPID", s.HostPID}, {"hostIPC", s.HostIPC}} {
		if shared.on {
			k.forbidden(at.Child("hostUsers"), "must not be false when `"+shared.name+"` is true")
		}
	}
}

func (k *validator) operatingSystem(at *field.Path) {
	if k.spec.OS == nil {
		return
	}
	oneOf(k, at.Child("os", "name"), k.spec.OS.Name, corev1.Linux, corev1.Windows)
	if k.spec.OS.Name != corev1.Linux {
		return
	}
	const why = "windows options cannot be set for a linux pod"
	if sc := k.spec.SecurityContext; sc != nil && sc.WindowsOptions != nil {
		k.forbidden(at.Child("securityContext", "windowsOptions"), why)
	}
	for c, where := range containersOf(k.spec) {
		if sc := c.SecurityContext; sc != nil && sc.WindowsOptions != nil {
			k.forbidden(where.path.Child("securityContext", "windowsOptions"), why)
		}
	}
}

func (k *validator) resourceClaims(at *field.Path) {
	seen := map[string]bool{}
	for i, c := range k.spec.ResourceClaims {
		path := at.Index(i)
		k.name(path.Child("name"), c.Name, validation.IsDNS1123Label)
		if seen[c.Name] {
			k.duplicate(path.Child("name"), c.Name)
		}
		seen[c.Name] = true
		k.exactlyOne(path, c.Name, "`resourceClaimName`, `resourceClaimTemplateName`",
			c.ResourceClaimName != nil, c.ResourceClaimTemplateName != nil)
		if n := c.ResourceClaimName; n != nil {
			k.each(path.Child("resourceClaimName"), *n, validation.IsDNS1123Subdomain(*n))
		}
		if n := c.ResourceClaimTemplateName; n != nil {
			k.each(path.Child("resourceClaimTemplateName"), *n, validation.IsDNS1123Subdomain(*n))
		}
	}
}

// volume returns the volume of that name, or nil.
func (k *validator) volume(name string) *corev1.Volume {
	i := slices.IndexFunc(k.spec.Volumes, func(v corev1.Volume) bool { return v.Name == name })
	if i < 0 {
		return nil
	}
	return &k.spec.Volumes[i]
}
