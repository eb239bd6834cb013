package quota

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"

	"berth/podspec"
)

const (
	requestsPrefix = "requests."
	limitsPrefix   = "limits."
	countPrefix    = "count/"
	classSuffix    = ".storageclass.storage.k8s.io/"
)

// ObjectCountNames returns the quota names that count the objects of a resource: count/RESOURCE,
// and the short name if there is one.
func ObjectCountNames(of schema.GroupResource) []corev1.ResourceName {
	out := []corev1.ResourceName{corev1.ResourceName(countPrefix + of.String())}
	if of.Group == "" {
		switch of.Resource {
		case "pods",
			"services",
			"replicationcontrollers",
			"resourcequotas",
			"secrets",
			"configmaps",
			"persistentvolumeclaims":
			out = append(out, corev1.ResourceName(of.Resource))
		}
	}
	return out
}

// ParseObjectCountName returns the resource whose objects a quota name counts. It returns false if
// the name does not count objects.
func ParseObjectCountName(name corev1.ResourceName) (of schema.GroupResource, ok bool) {
	if text, ok := strings.CutPrefix(string(name), countPrefix); ok {
		return schema.ParseGroupResource(text), true
	}
	switch name {
	case corev1.ResourcePods, corev1.ResourceServices, corev1.ResourceReplicationControllers, corev1.ResourceQuotas,
		corev1.ResourceSecrets, corev1.ResourceConfigMaps, corev1.ResourcePersistentVolumeClaims:
		return schema.GroupResource{Resource: string(name)}, true
	}
	return of, false
}

// PodUsage returns the usage of a pod at a time. A terminated pod, or one whose grace period has
// expired, counts as an object only. During a resize the usage is the maximum of the desired and
// the actual resources.
func PodUsage(pod *corev1.Pod, now time.Time) corev1.ResourceList {
	one := *resource.NewQuantity(1, resource.DecimalSI)
	out := corev1.ResourceList{"count/pods": one}
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return out
	}
	if d := pod.DeletionTimestamp; d != nil && pod.DeletionGracePeriodSeconds != nil && now.After(d.Time) {
		return out
	}
	out[corev1.ResourcePods] = one
	for name, q := range podspec.RequestsWithStatus(pod) {
		out[corev1.ResourceName(requestsPrefix+string(name))] = q
		if isNative(name) {
			out[name] = q
		}
	}
	for name, q := range podspec.LimitsWithStatus(pod) {
		if name == corev1.ResourceCPU || name == corev1.ResourceMemory || name == corev1.ResourceEphemeralStorage {
			out[corev1.ResourceName(limitsPrefix+string(name))] = q
		}
	}
	return out
}

func isNative(name corev1.ResourceName) bool {
	return name == corev1.ResourceCPU || name == corev1.ResourceMemory || name == corev1.ResourceEphemeralStorage ||
		strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

// ServiceUsage returns the usage of a Service, apart from the object count.
func ServiceUsage(s *corev1.Service) corev1.ResourceList {
	out := corev1.ResourceList{}
	ports := int64(len(s.Spec.Ports))
	switch s.Spec.Type {
	case corev1.ServiceTypeNodePort:
		out[corev1.ResourceServicesNodePorts] = *resource.NewQuantity(ports, resource.DecimalSI)
	case corev1.ServiceTypeLoadBalancer:
		out[corev1.ResourceServicesLoadBalancers] = *resource.NewQuantity(1, resource.DecimalSI)
		if s.Spec.AllocateLoadBalancerNodePorts == nil || *s.Spec.AllocateLoadBalancerNodePorts {
			out[corev1.ResourceServicesNodePorts] = *resource.NewQuantity(ports, resource.DecimalSI)
		}
	}
	return out
}

// ClaimUsage returns the usage of a PersistentVolumeClaim, apart from the object count.
func ClaimUsage(c *corev1.PersistentVolumeClaim) corev1.ResourceList {
	out := corev1.ResourceList{}
	size, ok := c.Spec.Resources.Requests[corev1.ResourceStorage]
	if ok {
		out[corev1.ResourceRequestsStorage] = size
	}
	if class := c.Spec.StorageClassName; class != nil && *class != "" {
		out[corev1.ResourceName(*class+classSuffix+"persistentvolumeclaims")] = *resource.NewQuantity(1,
			resource.DecimalSI)
		if ok {
			out[corev1.ResourceName(*class+classSuffix+"requests.storage")] = size
		}
	}
	return out
}

// MissingConstraints returns the constrained resources that a container of the pod does not set,
// each with the names of these containers. Such a pod is rejected because its usage could not be
// counted. As upstream, only CPU and memory are required.
func MissingConstraints(names []corev1.ResourceName, pod *corev1.Pod) map[corev1.ResourceName][]string {
	out := map[corev1.ResourceName][]string{}
	for _, name := range names {
		plain := strings.TrimPrefix(strings.TrimPrefix(string(name), requestsPrefix), limitsPrefix)
		if plain != "cpu" && plain != "memory" {
			continue
		}
		for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
			for i := range list {
				if !hasConstraint(pod, &list[i], string(name), corev1.ResourceName(plain)) {
					out[name] = append(out[name], list[i].Name)
				}
			}
		}
		slices.Sort(out[name])
	}
	return out
}

