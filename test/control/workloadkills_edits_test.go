package control

import (
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const (
	imageBroken = "example/broken" // the pod never becomes ready
	imageJob    = "example/job"    // the pod ends, see failsOnce
	// jobIndexes is the number of indexes, and of completions, of each Job.
	jobIndexes = 6
)

// failsOnce reports whether a pod of a Job fails. Index 1 fails once, and index 3 always. Of a Job without indexes, an
// eighth of the pods fails: the back-off after six failures in a row would be longer than waitUntilComplete waits.
func failsOnce(pod *corev1.Pod) bool {
	switch pod.Annotations[batchv1.JobCompletionIndexAnnotation] {
	case "1":
		return pod.Annotations[batchv1.JobIndexFailureCountAnnotation] == "0"
	case "3":
		return true
	case "":
		return pod.UID[0]%8 == 0
	}
	return false
}

func templateOf(app, image string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: image}}}}
}

func selectorOf(app string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
}

// deploymentsOfKills are the names of the Deployments with their strategies.
func deploymentsOfKills() map[string]appsv1.DeploymentStrategy {
	rolling := func(surge, unavailable intstr.IntOrString) appsv1.DeploymentStrategy {
		return appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType,
			RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &surge, MaxUnavailable: &unavailable}}
	}
	return map[string]appsv1.DeploymentStrategy{
		"surge":       rolling(intstr.FromInt32(2), intstr.FromInt32(0)),
		"unavailable": rolling(intstr.FromInt32(0), intstr.FromString("35%")),
		"recreate":    {Type: appsv1.RecreateDeploymentStrategyType},
	}
}

func (f *workloadKills) createWorkloads() {
	f.t.Helper()
	ctx, apps, replicas, limit := f.t.Context(), f.client.AppsV1(), int32(6), int32(2)
	var errs []error
	add := func(err error) { errs = append(errs, err) }
	for name, strategy := range deploymentsOfKills() {
		_, err := apps.Deployments("default").Create(ctx, &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.DeploymentSpec{Replicas: &replicas,
				RevisionHistoryLimit: &limit, Strategy: strategy, Selector: selectorOf(name),
				Template: templateOf(name, "example/serve:0")}}, metav1.CreateOptions{})
		add(err)
	}
	for name, policy := range map[string]appsv1.PodManagementPolicyType{
		"ordered": appsv1.OrderedReadyPodManagement, "parallel": appsv1.ParallelPodManagement,
	} {
		_, err := apps.StatefulSets("default").Create(ctx, &appsv1.StatefulSet{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.StatefulSetSpec{Replicas: &replicas,
				RevisionHistoryLimit: &limit, PodManagementPolicy: policy, Selector: selectorOf(name),
				Template: templateOf(name, "example/serve:0")}}, metav1.CreateOptions{})
		add(err)
	}
	none, one := intstr.FromInt32(0), intstr.FromInt32(1)
	for name, rolling := range map[string]*appsv1.RollingUpdateDaemonSet{
		"daemon": {MaxUnavailable: &one, MaxSurge: &none}, "daemonsurge": {MaxUnavailable: &none, MaxSurge: &one},
	} {
		_, err := apps.DaemonSets("default").Create(ctx, &appsv1.DaemonSet{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.DaemonSetSpec{RevisionHistoryLimit: &limit,
				Selector: selectorOf(name), Template: templateOf(name, "example/serve:0"),
				UpdateStrategy: appsv1.DaemonSetUpdateStrategy{Type: appsv1.RollingUpdateDaemonSetStrategyType,
					RollingUpdate: rolling}}}, metav1.CreateOptions{})
		add(err)
	}
	for _, err := range errs {
		if err != nil {
			f.t.Fatal(err)
		}
	}
}

// editWorkloads creates Jobs and changes the images of some workloads, to a new or to an earlier one.
func (f *workloadKills) editWorkloads(round int) {
	f.t.Helper()
	f.createJobs(round)
	images := func(broken bool) string {
		switch n := f.random.IntN(8); {
		case n == 0 && broken:
			return imageBroken
		case n < 3:
			return fmt.Sprintf("example/serve:%d", max(0, round-f.random.IntN(4))) // often a rollback
		}
		return fmt.Sprintf("example/serve:%d", round+1)
	}
	apps := f.client.AppsV1()
	for _, name := range []string{"surge", "unavailable", "recreate"} {
		f.setImage(name, images(true), func(ctx context.Context, name string, body []byte) error {
			_, err := apps.Deployments("default").Patch(ctx, name, types.StrategicMergePatchType, body,
				metav1.PatchOptions{})
			return err
		})
	}
	for _, name := range []string{"ordered", "parallel"} {
		f.setImage(name, images(false), func(ctx context.Context, name string, body []byte) error {
			_, err := apps.StatefulSets("default").Patch(ctx, name, types.StrategicMergePatchType, body,
				metav1.PatchOptions{})
			return err
		})
	}
	for _, name := range []string{"daemon", "daemonsurge"} {
		f.setImage(name, images(true), func(ctx context.Context, name string, body []byte) error {
			_, err := apps.DaemonSets("default").Patch(ctx, name, types.StrategicMergePatchType, body,
				metav1.PatchOptions{})
			return err
		})
	}
}

// setImage sets the image of a workload with a probability of one half.
func (f *workloadKills) setImage(name, image string, patch func(ctx context.Context, name string, body []byte) error) {
	f.t.Helper()
	if f.random.IntN(2) == 0 {
		return
	}
	f.edits++
	if err := patch(f.t.Context(), name, imagePatch(image)); err != nil {
		f.t.Fatal(err)
	}
}

