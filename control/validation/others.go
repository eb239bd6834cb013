package validation

import (
	"crypto/x509"
	"encoding/pem"
	"slices"
	"strings"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"berth/internal/rules"
	"berth/podspec"
)

const (
	maxUserPriority     = 1_000_000_000
	systemPriorityNames = "system-"
	minCertificateTime  = 600 // in seconds
	maxEndpoints        = 1000
	maxAddresses        = 100
	maxSlicePorts       = 20_000
)

// systemPriorities are the priority classes that the server creates.
var systemPriorities = map[string]int32{"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}

var otherRules = map[schema.GroupKind]rules.Rules{
	{Group: "events.k8s.io", Kind: "Event"}: definition[*corev1.Event]{Validate: (*validator).event,
		ValidateCreate: (*validator).newEvent, ValidateUpdate: (*validator).eventChange}.Rules(newValidator),
	{Group: "coordination.k8s.io", Kind: "Lease"}: definition[*coordinationv1.Lease]{
		Validate: func(k *validator, l *coordinationv1.Lease) {
			rules.Positive(k, spec.Child("leaseDurationSeconds"), l.Spec.LeaseDurationSeconds)
			rules.NotNegative(k, spec.Child("leaseTransitions"), l.Spec.LeaseTransitions)
		},
	}.Rules(newValidator),
	{Group: "scheduling.k8s.io", Kind: "PriorityClass"}: definition[*schedulingv1.PriorityClass]{ClusterScoped: true,
		SetDefaults: func(p *schedulingv1.PriorityClass) {
			rules.SetIfNil(&p.PreemptionPolicy, corev1.PreemptLowerPriority)
		},
		Validate: (*validator).priorityClass,
		ValidateUpdate: func(k *validator, p, old *schedulingv1.PriorityClass) {
			if p.Value != old.Value {
				k.Forbidden(field.NewPath("value"), "may not be changed in an update.")
			}
			k.Immutable(field.NewPath("preemptionPolicy"), p.PreemptionPolicy, old.PreemptionPolicy)
		}}.Rules(newValidator),
	{Group: "node.k8s.io", Kind: "RuntimeClass"}: definition[*nodev1.RuntimeClass]{
		ClusterScoped: true,
		Validate:      (*validator).runtimeClass,
		ValidateUpdate: func(k *validator, r, old *nodev1.RuntimeClass) {
			k.Immutable(field.NewPath("handler"), r.Handler, old.Handler)
		},
	}.Rules(newValidator),
	{Group: "policy", Kind: "PodDisruptionBudget"}: definition[*policyv1.PodDisruptionBudget]{
		Validate:       (*validator).budget,
		ValidateStatus: (*validator).budgetStatus,
	}.Rules(newValidator),
	{Group: "discovery.k8s.io", Kind: "EndpointSlice"}: definition[*discoveryv1.EndpointSlice]{
		SetDefaults: defaultSlice,
		Validate:    (*validator).slice,
		ValidateUpdate: func(k *validator, s, old *discoveryv1.EndpointSlice) {
			k.Immutable(field.NewPath("addressType"), s.AddressType, old.AddressType)
		},
	}.Rules(newValidator),
	{Group: "certificates.k8s.io",
		Kind: "CertificateSigningRequest"}: definition[*certificatesv1.CertificateSigningRequest]{
		ClusterScoped:  true,
		ValidateName:   pathSegment,
		Validate:       (*validator).request,
		PrepareUpdate:  func(r, old *certificatesv1.CertificateSigningRequest) { r.Spec = old.Spec },
		ValidateStatus: (*validator).requestStatus,
	}.Rules(newValidator),
	{Group: "autoscaling", Kind: "Scale"}: definition[*autoscalingv1.Scale]{
		Validate: func(k *validator, s *autoscalingv1.Scale) {
			rules.NotNegative(k, spec.Child("replicas"), &s.Spec.Replicas)
		},
	}.Rules(newValidator),
}

func (k *validator) priorityClass(p *schedulingv1.PriorityClass) {
	at := metadata.Child("name")
	if strings.HasPrefix(p.Name, systemPriorityNames) {
		if value, known := systemPriorities[p.Name]; !known {
			k.Forbidden(
				at,
				"priority class names with 'system-' prefix are reserved for system use only. error: "+
					p.Name+" is not a known system priority class",
			)
		} else if value != p.Value || p.GlobalDefault {
			k.Forbidden(at, "priority class names with 'system-' prefix are reserved for system use only. "+
				"error: value "+
				"and globalDefault of "+p.Name+" are fixed")
		}
	} else if p.Value > maxUserPriority {
		k.Forbidden(field.NewPath("value"), "maximum allowed value of a user defined priority is 1000000000")
	}
	rules.OneOfIfSet(k, field.NewPath("preemptionPolicy"), p.PreemptionPolicy, corev1.PreemptLowerPriority,
		corev1.PreemptNever)
}

func (k *validator) runtimeClass(r *nodev1.RuntimeClass) {
	k.InvalidEach(field.NewPath("handler"), r.Handler, validation.IsDNS1123Label(r.Handler))
	if r.Overhead != nil {
		k.quantities(field.NewPath("overhead", "podFixed"), r.Overhead.PodFixed)
	}
	if r.Scheduling != nil {
		at := field.NewPath("scheduling")
		k.AddAll(metavalidation.ValidateLabels(r.Scheduling.NodeSelector, at.Child("nodeSelector")))
		k.AddAll(podspec.ValidateTolerations(r.Scheduling.Tolerations, at.Child("tolerations")))
	}
}

func (k *validator) budget(p *policyv1.PodDisruptionBudget) {
	if p.Spec.MinAvailable != nil && p.Spec.MaxUnavailable != nil {
		k.Invalid(spec, field.OmitValueType{}, "minAvailable and maxUnavailable cannot be both set")
	}
	k.PodsOrPercent(spec.Child("minAvailable"), p.Spec.MinAvailable)
	k.AtMost100Percent(spec.Child("minAvailable"), p.Spec.MinAvailable)
	k.PodsOrPercent(spec.Child("maxUnavailable"), p.Spec.MaxUnavailable)
	k.AtMost100Percent(spec.Child("maxUnavailable"), p.Spec.MaxUnavailable)
	if p.Spec.Selector != nil {
		k.Selector(spec.Child("selector"), p.Spec.Selector)
	}
	rules.OneOfIfSet(
		k,
		spec.Child("unhealthyPodEvictionPolicy"),
		p.Spec.UnhealthyPodEvictionPolicy,
		policyv1.IfHealthyBudget,
		policyv1.AlwaysAllow,
	)
}

func (k *validator) budgetStatus(p, _ *policyv1.PodDisruptionBudget) {
	k.Counts(map[string]int32{"disruptionsAllowed": p.Status.DisruptionsAllowed,
		"currentHealthy": p.Status.CurrentHealthy,
		"desiredHealthy": p.Status.DesiredHealthy, "expectedPods": p.Status.ExpectedPods})
}

func defaultSlice(s *discoveryv1.EndpointSlice) {
	for i := range s.Ports {
		rules.SetIfNil(&s.Ports[i].Name, "")
		rules.SetIfNil(&s.Ports[i].Protocol, corev1.ProtocolTCP)
	}
}

func (k *validator) slice(s *discoveryv1.EndpointSlice) {
	rules.OneOf(
		k,
		field.NewPath("addressType"),
		s.AddressType,
		discoveryv1.AddressTypeIPv4,
		discoveryv1.AddressTypeIPv6,
		discoveryv1.AddressTypeFQDN,
	)
	all := field.NewPath("endpoints")
	if n := len(s.Endpoints); n > maxEndpoints {
		k.Add(field.TooMany(all, n, maxEndpoints))
	}
	for i := range s.Endpoints {
		e, at := &s.Endpoints[i], all.Index(i)
		addresses := at.Child("addresses")
		if n := len(e.Addresses); n == 0 {
			k.Required(addresses, "must contain at least 1 address")
		} else if n > maxAddresses {
			k.Add(field.TooMany(addresses, n, maxAddresses))
		}
		for j, a := range e.Addresses {
			if s.AddressType == discoveryv1.AddressTypeFQDN {
				k.AddAll(validation.IsFullyQualifiedDomainName(addresses.Index(j), a))
				continue
			}
			k.endpointAddress(addresses.Index(j), a)
			if strings.Contains(a, ":") != (s.AddressType == discoveryv1.AddressTypeIPv6) {
				k.Invalid(addresses.Index(j), a, "must be an %s address", s.AddressType)
			}
		}
		if e.NodeName != nil {
			k.InvalidEach(at.Child("nodeName"), *e.NodeName, validation.IsDNS1123Subdomain(*e.NodeName))
		}
		if e.Hostname != nil {
			k.InvalidEach(at.Child("hostname"), *e.Hostname, validation.IsDNS1123Label(*e.Hostname))
		}
	}
	k.slicePorts(field.NewPath("ports"), s.Ports)
}

func (k *validator) slicePorts(all *field.Path, ports []discoveryv1.EndpointPort) {
	if n := len(ports); n > maxSlicePorts {
		k.Add(field.TooMany(all, n, maxSlicePorts))
	}
	names := map[string]bool{}
	for i, p := range ports {
		at, name := all.Index(i), ""
		if p.Name != nil {
			name = *p.Name
		}
		if name != "" {
			k.InvalidEach(at.Child("name"), name, validation.IsDNS1123Label(name))
		}
		if names[name] {
			k.Add(field.Duplicate(at.Child("name"), name))
		}
		names[name] = true
		if p.Port != nil {
			k.port(at.Child("port"), *p.Port)
		}
		if p.Protocol == nil {
			k.Required(at.Child("protocol"), "")
		}
		rules.OneOfIfSet(k, at.Child("protocol"), p.Protocol, corev1.ProtocolTCP, corev1.ProtocolUDP,
			corev1.ProtocolSCTP)
	}
}

// request validates a CertificateSigningRequest. Whether it is approved is decided elsewhere.
func (k *validator) request(r *certificatesv1.CertificateSigningRequest) {
	block, _ := pem.Decode(r.Spec.Request)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		k.Invalid(spec.Child("request"), r.Spec.Request, "PEM block type must be CERTIFICATE REQUEST")
	} else if _, err := x509.ParseCertificateRequest(block.Bytes); err != nil {
		k.Invalid(spec.Child("request"), r.Spec.Request, "%s", err)
	}
	domain, rest, found := strings.Cut(r.Spec.SignerName, "/")
	switch at := spec.Child("signerName"); {
	case r.Spec.SignerName == "":
		k.Required(at, "")
	case !found || rest == "":
		k.Invalid(at, r.Spec.SignerName,
			"must be a fully qualified domain and path of the form 'example.com/signer-name'")
	default:
		k.InvalidEach(at, r.Spec.SignerName, validation.IsDNS1123Subdomain(domain))
		if !strings.Contains(domain, ".") {
			k.Invalid(at, r.Spec.SignerName, "should be a domain with at least two segments separated by dots")
		}
	}
	usages := spec.Child("usages")
	if len(r.Spec.Usages) == 0 {
		k.Required(usages, "usages is required for all v1 CSRs")
	}
	for i, u := range r.Spec.Usages {
		if !slices.Contains(keyUsages, u) {
			k.Add(field.NotSupported(usages.Index(i), u, keyUsages))
		}
		if slices.Contains(r.Spec.Usages[:i], u) {
			k.Add(field.Duplicate(usages.Index(i), u))
		}
	}
	if s := r.Spec.ExpirationSeconds; s != nil && *s < minCertificateTime {
		k.Invalid(spec.Child("expirationSeconds"), *s, "may not specify a duration less than 600 seconds (10 minutes)")
	}
}

