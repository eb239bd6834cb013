package podspec

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ValidateStatusUpdate returns every error that forbids an update of the status of a pod. The specs
// must be the same.
func ValidateStatusUpdate(pod, old *corev1.Pod) field.ErrorList {
	k := &validator{pod: pod, spec: &pod.Spec, stored: true}
	k.changedMetadata(pod, old)
	at := field.NewPath("status")
	if pod.Spec.NodeName != old.Spec.NodeName {
		k.forbidden(field.NewPath("spec", "nodeName"), "may not be changed directly")
	}
	s, was := &pod.Status, &old.Status
	if s.NominatedNodeName != "" {
		k.each(at.Child("nominatedNodeName"), s.NominatedNodeName, validation.IsDNS1123Subdomain(s.NominatedNodeName))
	}
	if was.QOSClass != "" && s.QOSClass != was.QOSClass {
		k.invalid(at.Child("qosClass"), s.QOSClass, "field is immutable")
	}
	seen := map[corev1.PodConditionType]bool{}
	for i, c := range s.Conditions {
		path := at.Child("conditions").Index(i).Child("type")
		if c.Type != "" {
			k.each(path, c.Type, validation.IsQualifiedName(string(c.Type)))
		}
		if seen[c.Type] {
			k.duplicate(path, c.Type)
		}
		seen[c.Type] = true
	}
	k.addresses(at.Child("podIPs"), s.PodIPs)
	mayStart := func(c *corev1.ContainerStatus) bool { return k.mayStartAgain(c) }
	k.transitions(at.Child("containerStatuses"), s.ContainerStatuses, was.ContainerStatuses, mayStart)
	k.transitions(at.Child("initContainerStatuses"), s.InitContainerStatuses, was.InitContainerStatuses, mayStart)
	return k.errs
}

