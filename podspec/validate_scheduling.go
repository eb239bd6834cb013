package podspec

import (
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// scheduling validates the fields that affect scheduling.
func (k *validator) scheduling(at *field.Path) {
	s := k.spec
	k.errs = append(k.errs, metavalidation.ValidateLabels(s.NodeSelector, at.Child("nodeSelector"))...)
	for i := range s.Tolerations {
		k.toleration(at.Child("tolerations").Index(i), &s.Tolerations[i])
	}
	gates := map[string]bool{}
	for i, g := range s.SchedulingGates {
		path := at.Child("schedulingGates").Index(i)
		k.each(path.Child("name"), g.Name, validation.IsQualifiedName(g.Name))
		if gates[g.Name] {
			k.duplicate(path, g.Name)
		}
		gates[g.Name] = true
	}
	if len(s.SchedulingGates) > 0 && s.NodeName != "" {
		k.forbidden(at.Child("nodeName"), "cannot be set until all schedulingGates have been cleared")
	}
	k.spreads(at.Child("topologySpreadConstraints"))
	if a := s.Affinity; a != nil {
		k.nodeAffinity(at.Child("affinity", "nodeAffinity"), a.NodeAffinity)
		if p := a.PodAffinity; p != nil {
			k.podTerms(at.Child("affinity", "podAffinity"),
				p.RequiredDuringSchedulingIgnoredDuringExecution, p.PreferredDuringSchedulingIgnoredDuringExecution)
		}
		if p := a.PodAntiAffinity; p != nil {
			k.podTerms(at.Child("affinity", "podAntiAffinity"),
				p.RequiredDuringSchedulingIgnoredDuringExecution, p.PreferredDuringSchedulingIgnoredDuringExecution)
		}
	}
}

func (k *validator) toleration(at *field.Path, t *corev1.Toleration) {
	if t.Key != "" {
		k.each(at.Child("key"), t.Key, validation.IsQualifiedName(t.Key))
	} else if t.Operator != corev1.TolerationOpExists {
		k.invalid(at.Child("operator"), t.Operator,
			"operator must be Exists when `key` is empty, which means \"match all values and all keys\"")
	}
	if t.TolerationSeconds != nil && t.Effect != corev1.TaintEffectNoExecute {
		k.invalid(at.Child("effect"), t.Effect, "effect must be 'NoExecute' when `tolerationSeconds` is set")
	}
	switch t.Operator {
	case corev1.TolerationOpEqual, "":
		k.each(at.Child("value"), t.Value, validation.IsValidLabelValue(t.Value))
	case corev1.TolerationOpExists:
		if t.Value != "" {
			k.invalid(at.Child("value"), t.Value, "value must be empty when `operator` is 'Exists'")
		}
	case corev1.TolerationOpLt, corev1.TolerationOpGt:
		k.integer(at.Child("value"), t.Value)
	default:
		k.add(field.NotSupported(at.Child("operator"), t.Operator, []corev1.TolerationOperator{
			corev1.TolerationOpEqual, corev1.TolerationOpExists, corev1.TolerationOpLt, corev1.TolerationOpGt}))
	}
	if t.Effect != "" {
		oneOf(k, at.Child("effect"), t.Effect,
			corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute)
	}
}

func (k *validator) integer(at *field.Path, value string) {
	if _, err := strconv.ParseInt(value, 10, 64); err != nil {
		k.invalid(at, value, "must be an integer")
	}
}

func (k *validator) nodeAffinity(at *field.Path, a *corev1.NodeAffinity) {
	if a == nil {
		return
	}
	if r := a.RequiredDuringSchedulingIgnoredDuringExecution; r != nil {
		k.nodeSelector(at.Child("requiredDuringSchedulingIgnoredDuringExecution"), r)
	}
	for i := range a.PreferredDuringSchedulingIgnoredDuringExecution {
		p := &a.PreferredDuringSchedulingIgnoredDuringExecution[i]
		path := at.Child("preferredDuringSchedulingIgnoredDuringExecution").Index(i)
		k.between(path.Child("weight"), int64(p.Weight), 1, 100)
		k.nodeTerm(path.Child("preference"), &p.Preference)
	}
}

// ValidateNodeSelector validates a node selector at a path.
func ValidateNodeSelector(at *field.Path, s *corev1.NodeSelector) field.ErrorList {
	k := &validator{}
	k.nodeSelector(at, s)
	return k.errs
}

func (k *validator) nodeSelector(at *field.Path, s *corev1.NodeSelector) {
	terms := at.Child("nodeSelectorTerms")
	if len(s.NodeSelectorTerms) == 0 {
		k.required(terms, "must have at least one node selector term")
	}
	for i := range s.NodeSelectorTerms {
		k.nodeTerm(terms.Index(i), &s.NodeSelectorTerms[i])
	}
}

func (k *validator) nodeTerm(at *field.Path, t *corev1.NodeSelectorTerm) {
	for i := range t.MatchExpressions {
		e, path := &t.MatchExpressions[i], at.Child("matchExpressions").Index(i)
		k.requirement(path, e)
		k.errs = append(k.errs, metavalidation.ValidateLabelName(e.Key, path.Child("key"))...)
	}
	for i := range t.MatchFields {
		k.fieldRequirement(at.Child("matchFields").Index(i), &t.MatchFields[i])
	}
}

// requirement validates a requirement on node labels.
func (k *validator) requirement(at *field.Path, e *corev1.NodeSelectorRequirement) {
	values := at.Child("values")
	switch e.Operator {
	case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
		if len(e.Values) == 0 {
			k.required(values, "must be specified when `operator` is 'In' or 'NotIn'")
		}
	case corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist:
		if len(e.Values) > 0 {
			k.forbidden(values, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")
		}
	case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
		if len(e.Values) != 1 {
			k.required(values, "must be specified single value when `operator` is 'Lt' or 'Gt'")
		} else {
			k.integer(values.Index(0), e.Values[0])
		}
	default:
		k.invalid(at.Child("operator"), e.Operator, "not a valid selector operator")
	}
}

// fieldRequirement validates a requirement on node fields. metadata.name is the only supported
// field.
func (k *validator) fieldRequirement(at *field.Path, e *corev1.NodeSelectorRequirement) {
	if e.Operator != corev1.NodeSelectorOpIn && e.Operator != corev1.NodeSelectorOpNotIn {
		k.invalid(at.Child("operator"), e.Operator, "not a valid selector operator")
	} else if len(e.Values) != 1 {
		k.required(at.Child("values"), "must be only one value when `operator` is 'In' or 'NotIn' for node "+
			"field selector")
	}
	if e.Key != "metadata.name" {
		k.invalid(at.Child("key"), e.Key, "not a valid field selector key")
		return
	}
	for i, v := range e.Values {
		k.each(at.Child("values").Index(i), v, validation.IsDNS1123Subdomain(v))
	}
}

func (k *validator) podTerms(
	at *field.Path,
	required []corev1.PodAffinityTerm,
	preferred []corev1.WeightedPodAffinityTerm,
) {
	for i := range required {
		k.podTerm(at.Child("requiredDuringSchedulingIgnoredDuringExecution").Index(i), &required[i])
	}
	for i := range preferred {
		path := at.Child("preferredDuringSchedulingIgnoredDuringExecution").Index(i)
		k.between(path.Child("weight"), int64(preferred[i].Weight), 1, 100)
		k.podTerm(path.Child("podAffinityTerm"), &preferred[i].PodAffinityTerm)
	}
}

func (k *validator) podTerm(at *field.Path, t *corev1.PodAffinityTerm) {
	k.selector(at.Child("labelSelector"), t.LabelSelector)
	k.selector(at.Child("namespaceSelector"), t.NamespaceSelector)
	for i, n := range t.Namespaces {
		k.each(at.Child("namespaces").Index(i), n, validation.IsDNS1123Label(n))
	}
	if t.TopologyKey == "" {
		k.required(at.Child("topologyKey"), "can not be empty")
	} else {
		k.errs = append(k.errs, metavalidation.ValidateLabelName(t.TopologyKey, at.Child("topologyKey"))...)
	}
	k.matchKeys(at.Child("matchLabelKeys"), t.MatchLabelKeys, t.LabelSelector)
	k.matchKeys(at.Child("mismatchLabelKeys"), t.MismatchLabelKeys, t.LabelSelector)
	for i, key := range t.MatchLabelKeys {
		if slices.Contains(t.MismatchLabelKeys, key) {
			k.invalid(at.Child("matchLabelKeys").Index(i), key, "exists in both matchLabelKeys and mismatchLabelKeys")
		}
	}
}

func (k *validator) selector(at *field.Path, s *metav1.LabelSelector) {
	k.errs = append(
		k.errs,
		metavalidation.ValidateLabelSelector(s, metavalidation.LabelSelectorValidationOptions{}, at)...)
}

// matchKeys validates label keys whose values are taken from the pod.
func (k *validator) matchKeys(at *field.Path, keys []string, selector *metav1.LabelSelector) {
	if len(keys) > 0 && selector == nil {
		k.forbidden(at, "must not be specified when labelSelector is not set")
	}
	for i, key := range keys {
		k.errs = append(k.errs, metavalidation.ValidateLabelName(key, at.Index(i))...)
	}
}

func (k *validator) spreads(at *field.Path) {
	type pair struct {
		key  string
		when corev1.UnsatisfiableConstraintAction
	}
	seen := map[pair]bool{}
	for i := range k.spec.TopologySpreadConstraints {
		c, path := &k.spec.TopologySpreadConstraints[i], at.Index(i)
		k.positive(path.Child("maxSkew"), int64(c.MaxSkew))
		if c.TopologyKey == "" {
			k.required(path.Child("topologyKey"), "can not be empty")
		} else {
			k.errs = append(k.errs, metavalidation.ValidateLabelName(c.TopologyKey, path.Child("topologyKey"))...)
		}
		oneOf(k, path.Child("whenUnsatisfiable"), c.WhenUnsatisfiable, corev1.DoNotSchedule, corev1.ScheduleAnyway)
		p := pair{c.TopologyKey, c.WhenUnsatisfiable}
		if seen[p] {
			k.duplicate(path, strings.Join([]string{p.key, string(p.when)}, ", "))
		}
		seen[p] = true
		if m := c.MinDomains; m != nil {
			k.positive(path.Child("minDomains"), int64(*m))
			if c.WhenUnsatisfiable != corev1.DoNotSchedule {
				k.invalid(
					path.Child("minDomains"),
					*m,
					"can only use minDomains if whenUnsatisfiable=%s",
					corev1.DoNotSchedule,
				)
			}
		}
		oneOfIfSet(
			k,
			path.Child("nodeAffinityPolicy"),
			c.NodeAffinityPolicy,
			corev1.NodeInclusionPolicyIgnore,
			corev1.NodeInclusionPolicyHonor,
		)
		oneOfIfSet(
			k,
			path.Child("nodeTaintsPolicy"),
			c.NodeTaintsPolicy,
			corev1.NodeInclusionPolicyIgnore,
			corev1.NodeInclusionPolicyHonor,
		)
		k.selector(path.Child("labelSelector"), c.LabelSelector)
		k.matchKeys(path.Child("matchLabelKeys"), c.MatchLabelKeys, c.LabelSelector)
	}
}
