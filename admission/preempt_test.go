package admission

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth/podspec"
)

// podRequesting returns a pod that requests millicores and MiB. A name in upper case adds equal
// limits (Guaranteed). Without requests it is BestEffort.
func podRequesting(name string, milli, mib int64, priority int32) *corev1.Pod {
	pod := &corev1.Pod{}
	pod.Name, pod.Namespace, pod.Spec.Priority = name, "ns", &priority
	list := corev1.ResourceList{}
	if milli > 0 {
		list["cpu"] = *resource.NewMilliQuantity(milli, resource.DecimalSI)
	}
	if mib > 0 {
		list["memory"] = *resource.NewQuantity(mib<<20, resource.BinarySI)
	}
	c := corev1.Container{Name: "c", Resources: corev1.ResourceRequirements{Requests: list}}
	if strings.ToUpper(name) == name {
		c.Resources.Limits = list
	}
	pod.Spec.Containers = []corev1.Container{c}
	podspec.SetDefaults(pod)
	return pod
}

const systemPriority = 2_000_000_000

// TestPodsToPreempt uses a node with 4 CPUs, 1 GiB and 6 pods.
func TestPodsToPreempt(t *testing.T) {
	t.Parallel()
	critical := podRequesting("critical", 1000, 100, systemPriority)
	higher := podRequesting("higher", 1000, 100, systemPriority+1000)
	ported := podRequesting("ported", 1000, 100, systemPriority)
	ported.Spec.Containers[0].Ports = []corev1.ContainerPort{
		{ContainerPort: 80, HostPort: 80, Protocol: corev1.ProtocolTCP},
	}
	server := podRequesting("server", 500, 10, 0)
	server.Spec.Containers[0].Ports = ported.Spec.Containers[0].Ports
	be := func(i int) *corev1.Pod { return podRequesting(fmt.Sprint("be", i), 0, 0, 0) }
	for _, row := range []struct {
		sentence string
		pod      *corev1.Pod
		in       []*corev1.Pod
		want     string
	}{
		{"the pod fits", critical, []*corev1.Pod{podRequesting("a", 3000, 0, 0)}, ""},
		{"the pod is not critical", podRequesting("pod", 1000, 100, systemPriority-1),
			[]*corev1.Pod{podRequesting("a", 4000, 0, 0)}, ""},
		{"the closest match is selected", critical, []*corev1.Pod{podRequesting("a", 2000, 0, 0),
			podRequesting("b", 1000, 10, 0), podRequesting("c", 1000, 5, 0)}, "c"},
		{"Burstable before Guaranteed", critical, []*corev1.Pod{podRequesting("G", 2000, 100, 0),
			podRequesting("a", 1000, 0, 0), podRequesting("b", 500, 0, 0), podRequesting("c", 500, 0, 0)}, "a"},
		{"several Burstable pods before a Guaranteed one", critical, []*corev1.Pod{podRequesting("G", 3000, 100, 0),
			podRequesting("b", 500, 0, 0), podRequesting("c", 500, 0, 0)}, "b c"},
		{"Guaranteed if the others do not suffice", critical, []*corev1.Pod{podRequesting("G", 3500, 100, 0),
			podRequesting("b", 500, 0, 0)}, "G"},
		{"lower priority first", critical, []*corev1.Pod{podRequesting("a", 2000, 0, 5),
			podRequesting("b", 2000, 0, 1)}, "b"},
		{"critical pods of the same priority are protected", critical,
			[]*corev1.Pod{podRequesting("a", 4000, 0, systemPriority)}, ""},
		{"critical pods of a higher priority are protected", critical,
			[]*corev1.Pod{podRequesting("a", 4000, 0, systemPriority+1000)}, ""},
		{"critical pods of a lower priority may be evicted", higher,
			[]*corev1.Pod{podRequesting("a", 4000, 0, systemPriority)}, "a"},
		{"critical pods of a lower priority, if others do not suffice", higher,
			[]*corev1.Pod{podRequesting("a", 3500, 0, systemPriority), podRequesting("b", 500, 0, 0)}, "a"},
		{"ordinary pods before critical ones", higher, []*corev1.Pod{podRequesting("a", 2000, 0, systemPriority),
			podRequesting("b", 2000, 0, 0)}, "b"},
		{"QoS class before priority, as upstream", higher, []*corev1.Pod{podRequesting("a", 2000, 0, systemPriority),
			podRequesting("B", 2000, 100, 0)}, "a"},
		{"of two critical pods the lower priority", higher,
			[]*corev1.Pod{podRequesting("a", 2000, 0, systemPriority+500), podRequesting("b", 2000, 0, systemPriority)},
			"b"},
		{"all candidates together do not suffice", critical, []*corev1.Pod{podRequesting("a", 3500, 0, systemPriority),
			podRequesting("b", 500, 0, 0)}, ""},
		{"the pod exceeds the node", podRequesting("huge", 5000, 0, systemPriority),
			[]*corev1.Pod{podRequesting("a", 4000, 0, 0)}, ""},
		{"the number of pods is a resource", critical, []*corev1.Pod{be(0), be(1), be(2), be(3), be(4),
			podRequesting("a", 100, 0, 0)}, "be0"},
		{"two missing resources", critical, []*corev1.Pod{podRequesting("cpu", 3500, 0, 0),
			podRequesting("mem", 0, 1000, 0), podRequesting("both", 200, 10, 0)}, "cpu mem"},
		{"a host port conflict", ported, []*corev1.Pod{server, podRequesting("a", 3500, 0, 0)}, ""},
	} {
		node := Node{Standalone: true, Allocatable: corev1.ResourceList{
			"cpu": resource.MustParse("4"), "memory": resource.MustParse("1Gi"), "pods": resource.MustParse("6"),
		}}
		var used Used
		for _, p := range row.in {
			used.Add(p)
		}
		var got []string
		for _, p := range PodsToPreempt(node, used, row.pod, row.in) {
			got = append(got, p.Name)
		}
		slices.Sort(got)
		if text := strings.Join(got, " "); text != row.want {
			t.Errorf("%s: %q, want %q", row.sentence, text, row.want)
		}
	}
}