var keyUsages = []certificatesv1.KeyUsage{
	certificatesv1.UsageSigning, certificatesv1.UsageDigitalSignature, certificatesv1.UsageContentCommitment,
	certificatesv1.UsageKeyEncipherment,
	certificatesv1.UsageKeyAgreement, certificatesv1.UsageDataEncipherment, certificatesv1.UsageCertSign,
	certificatesv1.UsageCRLSign,
	certificatesv1.UsageEncipherOnly, certificatesv1.UsageDecipherOnly, certificatesv1.UsageAny,
	certificatesv1.UsageServerAuth,
	certificatesv1.UsageClientAuth, certificatesv1.UsageCodeSigning, certificatesv1.UsageEmailProtection,
	certificatesv1.UsageSMIME,
	certificatesv1.UsageIPsecEndSystem, certificatesv1.UsageIPsecTunnel, certificatesv1.UsageIPsecUser,
	certificatesv1.UsageTimestamping,
	certificatesv1.UsageOCSPSigning, certificatesv1.UsageMicrosoftSGC, certificatesv1.UsageNetscapeSGC,
}

var anyStatus = []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown}

func (k *validator) requestStatus(r, old *certificatesv1.CertificateSigningRequest) {
	if current := old.Status.Certificate; len(current) > 0 &&
		!equality.Semantic.DeepEqual(r.Status.Certificate, current) {
		k.Forbidden(
			status.Child("certificate"),
			"updates may not set certificate content if existing certificate content is not empty",
		)
	}
	contains := func(
		list []certificatesv1.CertificateSigningRequestCondition,
		kind certificatesv1.RequestConditionType,
	) bool {
		return slices.ContainsFunc(
			list,
			func(c certificatesv1.CertificateSigningRequestCondition) bool { return c.Type == kind },
		)
	}
	at := status.Child("conditions")
	seen := map[certificatesv1.RequestConditionType]bool{}
	for i, c := range r.Status.Conditions {
		switch {
		case c.Type == "":
			k.Required(at.Index(i).Child("type"), "")
		case seen[c.Type]:
			k.Add(field.Duplicate(at.Index(i).Child("type"), c.Type))
		}
		seen[c.Type] = true
		states := anyStatus
		switch c.Type {
		case certificatesv1.CertificateApproved, certificatesv1.CertificateDenied, certificatesv1.CertificateFailed:
			states = anyStatus[:1]
		}
		switch {
		case c.Status == "":
			k.Required(at.Index(i).Child("status"), "")
		case !slices.Contains(states, c.Status):
			k.Add(field.NotSupported(at.Index(i).Child("status"), c.Status, states))
		}
	}
	if contains(r.Status.Conditions, certificatesv1.CertificateApproved) &&
		contains(r.Status.Conditions, certificatesv1.CertificateDenied) {
		k.Invalid(at, certificatesv1.CertificateDenied, "Approved and Denied conditions are mutually exclusive")
	}
	for _, c := range []certificatesv1.RequestConditionType{certificatesv1.CertificateApproved,
		certificatesv1.CertificateDenied, certificatesv1.CertificateFailed} {
		if contains(old.Status.Conditions, c) && !contains(r.Status.Conditions, c) {
			k.Forbidden(at, "updates may not remove a condition of type \""+string(c)+"\"")
		}
	}
}