// addresses validates the addresses of a pod: at most one per family.
func (k *validator) addresses(at *field.Path, list []corev1.PodIP) {
	families := map[bool]bool{}
	for i, a := range list {
		parsed, err := netip.ParseAddr(a.IP)
		if err != nil || parsed.Zone() != "" {
			k.invalid(at.Index(i), a.IP, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")
			continue
		}
		if families[parsed.Is4()] {
			k.invalid(at, list, "may specify no more than one IP for each IP family")
		}
		families[parsed.Is4()] = true
	}
}

// mayStartAgain reports whether the restart policy allows a terminated container to start again.
func (k *validator) mayStartAgain(c *corev1.ContainerStatus) bool {
	for spec := range containersOf(k.spec) {
		if spec.Name == c.Name && (spec.RestartPolicy != nil || len(spec.RestartPolicyRules) > 0) {
			return true
		}
	}
	switch k.spec.RestartPolicy {
	case corev1.RestartPolicyAlways:
		return true
	case corev1.RestartPolicyOnFailure:
		return c.State.Terminated.ExitCode != 0
	}
	return false
}

func (k *validator) transitions(
	at *field.Path,
	now, before []corev1.ContainerStatus,
	mayStart func(*corev1.ContainerStatus) bool,
) {
	for i := range before {
		was := &before[i]
		if was.State.Terminated == nil || mayStart(was) {
			continue
		}
		for j := range now {
			if now[j].Name == was.Name && now[j].State.Terminated == nil {
				k.forbidden(at.Index(j).Child("state"), "may not be transitioned to non-terminated state")
			}
		}
	}
}

// ValidateEphemeralUpdate returns every error that forbids an update of ephemeral containers.
// Existing ones must not change.
func ValidateEphemeralUpdate(pod, old *corev1.Pod) field.ErrorList {
	k := &validator{pod: pod, spec: &pod.Spec, stored: true}
	k.errs = ValidateStored(pod)
	k.changedMetadata(pod, old)
	at := field.NewPath("spec", "ephemeralContainers")
	if IsMirror(pod) {
		k.forbidden(field.NewPath(""), "static pods do not support ephemeral containers")
	}
	now := map[string]*corev1.EphemeralContainer{}
	for i := range pod.Spec.EphemeralContainers {
		now[pod.Spec.EphemeralContainers[i].Name] = &pod.Spec.EphemeralContainers[i]
	}
	for i := range old.Spec.EphemeralContainers {
		was := &old.Spec.EphemeralContainers[i]
		if is := now[was.Name]; is == nil {
			k.forbidden(at, fmt.Sprintf("existing ephemeral containers %q may not be removed", was.Name))
		} else if !equality.Semantic.DeepEqual(is, was) {
			k.forbidden(at, fmt.Sprintf("existing ephemeral containers %q may not be changed", was.Name))
		}
	}
	return k.errs
}

// ValidateResize returns every error that forbids a resize of a pod: only CPU and memory of the
// pod, of main containers and of sidecars may change, no value may be removed, and the QoS class
// must stay the same.
func ValidateResize(pod, old *corev1.Pod) field.ErrorList {
	k := &validator{pod: pod, spec: &pod.Spec, stored: true}
	k.errs = ValidateStored(pod)
	k.changedMetadata(pod, old)
	spec := field.NewPath("spec")
	if IsMirror(old) {
		k.forbidden(field.NewPath(""), "static pods cannot be resized")
		return k.errs
	}
	if old.Spec.OS != nil && old.Spec.OS.Name == corev1.Windows {
		k.forbidden(field.NewPath(""), "windows pods cannot be resized")
		return k.errs
	}
	if was := qosOf(old); was != QOSClass(pod) {
		k.invalid(spec, QOSClass(pod), "Pod QOS Class may not change as a result of resizing")
	}
	same := k.sameContainers(spec.Child("containers"), pod.Spec.Containers, old.Spec.Containers)
	if !k.sameContainers(spec.Child("initContainers"), pod.Spec.InitContainers, old.Spec.InitContainers) || !same {
		return k.errs
	}
	rest := pod.Spec.DeepCopy()
	for i := range rest.Containers {
		k.resized(
			spec.Child("containers").Index(i).Child("resources"),
			&rest.Containers[i].Resources,
			&old.Spec.Containers[i].Resources,
		)
		rest.Containers[i].ResizePolicy = old.Spec.Containers[i].ResizePolicy
	}
	for i := range rest.InitContainers {
		if IsSidecar(&old.Spec.InitContainers[i]) {
			k.resized(
				spec.Child("initContainers").Index(i).Child("resources"),
				&rest.InitContainers[i].Resources,
				&old.Spec.InitContainers[i].Resources,
			)
			rest.InitContainers[i].ResizePolicy = old.Spec.InitContainers[i].ResizePolicy
		}
	}
	k.resizedWhole(spec.Child("resources"), rest, &old.Spec)
	if changed := Differences("spec", old.Spec, *rest); len(changed) > 0 {
		k.forbidden(
			spec,
			"only cpu and memory resources for pods, sidecar containers and main containers are mutable\nchanged: "+
				strings.Join(changed, ", "),
		)
	}
	return k.errs
}

// qosOf returns the QoS class that the pod had when it was created.
func qosOf(pod *corev1.Pod) corev1.PodQOSClass {
	if pod.Status.QOSClass != "" {
		return pod.Status.QOSClass
	}
	return QOSClass(pod)
}

// resizedWhole validates changes of pod-level resources, and makes the validated fields equal.
func (k *validator) resizedWhole(at *field.Path, now, before *corev1.PodSpec) {
	if now.Resources == nil && before.Resources == nil {
		return
	}
	was := before.Resources
	if was == nil {
		was = &corev1.ResourceRequirements{}
	}
	if now.Resources == nil {
		now.Resources = &corev1.ResourceRequirements{}
	}
	k.resized(at, now.Resources, was)
	if equality.Semantic.DeepEqual(now.Resources, was) {
		now.Resources = before.Resources
	}
}

// resized validates the resize of one container, and makes the validated fields equal.
func (k *validator) resized(at *field.Path, now, before *corev1.ResourceRequirements) {
	for _, part := range []struct {
		name        string
		now, before *corev1.ResourceList
	}{{"limits", &now.Limits, &before.Limits}, {"requests", &now.Requests, &before.Requests}} {
		for _, name := range slices.Sorted(maps.Keys(*part.before)) {
			if _, kept := (*part.now)[name]; !kept && overcommittable(name) {
				k.forbidden(at.Child(part.name), "resource "+part.name+" cannot be removed")
			}
		}
		rest := part.now.DeepCopy()
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			delete(rest, name)
			if q, had := (*part.before)[name]; had {
				if rest == nil {
					rest = corev1.ResourceList{}
				}
				rest[name] = q
			}
		}
		*part.now = rest
	}
}
