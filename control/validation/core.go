package validation

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"berth/internal/rules"
	"berth/podspec"
)

func core(kind string) schema.GroupKind { return schema.GroupKind{Kind: kind} }

var coreRules = map[schema.GroupKind]rules.Rules{
	core("Namespace"): definition[*corev1.Namespace]{ClusterScoped: true,
		ValidateName: validation.ValidateNamespaceName,
		SetDefaults:  labelNamespace, Validate: (*validator).namespace,
		ValidateStatus: (*validator).namespaceStatus}.Rules(newValidator),
	core("ConfigMap"): definition[*corev1.ConfigMap]{
		Validate: func(k *validator, c *corev1.ConfigMap) { k.addUnlessMetadata(podspec.ValidateConfigMap(c)) },
		ValidateUpdate: func(k *validator, c, old *corev1.ConfigMap) {
			if k.checkImmutable(c.Immutable, old.Immutable) {
				k.immutableData("data", c.Data, old.Data)
				k.immutableData("binaryData", c.BinaryData, old.BinaryData)
			}
		}}.Rules(newValidator),
	core("Secret"): definition[*corev1.Secret]{SetDefaults: podspec.SetSecretDefaults,
		Validate:       func(k *validator, s *corev1.Secret) { k.addUnlessMetadata(podspec.ValidateSecret(s)) },
		ValidateUpdate: (*validator).secretChange}.Rules(newValidator),
	core("ServiceAccount"): definition[*corev1.ServiceAccount]{}.Rules(newValidator),
	core("Event"): definition[*corev1.Event]{
		ValidateName: pathSegment, Validate: (*validator).event,
	}.Rules(newValidator),
	core("Service"): definition[*corev1.Service]{ValidateName: validation.NameIsDNSLabel,
		SetDefaults: defaultService, PrepareUpdate: patchAllocatedValues, Validate: (*validator).service,
		ValidateUpdate: (*validator).serviceChange}.Rules(newValidator),
	core("Endpoints"): definition[*corev1.Endpoints]{ //nolint:staticcheck // served as long as upstream serves it
		SetDefaults: func(e *corev1.Endpoints) { //nolint:staticcheck // served as long as upstream serves it
			for i := range e.Subsets {
				for j := range e.Subsets[i].Ports {
					rules.SetIfZero(&e.Subsets[i].Ports[j].Protocol, corev1.ProtocolTCP)
				}
			}
		},
		Validate: (*validator).endpoints,
	}.Rules(newValidator),
	core("Node"): definition[*corev1.Node]{ClusterScoped: true, SetDefaults: func(n *corev1.Node) {
		if n.Status.Allocatable == nil && n.Status.Capacity != nil {
			n.Status.Allocatable = n.Status.Capacity.DeepCopy()
		}
	}, Validate: (*validator).node, ValidateUpdate: (*validator).nodeChange,
		ValidateStatus: func(k *validator, n, _ *corev1.Node) { k.nodeAmounts(n) }}.Rules(newValidator),
	core("LimitRange"): definition[*corev1.LimitRange]{
		SetDefaults: defaultLimits,
		Validate:    (*validator).limitRange,
	}.Rules(newValidator),
	core("ResourceQuota"): definition[*corev1.ResourceQuota]{
		Validate:       (*validator).quota,
		ValidateUpdate: (*validator).quotaChange,
		ValidateStatus: (*validator).quotaStatus,
	}.Rules(newValidator),
	core("PodTemplate"): definition[*corev1.PodTemplate]{
		SetDefaults: func(t *corev1.PodTemplate) { podspec.SetTemplateDefaults(&t.Template) },
		Validate: func(k *validator, t *corev1.PodTemplate) {
			k.AddAll(podspec.ValidateTemplate(&t.Template, field.NewPath("template")))
		}}.Rules(newValidator),
	core("ReplicationController"): definition[*corev1.ReplicationController]{
		SetDefaults: defaultController,
		Validate:    (*validator).controller,
	}.Rules(newValidator),
}

// addUnlessMetadata adds errors except those about metadata, which are reported already.
func (k *validator) addUnlessMetadata(errs field.ErrorList) {
	for _, err := range errs {
		if !strings.HasPrefix(err.Field, "metadata.") || strings.HasPrefix(err.Field, "metadata.annotations[") {
			k.Add(err)
		}
	}
}

func labelNamespace(n *corev1.Namespace) {
	// Selectors use this label to select a namespace, so users cannot change it.
	if n.Name == "" {
		return
	}
	if n.Labels == nil {
		n.Labels = map[string]string{}
	}
	n.Labels[corev1.LabelMetadataName] = n.Name
}

