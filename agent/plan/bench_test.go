package plan

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// twentyContainers is a pod of 20 containers that runs: 2 init containers, 3 sidecars and
// 15 mains, with volumes and environments from objects.
func twentyContainers() Input {
	w := up(func(p *corev1.Pod) {
		for i := range 5 {
			name := fmt.Sprint("init", i)
			if i < 2 {
				p.Spec.InitContainers = append(p.Spec.InitContainers, con(name, mounts("data")))
			} else {
				p.Spec.InitContainers = append(p.Spec.InitContainers, sidecar(name, mounts("data")))
			}
		}
		p.Spec.Containers = nil
		for i := range 15 {
			p.Spec.Containers = append(p.Spec.Containers, con(fmt.Sprint("main", i), mounts("data")))
		}
		emptyDir("data")(p)
	})
	w.crash("main3")
	return w.in
}

func BenchmarkDecide20(b *testing.B) {
	in := twentyContainers()
	b.ReportAllocs()
	for b.Loop() {
		Decide(in)
	}
}

// TestDecide20Allocations holds the cost of a pass that changes nothing where it
// can be held without a clock.
func TestDecide20Allocations(t *testing.T) {
	in := twentyContainers()
	if p := Decide(in); !p.Empty() || p.Status.Phase != corev1.PodRunning {
		t.Fatalf("not steady: %s %s", showActions(p), p.Status.Phase)
	}
	if n := testing.AllocsPerRun(100, func() { Decide(in) }); n > 200 {
		t.Errorf("%v allocations for a steady pod of 20 containers", n)
	}
}