func hasConstraint(pod *corev1.Pod, c *corev1.Container, name string, plain corev1.ResourceName) bool {
	list := func(r corev1.ResourceRequirements) corev1.ResourceList {
		if strings.HasPrefix(name, limitsPrefix) {
			return r.Limits
		}
		return r.Requests
	}
	if r := pod.Spec.Resources; r != nil {
		if _, ok := list(*r)[plain]; ok {
			return true
		}
	}
	_, ok := list(c.Resources)[plain]
	return ok
}

// Matches reports whether the quota's scopes match the pod. A quota without scopes matches every
// object, one with scopes only pods.
func Matches(q *corev1.ResourceQuota, pod *corev1.Pod) bool {
	for _, scope := range q.Spec.Scopes {
		if !inScope(pod, corev1.ScopedResourceSelectorRequirement{ScopeName: scope,
			Operator: corev1.ScopeSelectorOpExists}) {
			return false
		}
	}
	if q.Spec.ScopeSelector != nil {
		for _, r := range q.Spec.ScopeSelector.MatchExpressions {
			if !inScope(pod, r) {
				return false
			}
		}
	}
	return true
}

// HasScopes reports whether the quota has scopes.
func HasScopes(q *corev1.ResourceQuota) bool {
	return len(q.Spec.Scopes) > 0 || q.Spec.ScopeSelector != nil && len(q.Spec.ScopeSelector.MatchExpressions) > 0
}

func inScope(pod *corev1.Pod, r corev1.ScopedResourceSelectorRequirement) bool {
	switch r.ScopeName {
	case corev1.ResourceQuotaScopeTerminating:
		return IsTerminating(pod)
	case corev1.ResourceQuotaScopeNotTerminating:
		return !IsTerminating(pod)
	case corev1.ResourceQuotaScopeBestEffort:
		return podspec.QOSClass(pod) == corev1.PodQOSBestEffort
	case corev1.ResourceQuotaScopeNotBestEffort:
		return podspec.QOSClass(pod) != corev1.PodQOSBestEffort
	case corev1.ResourceQuotaScopePriorityClass:
		return matchesPriorityClass(pod, r)
	case corev1.ResourceQuotaScopeCrossNamespacePodAffinity:
		return crossesNamespaces(pod)
	}
	return false
}

// IsTerminating reports whether the pod is in scope Terminating: it has an active deadline. It is
// the only part of a scope that can change during the lifetime of a pod.
func IsTerminating(pod *corev1.Pod) bool { return pod.Spec.ActiveDeadlineSeconds != nil }

func matchesPriorityClass(pod *corev1.Pod, r corev1.ScopedResourceSelectorRequirement) bool {
	operator := map[corev1.ScopeSelectorOperator]selection.Operator{
		corev1.ScopeSelectorOpIn: selection.In, corev1.ScopeSelectorOpNotIn: selection.NotIn,
		corev1.ScopeSelectorOpExists: selection.Exists, corev1.ScopeSelectorOpDoesNotExist: selection.DoesNotExist,
	}[r.Operator]
	requirement, err := labels.NewRequirement(string(r.ScopeName), operator, r.Values)
	if err != nil {
		return false
	}
	scopeLabels := labels.Set{}
	if pod.Spec.PriorityClassName != "" {
		scopeLabels[string(r.ScopeName)] = pod.Spec.PriorityClassName
	}
	return requirement.Matches(scopeLabels)
}

func crossesNamespaces(pod *corev1.Pod) bool {
	a := pod.Spec.Affinity
	if a == nil {
		return false
	}
	crosses := func(t corev1.PodAffinityTerm) bool { return len(t.Namespaces) > 0 || t.NamespaceSelector != nil }
	weighted := func(w corev1.WeightedPodAffinityTerm) bool { return crosses(w.PodAffinityTerm) }
	if n := a.PodAffinity; n != nil &&
		(slices.ContainsFunc(n.RequiredDuringSchedulingIgnoredDuringExecution, crosses) ||
			slices.ContainsFunc(n.PreferredDuringSchedulingIgnoredDuringExecution, weighted)) {
		return true
	}
	n := a.PodAntiAffinity
	return n != nil && (slices.ContainsFunc(n.RequiredDuringSchedulingIgnoredDuringExecution, crosses) ||
		slices.ContainsFunc(n.PreferredDuringSchedulingIgnoredDuringExecution, weighted))
}

// Add adds quantities to a list.
func Add(to, more corev1.ResourceList) {
	for name, q := range more {
		sum := to[name].DeepCopy()
		sum.Add(q)
		to[name] = sum
	}
}
