package statefulset

import (
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/workloads"
)

var podKind = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}

func claimName(set *appsv1.StatefulSet, template *corev1.PersistentVolumeClaim, ordinal int) string {
	return template.Name + "-" + podName(set, ordinal)
}

// setClaims makes the volumes named like claim templates use the claims of the ordinal.
func setClaims(set *appsv1.StatefulSet, pod *corev1.Pod, ordinal int) {
	templates := set.Spec.VolumeClaimTemplates
	var volumes []corev1.Volume
	for i := range templates {
		volumes = append(volumes, corev1.Volume{Name: templates[i].Name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{
				ClaimName: claimName(set, &templates[i], ordinal)}}})
	}
	for _, v := range pod.Spec.Volumes {
		if !slices.ContainsFunc(templates, func(t corev1.PersistentVolumeClaim) bool { return t.Name == v.Name }) {
			volumes = append(volumes, v)
		}
	}
	pod.Spec.Volumes = volumes
}

// hasClaims reports whether a pod uses the claims of its ordinal.
func hasClaims(set *appsv1.StatefulSet, pod *corev1.Pod, ordinal int) bool {
	for i := range set.Spec.VolumeClaimTemplates {
		t := &set.Spec.VolumeClaimTemplates[i]
		if !slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
			return v.Name == t.Name && v.PersistentVolumeClaim != nil &&
				v.PersistentVolumeClaim.ClaimName == claimName(set, t, ordinal)
		}) {
			return false
		}
	}
	return true
}

// createClaims plans the missing claims of an ordinal with the owner that the retention policy demands. A claim that
// is being deleted is an error: a pod must not use it.
func (d *decision) createClaims(ordinal int, pod string) error {
	for i := range d.Set.Spec.VolumeClaimTemplates {
		template := &d.Set.Spec.VolumeClaimTemplates[i]
		name := claimName(d.Set, template, ordinal)
		if c := d.claims[name]; c != nil {
			if c.DeletionTimestamp != nil {
				return fmt.Errorf("pvc %s is being deleted", name)
			}
			continue
		}
		claim := template.DeepCopy()
		claim.Name, claim.Namespace = name, d.Set.Namespace
		if claim.Labels == nil {
			claim.Labels = map[string]string{}
		}
		maps.Copy(claim.Labels, d.Set.Spec.Selector.MatchLabels)
		claim.OwnerReferences = append(claim.OwnerReferences, d.claimOwner(nil, true)...)
		d.claims[name] = claim
		d.writes = append(d.writes, workloads.Write{Verb: workloads.Create, Object: claim,
			Success: workloads.Event{Type: corev1.EventTypeNormal, Reason: "SuccessfulCreate",
				Message: fmt.Sprintf("create Claim %s Pod %s in StatefulSet %s success", name, pod, d.Set.Name)},
			Failure: workloads.Event{Type: corev1.EventTypeWarning, Reason: "FailedCreate",
				Message: fmt.Sprintf("create Claim %s for Pod %s in StatefulSet %s failed error: %%s",
					name, pod, d.Set.Name)}})
	}
	return nil
}

// staleClaim reports whether a claim of a missing pod belongs to a former pod: the policy deletes it, and the new pod
// must not use it.
func (d *decision) staleClaim(r *replica) bool {
	if policy(d.Set).WhenScaled == appsv1.RetainPersistentVolumeClaimRetentionPolicyType {
		return false
	}
	return slices.ContainsFunc(d.claimsOf(r.ordinal), func(c *corev1.PersistentVolumeClaim) bool {
		return slices.ContainsFunc(c.OwnerReferences, func(ref metav1.OwnerReference) bool {
			return refersTo(ref, podKind, podName(d.Set, r.ordinal))
		})
	})
}

// claimsOf returns the claims of an ordinal that exist.
func (d *decision) claimsOf(ordinal int) (out []*corev1.PersistentVolumeClaim) {
	for i := range d.Set.Spec.VolumeClaimTemplates {
		c := d.claims[claimName(d.Set, &d.Set.Spec.VolumeClaimTemplates[i], ordinal)]
		if c != nil && c.UID != "" {
			out = append(out, c)
		}
	}
	return out
}

