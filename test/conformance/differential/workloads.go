package differential

import (
	"fmt"
	"math/rand/v2"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Scripts with timers wait until those of the workload have passed. minReadySeconds is shorter than restTime: the
// controllers of Kubernetes check a second too late.
const (
	minReadySeconds         = 1
	readyRest               = 5 * time.Second
	progressDeadlineSeconds = 6
	progressRest            = 10 * time.Second
)

// amount returns a value of maxSurge or maxUnavailable.
func amount(r *rand.Rand) intstr.IntOrString {
	return pick(r, intstr.FromInt32(1), intstr.FromInt32(2), intstr.FromString("25%"), intstr.FromString("50%"))
}

func deployment(r *rand.Rand) workload { return deploymentScript(newDeployment(r), restTime) }

// timedDeployment has minReadySeconds and a progress deadline, which passes for images that break.
func timedDeployment(r *rand.Rand) workload {
	object := newDeployment(r)
	object.Spec.MinReadySeconds = minReadySeconds
	object.Spec.ProgressDeadlineSeconds = new(int32(progressDeadlineSeconds))
	return deploymentScript(object, progressRest)
}

func newDeployment(r *rand.Rand) *appsv1.Deployment {
	replicas, limit := int32(r.IntN(5)), int32(r.IntN(3))
	surge, unavailable := amount(r), amount(r)
	object := &appsv1.Deployment{ObjectMeta: objectMeta(r), Spec: appsv1.DeploymentSpec{
		Replicas: &replicas, Selector: selector(), Template: template(servingImage(r)), RevisionHistoryLimit: &limit,
		Paused: r.IntN(6) == 0,
		Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType,
			RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &surge, MaxUnavailable: &unavailable}}}}
	if r.IntN(4) == 0 {
		object.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
	}
	return object
}

func deploymentScript(object *appsv1.Deployment, rest time.Duration) workload {
	change := deployments.change
	return workload{deployments.create(object, object.Spec), func(r *rand.Rand) edit {
		image, replicas, paused, limit := servingImage(r), int32(r.IntN(6)), r.IntN(2) == 0, int32(r.IntN(3))
		switch r.IntN(10) {
		case 0, 1, 2, 3:
			return change("set image "+image, func(d *appsv1.Deployment) { setImage(&d.Spec.Template, image) })
		case 4, 5:
			return change(fmt.Sprint("scale to ", replicas), func(d *appsv1.Deployment) { d.Spec.Replicas = &replicas })
		case 6:
			return change(fmt.Sprint("set paused ", paused), func(d *appsv1.Deployment) { d.Spec.Paused = paused })
		case 7:
			return change(fmt.Sprint("keep revisions ", limit), func(d *appsv1.Deployment) {
				d.Spec.RevisionHistoryLimit = &limit
			})
		case 8:
			return deployments.remove(r)
		default:
			return deletePod(r)
		}
	}, rest}
}

func statefulSet(r *rand.Rand) workload {
	return statefulSetScript(newStatefulSet(r), servingImage, restTime)
}

// timedStatefulSet has minReadySeconds and, of two, one has a maxUnavailable. The images of that one work: which pods
// of a broken rollout are missing depends on which of them has terminated first.
func timedStatefulSet(r *rand.Rand) workload {
	object, image := newStatefulSet(r), servingImage
	object.Spec.MinReadySeconds = minReadySeconds
	if u := object.Spec.UpdateStrategy.RollingUpdate; u != nil && r.IntN(2) == 0 {
		image = workingImage
		setImage(&object.Spec.Template, image(r))
		u.MaxUnavailable = new(pick(r, intstr.FromInt32(2), intstr.FromInt32(3), intstr.FromString("50%")))
	}
	return statefulSetScript(object, image, readyRest)
}

func newStatefulSet(r *rand.Rand) *appsv1.StatefulSet {
	replicas, partition, limit, start := int32(r.IntN(4)), int32(r.IntN(3)), int32(r.IntN(3)), int32(r.IntN(2))
	object := &appsv1.StatefulSet{ObjectMeta: objectMeta(r), Spec: appsv1.StatefulSetSpec{
		Replicas: &replicas, Selector: selector(), Template: template(servingImage(r)), ServiceName: "w",
		RevisionHistoryLimit: &limit, Ordinals: &appsv1.StatefulSetOrdinals{Start: start},
		PodManagementPolicy: pick(r, appsv1.OrderedReadyPodManagement, appsv1.ParallelPodManagement),
		UpdateStrategy: appsv1.StatefulSetUpdateStrategy{Type: appsv1.RollingUpdateStatefulSetStrategyType,
			RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: &partition}}}}
	if r.IntN(5) == 0 {
		object.Spec.UpdateStrategy = appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType}
	}
	return object
}

