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

// asks is a pod by name that requests CPU in thousandths and MiB; a name in upper
// case has limits too (Guaranteed), nothing requested is BestEffort.
func asks(name string, milli, mib int64, priority int32) *corev1.Pod {
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

// TestPodsToPreempt is one rule a row, on a node of 4 CPUs, 1 GiB and 6
// pods.
func TestPodsToPreempt(t *testing.T) {
	t.Parallel()
	critical := asks("critical", 1000, 100, systemPriority)
	higher := asks("higher", 1000, 100, systemPriority+1000)
	ported := asks("ported", 1000, 100, systemPriority)
	ported.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80, Protocol: corev1.ProtocolTCP}}
	server := asks("server", 500, 10, 0)
	server.Spec.Containers[0].Ports = ported.Spec.Containers[0].Ports
	be := func(i int) *corev1.Pod { return asks(fmt.Sprint("be", i), 0, 0, 0) }
	for _, row := range []struct {
		sentence string
		pod      *corev1.Pod
		in       []*corev1.Pod
		want     string
	}{
		{"nobody if it fits", critical, []*corev1.Pod{asks("a", 3000, 0, 0)}, ""},
		{"nobody for a pod that is not critical", asks("pod", 1000, 100, systemPriority-1), []*corev1.Pod{asks("a", 4000, 0, 0)}, ""},
		{"who gives just enough goes, not who gives more", critical, []*corev1.Pod{asks("a", 2000, 0, 0), asks("b", 1000, 10, 0), asks("c", 1000, 5, 0)}, "c"},
		{"Burstable before Guaranteed, even if it takes more of them", critical, []*corev1.Pod{asks("G", 2000, 100, 0), asks("a", 1000, 0, 0), asks("b", 500, 0, 0), asks("c", 500, 0, 0)}, "a"},
		{"more Burstable ones rather than a Guaranteed one", critical, []*corev1.Pod{asks("G", 3000, 100, 0), asks("b", 500, 0, 0), asks("c", 500, 0, 0)}, "b c"},
		{"a Guaranteed one if nobody else can give it", critical, []*corev1.Pod{asks("G", 3500, 100, 0), asks("b", 500, 0, 0)}, "G"},
		{"of two alike the lower priority", critical, []*corev1.Pod{asks("a", 2000, 0, 5), asks("b", 2000, 0, 1)}, "b"},
		{"never a critical one of the same priority", critical, []*corev1.Pod{asks("a", 4000, 0, systemPriority)}, ""},
		{"nor one of a higher", critical, []*corev1.Pod{asks("a", 4000, 0, systemPriority+1000)}, ""},
		{"a critical one of a lower priority may have to go", higher, []*corev1.Pod{asks("a", 4000, 0, systemPriority)}, "a"},
		{"also beside others that give too little", higher, []*corev1.Pod{asks("a", 3500, 0, systemPriority), asks("b", 500, 0, 0)}, "a"},
		{"not if an ordinary one gives the same", higher, []*corev1.Pod{asks("a", 2000, 0, systemPriority), asks("b", 2000, 0, 0)}, "b"},
		{"by quality of service first, as upstream: a critical Burstable one before an ordinary Guaranteed one", higher, []*corev1.Pod{asks("a", 2000, 0, systemPriority), asks("B", 2000, 100, 0)}, "a"},
		{"of two critical ones the lesser", higher, []*corev1.Pod{asks("a", 2000, 0, systemPriority+500), asks("b", 2000, 0, systemPriority)}, "b"},
		{"nobody if all together would not do", critical, []*corev1.Pod{asks("a", 3500, 0, systemPriority), asks("b", 500, 0, 0)}, ""},
		{"nobody for a pod larger than the node", asks("huge", 5000, 0, systemPriority), []*corev1.Pod{asks("a", 4000, 0, 0)}, ""},
		{"a place among the pods is a resource: who requests nothing gives it", critical, []*corev1.Pod{be(0), be(1), be(2), be(3), be(4), asks("a", 100, 0, 0)}, "be0"},
		{"two resources, one pod of each", critical, []*corev1.Pod{asks("cpu", 3500, 0, 0), asks("mem", 0, 1000, 0), asks("both", 200, 10, 0)}, "cpu mem"},
		{"nobody when a port is in the way", ported, []*corev1.Pod{server, asks("a", 3500, 0, 0)}, ""},
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

// TestPreemptionInvariants is A4 over random nodes and pods.
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
		if problem := misjudged(node, used, pod, in, victims); problem != "" {
			t.Errorf("seed %d: %s", seed, problem)
		}
		if cmp.Diff(usedBefore, used.clone()) != "" || inBefore != fmt.Sprint(in) {
			t.Errorf("seed %d: an argument has changed", seed)
		}
		r.Shuffle(len(in), func(i, j int) { in[i], in[j] = in[j], in[i] })
		if again := PodsToPreempt(node, used, pod, in); !sameNames(again, victims) {
			t.Errorf("seed %d: the choice depends on the order of asking", seed)
		}
	}
	if chosen < 50 {
		t.Errorf("only %d of the choices were any: the test shows little", chosen)
	}
}

