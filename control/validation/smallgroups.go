package validation

import (
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
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
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
)

// systemPriorities are the priority classes that the server creates.
var systemPriorities = map[string]int32{"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}

// smallGroupRules are those of API groups with one or two kinds.
var smallGroupRules = map[schema.GroupKind]rules.Rules{
	{Group: "events.k8s.io", Kind: "Event"}: definition[*corev1.Event]{Validate: (*validator).event,
		ValidateCreate: (*validator).newEvent, ValidateUpdate: (*validator).eventChange}.Rules(newValidator),
	{Group: "coordination.k8s.io", Kind: "Lease"}: definition[*coordinationv1.Lease]{
		AnyFinalizer: true,
		// Coordinated leader election is not enabled by default.
		Prepare: func(l *coordinationv1.Lease) { l.Spec.Strategy, l.Spec.PreferredHolder = nil, nil },
		PrepareUpdate: func(l, _ *coordinationv1.Lease) {
			l.Spec.Strategy, l.Spec.PreferredHolder = nil, nil
		},
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
	{Group: "certificates.k8s.io", Kind: "ClusterTrustBundle"}: definition[*certificatesv1.ClusterTrustBundle]{
		ClusterScoped: true, ValidateName: anyName, Validate: (*validator).trustBundle,
		ValidateCreate: func(k *validator, b *certificatesv1.ClusterTrustBundle) {
			k.trustAnchors(b.Spec.TrustBundle)
		},
		ValidateUpdate: (*validator).trustBundleUpdate,
	}.Rules(newValidator),
	{Group: "certificates.k8s.io", Kind: "PodCertificateRequest"}: definition[*certificatesv1.PodCertificateRequest]{
		SetDefaults: func(r *certificatesv1.PodCertificateRequest) {
			rules.SetIfNil(&r.Spec.MaxExpirationSeconds, defaultPodCertificateSeconds)
		},
		ValidateCreate: (*validator).podCertificateRequest,
		ValidateUpdate: func(k *validator, r, old *certificatesv1.PodCertificateRequest) {
			k.Immutable(spec, r.Spec, old.Spec)
		},
		ValidateStatus: (*validator).podCertificateStatus,
	}.Rules(newValidator),
	{Group: "storagemigration.k8s.io",
		Kind: "StorageVersionMigration"}: definition[*storagemigrationv1.StorageVersionMigration]{
		ClusterScoped: true,
		Validate:      (*validator).migration,
		ValidateUpdate: func(k *validator, m, old *storagemigrationv1.StorageVersionMigration) {
			k.Immutable(spec, m.Spec, old.Spec)
		},
		ValidateStatus: (*validator).migrationStatus,
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
	k.Name(field.NewPath("handler"), r.Handler, validation.IsDNS1123Label)
	if r.Overhead != nil {
		k.AddAll(podspec.ValidateOverhead(r.Overhead.PodFixed, field.NewPath("overhead")))
	}
	if r.Scheduling != nil {
		at := field.NewPath("scheduling")
		k.AddAll(metavalidation.ValidateLabels(r.Scheduling.NodeSelector, at.Child("nodeSelector")))
		tolerations := slices.Clone(r.Scheduling.Tolerations)
		for i := range tolerations { // a RuntimeClass does not compare numbers
			t, operator := &tolerations[i], at.Child("tolerations").Index(i).Child("operator")
			if t.Operator == corev1.TolerationOpLt || t.Operator == corev1.TolerationOpGt {
				k.Add(field.NotSupported(operator, t.Operator,
					[]corev1.TolerationOperator{corev1.TolerationOpEqual, corev1.TolerationOpExists}))
				t.Operator, t.Value = corev1.TolerationOpExists, ""
			}
		}
		k.AddAll(podspec.ValidateTolerations(tolerations, at.Child("tolerations")))
		for i, t := range r.Scheduling.Tolerations {
			same := func(other corev1.Toleration) bool { return other.MatchToleration(&t) }
			if slices.ContainsFunc(r.Scheduling.Tolerations[:i], same) {
				k.Add(field.Duplicate(at.Child("tolerations").Index(i), t))
			}
		}
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
