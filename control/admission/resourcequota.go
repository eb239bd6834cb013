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
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota/apis/resourcequota/validation"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"

	"berth/control/quota"
)

// newQuota returns the ResourceQuota plugin of k8s.io/apiserver. It serializes the requests of a
// namespace and stores the usage before it admits a request, so that concurrent requests cannot
// exceed the quota. Package control/quota calculates the usage of objects. The resource quota
// controller subtracts deleted objects.
func newQuota(c Config) (admission.Interface, error) {
	config, err := resourcequota.LoadConfiguration(c.Configurations.reader("ResourceQuota"))
	if err != nil {
		return nil, err
	}
	if err := validation.ValidateConfiguration(config).ToAggregate(); err != nil {
		return nil, err
	}
	p, err := resourcequota.NewResourceQuota(config, 5)
	if err != nil {
		return nil, err
	}
	ignored := map[schema.GroupResource]struct{}{
		{Resource: "bindings"}: {}, {Resource: "events"}: {}, {Group: "events.k8s.io", Resource: "events"}: {},
		{Group: "authorization.k8s.io", Resource: "localsubjectaccessreviews"}: {},
	}
	p.SetDrainedNotification(c.Drained)
	p.SetQuotaConfiguration(generic.NewConfiguration(evaluators(c.CountedResources), ignored))
	return p, initialize(c, p)
}

// evaluators returns the evaluators of pods, services and PersistentVolumeClaims, and object count
// evaluators for all other resources.
func evaluators(counted []schema.GroupResource) []quotav1.Evaluator {
	out := []quotav1.Evaluator{podEvaluator{}, objectEvaluator{schema.GroupResource{Resource: "services"},
		serviceUsage},
		objectEvaluator{schema.GroupResource{Resource: "persistentvolumeclaims"}, claimUsage}}
	for _, of := range counted {
		if of.Group == "" && slices.Contains([]string{"pods", "services", "persistentvolumeclaims", "events"},
			of.Resource) {
			continue
		}
		out = append(out, objectEvaluator{of, nil})
	}
	return out
}

var errNotSupported = errors.New("usage statistics are calculated by the resource quota controller, not by admission")

// objectEvaluator evaluates a resource without scopes. usage is nil for a resource that is only
// counted.
type objectEvaluator struct {
	resource schema.GroupResource
	usage    func(runtime.Object) corev1.ResourceList
}

var _ quotav1.Evaluator = objectEvaluator{}

// Constraints implements quotav1.Evaluator. There are none.
func (o objectEvaluator) Constraints([]corev1.ResourceName, runtime.Object) error { return nil }

// GroupResource returns the evaluated resource.
func (o objectEvaluator) GroupResource() schema.GroupResource { return o.resource }

// Handles reports true for new objects, and for updates if the usage depends on the object's
// fields.
func (o objectEvaluator) Handles(a admission.Attributes) bool {
	return a.GetSubresource() == "" && (a.GetOperation() == admission.Create || o.usage != nil &&
		a.GetOperation() == admission.Update)
}

// Matches reports whether the quota limits a resource of the object.
func (o objectEvaluator) Matches(q *corev1.ResourceQuota, item runtime.Object) (bool, error) {
	return generic.Matches(q, item, o.MatchingResources, generic.MatchesNoScopeFunc)
}

// MatchingScopes implements quotav1.Evaluator. There are none.
func (o objectEvaluator) MatchingScopes(runtime.Object,
	[]corev1.ScopedResourceSelectorRequirement) ([]corev1.ScopedResourceSelectorRequirement, error) {
	return nil, nil
}

// UncoveredQuotaScopes implements quotav1.Evaluator. There are none.
func (o objectEvaluator) UncoveredQuotaScopes(_,
	_ []corev1.ScopedResourceSelectorRequirement) ([]corev1.ScopedResourceSelectorRequirement, error) {
	return nil, nil
}

// MatchingResources returns the resource names that apply to this resource.
func (o objectEvaluator) MatchingResources(in []corev1.ResourceName) (out []corev1.ResourceName) {
	for _, name := range in {
		s := string(name)
		switch {
		case slices.Contains(quota.ObjectCountNames(o.resource), name),
			o.resource.Resource == "services" && strings.HasPrefix(s, "services."),
			o.resource.Resource == "persistentvolumeclaims" && (name == corev1.ResourceRequestsStorage ||
				strings.Contains(s,
					".storageclass.storage.k8s.io/")):
			out = append(out, name)
		}
	}
	return out
}

// Usage returns the usage of one object.
func (o objectEvaluator) Usage(item runtime.Object) (corev1.ResourceList, error) {
	out := corev1.ResourceList{}
	for _, name := range quota.ObjectCountNames(o.resource) {
		out[name] = *resource.NewQuantity(1, resource.DecimalSI)
	}
	if o.usage != nil {
		quota.Add(out, o.usage(item))
	}
	return out, nil
}

// UsageStats is not supported. The resource quota controller calculates the total usage.
func (o objectEvaluator) UsageStats(quotav1.UsageStatsOptions) (quotav1.UsageStats, error) {
	return quotav1.UsageStats{}, errNotSupported
}

