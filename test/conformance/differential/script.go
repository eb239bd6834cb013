package differential

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// edit is one step of a script. It does the same on every control plane.
type edit struct {
	what  string
	apply func(ctx context.Context, p *plane, namespace string) error
}

// workload generates the edits of one script.
type workload struct {
	create edit
	next   func(*rand.Rand) edit
	// rest is how long nothing changes before the next edit, at least restTime: longer than the timers of the workload.
	rest time.Duration
}

// generators are the kinds of scripts. The kind follows from the seed, so that each one has the same share.
var generators = []struct {
	name     string
	generate func(*rand.Rand) workload
}{
	{"Deployment", deployment}, {"StatefulSet", statefulSet}, {"DaemonSet", daemonSet}, {"Job", job},
	{"Deployment with timers", timedDeployment}, {"StatefulSet with timers", timedStatefulSet},
	{"DaemonSet with timers", timedDaemonSet}, {"Job with timers or policies", timedJob},
	{"StatefulSet with claims", statefulSetWithClaims}, {"ReplicationController", replicationController},
	{"CronJob", cronJob}, {"ResourceQuota", rejectedWorkload},
}

// script returns the edits of a seed, of which the first creates the workload, and for how long nothing changes before
// the next one.
func script(seed uint64) ([]edit, time.Duration) {
	r := rand.New(rand.NewPCG(seed, 0))
	w := generators[seed%uint64(len(generators))].generate(r)
	edits := []edit{w.create}
	for range 3 + r.IntN(3) {
		edits = append(edits, w.next(r))
	}
	return edits, max(w.rest, restTime)
}

func pick[T any](r *rand.Rand, values ...T) T { return values[r.IntN(len(values))] }

// objectMeta returns the metadata of the workload of a script.
func objectMeta(r *rand.Rand) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: "w", Annotations: map[string]string{"note": pick(r, "a", "b")}}
}

func selector() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": "w"}}
}

func template(image string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "w"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: image}}},
	}
}

// setImage changes a template.
func setImage(t *corev1.PodTemplateSpec, image string) { t.Spec.Containers[0].Image = image }

// servingImage returns the image of a pod that keeps running.
func servingImage(r *rand.Rand) string {
	return pick(r, imageServe, imageServe2, imageServe3, imageServe, imageServe2, imageBroken)
}

// workingImage returns the image of a pod that becomes ready.
func workingImage(r *rand.Rand) string { return pick(r, imageServe, imageServe2, imageServe3) }

// deletePod deletes a pod of the namespace. Pods are ordered by revision, index and then name, so that both control
// planes delete pods of the same kind.
func deletePod(r *rand.Rand) edit {
	n := r.IntN(8)
	return edit{fmt.Sprintf("delete pod %d", n), func(ctx context.Context, p *plane, namespace string) error {
		pods, err := p.livePods(namespace)
		if err != nil || len(pods) == 0 {
			return err
		}
		slices.SortFunc(pods, func(a, b *corev1.Pod) int { return slices.Compare(rank(a), rank(b)) })
		return p.client.CoreV1().Pods(namespace).Delete(ctx, pods[n%len(pods)].Name, metav1.DeleteOptions{})
	}}
}

// rank returns the sort key of a pod.
func rank(p *corev1.Pod) []string {
	node := "" // a DaemonSet's pods differ in their node
	if a := p.Spec.Affinity; a != nil {
		node = p.Spec.NodeName
	}
	return []string{p.Labels["pod-template-hash"], p.Labels["controller-revision-hash"],
		p.Annotations["batch.kubernetes.io/job-completion-index"], string(p.Status.Phase), node, p.Name}
}