func sameNames(a, b []*corev1.Pod) bool {
	return slices.EqualFunc(a, b, func(x, y *corev1.Pod) bool { return x.Name == y.Name })
}

// anyPod is a random pod of any quality of service and standing.
func anyPod(r *rand.Rand, i int) *corev1.Pod {
	pod := randomPod(r)
	pod.Name, pod.Namespace = fmt.Sprintf("p%02d", i), "ns"
	pod.Spec.Priority = new([]int32{0, 0, 100, systemPriority, systemPriority + 1000}[r.IntN(5)])
	if r.IntN(4) == 0 {
		pod.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
	}
	if r.IntN(3) == 0 {
		whole := corev1.ResourceList{"cpu": *resource.NewMilliQuantity(1+r.Int64N(1500), resource.DecimalSI), "memory": *resource.NewQuantity(1+r.Int64N(600<<20), resource.BinarySI)}
		pod.Spec.InitContainers = nil
		for i := range pod.Spec.Containers {
			pod.Spec.Containers[i].Resources = corev1.ResourceRequirements{Requests: whole, Limits: whole}
		}
	}
	return pod
}

// misjudged says, from the rules alone, what is wrong with a choice; empty: nothing.
func misjudged(node Node, used Used, pod *corev1.Pod, in, victims []*corev1.Pod) string {
	fitsWithout := func(gone []*corev1.Pod) bool {
		left := used
		for _, p := range gone {
			left.Remove(p)
		}
		return len(Check(node, left, pod)) == 0
	}
	var mayGo, notGuaranteed, bestEffort []*corev1.Pod
	for _, p := range in {
		if spared(node, pod, p) {
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
		return fmt.Sprintf("%d have to go, though room for it: %v", len(victims), wanted)
	case !wanted:
		return ""
	case !fitsWithout(victims):
		return "it does not fit when they are gone"
	}
	for i, v := range victims {
		if spared(node, pod, v) || !slices.Contains(in, v) {
			return v.Name + " may not go, or is not there"
		}
		if fitsWithout(slices.Delete(slices.Clone(victims), i, i+1)) {
			return v.Name + " could be spared"
		}
		qos := podspec.QOSClass(v)
		if qos == corev1.PodQOSGuaranteed && fitsWithout(notGuaranteed) || qos != corev1.PodQOSBestEffort && fitsWithout(bestEffort) {
			return v.Name + " goes while lesser ones could"
		}
	}
	return ""
}

// spared reports whether a pod never goes for the critical one: it is critical too,
// and no priority that it has is lower.
func spared(node Node, critical, pod *corev1.Pod) bool {
	return podspec.IsCritical(pod, node.Standalone) && (pod.Spec.Priority == nil || *pod.Spec.Priority >= *critical.Spec.Priority)
}

// TestPodsToPreemptOnJoinedNode is one rule a row, where static pods are critical.
func TestPodsToPreemptOnJoinedNode(t *testing.T) {
	t.Parallel()
	node := Node{Allocatable: corev1.ResourceList{"cpu": resource.MustParse("4"), "memory": resource.MustParse("1Gi"), "pods": resource.MustParse("6")}}
	static := func(pod *corev1.Pod, ranked bool) *corev1.Pod {
		pod.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
		if !ranked {
			pod.Spec.Priority = nil
		}
		return pod
	}
	assigned := asks("pod", 1000, 0, systemPriority)
	for _, row := range []struct {
		sentence string
		pod      *corev1.Pod
		in       *corev1.Pod
		goes     bool
	}{
		{"a static pod without a priority goes for nobody", assigned, static(asks("s", 4000, 0, 0), false), false},
		{"one that has a lower priority goes", assigned, static(asks("s", 4000, 0, 100), true), true},
		{"not for one of the same", assigned, static(asks("s", 4000, 0, systemPriority), true), false},
		{"a static pod has ordinary ones go", static(asks("s", 1000, 0, 0), false), asks("a", 4000, 0, 1000), true},
		{"without a priority it has no critical one go", static(asks("s", 1000, 0, 0), false), static(asks("a", 4000, 0, -5), true), false},
		{"with the priority of a class it does", static(asks("s", 1000, 0, 100), true), static(asks("a", 4000, 0, 50), true), true},
	} {
		var used Used
		used.Add(row.in)
		if got := PodsToPreempt(node, used, row.pod, []*corev1.Pod{row.in}); (len(got) > 0) != row.goes {
			t.Errorf("%s: %d go", row.sentence, len(got))
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
		p := asks(fmt.Sprint("p", i), 200, int64(1+i%17), int32(i%7))
		used.Add(p)
		in = append(in, p)
	}
	pod := asks("critical", 1900, 100, systemPriority)
	for b.Loop() {
		if got := len(PodsToPreempt(node, used, pod, in)); got != 10 {
			b.Fatal(got)
		}
	}
}