// TestPreemptionInvariants checks A4 with random nodes and pods.
func TestPreemptionInvariants(t *testing.T) {
	t.Parallel()
	chosen := 0
	const top = systemPriority + 1000
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 5))
		node := testNode()
		node.Standalone = r.IntN(2) == 0
		node.Allocatable["pods"] = *resource.NewQuantity(int64(2+r.IntN(12)), resource.DecimalSI)
		var used Used
		var in []*corev1.Pod
		for range 40 {
			if pod := anyPod(r, len(in)); len(Check(node, used, pod)) == 0 {
				used.Add(pod)
				in = append(in, pod)
			}
		}
		pod := anyPod(r, 99)
		pod.Spec.Priority = new([]int32{systemPriority, top}[seed%2])
		usedBefore, inBefore := used.clone(), fmt.Sprint(in)
		victims := PodsToPreempt(node, used, pod, in)
		if len(victims) > 0 {
			chosen++
		}
		if problem := violation(node, used, pod, in, victims); problem != "" {
			t.Errorf("seed %d: %s", seed, problem)
		}
		if cmp.Diff(usedBefore, used.clone()) != "" || inBefore != fmt.Sprint(in) {
			t.Errorf("seed %d: an argument has changed", seed)
		}
		r.Shuffle(len(in), func(i, j int) { in[i], in[j] = in[j], in[i] })
		if again := PodsToPreempt(node, used, pod, in); !sameNames(again, victims) {
			t.Errorf("seed %d: the selection depends on the order of candidates", seed)
		}
	}
	if chosen < 50 {
		t.Errorf("only %d selections were not empty", chosen)
	}
}

func sameNames(a, b []*corev1.Pod) bool {
	return slices.EqualFunc(a, b, func(x, y *corev1.Pod) bool { return x.Name == y.Name })
}

// anyPod returns a random pod of any QoS class and priority.
func anyPod(r *rand.Rand, i int) *corev1.Pod {
	pod := randomPod(r)
	pod.Name, pod.Namespace = fmt.Sprintf("p%02d", i), "ns"
	pod.Spec.Priority = new([]int32{0, 0, 100, systemPriority, systemPriority + 1000}[r.IntN(5)])
	if r.IntN(4) == 0 {
		pod.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
	}
	if r.IntN(3) == 0 {
		whole := corev1.ResourceList{
			"cpu":    *resource.NewMilliQuantity(1+r.Int64N(1500), resource.DecimalSI),
			"memory": *resource.NewQuantity(1+r.Int64N(600<<20), resource.BinarySI),
		}
		pod.Spec.InitContainers = nil
		for i := range pod.Spec.Containers {
			pod.Spec.Containers[i].Resources = corev1.ResourceRequirements{Requests: whole, Limits: whole}
		}
	}
	return pod
}

