package pressure

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// candidate returns a pod with the given requests and usage of memory and disk, in MiB.
func candidate(name string, priority int32, requests, memory, disk int64) Candidate {
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name, pod.Spec.Priority = "ns", name, &priority
	q := *resource.NewQuantity(requests*mi, resource.BinarySI)
	pod.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceMemory: q, corev1.ResourceEphemeralStorage: q},
	}}}
	return Candidate{Pod: pod, Measured: true, Usage: Usage{
		Memory:     memory * mi,
		Tasks:      memory,
		Volumes:    DiskUsage{Bytes: disk * mi, Inodes: disk},
		Layers:     DiskUsage{Bytes: mi, Inodes: 1},
		Containers: []ContainerUsage{{Name: "c", Memory: memory * mi, Disk: disk * mi}},
	}}
}

func names(all []Ranked) string {
	var out []string
	for _, r := range all {
		out = append(out, r.Pod.Name)
	}
	return strings.Join(out, " ")
}

// TestScenario29_EvictionOrder checks upstream's order, one rule per row.
func TestScenario29_EvictionOrder(t *testing.T) {
	t.Parallel()
	unknown := candidate("unknown", 1000, 0, 0, 0)
	unknown.Measured = false
	for _, row := range []struct {
		sentence string
		signal   Signal
		pods     []Candidate
		want     string
	}{
		{"a pod that exceeds its request is first, regardless of the priority", MemoryAvailable,
			[]Candidate{candidate("within", -5, 200, 100, 0), candidate("beyond", 100, 10, 20, 0)}, "beyond within"},
		{"then the lower priority", MemoryAvailable, []Candidate{candidate("high", 10, 10, 500, 0),
			candidate("low", 1, 10, 11, 0)}, "low high"},
		{"then the highest usage above the request", MemoryAvailable, []Candidate{candidate("more", 0, 400, 500, 0),
			candidate("most", 0, 10, 200, 0)}, "most more"},
		{"unknown usage is first", MemoryAvailable, []Candidate{candidate("low", 1, 0, 900, 0), unknown},
			"unknown low"},
		{"for disk, too: usage above the request, not total usage", NodefsAvailable,
			[]Candidate{candidate("most", 0, 400, 0, 500), candidate("beyond", 0, 10, 0, 200)}, "beyond most"},
		{"pods within their request are ranked by the same difference", ImagefsAvailable,
			[]Candidate{candidate("far", 0, 900, 0, 200), candidate("near", 0, 100, 0, 90)}, "near far"},
		{"for inodes all pods exceed their request", NodefsInodesFree, []Candidate{candidate("few", 0, 900, 0, 1),
			candidate("many", 0, 900, 0, 5), candidate("low", -1, 900, 0, 1)}, "low many few"},
		{"for processes requests do not count", PIDAvailable, []Candidate{candidate("few", 0, 0, 1, 0),
			candidate("many", 0, 999, 9, 0), candidate("low", -1, 999, 1, 0)}, "low many few"},
		{"equal pods are ranked by name", MemoryAvailable,
			[]Candidate{candidate("b", 0, 0, 1, 0), candidate("a", 0, 0, 1, 0)}, "a b"},
	} {
		if got := names(Rank(row.signal, FileSystemLayout{}, row.pods)); got != row.want {
			t.Errorf("%s: %s, want %s", row.sentence, got, row.want)
		}
	}
}

func TestUsageByFileSystemLayout(t *testing.T) {
	t.Parallel()
	u := Usage{Volumes: DiskUsage{100, 10}, Layers: DiskUsage{1, 2}}
	for _, row := range []struct {
		signal Signal
		split  FileSystemLayout
		want   int64
	}{
		{NodefsAvailable, FileSystemLayout{}, 101}, {NodefsInodesFree, FileSystemLayout{}, 12},
		{ImagefsAvailable, FileSystemLayout{}, 101},
		{NodefsAvailable, FileSystemLayout{DedicatedImageFs: true}, 100},
		{ImagefsAvailable, FileSystemLayout{DedicatedImageFs: true}, 1},
		{ImagefsInodesFree, FileSystemLayout{DedicatedImageFs: true}, 2},
		{NodefsAvailable, FileSystemLayout{DedicatedImageFs: true, SplitContainerFs: true}, 100},
		{ImagefsAvailable, FileSystemLayout{DedicatedImageFs: true, SplitContainerFs: true}, 0},
		{ContainerfsAvailable, FileSystemLayout{DedicatedImageFs: true, SplitContainerFs: true}, 1},
		{ContainerfsAvailable, FileSystemLayout{}, 101},
		{NodefsAvailable, FileSystemLayout{DedicatedImageFs: true, SplitContainerFs: true, ContainersOnNodefs: true},
			101}, {NodefsInodesFree, FileSystemLayout{DedicatedImageFs: true, SplitContainerFs: true,
			ContainersOnNodefs: true}, 12},
		{ContainerfsAvailable, FileSystemLayout{DedicatedImageFs: true, SplitContainerFs: true,
			ContainersOnNodefs: true}, 101},
		{ImagefsAvailable, FileSystemLayout{DedicatedImageFs: true, SplitContainerFs: true, ContainersOnNodefs: true},
			0},
	} {
		if got := u.ofSignal(row.signal, row.split); got != row.want {
			t.Errorf("%s, %+v: %d, want %d", row.signal, row.split, got, row.want)
		}
	}
}