func (k *validator) namespace(n *corev1.Namespace) {
	for i, f := range n.Spec.Finalizers {
		k.InvalidEach(spec.Child("finalizers").Index(i), f, utilvalidation.IsQualifiedName(string(f)))
	}
}

func (k *validator) namespaceStatus(n, _ *corev1.Namespace) {
	at := status.Child("phase")
	if n.DeletionTimestamp.IsZero() && n.Status.Phase != corev1.NamespaceActive {
		k.Invalid(at, n.Status.Phase, "may only be 'Active' if `deletionTimestamp` is empty")
	} else if !n.DeletionTimestamp.IsZero() && n.Status.Phase != corev1.NamespaceTerminating {
		k.Invalid(at, n.Status.Phase, "may only be 'Terminating' if `deletionTimestamp` is not empty")
	}
}

// checkImmutable reports whether an object is immutable. It adds an error if the update unsets
// that.
func (k *validator) checkImmutable(now, old *bool) bool {
	if old == nil || !*old {
		return false
	}
	if now == nil || !*now {
		k.Forbidden(field.NewPath("immutable"), "field is immutable when `immutable` is set")
	}
	return true
}

func (k *validator) immutableData(name string, now, old any) {
	if !equality.Semantic.DeepEqual(now, old) {
		k.Forbidden(field.NewPath(name), "field is immutable when `immutable` is set")
	}
}

func (k *validator) secretChange(s, old *corev1.Secret) {
	k.Immutable(field.NewPath("type"), s.Type, old.Type)
	if k.checkImmutable(s.Immutable, old.Immutable) {
		k.immutableData("data", s.Data, old.Data)
	}
}

func (k *validator) endpoints(e *corev1.Endpoints) { //nolint:staticcheck // served as long as upstream serves it
	for i := range e.Subsets {
		s, at := &e.Subsets[i], field.NewPath("subsets").Index(i)
		if len(s.Addresses)+len(s.NotReadyAddresses) == 0 {
			k.Required(at, "must specify `addresses` or `notReadyAddresses`")
		}
		for name, list := range map[string][]corev1.EndpointAddress{"addresses": s.Addresses,
			"notReadyAddresses": s.NotReadyAddresses} {
			for j, a := range list {
				path := at.Child(name).Index(j)
				k.endpointAddress(path.Child("ip"), a.IP)
				if a.Hostname != "" {
					k.InvalidEach(path.Child("hostname"), a.Hostname, utilvalidation.IsDNS1123Label(a.Hostname))
				}
				if a.NodeName != nil {
					k.InvalidEach(path.Child("nodeName"), *a.NodeName, utilvalidation.IsDNS1123Subdomain(*a.NodeName))
				}
			}
		}
		for j, p := range s.Ports {
			path := at.Child("ports").Index(j)
			if p.Name == "" {
				if len(s.Ports) > 1 {
					k.Required(path.Child("name"), "")
				}
			} else {
				k.InvalidEach(path.Child("name"), p.Name, utilvalidation.IsDNS1123Label(p.Name))
			}
			k.port(path.Child("port"), p.Port)
			rules.OneOf(k, path.Child("protocol"), p.Protocol, corev1.ProtocolTCP, corev1.ProtocolUDP,
				corev1.ProtocolSCTP)
		}
	}
}

func (k *validator) node(n *corev1.Node) {
	type taintKey struct {
		key    string
		effect corev1.TaintEffect
	}
	seen := map[taintKey]bool{}
	for i, t := range n.Spec.Taints {
		at := spec.Child("taints").Index(i)
		k.InvalidEach(at.Child("key"), t.Key, utilvalidation.IsQualifiedName(t.Key))
		k.InvalidEach(at.Child("value"), t.Value, utilvalidation.IsValidLabelValue(t.Value))
		rules.OneOf(
			k,
			at.Child("effect"),
			t.Effect,
			corev1.TaintEffectNoSchedule,
			corev1.TaintEffectPreferNoSchedule,
			corev1.TaintEffectNoExecute,
		)
		if m := (taintKey{t.Key, t.Effect}); seen[m] {
			err := field.Duplicate(at, t)
			err.Detail = "taints must be unique by key and effect pair"
			k.Add(err)
		} else {
			seen[m] = true
		}
	}
	k.nodeAmounts(n)
	ranges := spec.Child("podCIDRs")
	for i, c := range n.Spec.PodCIDRs {
		k.network(ranges.Index(i), c)
	}
	if len(n.Spec.PodCIDRs) > 0 && n.Spec.PodCIDR != "" && n.Spec.PodCIDRs[0] != n.Spec.PodCIDR {
		k.Invalid(ranges.Index(0), n.Spec.PodCIDRs[0], "must match `podCIDR`")
	}
}

