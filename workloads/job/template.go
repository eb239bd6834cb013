package job

import (
	"fmt"
	"slices"
	"strconv"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/workloads"
)

const (
	indexVariable = "JOB_COMPLETION_INDEX"
	// maxGeneratedName is how long metadata.generateName may be for a name of 63 characters: the API adds five.
	maxGeneratedName = 63 - 5
)

// kind is the type of Jobs in owner references.
func kind() metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "Job"}
}

// newPod returns a pod of the Job's template. replaced is the failed pod of the same index that it replaces, if
// failures are counted by index.
func newPod(job *batchv1.Job, index int, replaced *corev1.Pod) *corev1.Pod {
	pod := workloads.PodFromTemplate(job, kind(), &job.Spec.Template)
	if !tracked(pod) {
		pod.Finalizers = append(pod.Finalizers, batchv1.JobTrackingFinalizer)
	}
	if index != noIndex {
		setIndex(job, pod, index, replaced)
	}
	return pod
}

func setIndex(job *batchv1.Job, pod *corev1.Pod, index int, replaced *corev1.Pod) {
	number := strconv.Itoa(index)
	pod.GenerateName = indexedName(job.Name, "-"+number+"-")
	pod.Spec.Hostname = job.Name + "-" + number
	pod.Labels[batchv1.JobCompletionIndexAnnotation] = number // label and annotation have the same key
	pod.Annotations[batchv1.JobCompletionIndexAnnotation] = number
	if job.Spec.BackoffLimitPerIndex != nil {
		counted, ignored := failuresBefore(job, replaced)
		pod.Annotations[batchv1.JobIndexFailureCountAnnotation] = strconv.Itoa(counted)
		if ignored > 0 {
			pod.Annotations[batchv1.JobIndexIgnoredFailureCountAnnotation] = strconv.Itoa(ignored)
		}
	}
	for i := range pod.Spec.InitContainers {
		setIndexVariable(&pod.Spec.InitContainers[i])
	}
	for i := range pod.Spec.Containers {
		setIndexVariable(&pod.Spec.Containers[i])
	}
}

// failuresBefore returns how many counted and ignored failures a pod has before it that replaces another one.
func failuresBefore(job *batchv1.Job, replaced *corev1.Pod) (counted, ignored int) {
	if replaced == nil {
		return 0, 0
	}
	counted, all := indexFailures(replaced)
	ignored = all - counted
	if matchFailurePolicy(job.Spec.PodFailurePolicy, replaced).counted() {
		return counted + 1, ignored
	}
	return counted, ignored + 1
}

func setIndexVariable(c *corev1.Container) {
	if slices.ContainsFunc(c.Env, func(v corev1.EnvVar) bool { return v.Name == indexVariable }) {
		return
	}
	c.Env = append(c.Env, corev1.EnvVar{Name: indexVariable, ValueFrom: &corev1.EnvVarSource{
		FieldRef: &corev1.ObjectFieldSelector{
			FieldPath: fmt.Sprintf("metadata.labels['%s']", batchv1.JobCompletionIndexAnnotation),
		},
	}})
}

// indexedName returns the Job's name with the suffix. It shortens the name so that the index is never cut off.
func indexedName(name, suffix string) string {
	return name[:min(len(name), maxGeneratedName-len(suffix))] + suffix
}
