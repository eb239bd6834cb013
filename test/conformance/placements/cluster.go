package placements

import (
	"fmt"
	"math/rand/v2"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// gpu is an extended resource that some nodes have.
const gpu = corev1.ResourceName("example.com/gpu")

// apps are the values of the label app.
var apps = []string{"web", "db", "cache"}

// cluster is what a seed defines beside the pods.
type cluster struct {
	namespaces []*corev1.Namespace
	nodes      []*corev1.Node
	services   []*corev1.Service
	sets       []*appsv1.ReplicaSet
	budgets    []*policyv1.PodDisruptionBudget
}

func pick[T any](r *rand.Rand, values ...T) T { return values[r.IntN(len(values))] }

// chance reports true with a probability of percent.
func chance(r *rand.Rand, percent int) bool { return r.IntN(100) < percent }

func quantity(format string, args ...any) resource.Quantity {
	return resource.MustParse(fmt.Sprintf(format, args...))
}

func newCluster(seed uint64, r *rand.Rand) *cluster {
	c := &cluster{}
	for i, team := range []string{"red", "blue"} {
		c.namespaces = append(c.namespaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("placement-%d-%d", seed, i), Labels: map[string]string{"team": team}}})
	}
	for i := range 4 + r.IntN(8) {
		c.nodes = append(c.nodes, newNode(fmt.Sprintf("node-%d-%d", seed, i), r))
	}
	for _, ns := range c.namespaces {
		for _, app := range apps {
			labels := map[string]string{"app": app}
			if chance(r, 50) {
				c.services = append(c.services, &corev1.Service{
					ObjectMeta: metav1.ObjectMeta{Name: app, Namespace: ns.Name},
					Spec:       corev1.ServiceSpec{Selector: labels, Ports: []corev1.ServicePort{{Port: 80}}}})
			}
			c.sets = append(c.sets, &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: app, Namespace: ns.Name},
				Spec: appsv1.ReplicaSetSpec{Replicas: new(int32), Selector: &metav1.LabelSelector{MatchLabels: labels},
					Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
						Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "example.com/c"}}}}}})
			if chance(r, 30) {
				zero := intstr.FromInt32(0)
				c.budgets = append(c.budgets, &policyv1.PodDisruptionBudget{
					ObjectMeta: metav1.ObjectMeta{Name: app, Namespace: ns.Name},
					Spec: policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &zero,
						Selector: &metav1.LabelSelector{MatchLabels: labels}},
					Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: int32(r.IntN(2))}})
			}
		}
	}
	return c
}

// images are those that some nodes have, with their sizes in MiB.
var images = map[string]int64{"example.com/small:1": 40, "example.com/large:1": 700, "example.com/huge:latest": 2000}

func newNode(name string, r *rand.Rand) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		corev1.LabelHostname: name, corev1.LabelOSStable: "linux", "disk": pick(r, "ssd", "hdd"),
		"rank": fmt.Sprint(r.IntN(4)),
	}}}
	if chance(r, 85) {
		n.Labels[corev1.LabelTopologyZone] = pick(r, "zone-a", "zone-b", "zone-c")
	}
	if chance(r, 15) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "dedicated", Value: pick(r, "gpu", "db"),
			Effect: pick(r, corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute)})
	}
	if chance(r, 25) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "busy", Effect: corev1.TaintEffectPreferNoSchedule})
	}
	n.Spec.Unschedulable = chance(r, 5)
	n.Status.Allocatable = corev1.ResourceList{
		corev1.ResourceCPU:              quantity("%dm", 500*(1+r.IntN(8))),
		corev1.ResourceMemory:           quantity("%dMi", 512*(1+r.IntN(12))),
		corev1.ResourceEphemeralStorage: quantity("%dGi", 1+r.IntN(20)),
		corev1.ResourcePods:             quantity("%d", pick(r, 4, 8, 110)),
	}
	if chance(r, 30) {
		n.Status.Allocatable[gpu] = quantity("%d", 1+r.IntN(3))
	}
	n.Status.Capacity = n.Status.Allocatable
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	for _, image := range []string{"example.com/small:1", "example.com/large:1", "example.com/huge:latest"} {
		if chance(r, 35) {
			n.Status.Images = append(n.Status.Images, corev1.ContainerImage{Names: []string{image},
				SizeBytes: images[image] << 20})
		}
	}
	return n
}