// TestRankMatchesUpstreamOrder checks random rankings pair by pair.
func TestRankMatchesUpstreamOrder(t *testing.T) { // P7
	t.Parallel()
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 3))
		var pods []Candidate
		for i := range 1 + r.IntN(30) {
			c := candidate(fmt.Sprint("p", i), int32(r.IntN(3)), int64(r.IntN(4)*10), int64(r.IntN(50)),
				int64(r.IntN(50)))
			c.Measured = r.IntN(10) > 0
			pods = append(pods, c)
		}
		for _, s := range []Signal{MemoryAvailable, NodefsAvailable, NodefsInodesFree, PIDAvailable} {
			ranked := Rank(s, FileSystemLayout{}, pods)
			if len(ranked) != len(pods) {
				t.Fatalf("got %d of %d pods ranked", len(ranked), len(pods))
			}
			for i := range ranked {
				for _, later := range ranked[i+1:] {
					if better(s, later, ranked[i]) {
						t.Errorf("seed %d, %s: %s is ranked after %s", seed, s, later.Pod.Name, ranked[i].Pod.Name)
					}
				}
			}
			r.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
			if again := Rank(s, FileSystemLayout{}, pods); names(again) != names(ranked) {
				t.Errorf("seed %d, %s: the ranking depends on the order of the candidates", seed, s)
			}
		}
	}
}

// better determines independently of Rank whether a is evicted before b.
func better(s Signal, a, b Ranked) bool {
	if a.Measured != b.Measured {
		return !a.Measured
	}
	request := func(r Ranked) int64 {
		q := r.Pod.Spec.Containers[0].Resources.Requests[s.Resource()]
		return q.Value()
	}
	use := func(r Ranked) int64 {
		switch s {
		case MemoryAvailable:
			return r.Usage.Memory
		case PIDAvailable:
			return r.Usage.Tasks
		case NodefsInodesFree:
			return r.Usage.Volumes.Inodes + r.Usage.Layers.Inodes
		default:
			return r.Usage.Volumes.Bytes + r.Usage.Layers.Bytes
		}
	}
	if s != PIDAvailable {
		if x, y := use(a) > request(a), use(b) > request(b); x != y {
			return x
		}
	}
	if p, q := *a.Pod.Spec.Priority, *b.Pod.Spec.Priority; p != q {
		return p < q
	}
	if s == MemoryAvailable || s == NodefsAvailable {
		return use(a)-request(a) > use(b)-request(b)
	}
	return use(a) > use(b)
}

func TestMessageMatchesUpstream(t *testing.T) {
	t.Parallel()
	r := Rank(MemoryAvailable, FileSystemLayout{}, []Candidate{candidate("p", 0, 10, 20, 0)})[0]
	m := ThresholdMet{
		Threshold: Threshold{Signal: MemoryAvailable, Quantity: 100 * mi, MinReclaim: 50 * mi},
		Level:     Level{90 * mi, gi},
		Minimum:   150 * mi,
	}
	const want = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 90Mi. " +
		"Container c was using 20Mi, request is 10Mi, has larger consumption of memory. "
	if got := Message(m, r); got != want {
		t.Errorf("%q", got)
	}
	r = Rank(NodefsInodesFree, FileSystemLayout{}, []Candidate{candidate("p", 0, 10, 20, 30)})[0]
	m = ThresholdMet{Threshold: Threshold{Signal: NodefsInodesFree, Percent: 5}, Level: Level{40, 1000}}
	if got := Message(m, r); got != "The node was low on resource: inodes. Threshold quantity: 50, available: 40. " {
		t.Errorf("%q", got)
	}
}

func TestExplain(t *testing.T) {
	t.Parallel()
	pods := []Candidate{candidate("a", 5, 10, 20, 0), candidate("b", 7, 30, 20, 0), candidate("c", 0, 0, 1, 0)}
	pods[2].Measured = false
	got := Explain(MemoryAvailable, Rank(MemoryAvailable, FileSystemLayout{}, pods), 2)
	if want := "1. ns/c: usage unknown, requests 0, priority 0; 2. ns/a: uses 20Mi, requests 10Mi, priority " +
		"5; and 1 more"; got != want {
		t.Errorf("%q", got)
	}
	if got := Explain(PIDAvailable, Rank(PIDAvailable, FileSystemLayout{}, pods[:1]),
		2); got != "1. ns/a: uses 20, priority 5" {
		t.Errorf("%q", got)
	}
}

func TestUsageStringOfPartialUsage(t *testing.T) {
	t.Parallel()
	c := candidate("a", 5, 30, 20, 10)
	c.Usage = c.Usage.AtLeast(Usage{Volumes: DiskUsage{Bytes: 40 * mi, Inodes: 3}})
	if c.Usage.Volumes != (DiskUsage{40 * mi, 10}) || c.Usage.Layers != (DiskUsage{mi, 1}) {
		t.Errorf("%+v", c.Usage)
	}
	c.Usage.Partial = true
	if got := Explain(NodefsAvailable, Rank(NodefsAvailable, FileSystemLayout{}, []Candidate{c}),
		2); got != "1. ns/a: uses at least 41Mi, requests 30Mi, priority 5" {
		t.Errorf("%q", got)
	}
}

func BenchmarkRank500(b *testing.B) {
	var pods []Candidate
	for i := range 500 {
		pods = append(pods, candidate(fmt.Sprint("p", i), int32(i%7), int64(i%13), int64(i%31), int64(i%17)))
	}
	for b.Loop() {
		if got := Rank(MemoryAvailable, FileSystemLayout{}, slices.Clone(pods)); len(got) != 500 {
			b.Fatal(len(got))
		}
	}
}
