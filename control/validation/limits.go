package validation

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"berth/podspec"
)

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
		k.limitType(at.Child("type"), item.Type)
		if seen[item.Type] {
			k.Add(field.Duplicate(at.Child("type"), item.Type))
		}
		seen[item.Type] = true
		lists := map[string]corev1.ResourceList{"max": item.Max, "min": item.Min,
			"maxLimitRequestRatio": item.MaxLimitRequestRatio}
		if item.Type != corev1.LimitTypePod {
			lists["default"], lists["defaultRequest"] = item.Default, item.DefaultRequest
		}
		for name, list := range lists {
			for resource := range list {
				k.limitedResource(at.Child(name).Key(string(resource)), item.Type, resource)
			}
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

// limitType validates what a limit applies to.
func (k *validator) limitType(at *field.Path, t corev1.LimitType) {
	if problems := utilvalidation.IsQualifiedName(string(t)); len(problems) > 0 {
		k.InvalidEach(at, t, problems)
		return
	}
	switch t {
	case corev1.LimitTypePod, corev1.LimitTypeContainer, corev1.LimitTypePersistentVolumeClaim:
	default:
		if !strings.Contains(string(t), "/") {
			k.Invalid(at, t, "must be a standard limit type or fully qualified")
		}
	}
}

// limitedResource validates the name of a resource of a limit.
func (k *validator) limitedResource(at *field.Path, t corev1.LimitType, name corev1.ResourceName) {
	k.resourceName(at, name)
	if t != corev1.LimitTypePod && t != corev1.LimitTypeContainer {
		return
	}
	switch qualified := strings.Contains(string(name), "/"); {
	case !qualified && !containerResource(name):
		k.Invalid(at, name, "must be a standard resource for containers")
	case qualified && !native(name) && !podspec.IsExtended(name):
		k.Invalid(at, name, "doesn't follow extended resource name standard")
	}
}

// order validates min ≤ default request ≤ default ≤ max, and the ratio of limits to requests.
func (k *validator) order(at *field.Path, item *corev1.LimitRangeItem) {
	type bound struct {
		name, word string
		list       corev1.ResourceList
	}
	lowest, request := bound{"min", "min", item.Min}, bound{"defaultRequest", "default request", item.DefaultRequest}
	limit, highest := bound{"default", "default", item.Default}, bound{"max", "max", item.Max}
	if item.Type == corev1.LimitTypePod { // it has no defaults
		request.list, limit.list = nil, nil
	}
	for _, c := range []struct {
		low, high bound
		at        string // the field that is wrong
	}{{lowest, highest, "min"}, {lowest, request, "defaultRequest"}, {request, highest, "defaultRequest"},
		{request, limit, "defaultRequest"}, {lowest, limit, "default"}, {limit, highest, "default"}} {
		for _, name := range slices.Sorted(maps.Keys(c.low.list)) {
			a := c.low.list[name]
			if b, ok := c.high.list[name]; ok && a.Cmp(b) > 0 {
				k.Invalid(at.Child(c.at).Key(string(name)), a.String(), "%s value %s is greater than %s value %s",
					c.low.word, a.String(), c.high.word, b.String())
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(request.list)) {
		a := request.list[name]
		if b, ok := limit.list[name]; ok && (!native(name) || hugePages(name)) && a.Cmp(b) != 0 {
			k.Invalid(at.Child("defaultRequest").Key(string(name)), a.String(), "default value %s must equal to "+
				"defaultRequest value %s in %s", b.String(), a.String(), name)
		}
	}
	k.ratios(at.Child("maxLimitRequestRatio"), item)
}

// ratios validates the ratio of limits to requests, which cannot exceed that of the maximum to the minimum.
func (k *validator) ratios(at *field.Path, item *corev1.LimitRangeItem) {
	for _, name := range slices.Sorted(maps.Keys(item.MaxLimitRequestRatio)) {
		ratio, path := item.MaxLimitRequestRatio[name], at.Key(string(name))
		if ratio.Cmp(resource.MustParse("1")) < 0 {
			k.Invalid(path, ratio.String(), "ratio %s is less than 1", ratio.String())
		}
		lowest, hasLowest := item.Min[name]
		highest, hasHighest := item.Max[name]
		if !hasLowest || !hasHighest {
			continue
		}
		possible := highest.AsApproximateFloat64() / lowest.AsApproximateFloat64()
		if ratio.AsApproximateFloat64() > possible {
			k.Invalid(path, ratio.String(), "ratio %s is greater than max/min = %f", ratio.String(), possible)
		}
	}
}

// quotaScopes are all scopes of quotas.
func quotaScopes() []corev1.ResourceQuotaScope {
	return []corev1.ResourceQuotaScope{
		corev1.ResourceQuotaScopeTerminating, corev1.ResourceQuotaScopeNotTerminating,
		corev1.ResourceQuotaScopeBestEffort, corev1.ResourceQuotaScopeNotBestEffort,
		corev1.ResourceQuotaScopePriorityClass, corev1.ResourceQuotaScopeCrossNamespacePodAffinity,
		corev1.ResourceQuotaScopeVolumeAttributesClass,
	}
}

// limitedByScope reports whether a quota with a scope can limit a resource.
func limitedByScope(scope corev1.ResourceQuotaScope, name corev1.ResourceName) bool {
	switch scope {
	case corev1.ResourceQuotaScopeVolumeAttributesClass:
		return name == corev1.ResourcePersistentVolumeClaims || name == corev1.ResourceRequestsStorage
	case corev1.ResourceQuotaScopeBestEffort:
		return name == corev1.ResourcePods
	case corev1.ResourceQuotaScopeTerminating, corev1.ResourceQuotaScopeNotTerminating,
		corev1.ResourceQuotaScopeNotBestEffort, corev1.ResourceQuotaScopePriorityClass,
		corev1.ResourceQuotaScopeCrossNamespacePodAffinity:
		return slices.Contains([]corev1.ResourceName{corev1.ResourcePods, corev1.ResourceCPU, corev1.ResourceMemory,
			corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory, corev1.ResourceRequestsCPU,
			corev1.ResourceRequestsMemory}, name)
	}
	return true
}

// quotaAmounts validates the amounts of a quota.
func (k *validator) quotaAmounts(at *field.Path, list corev1.ResourceList) {
	for _, name := range slices.Sorted(maps.Keys(list)) {
		path := at.Key(string(name))
		k.resourceName(path, name)
		if !strings.Contains(string(name), "/") && !quotaResource(name) {
			k.Invalid(path, name, "must be a standard resource for quota")
		}
		k.amount(path, name, list[name])
	}
}

// limitedByScopes validates that a quota with a scope can limit its resources.
func (k *validator) limitedByScopes(at *field.Path, scope corev1.ResourceQuotaScope, q *corev1.ResourceQuota) {
	for name := range q.Spec.Hard {
		if quotaResource(name) && !limitedByScope(scope, name) {
			k.Invalid(at, scope, "unsupported scope applied to resource")
		}
	}
}

func (k *validator) quota(q *corev1.ResourceQuota) {
	k.quotaAmounts(spec.Child("hard"), q.Spec.Hard)
	seen, at := map[corev1.ResourceQuotaScope]bool{}, spec.Child("scopes")
	for _, s := range q.Spec.Scopes {
		if !slices.Contains(quotaScopes(), s) {
			k.Invalid(at, q.Spec.Scopes, "unsupported scope")
		}
		k.limitedByScopes(at, s, q)
		seen[s] = true
	}
	if seen[corev1.ResourceQuotaScopeBestEffort] && seen[corev1.ResourceQuotaScopeNotBestEffort] ||
		seen[corev1.ResourceQuotaScopeTerminating] && seen[corev1.ResourceQuotaScopeNotTerminating] {
		k.Invalid(at, q.Spec.Scopes, "conflicting scopes")
	}
	if q.Spec.ScopeSelector != nil {
		k.scopeSelector(spec.Child("scopeSelector", "matchExpressions"), q)
	}
}

// scopeSelector validates the selector of a quota. As in Kubernetes, the paths of errors have no index.
func (k *validator) scopeSelector(at *field.Path, q *corev1.ResourceQuota) {
	seen := map[corev1.ResourceQuotaScope]bool{}
	for _, m := range q.Spec.ScopeSelector.MatchExpressions {
		if !slices.Contains(quotaScopes(), m.ScopeName) {
			k.Invalid(at.Child("scopeName"), m.ScopeName, "unsupported scope")
		}
		k.limitedByScopes(at, m.ScopeName, q)
		seen[m.ScopeName] = true
		switch m.ScopeName {
		case corev1.ResourceQuotaScopePriorityClass, corev1.ResourceQuotaScopeVolumeAttributesClass:
		default:
			if m.Operator != corev1.ScopeSelectorOpExists && slices.Contains(quotaScopes(), m.ScopeName) {
				k.Invalid(at.Child("operator"), m.Operator, "must be 'Exists' when scope is any of Terminating, "+
					"NotTerminating, BestEffort, NotBestEffort or CrossNamespacePodAffinity")
			}
		}
		switch m.Operator {
		case corev1.ScopeSelectorOpIn, corev1.ScopeSelectorOpNotIn:
			if len(m.Values) == 0 {
				k.Required(at.Child("values"), "must be at least one value when `operator` is 'In' or 'NotIn' for "+
					"scope selector")
			}
		case corev1.ScopeSelectorOpExists, corev1.ScopeSelectorOpDoesNotExist:
			if len(m.Values) > 0 {
				k.Invalid(at.Child("values"), m.Values,
					"must be no value when `operator` is 'Exists' or 'DoesNotExist' for scope selector")
			}
		default:
			k.Invalid(at.Child("operator"), m.Operator, "not a valid selector operator")
		}
	}
	if seen[corev1.ResourceQuotaScopeBestEffort] && seen[corev1.ResourceQuotaScopeNotBestEffort] ||
		seen[corev1.ResourceQuotaScopeTerminating] && seen[corev1.ResourceQuotaScopeNotTerminating] {
		k.Invalid(at, q.Spec.ScopeSelector, "conflicting scopes")
	}
}

func (k *validator) quotaChange(q, old *corev1.ResourceQuota) {
	now, before := map[corev1.ResourceQuotaScope]bool{}, map[corev1.ResourceQuotaScope]bool{}
	for _, s := range q.Spec.Scopes {
		now[s] = true
	}
	for _, s := range old.Spec.Scopes {
		before[s] = true
	}
	if !maps.Equal(now, before) {
		k.Invalid(spec.Child("scopes"), q.Spec.Scopes, "field is immutable")
	}
}

func (k *validator) quotaStatus(q, _ *corev1.ResourceQuota) {
	k.quotaAmounts(status.Child("hard"), q.Status.Hard)
	k.quotaAmounts(status.Child("used"), q.Status.Used)
}
