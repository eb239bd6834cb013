package placement

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth/admission"
	"berth/podspec"
)

// TestScheduleInvariants checks the invariants P1 to P4 with random clusters and pods.
func TestScheduleInvariants(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 1))
			c := randomCluster(t, r)
			var in []*corev1.Pod
			for i := range 40 {
				pod := randomPod(t, r, fmt.Sprintf("p%d", i))
				before := fmt.Sprint(c.used())
				choice := c.Schedule(pod, Related{})
				if again := c.Schedule(pod, Related{}); again.Node != choice.Node ||
					again.Message() != choice.Message() {
					t.Fatalf("got different results: %q, then %q", choice.Node, again.Node)
				}
				if choice.Node == "" {
					in = checkPreemption(t, c, pod, choice, in)
				}
				if after := fmt.Sprint(c.used()); choice.Node == "" && before != after && len(c.pods) == len(in) {
					continue // the preemption was carried out
				}
				if choice.Node != "" {
					if !c.fits(pod, choice.Node) {
						t.Fatalf("selected infeasible node %s", choice.Node)
					}
					in = append(in, onNode(pod, choice.Node))
					c.AddPod(in[len(in)-1])
				}
				if len(in) > 0 && r.IntN(5) == 0 {
					removed := r.IntN(len(in))
					c.RemovePod(in[removed].UID)
					in = slices.Delete(in, removed, removed+1)
				}
				checkNotOvercommitted(t, c, in)
			}
		})
	}
}

// fits reports whether the pod fits the node.
func (c *Cluster) fits(pod *corev1.Pod, name string) bool {
	node, ok := c.nodes[name]
	return ok && node.exists && c.newAttempt(pod, Related{}).filterWithNominated(node, node.used) == nil
}

func (c *Cluster) used() map[string]admission.Used {
	out := map[string]admission.Used{}
	for name, at := range c.nodes {
		out[name] = at.used
	}
	return out
}

// checkPreemption carries out a preemption and checks that all victims are necessary and
// sufficient.
func checkPreemption(t *testing.T, c *Cluster, pod *corev1.Pod, choice Result, in []*corev1.Pod) []*corev1.Pod {
	t.Helper()
	p := c.Preempt(pod, choice, nil, Related{})
	if p.Node == "" {
		return in
	}
	for _, v := range p.Victims {
		if podspec.Priority(v) >= podspec.Priority(pod) {
			t.Fatalf("victim %s has priority %d, preemptor %d", v.Name, podspec.Priority(v), podspec.Priority(pod))
		}
		c.RemovePod(v.UID)
	}
	if !c.fits(pod, p.Node) {
		t.Fatalf("the pod does not fit without the %d victims on %s", len(p.Victims), p.Node)
	}
	for _, v := range p.Victims {
		c.AddPod(v)
		if c.fits(pod, p.Node) {
			t.Fatalf("unnecessary victim %s", v.Name)
		}
		c.RemovePod(v.UID)
	}
	in = slices.DeleteFunc(in, func(x *corev1.Pod) bool {
		return slices.ContainsFunc(p.Victims, func(v *corev1.Pod) bool { return v.UID == x.UID })
	})
	in = append(in, onNode(pod, p.Node))
	c.AddPod(in[len(in)-1])
	return in
}

// checkNotOvercommitted sums all requests independently.
func checkNotOvercommitted(t *testing.T, c *Cluster, in []*corev1.Pod) {
	t.Helper()
	taken, count := map[string]int64{}, map[string]int64{}
	for _, pod := range in {
		requests := podspec.Requests(pod)
		taken[pod.Spec.NodeName] += requests.Cpu().MilliValue()
		count[pod.Spec.NodeName]++
	}
	for name, cpu := range taken {
		allocatable := c.nodes[name].Allocatable
		if cpu > allocatable.Cpu().MilliValue() || count[name] > allocatable.Pods().Value() {
			t.Fatalf("%s overcommitted: allocatable %s CPUs and %s pods, got %dm and %d", name, allocatable.Cpu(),
				allocatable.Pods(), cpu,
				count[name])
		}
	}
}

func randomCluster(t *testing.T, r *rand.Rand) *Cluster {
	c := NewCluster()
	for i := range 1 + r.IntN(6) {
		text := nodeAny
		if r.IntN(6) == 0 {
			text = tainted
		}
		n := nodeOf(t, fmt.Sprintf("n%d", i), text)
		n.Labels["zone"] = string(rune('a' + r.IntN(3)))
		n.Status.Allocatable[corev1.ResourceCPU] = *resource.NewMilliQuantity(int64(500+r.IntN(3000)),
			resource.DecimalSI)
		c.SetNode(n)
	}
	return c
}

func randomPod(t *testing.T, r *rand.Rand, name string) *corev1.Pod {
	text := fmt.Sprintf("{metadata: {labels: {app: '%d'}}, spec: {priority: %d, containers: [{name: a, image: x, "+
		"resources: {requests: {cpu: %dm}}}]%s}}",
		r.IntN(3), r.IntN(4), r.IntN(900), []string{
			"", "", "",
			", affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: " +
				"kubernetes.io/hostname, labelSelector: {matchLabels: {app: '1'}}}]}}",
			", affinity: {podAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 3, " +
				"podAffinityTerm: " +
				"{topologyKey: zone, labelSelector: {matchLabels: {app: '2'}}}}]}}",
			", topologySpreadConstraints: [{topologyKey: zone, maxSkew: 1, whenUnsatisfiable: ScheduleAnyway, " +
				"labelSelector: " +
				"{matchLabels: {app: '1'}}}]",
			", topologySpreadConstraints: [{topologyKey: zone, maxSkew: 2, whenUnsatisfiable: DoNotSchedule, " +
				"labelSelector: " +
				"{matchLabels: {app: '0'}}}]",
		}[r.IntN(7)])
	return podOf(t, name, text)
}

func BenchmarkSchedule100Nodes1000Pods(b *testing.B) {
	c := NewCluster()
	for i := range 100 {
		c.SetNode(nodeOf(b, fmt.Sprintf("n%d", i), "status: {allocatable: {pods: '110', cpu: '64', memory: 256Gi}}"))
	}
	for i := range 1000 {
		c.AddPod(onNode(podOf(b, fmt.Sprintf("p%d", i), cpu1), fmt.Sprintf("n%d", i%100)))
	}
	pod := podOf(b, "new", cpu1)
	for b.Loop() {
		if c.Schedule(pod, Related{}).Node == "" {
			b.Fatal("no node")
		}
	}
}