// adjustClaims gives the claims of a pod the owners that the retention policy demands: the set while the ordinal is
// desired, the pod when it is scaled down. References of other owners stay. A claim of a former set or pod of the same
// name stays as it is: the garbage collector deletes it.
func (d *decision) adjustClaims(ordinal int, pod *corev1.Pod, desired bool) {
	for _, c := range d.claimsOf(ordinal) {
		if c.DeletionTimestamp != nil {
			continue
		}
		former, conflict := d.ownedByFormer(c, pod), d.hasConflictingOwner(c, pod)
		if conflict {
			d.events = append(d.events, workloads.Event{Type: corev1.EventTypeWarning, Reason: "ConflictingController",
				Message: fmt.Sprintf("PersistentVolumeClaim %s has an owner reference of another controller, "+
					"the retention policy is ignored for this claim", c.Name)})
		}
		if former {
			continue
		}
		refs := slices.DeleteFunc(slices.Clone(c.OwnerReferences), func(ref metav1.OwnerReference) bool {
			return refersTo(ref, Kind, d.Set.Name) || refersTo(ref, podKind, pod.Name)
		})
		if !conflict {
			refs = append(refs, d.claimOwner(pod, desired)...)
		}
		if apiequality.Semantic.DeepEqual(refs, c.OwnerReferences) {
			continue
		}
		changed := c.DeepCopy()
		changed.OwnerReferences = refs
		d.claims[c.Name] = changed
		d.writes = append(d.writes, workloads.Write{Verb: workloads.Update, Object: changed,
			Success: workloads.Event{Type: corev1.EventTypeNormal, Reason: "SuccessfulUpdate",
				Message: fmt.Sprintf("update Claim %s Pod %s in StatefulSet %s success", c.Name, pod.Name, d.Set.Name)},
			Failure: workloads.Event{Type: corev1.EventTypeWarning, Reason: "FailedUpdate",
				Message: fmt.Sprintf("update Claim %s for Pod %s in StatefulSet %s failed error: %%s",
					c.Name, pod.Name, d.Set.Name)}})
	}
}

// claimOwner returns the owner reference that the retention policy demands for a claim.
func (d *decision) claimOwner(pod *corev1.Pod, desired bool) []metav1.OwnerReference {
	const remove = appsv1.DeletePersistentVolumeClaimRetentionPolicyType
	p := policy(d.Set)
	switch {
	case !desired && p.WhenScaled == remove:
		return []metav1.OwnerReference{workloads.ControllerRef(pod, podKind)}
	case p.WhenDeleted == remove:
		return []metav1.OwnerReference{workloads.ControllerRef(d.Set, Kind)}
	}
	return nil
}

// ownedByFormer reports whether a claim belongs to a former set or pod of the same name.
func (d *decision) ownedByFormer(c *corev1.PersistentVolumeClaim, pod *corev1.Pod) bool {
	return slices.ContainsFunc(c.OwnerReferences, func(ref metav1.OwnerReference) bool {
		return refersTo(ref, Kind, d.Set.Name) && ref.UID != d.Set.UID ||
			refersTo(ref, podKind, pod.Name) && ref.UID != pod.UID
	})
}

// hasConflictingOwner reports whether the retention policy deletes claims, but this one has another controller or
// belongs to a former set or pod.
func (d *decision) hasConflictingOwner(c *corev1.PersistentVolumeClaim, pod *corev1.Pod) bool {
	const retain = appsv1.RetainPersistentVolumeClaimRetentionPolicyType
	if p := policy(d.Set); p.WhenScaled == retain && p.WhenDeleted == retain {
		return false
	}
	return d.ownedByFormer(c, pod) || slices.ContainsFunc(c.OwnerReferences, func(ref metav1.OwnerReference) bool {
		return ref.Controller != nil && *ref.Controller && !refersTo(ref, Kind, d.Set.Name) &&
			!refersTo(ref, podKind, pod.Name)
	})
}

func refersTo(ref metav1.OwnerReference, kind metav1.TypeMeta, name string) bool {
	return ref.APIVersion == kind.APIVersion && ref.Kind == kind.Kind && ref.Name == name
}

func policy(set *appsv1.StatefulSet) appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy {
	if p := set.Spec.PersistentVolumeClaimRetentionPolicy; p != nil {
		return *p
	}
	return appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
		WhenDeleted: appsv1.RetainPersistentVolumeClaimRetentionPolicyType,
		WhenScaled:  appsv1.RetainPersistentVolumeClaimRetentionPolicyType,
	}
}
