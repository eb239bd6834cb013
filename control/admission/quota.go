package admission

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"

	"berth/control/quota"
)

// newQuota enforces quotas. The plugin is the library's own: it serializes the
// requests of a namespace and stores the usage before it lets one pass, so that
// racing requests cannot both take the last place. What objects use is said by
// control/quota; the controller counts anew what deletions give back.
func newQuota(c Config) (admission.Interface, error) {
	p, err := resourcequota.NewResourceQuota(nil, 5)
	if err != nil {
		return nil, err
	}
	ignored := map[schema.GroupResource]struct{}{
		{Resource: "bindings"}: {}, {Resource: "events"}: {}, {Group: "events.k8s.io", Resource: "events"}: {},
		{Group: "authorization.k8s.io", Resource: "localsubjectaccessreviews"}: {},
	}
	p.SetDrainedNotification(c.Drained)
	p.SetQuotaConfiguration(generic.NewConfiguration(evaluators(c.Counted), ignored))
	return p, initialise(c, p)
}

// evaluators are pods, services and claims, which use more than a count, and
// one for each kind that is only counted.
func evaluators(counted []schema.GroupResource) []quotav1.Evaluator {
	out := []quotav1.Evaluator{podUse{}, objectUse{schema.GroupResource{Resource: "services"}, serviceUse}, objectUse{schema.GroupResource{Resource: "persistentvolumeclaims"}, claimUse}}
	for _, of := range counted {
		if of.Group == "" && slices.Contains([]string{"pods", "services", "persistentvolumeclaims", "events"}, of.Resource) {
			continue
		}
		out = append(out, objectUse{of, nil})
	}
	return out
}

var errNotHere = errors.New("usage is counted by the quota controller, not at admission")

// objectUse evaluates a kind without scopes; use is nil for one that is only
// counted.
type objectUse struct {
	of  schema.GroupResource
	use func(runtime.Object) corev1.ResourceList
}

var _ quotav1.Evaluator = objectUse{}

// Constraints are none.
func (o objectUse) Constraints([]corev1.ResourceName, runtime.Object) error { return nil }

// GroupResource is the kind evaluated.
func (o objectUse) GroupResource() schema.GroupResource { return o.of }

// Handles new objects, and changed ones if they use more than a count.
func (o objectUse) Handles(a admission.Attributes) bool {
	return a.GetSubresource() == "" && (a.GetOperation() == admission.Create || o.use != nil && a.GetOperation() == admission.Update)
}

// Matches says whether the quota limits anything of the object.
func (o objectUse) Matches(q *corev1.ResourceQuota, item runtime.Object) (bool, error) {
	return generic.Matches(q, item, o.MatchingResources, generic.MatchesNoScopeFunc)
}

// MatchingScopes are none.
func (o objectUse) MatchingScopes(runtime.Object, []corev1.ScopedResourceSelectorRequirement) ([]corev1.ScopedResourceSelectorRequirement, error) {
	return nil, nil
}

// UncoveredQuotaScopes are none.
func (o objectUse) UncoveredQuotaScopes(_, _ []corev1.ScopedResourceSelectorRequirement) ([]corev1.ScopedResourceSelectorRequirement, error) {
	return nil, nil
}

// MatchingResources keeps the names under which this kind is limited.
func (o objectUse) MatchingResources(in []corev1.ResourceName) (out []corev1.ResourceName) {
	for _, name := range in {
		s := string(name)
		switch {
		case slices.Contains(quota.Counted(o.of), name),
			o.of.Resource == "services" && strings.HasPrefix(s, "services."),
			o.of.Resource == "persistentvolumeclaims" && (name == corev1.ResourceRequestsStorage || strings.Contains(s, ".storageclass.storage.k8s.io/")):
			out = append(out, name)
		}
	}
	return out
}

// Usage of one object.
func (o objectUse) Usage(item runtime.Object) (corev1.ResourceList, error) {
	out := corev1.ResourceList{}
	for _, name := range quota.Counted(o.of) {
		out[name] = *resource.NewQuantity(1, resource.DecimalSI)
	}
	if o.use != nil {
		quota.Add(out, o.use(item))
	}
	return out, nil
}

// UsageStats is the controller's work.
func (o objectUse) UsageStats(quotav1.UsageStatsOptions) (quotav1.UsageStats, error) {
	return quotav1.UsageStats{}, errNotHere
}

// serviceUse names node ports and load balancers even where there are none, so
// that a change of type is seen as a difference.
func serviceUse(item runtime.Object) corev1.ResourceList {
	out := corev1.ResourceList{corev1.ResourceServicesNodePorts: resource.Quantity{}, corev1.ResourceServicesLoadBalancers: resource.Quantity{}}
	if s, ok := item.(*corev1.Service); ok {
		quota.Add(out, quota.OfService(s))
	}
	return out
}