// serviceUsage includes node ports and load balancers even if they are zero, so that a change of
// the service type changes the usage.
func serviceUsage(item runtime.Object) corev1.ResourceList {
	out := corev1.ResourceList{corev1.ResourceServicesNodePorts: resource.Quantity{},
		corev1.ResourceServicesLoadBalancers: resource.Quantity{}}
	if s, ok := item.(*corev1.Service); ok {
		quota.Add(out, quota.ServiceUsage(s))
	}
	return out
}

func claimUsage(item runtime.Object) corev1.ResourceList {
	if c, ok := item.(*corev1.PersistentVolumeClaim); ok {
		return quota.ClaimUsage(c)
	}
	return nil
}

// podEvaluator evaluates pods.
type podEvaluator struct{}

var _ quotav1.Evaluator = podEvaluator{}

// Constraints rejects a pod without a request or limit that a quota requires.
func (podEvaluator) Constraints(required []corev1.ResourceName, item runtime.Object) error {
	pod, ok := item.(*corev1.Pod)
	if !ok {
		return fmt.Errorf("not a Pod: %T", item)
	}
	missing := quota.MissingConstraints(required, pod)
	if len(missing) == 0 {
		return nil
	}
	var messages []string
	for name, containers := range missing {
		messages = append(messages, fmt.Sprintf("%s for: %s", name, strings.Join(containers, ",")))
	}
	slices.Sort(messages)
	return fmt.Errorf("must specify %s", strings.Join(messages, "; "))
}

// GroupResource returns pods.
func (podEvaluator) GroupResource() schema.GroupResource {
	return schema.GroupResource{Resource: "pods"}
}

// Handles reports true for new pods, resized pods, and pods whose active deadline is set or
// removed, because that changes the matching scopes. No other update changes the usage.
func (podEvaluator) Handles(a admission.Attributes) bool {
	switch a.GetSubresource() {
	case "":
		pod, _ := a.GetObject().(*corev1.Pod)
		old, _ := a.GetOldObject().(*corev1.Pod)
		return a.GetOperation() == admission.Create || pod != nil && old != nil &&
			quota.IsTerminating(pod) != quota.IsTerminating(old)
	case "resize":
		return a.GetOperation() == admission.Update
	}
	return false
}

// Matches reports whether the quota covers the pod.
func (p podEvaluator) Matches(q *corev1.ResourceQuota, item runtime.Object) (bool, error) {
	pod, ok := item.(*corev1.Pod)
	if !ok {
		return false, fmt.Errorf("not a Pod: %T", item)
	}
	return len(p.MatchingResources(quotav1.ResourceNames(q.Status.Hard))) > 0 && quota.Matches(q, pod), nil
}

// MatchingScopes returns those of the scopes that match the pod.
func (podEvaluator) MatchingScopes(item runtime.Object,
	scopes []corev1.ScopedResourceSelectorRequirement) (out []corev1.ScopedResourceSelectorRequirement, _ error) {
	pod, ok := item.(*corev1.Pod)
	if !ok {
		return nil, fmt.Errorf("not a Pod: %T", item)
	}
	for _, s := range scopes {
		q := &corev1.ResourceQuota{Spec: corev1.ResourceQuotaSpec{ScopeSelector: &corev1.ScopeSelector{
			MatchExpressions: []corev1.ScopedResourceSelectorRequirement{s}}}}
		if quota.Matches(q, pod) {
			out = append(out, s)
		}
	}
	return out, nil
}

// UncoveredQuotaScopes implements quotav1.Evaluator. There are none.
func (podEvaluator) UncoveredQuotaScopes(_,
	_ []corev1.ScopedResourceSelectorRequirement) ([]corev1.ScopedResourceSelectorRequirement, error) {
	return nil, nil
}

// MatchingResources returns the resource names that apply to pods.
func (podEvaluator) MatchingResources(in []corev1.ResourceName) (out []corev1.ResourceName) {
	for _, name := range in {
		s := string(name)
		request := strings.TrimPrefix(s, "requests.")
		switch {
		case s == "count/pods" || s == "pods" || s == "cpu" || s == "memory" || s == "ephemeral-storage",
			s == "limits.cpu" || s == "limits.memory" || s == "limits.ephemeral-storage",
			request != s && (request == "cpu" || request == "memory" || request == "ephemeral-storage" ||
				strings.Contains(request, "/")),
			strings.HasPrefix(request, corev1.ResourceHugePagesPrefix):
			out = append(out, name)
		}
	}
	return out
}

// Usage returns the usage of a pod.
func (podEvaluator) Usage(item runtime.Object) (corev1.ResourceList, error) {
	pod, ok := item.(*corev1.Pod)
	if !ok {
		return nil, fmt.Errorf("not a Pod: %T", item)
	}
	return quota.PodUsage(pod, time.Now()), nil
}

// UsageStats is not supported. The resource quota controller calculates the total usage.
func (podEvaluator) UsageStats(quotav1.UsageStatsOptions) (quotav1.UsageStats, error) {
	return quotav1.UsageStats{}, errNotSupported
}