// violation returns which rule a selection violates, or an empty string.
func violation(node Node, used Used, pod *corev1.Pod, in, victims []*corev1.Pod) string {
	fitsWithout := func(evicted []*corev1.Pod) bool {
		left := used
		for _, p := range evicted {
			left.Remove(p)
		}
		return len(Check(node, left, pod)) == 0
	}
	var mayGo, notGuaranteed, bestEffort []*corev1.Pod
	for _, p := range in {
		if protected(node, pod, p) {
			continue
		}
		mayGo = append(mayGo, p)
		switch podspec.QOSClass(p) {
		case corev1.PodQOSBestEffort:
			bestEffort = append(bestEffort, p)
			fallthrough
		case corev1.PodQOSBurstable:
			notGuaranteed = append(notGuaranteed, p)
		}
	}
	refusals := Check(node, used, pod)
	byResources := !slices.ContainsFunc(refusals, func(r Rejection) bool { return r.Resource == "" })
	wanted := len(refusals) > 0 && byResources && fitsWithout(mayGo)
	switch {
	case wanted != (len(victims) > 0):
		return fmt.Sprintf("%d pods selected, preemption possible: %v", len(victims), wanted)
	case !wanted:
		return ""
	case !fitsWithout(victims):
		return "the pod does not fit after the evictions"
	}
	for i, v := range victims {
		if protected(node, pod, v) || !slices.Contains(in, v) {
			return v.Name + " is not a candidate"
		}
		if fitsWithout(slices.Delete(slices.Clone(victims), i, i+1)) {
			return v.Name + " is not needed"
		}
		qos := podspec.QOSClass(v)
		if qos == corev1.PodQOSGuaranteed && fitsWithout(notGuaranteed) ||
			qos != corev1.PodQOSBestEffort && fitsWithout(bestEffort) {
			return v.Name + " has a higher QoS class than needed"
		}
	}
	return ""
}

// protected reports whether a pod must not be evicted for the critical one: it is critical too, and
// its priority is not lower.
func protected(node Node, critical, pod *corev1.Pod) bool {
	return podspec.IsCritical(pod, node.Standalone) &&
		(pod.Spec.Priority == nil || *pod.Spec.Priority >= *critical.Spec.Priority)
}

// TestPodsToPreemptOnJoinedNode uses a joined node, where static pods are critical.
func TestPodsToPreemptOnJoinedNode(t *testing.T) {
	t.Parallel()
	node := Node{
		Allocatable: corev1.ResourceList{
			"cpu":    resource.MustParse("4"),
			"memory": resource.MustParse("1Gi"),
			"pods":   resource.MustParse("6"),
		},
	}
	static := func(pod *corev1.Pod, ranked bool) *corev1.Pod {
		pod.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
		if !ranked {
			pod.Spec.Priority = nil
		}
		return pod
	}
	assigned := podRequesting("pod", 1000, 0, systemPriority)
	for _, row := range []struct {
		sentence string
		pod      *corev1.Pod
		in       *corev1.Pod
		evicted  bool
	}{
		{"a static pod without a priority is protected", assigned, static(podRequesting("s", 4000, 0, 0), false),
			false},
		{"a static pod with a lower priority is evicted", assigned, static(podRequesting("s", 4000, 0, 100), true),
			true},
		{"a static pod with the same priority is protected", assigned,
			static(podRequesting("s", 4000, 0, systemPriority), true), false},
		{"a static pod preempts ordinary pods", static(podRequesting("s", 1000, 0, 0), false),
			podRequesting("a", 4000, 0, 1000), true},
		{"a static pod without a priority does not preempt critical pods",
			static(podRequesting("s", 1000, 0, 0), false), static(podRequesting("a", 4000, 0, -5), true), false},
		{"a static pod with a priority preempts lower ones", static(podRequesting("s", 1000, 0, 100), true),
			static(podRequesting("a", 4000, 0, 50), true), true},
	} {
		var used Used
		used.Add(row.in)
		if got := PodsToPreempt(node, used, row.pod, []*corev1.Pod{row.in}); (len(got) > 0) != row.evicted {
			t.Errorf("%s: %d pods", row.sentence, len(got))
		}
	}
}

func BenchmarkPodsToPreempt500(b *testing.B) {
	node := Node{Standalone: true, Allocatable: corev1.ResourceList{
		"cpu": resource.MustParse("100"), "memory": resource.MustParse("1Ti"), "pods": resource.MustParse("1000"),
	}}
	var used Used
	var in []*corev1.Pod
	for i := range 500 {
		p := podRequesting(fmt.Sprint("p", i), 200, int64(1+i%17), int32(i%7))
		used.Add(p)
		in = append(in, p)
	}
	pod := podRequesting("critical", 1900, 100, systemPriority)
	for b.Loop() {
		if got := len(PodsToPreempt(node, used, pod, in)); got != 10 {
			b.Fatal(got)
		}
	}
}