func (k *validator) nodeAmounts(n *corev1.Node) {
	k.quantities(status.Child("capacity"), n.Status.Capacity)
	k.quantities(status.Child("allocatable"), n.Status.Allocatable)
	seen := map[corev1.NodeAddress]bool{}
	for i, a := range n.Status.Addresses {
		if seen[a] {
			k.Add(field.Duplicate(status.Child("addresses").Index(i), a))
		}
		seen[a] = true
	}
}

func (k *validator) nodeChange(n, old *corev1.Node) {
	if oldValue := old.Spec.PodCIDRs; len(oldValue) > 0 && !slices.Equal(oldValue, n.Spec.PodCIDRs) {
		k.Forbidden(spec.Child("podCIDRs"), `node updates may not change podCIDR except from "" to valid`)
	}
	if oldValue := old.Spec.ProviderID; oldValue != "" && oldValue != n.Spec.ProviderID {
		k.Forbidden(spec.Child("providerID"), `node updates may not change providerID except from "" to valid`)
	}
}

func defaultLimits(l *corev1.LimitRange) {
	for i := range l.Spec.Limits {
		item := &l.Spec.Limits[i]
		for _, list := range []corev1.ResourceList{item.Max, item.Min, item.Default, item.DefaultRequest,
			item.MaxLimitRequestRatio} {
			roundUpToMilli(list)
		}
		if item.Type != corev1.LimitTypeContainer {
			continue
		}
		if item.Default == nil {
			item.Default = corev1.ResourceList{}
		}
		if item.DefaultRequest == nil {
			item.DefaultRequest = corev1.ResourceList{}
		}
		addMissing(item.Default, item.Max)
		addMissing(item.DefaultRequest, item.Default)
		addMissing(item.DefaultRequest, item.Min)
	}
}

// addMissing adds the entries that are not in a list.
func addMissing(to, from corev1.ResourceList) {
	for name, q := range from {
		if _, ok := to[name]; !ok {
			to[name] = q.DeepCopy()
		}
	}
}

func (k *validator) limitRange(l *corev1.LimitRange) {
	seen := map[corev1.LimitType]bool{}
	for i := range l.Spec.Limits {
		item, at := &l.Spec.Limits[i], spec.Child("limits").Index(i)
		k.Name(at.Child("type"), string(item.Type), utilvalidation.IsQualifiedName)
		if seen[item.Type] {
			k.Add(field.Duplicate(at.Child("type"), item.Type))
		}
		seen[item.Type] = true
		for name, list := range map[string]corev1.ResourceList{"max": item.Max, "min": item.Min,
			"default":        item.Default,
			"defaultRequest": item.DefaultRequest, "maxLimitRequestRatio": item.MaxLimitRequestRatio} {
			k.quantities(at.Child(name), list)
		}
		if item.Type == corev1.LimitTypePod {
			if len(item.Default) > 0 {
				k.Forbidden(at.Child("default"), "may not be specified when `type` is 'Pod'")
			}
			if len(item.DefaultRequest) > 0 {
				k.Forbidden(at.Child("defaultRequest"), "may not be specified when `type` is 'Pod'")
			}
		}
		if item.Type == corev1.LimitTypePersistentVolumeClaim {
			_, low := item.Min[corev1.ResourceStorage]
			if _, high := item.Max[corev1.ResourceStorage]; !low && !high {
				k.Required(at.Child("limits"), "either minimum or maximum storage value is required, but neither "+
					"was provided")
			}
		}
		k.order(at, item)
	}
}

// order validates min ≤ default request ≤ default ≤ max.
func (k *validator) order(at *field.Path, item *corev1.LimitRangeItem) {
	bounds := []struct {
		name, word string
		list       corev1.ResourceList
	}{{"min", "min", item.Min}, {"defaultRequest", "default request", item.DefaultRequest},
		{"default", "default", item.Default}, {"max", "max", item.Max}}
	for i, low := range bounds {
		for _, high := range bounds[i+1:] {
			for _, name := range slices.Sorted(maps.Keys(low.list)) {
				a := low.list[name]
				if b, ok := high.list[name]; ok && a.Cmp(b) > 0 {
					k.Invalid(
						at.Child(low.name).Key(string(name)),
						a.String(),
						"%s value %s is greater than %s value %s",
						low.word,
						a.String(),
						high.word,
						b.String(),
					)
				}
			}
		}
	}
}