func claimUse(item runtime.Object) corev1.ResourceList {
	if c, ok := item.(*corev1.PersistentVolumeClaim); ok {
		return quota.OfClaim(c)
	}
	return nil
}

// podUse evaluates pods.
type podUse struct{}

var _ quotav1.Evaluator = podUse{}

// Constraints refuses a pod that leaves open what a quota limits: what it uses
// could not be known.
func (podUse) Constraints(required []corev1.ResourceName, item runtime.Object) error {
	pod, ok := item.(*corev1.Pod)
	if !ok {
		return fmt.Errorf("not a Pod: %T", item)
	}
	missing := quota.MustSay(required, pod)
	if len(missing) == 0 {
		return nil
	}
	var said []string
	for name, containers := range missing {
		said = append(said, fmt.Sprintf("%s for: %s", name, strings.Join(containers, ",")))
	}
	slices.Sort(said)
	return fmt.Errorf("must specify %s", strings.Join(said, "; "))
}

// GroupResource is pods.
func (podUse) GroupResource() schema.GroupResource { return schema.GroupResource{Resource: "pods"} }

// Handles new and resized pods, and those that get a deadline: by that a pod comes under
// quotas of another scope. No other update changes what is used.
func (podUse) Handles(a admission.Attributes) bool {
	switch a.GetSubresource() {
	case "":
		pod, _ := a.GetObject().(*corev1.Pod)
		old, _ := a.GetOldObject().(*corev1.Pod)
		return a.GetOperation() == admission.Create || pod != nil && old != nil && quota.Terminating(pod) != quota.Terminating(old)
	case "resize":
		return a.GetOperation() == admission.Update
	}
	return false
}

// Matches says whether the quota is about this pod.
func (p podUse) Matches(q *corev1.ResourceQuota, item runtime.Object) (bool, error) {
	pod, ok := item.(*corev1.Pod)
	if !ok {
		return false, fmt.Errorf("not a Pod: %T", item)
	}
	return len(p.MatchingResources(quotav1.ResourceNames(q.Status.Hard))) > 0 && quota.Covers(q, pod), nil
}

// MatchingScopes answers those of the scopes that take the pod in.
func (podUse) MatchingScopes(item runtime.Object, scopes []corev1.ScopedResourceSelectorRequirement) (out []corev1.ScopedResourceSelectorRequirement, _ error) {
	pod, ok := item.(*corev1.Pod)
	if !ok {
		return nil, fmt.Errorf("not a Pod: %T", item)
	}
	for _, s := range scopes {
		q := &corev1.ResourceQuota{Spec: corev1.ResourceQuotaSpec{ScopeSelector: &corev1.ScopeSelector{MatchExpressions: []corev1.ScopedResourceSelectorRequirement{s}}}}
		if quota.Covers(q, pod) {
			out = append(out, s)
		}
	}
	return out, nil
}

// UncoveredQuotaScopes serves a configuration of scopes that must be covered;
// there is none here.
func (podUse) UncoveredQuotaScopes(_, _ []corev1.ScopedResourceSelectorRequirement) ([]corev1.ScopedResourceSelectorRequirement, error) {
	return nil, nil
}

// MatchingResources keeps the names under which pods are limited.
func (podUse) MatchingResources(in []corev1.ResourceName) (out []corev1.ResourceName) {
	for _, name := range in {
		s := string(name)
		asked := strings.TrimPrefix(s, "requests.")
		switch {
		case s == "count/pods" || s == "pods" || s == "cpu" || s == "memory" || s == "ephemeral-storage",
			s == "limits.cpu" || s == "limits.memory" || s == "limits.ephemeral-storage",
			asked != s && (asked == "cpu" || asked == "memory" || asked == "ephemeral-storage" || strings.Contains(asked, "/")),
			strings.HasPrefix(asked, corev1.ResourceHugePagesPrefix):
			out = append(out, name)
		}
	}
	return out
}

// Usage of a pod.
func (podUse) Usage(item runtime.Object) (corev1.ResourceList, error) {
	pod, ok := item.(*corev1.Pod)
	if !ok {
		return nil, fmt.Errorf("not a Pod: %T", item)
	}
	return quota.OfPod(pod, time.Now()), nil
}

// UsageStats is the controller's work.
func (podUse) UsageStats(quotav1.UsageStatsOptions) (quotav1.UsageStats, error) {
	return quotav1.UsageStats{}, errNotHere
}