func statefulSetScript(object *appsv1.StatefulSet, newImage func(*rand.Rand) string, rest time.Duration) workload {
	change := statefulSets.change
	return workload{statefulSets.create(object, object.Spec), func(r *rand.Rand) edit {
		image, replicas, partition := newImage(r), int32(r.IntN(5)), int32(r.IntN(4))
		switch r.IntN(10) {
		case 0, 1, 2, 3:
			return change("set image "+image, func(s *appsv1.StatefulSet) { setImage(&s.Spec.Template, image) })
		case 4, 5:
			return change(fmt.Sprint("scale to ", replicas),
				func(s *appsv1.StatefulSet) { s.Spec.Replicas = &replicas })
		case 6, 7:
			return change(fmt.Sprint("set partition ", partition), func(s *appsv1.StatefulSet) {
				if s.Spec.UpdateStrategy.RollingUpdate != nil {
					s.Spec.UpdateStrategy.RollingUpdate.Partition = &partition
				}
			})
		case 8:
			return statefulSets.remove(r)
		default:
			return deletePod(r)
		}
	}, rest}
}

func daemonSet(r *rand.Rand) workload { return daemonSetScript(newDaemonSet(r), restTime) }

// timedDaemonSet has minReadySeconds.
func timedDaemonSet(r *rand.Rand) workload {
	object := newDaemonSet(r)
	object.Spec.MinReadySeconds = minReadySeconds
	return daemonSetScript(object, readyRest)
}

func newDaemonSet(r *rand.Rand) *appsv1.DaemonSet {
	limit, unavailable := int32(r.IntN(3)), amount(r)
	object := &appsv1.DaemonSet{ObjectMeta: objectMeta(r), Spec: appsv1.DaemonSetSpec{
		Selector: selector(), Template: template(servingImage(r)), RevisionHistoryLimit: &limit,
		UpdateStrategy: appsv1.DaemonSetUpdateStrategy{Type: appsv1.RollingUpdateDaemonSetStrategyType,
			RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxUnavailable: &unavailable}}}}
	if r.IntN(3) == 0 {
		zero := intstr.FromInt32(0)
		object.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{MaxSurge: &unavailable,
			MaxUnavailable: &zero}
	}
	if r.IntN(5) == 0 {
		object.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}
	}
	return object
}

func daemonSetScript(object *appsv1.DaemonSet, rest time.Duration) workload {
	change := daemonSets.change
	return workload{daemonSets.create(object, object.Spec), func(r *rand.Rand) edit {
		image := servingImage(r)
		nodeSelector := pick(r, map[string]string{}, map[string]string{"disk": "ssd"}, map[string]string{"disk": "hdd"},
			map[string]string{"disk": "none"})
		switch r.IntN(10) {
		case 0, 1, 2, 3:
			return change("set image "+image, func(d *appsv1.DaemonSet) { setImage(&d.Spec.Template, image) })
		case 4, 5, 6:
			return change(fmt.Sprint("set node selector ", nodeSelector), func(d *appsv1.DaemonSet) {
				d.Spec.Template.Spec.NodeSelector = nodeSelector
			})
		case 7:
			return daemonSets.remove(r)
		default:
			return deletePod(r)
		}
	}, rest}
}

// replicationController has minReadySeconds in one of two scripts.
func replicationController(r *rand.Rand) workload {
	replicas, pod := int32(r.IntN(5)), template(servingImage(r))
	object := &corev1.ReplicationController{ObjectMeta: objectMeta(r), Spec: corev1.ReplicationControllerSpec{
		Replicas: &replicas, Selector: map[string]string{"app": "w"}, Template: &pod,
		MinReadySeconds: int32(r.IntN(2) * minReadySeconds)}}
	change := replicationControllers.change
	return workload{replicationControllers.create(object, object.Spec), func(r *rand.Rand) edit {
		image, replicas := servingImage(r), int32(r.IntN(6))
		switch r.IntN(8) {
		case 0, 1, 2:
			return change(fmt.Sprint("scale to ", replicas),
				func(c *corev1.ReplicationController) { c.Spec.Replicas = &replicas })
		case 3, 4:
			return change("set image "+image,
				func(c *corev1.ReplicationController) { setImage(c.Spec.Template, image) })
		case 5:
			return replicationControllers.remove(r)
		default:
			return deletePod(r)
		}
	}, readyRest}
}