func (k *validator) quota(q *corev1.ResourceQuota) {
	k.quantities(spec.Child("hard"), q.Spec.Hard)
	seen := map[corev1.ResourceQuotaScope]bool{}
	known := []corev1.ResourceQuotaScope{
		corev1.ResourceQuotaScopeTerminating,
		corev1.ResourceQuotaScopeNotTerminating,
		corev1.ResourceQuotaScopeBestEffort,
		corev1.ResourceQuotaScopeNotBestEffort,
		corev1.ResourceQuotaScopePriorityClass,
		corev1.ResourceQuotaScopeCrossNamespacePodAffinity,
		corev1.ResourceQuotaScopeVolumeAttributesClass,
	}
	for _, s := range q.Spec.Scopes {
		if !slices.Contains(known, s) {
			k.Invalid(spec.Child("scopes"), q.Spec.Scopes, "unsupported scope")
		}
		seen[s] = true
	}
	if seen[corev1.ResourceQuotaScopeBestEffort] && seen[corev1.ResourceQuotaScopeNotBestEffort] ||
		seen[corev1.ResourceQuotaScopeTerminating] && seen[corev1.ResourceQuotaScopeNotTerminating] {
		k.Invalid(spec.Child("scopes"), q.Spec.Scopes, "conflicting scopes")
	}
	if q.Spec.ScopeSelector == nil {
		return
	}
	for i, m := range q.Spec.ScopeSelector.MatchExpressions {
		at := spec.Child("scopeSelector", "matchExpressions").Index(i)
		rules.OneOf(k, at.Child("scopeName"), m.ScopeName, known...)
		rules.OneOf(
			k,
			at.Child("operator"),
			m.Operator,
			corev1.ScopeSelectorOpIn,
			corev1.ScopeSelectorOpNotIn,
			corev1.ScopeSelectorOpExists,
			corev1.ScopeSelectorOpDoesNotExist,
		)
		listed := m.Operator == corev1.ScopeSelectorOpIn || m.Operator == corev1.ScopeSelectorOpNotIn
		if listed && len(m.Values) == 0 {
			k.Required(at.Child("values"), "must be at least one value when `operator` is 'In' or 'NotIn' for "+
				"scope selector")
		} else if !listed && len(m.Values) > 0 {
			k.Invalid(at.Child("values"), m.Values,
				"must be no value when `operator` is 'Exists' or 'DoesNotExist' for scope selector")
		}
	}
}

func (k *validator) quotaChange(q, old *corev1.ResourceQuota) {
	if !slices.Equal(slices.Sorted(slices.Values(q.Spec.Scopes)), slices.Sorted(slices.Values(old.Spec.Scopes))) {
		k.Invalid(spec.Child("scopes"), q.Spec.Scopes, "field is immutable")
	}
}

func (k *validator) quotaStatus(q, _ *corev1.ResourceQuota) {
	k.quantities(status.Child("hard"), q.Status.Hard)
	k.quantities(status.Child("used"), q.Status.Used)
}

func defaultController(r *corev1.ReplicationController) {
	rules.SetIfNil(&r.Spec.Replicas, 1)
	t := r.Spec.Template
	if t == nil {
		return
	}
	podspec.SetTemplateDefaults(t)
	if len(r.Spec.Selector) == 0 {
		r.Spec.Selector = maps.Clone(t.Labels)
	}
	if len(r.Labels) == 0 {
		r.Labels = maps.Clone(t.Labels)
	}
}

func (k *validator) controller(r *corev1.ReplicationController) {
	rules.NotNegative(k, spec.Child("replicas"), r.Spec.Replicas)
	rules.NotNegative(k, spec.Child("minReadySeconds"), &r.Spec.MinReadySeconds)
	if len(r.Spec.Selector) == 0 {
		k.Required(spec.Child("selector"), "")
	}
	t, at := r.Spec.Template, spec.Child("template")
	if t == nil {
		k.Required(at, "")
		return
	}
	for key, value := range r.Spec.Selector {
		if t.Labels[key] != value {
			k.Invalid(at.Child("metadata", "labels"), t.Labels, "`selector` does not match template `labels`")
			break
		}
	}
	k.AddAll(podspec.ValidateTemplate(t, at))
	if p := t.Spec.RestartPolicy; p != corev1.RestartPolicyAlways {
		k.Add(field.NotSupported(at.Child("spec", "restartPolicy"), p,
			[]corev1.RestartPolicy{corev1.RestartPolicyAlways}))
	}
}