// imagePatch returns the patch that sets the image of a workload.
func imagePatch(image string) []byte {
	return fmt.Appendf(nil, `{"spec":{"template":{"spec":{"containers":[{"name":"c","image":%q}]}}}}`, image)
}

// createJobs creates a Job with indexes and one without.
func (f *workloadKills) createJobs(round int) {
	f.t.Helper()
	completions, parallelism, limit, retries, indexed := int32(jobIndexes), int32(3), int32(100), int32(1),
		batchv1.IndexedCompletion
	template := templateOf("job", imageJob)
	template.Labels = nil
	template.Spec.RestartPolicy = corev1.RestartPolicyNever
	for _, job := range []*batchv1.Job{
		{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("indexed-%d", round)}, Spec: batchv1.JobSpec{
			CompletionMode: &indexed, BackoffLimitPerIndex: &retries}},
		{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("plain-%d", round)}, Spec: batchv1.JobSpec{
			BackoffLimit: &limit}},
	} {
		job.Spec.Completions, job.Spec.Parallelism, job.Spec.Template = &completions, &parallelism, template
		if _, err := f.client.BatchV1().Jobs("default").Create(f.t.Context(), job,
			metav1.CreateOptions{}); err != nil {
			f.t.Fatal(err)
		}
	}
}

// waitUntilComplete waits until all rollouts are complete and all Jobs have ended, and checks that no pod of a Job is
// still tracked. Broken images are replaced first.
func (f *workloadKills) waitUntilComplete() {
	f.t.Helper()
	apps := f.client.AppsV1()
	for name := range deploymentsOfKills() {
		body := imagePatch(fmt.Sprint("example/serve:f", f.edits))
		if _, err := apps.Deployments("default").Patch(f.t.Context(), name, types.StrategicMergePatchType, body,
			metav1.PatchOptions{}); err != nil {
			f.t.Fatal(err)
		}
	}
	for _, name := range []string{"daemon", "daemonsurge"} {
		body := imagePatch(fmt.Sprint("example/serve:f", f.edits))
		if _, err := apps.DaemonSets("default").Patch(f.t.Context(), name, types.StrategicMergePatchType, body,
			metav1.PatchOptions{}); err != nil {
			f.t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(f.t.Context(), 6*time.Minute)
	defer cancel()
	for {
		incomplete, err := f.incomplete(ctx)
		if err == nil && len(incomplete) == 0 {
			return
		}
		if pause(ctx) != nil {
			f.t.Fatalf("not complete: %v %v", incomplete, err)
		}
	}
}

// incomplete returns the workloads that are not complete.
func (f *workloadKills) incomplete(ctx context.Context) (out []string, err error) {
	apps := f.client.AppsV1()
	deployments, err := apps.Deployments("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for i := range deployments.Items {
		d := &deployments.Items[i]
		if s := d.Status; s.ObservedGeneration != d.Generation || s.Replicas != 6 || s.UpdatedReplicas != 6 ||
			s.AvailableReplicas != 6 {
			out = append(out, fmt.Sprintf("Deployment %s %+v", d.Name, s))
		}
	}
	sets, err := apps.StatefulSets("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for i := range sets.Items {
		d := &sets.Items[i]
		if s := d.Status; s.ObservedGeneration != d.Generation || s.Replicas != 6 || s.UpdatedReplicas != 6 ||
			s.AvailableReplicas != 6 || s.CurrentRevision != s.UpdateRevision {
			out = append(out, fmt.Sprintf("StatefulSet %s %+v", d.Name, s))
		}
	}
	daemons, err := apps.DaemonSets("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for i := range daemons.Items {
		d := &daemons.Items[i]
		if s := d.Status; s.ObservedGeneration != d.Generation || s.UpdatedNumberScheduled != 4 ||
			s.NumberAvailable != 4 || s.CurrentNumberScheduled != 4 {
			out = append(out, fmt.Sprintf("DaemonSet %s %+v", d.Name, s))
		}
	}
	jobs, err := f.incompleteJobs(ctx)
	return append(out, jobs...), err
}

// incompleteJobs returns the Jobs that have not ended, and the ended pods that have the tracking finalizer.
func (f *workloadKills) incompleteJobs(ctx context.Context) (out []string, err error) {
	jobs, err := f.client.BatchV1().Jobs("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for i := range jobs.Items {
		j := &jobs.Items[i]
		want, succeeded := batchv1.JobComplete, int32(jobIndexes)
		if j.Spec.BackoffLimitPerIndex != nil { // index 3 fails
			want, succeeded = batchv1.JobFailed, jobIndexes-1
		}
		ended := slices.ContainsFunc(j.Status.Conditions, func(c batchv1.JobCondition) bool {
			return c.Type == want && c.Status == corev1.ConditionTrue
		})
		if !ended || j.Status.Succeeded != succeeded {
			out = append(out, fmt.Sprintf("Job %s %+v", j.Name, j.Status))
		}
	}
	pods, err := f.client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: batchv1.JobNameLabel})
	if err != nil {
		return nil, err
	}
	for i := range pods.Items {
		if p := &pods.Items[i]; slices.Contains(p.Finalizers, batchv1.JobTrackingFinalizer) {
			out = append(out, fmt.Sprintf("pod %s has its finalizer", p.Name))
		}
	}
	return out, nil
}

// deleteJobs deletes all Jobs with their pods.
func (f *workloadKills) deleteJobs() {
	f.t.Helper()
	background := metav1.DeletePropagationBackground
	if err := f.client.BatchV1().Jobs("default").DeleteCollection(f.t.Context(),
		metav1.DeleteOptions{PropagationPolicy: &background}, metav1.ListOptions{}); err != nil {
		f.t.Fatal(err)
	}
}
