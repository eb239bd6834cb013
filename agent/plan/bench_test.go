package plan

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// twentyContainers is a running pod with 20 containers: 2 init containers, 3 sidecars and 15 app
// containers with volumes.
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

// TestDecide20Allocations limits the allocations of a call of Decide that changes nothing.
func TestDecide20Allocations(t *testing.T) {
	in := twentyContainers()
	if p := Decide(in); !p.Empty() || p.Status.Phase != corev1.PodRunning {
		t.Fatalf("not idle: %s %s", showActions(p), p.Status.Phase)
	}
	if n := testing.AllocsPerRun(100, func() { Decide(in) }); n > 200 {
		t.Errorf("%v allocations for an idle pod of 20 containers", n)
	}
}
