package job

import (
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"berth/workloads"
)

// claim adopts and releases pods. An adopted pod gets the tracking finalizer, and a released pod loses it.
func (s *state) claim(selector labels.Selector) {
	owned, writes := workloads.Claim(s.Job, kind(), selector, s.Pods)
	for i := range writes {
		pod, ok := writes[i].Object.(*corev1.Pod)
		if !ok {
			continue
		}
		if !writes[i].VerifyOwner {
			writes[i].Object = withoutFinalizer(pod)
			continue
		}
		tracked := withFinalizer(pod)
		owned[slices.Index(owned, pod)] = tracked
		writes[i].Object = tracked
	}
	s.owned, s.out.Writes = owned, writes
}

// cleanUp removes the finalizers that pods of a finished Job still have.
func (s *state) cleanUp() {
	pods := slices.Clone(s.Pods)
	byIndex(pods)
	for _, p := range pods {
		if metav1.IsControlledBy(p, s.Job) && tracked(p) {
			s.out.Writes = append(s.out.Writes, untrack(p))
		}
	}
}

// DecideOrphan removes the tracking finalizer of a pod that no Job counts, so that the pod can be deleted. job is the
// Job that controls the pod, or nil if there is none with that UID.
func DecideOrphan(pod *corev1.Pod, job *batchv1.Job) []workloads.Write {
	if !tracked(pod) {
		return nil
	}
	if ref := metav1.GetControllerOfNoCopy(pod); ref != nil {
		if ref.Kind != kind().Kind || ref.APIVersion != kind().APIVersion {
			return nil // another controller's pod
		}
		if job != nil {
			if m := job.Spec.ManagedBy; m != nil && *m != batchv1.JobControllerName {
				return nil
			}
			if _, finished := Finished(job); !finished {
				return nil
			}
		}
	}
	return []workloads.Write{untrack(pod)}
}
