package pods

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"berth/control/registry"
	"berth/podspec"
)

// podStrategy is the strategy of pods. Defaults and validation are in the registry.Kind.
type podStrategy struct{ registry.Strategy }

// PrepareForCreate sets phase Pending and the QoS class, and completes selectors with
// matchLabelKeys.
func (r podStrategy) PrepareForCreate(ctx context.Context, obj runtime.Object) {
	r.Strategy.PrepareForCreate(ctx, obj)
	pod := registry.MustCast[*corev1.Pod](obj)
	pod.Status = corev1.PodStatus{Phase: corev1.PodPending, QOSClass: podspec.QOSClass(pod)}
	if len(pod.Spec.SchedulingGates) > 0 {
		pod.Status.Conditions = []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonSchedulingGated,
			Message: "Scheduling is blocked due to non-empty scheduling gates"}}
	}
	mergeMatchKeys(pod)
}

// CheckGracefulDelete sets the grace period: that of the request, else that of the pod. It is 0 for
// an unbound or terminated pod.
func (r podStrategy) CheckGracefulDelete(_ context.Context, obj runtime.Object, options *metav1.DeleteOptions) bool {
	if options == nil {
		return false
	}
	pod := registry.MustCast[*corev1.Pod](obj)
	period := int64(corev1.DefaultTerminationGracePeriodSeconds)
	switch {
	case options.GracePeriodSeconds != nil:
		period = *options.GracePeriodSeconds
	case pod.Spec.TerminationGracePeriodSeconds != nil:
		period = *pod.Spec.TerminationGracePeriodSeconds
	}
	if period < 0 {
		period = 1
	}
	if pod.Spec.NodeName == "" || isTerminal(pod) {
		period = 0 // nothing is running
	}
	options.GracePeriodSeconds = &period
	return true
}

func isTerminal(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
}

// mergeMatchKeys adds the values of matchLabelKeys and mismatchLabelKeys to the selector of their
// term, so that the scheduler need not interpret them.
func mergeMatchKeys(pod *corev1.Pod) {
	merge := func(selector *metav1.LabelSelector, keys []string, op metav1.LabelSelectorOperator) {
		if selector == nil {
			return
		}
		for _, key := range keys {
			if value, ok := pod.Labels[key]; ok {
				selector.MatchExpressions = append(selector.MatchExpressions,
					metav1.LabelSelectorRequirement{Key: key, Operator: op, Values: []string{value}})
			}
		}
	}
	term := func(t *corev1.PodAffinityTerm) {
		merge(t.LabelSelector, t.MatchLabelKeys, metav1.LabelSelectorOpIn)
		merge(t.LabelSelector, t.MismatchLabelKeys, metav1.LabelSelectorOpNotIn)
	}
	terms := func(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm) {
		for i := range required {
			term(&required[i])
		}
		for i := range preferred {
			term(&preferred[i].PodAffinityTerm)
		}
	}
	if a := pod.Spec.Affinity; a != nil && a.PodAffinity != nil {
		terms(
			a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution,
			a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution,
		)
	}
	if a := pod.Spec.Affinity; a != nil && a.PodAntiAffinity != nil {
		terms(
			a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution,
			a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution,
		)
	}
	for i := range pod.Spec.TopologySpreadConstraints {
		c := &pod.Spec.TopologySpreadConstraints[i]
		merge(c.LabelSelector, c.MatchLabelKeys, metav1.LabelSelectorOpIn)
	}
}

// podStatusStrategy updates the status only, and keeps the QoS class.
type podStatusStrategy struct{ registry.StatusStrategy }

func (r podStatusStrategy) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	r.StatusStrategy.PrepareForUpdate(ctx, obj, old)
	pod, oldPod := registry.MustCast[*corev1.Pod](obj), registry.MustCast[*corev1.Pod](old)
	if oldPod.Status.QOSClass != "" {
		pod.Status.QOSClass = oldPod.Status.QOSClass
	}
}

// specPartStrategy updates one part of a pod's spec.
type specPartStrategy struct {
	registry.Strategy
	apply    func(pod, desired *corev1.Pod) // copies the part from the desired pod
	validate func(pod, old *corev1.Pod) field.ErrorList
	fields   []string // the fields of the part in the spec
}

// newEphemeralContainersStrategy returns the strategy of pods/ephemeralcontainers.
func newEphemeralContainersStrategy(s registry.Strategy) specPartStrategy {
	return specPartStrategy{
		Strategy: s,
		validate: podspec.ValidateEphemeralUpdate,
		fields:   []string{"ephemeralContainers"},
		apply:    func(pod, desired *corev1.Pod) { pod.Spec.EphemeralContainers = desired.Spec.EphemeralContainers },
	}
}

// newResizeStrategy returns the strategy of pods/resize.
func newResizeStrategy(s registry.Strategy) specPartStrategy {
	return specPartStrategy{
		Strategy: s,
		validate: podspec.ValidateResize,
		fields:   []string{"containers", "initContainers", "resources"},
		apply: func(pod, desired *corev1.Pod) {
			copyResources(pod.Spec.Containers, desired.Spec.Containers)
			copyResources(pod.Spec.InitContainers, desired.Spec.InitContainers)
			pod.Spec.Resources = desired.Spec.Resources
		},
	}
}

// copyResources copies resources and resize policies between containers of the same name.
func copyResources(to, from []corev1.Container) {
	byName := map[string]*corev1.Container{}
	for i := range from {
		byName[from[i].Name] = &from[i]
	}
	for i := range to {
		if desired := byName[to[i].Name]; desired != nil {
			to[i].Resources, to[i].ResizePolicy = desired.Resources, desired.ResizePolicy
		}
	}
}

func (r specPartStrategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	pod, oldPod := registry.MustCast[*corev1.Pod](obj), registry.MustCast[*corev1.Pod](old)
	desired := pod.DeepCopy()
	oldPod.DeepCopyInto(pod)
	pod.ResourceVersion = desired.ResourceVersion
	pod.ManagedFields = desired.ManagedFields
	r.apply(pod, desired)
	if len(podspec.Differences("spec", oldPod.Spec, pod.Spec)) > 0 {
		pod.Generation = oldPod.Generation + 1
	}
}

func (r specPartStrategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return r.validate(registry.MustCast[*corev1.Pod](obj), registry.MustCast[*corev1.Pod](old))
}

func (r specPartStrategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}

// GetResetFields returns the fields that server-side apply ignores here.
func (r specPartStrategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	var kept []fieldpath.Path
	for _, name := range r.fields {
		kept = append(kept, fieldpath.MakePathOrDie("spec", name))
	}
	all := fieldpath.NewSet(fieldpath.MakePathOrDie("status"), fieldpath.MakePathOrDie("metadata"))
	for _, name := range specFields() {
		path := fieldpath.MakePathOrDie("spec", name)
		if !containsPath(kept, path) {
			all.Insert(path)
		}
	}
	return map[fieldpath.APIVersion]*fieldpath.Set{fieldpath.APIVersion(r.Kind.GroupVersion.String()): all}
}

func containsPath(list []fieldpath.Path, path fieldpath.Path) bool {
	for _, p := range list {
		if p.Equals(path) {
			return true
		}
	}
	return false
}
