package validation

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"berth/podspec"
)

// countedResources are the resources that count objects.
func countedResources() []corev1.ResourceName {
	return []corev1.ResourceName{
		corev1.ResourcePods, corev1.ResourceQuotas, corev1.ResourceServices, corev1.ResourceReplicationControllers,
		corev1.ResourceSecrets, corev1.ResourceConfigMaps, corev1.ResourcePersistentVolumeClaims,
		corev1.ResourceServicesNodePorts, corev1.ResourceServicesLoadBalancers,
	}
}

func hugePages(name corev1.ResourceName) bool {
	return strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

// native reports whether a resource is one of Kubernetes.
func native(name corev1.ResourceName) bool {
	return !strings.Contains(string(name), "/") ||
		strings.Contains(string(name), corev1.ResourceDefaultNamespacePrefix)
}

// containerResource reports whether containers request a resource.
func containerResource(name corev1.ResourceName) bool {
	return name == corev1.ResourceCPU || name == corev1.ResourceMemory || name == corev1.ResourceEphemeralStorage ||
		hugePages(name)
}

// quotaResource reports whether quotas limit a resource.
func quotaResource(name corev1.ResourceName) bool {
	if slices.Contains(countedResources(), name) || containerResource(name) || name == corev1.ResourceRequestsStorage ||
		strings.HasPrefix(string(name), corev1.ResourceRequestsHugePagesPrefix) {
		return true
	}
	for _, prefix := range []string{"requests.", "limits."} {
		if of, ok := strings.CutPrefix(string(name), prefix); ok {
			return containerResource(corev1.ResourceName(of)) && !hugePages(corev1.ResourceName(of))
		}
	}
	return false
}

// resourceName validates the name of any resource.
func (k *validator) resourceName(at *field.Path, name corev1.ResourceName) {
	if problems := utilvalidation.IsQualifiedName(string(name)); len(problems) > 0 {
		k.InvalidEach(at, name, problems)
		return
	}
	if !strings.Contains(string(name), "/") && name != corev1.ResourceStorage && !quotaResource(name) {
		k.Invalid(at, name, "must be a standard resource type or fully qualified")
	}
}

// amount validates an amount of a resource.
func (k *validator) amount(at *field.Path, name corev1.ResourceName, q resource.Quantity) {
	if q.Sign() < 0 {
		k.Invalid(at, q.String(), "must be greater than or equal to 0")
	}
	if (slices.Contains(countedResources(), name) || podspec.IsExtended(name)) && q.MilliValue()%1000 != 0 {
		k.Invalid(at, q.String(), "must be an integer")
	}
}
