package admission

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth/podspec"
)

// TestNeverOvercommitted checks A1 to A3 with random pods that are added and removed.
func TestNeverOvercommitted(t *testing.T) {
	for seed := range uint64(200) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			node := testNode()
			node.Allocatable["pods"] = resource.MustParse("12")
			var used Used
			var in []*corev1.Pod
			for range 60 {
				if len(in) > 0 && r.IntN(3) == 0 {
					i := r.IntN(len(in))
					used.Remove(in[i])
					in = slices.Delete(in, i, i+1)
				} else if pod := randomPod(r); len(Check(node, used, pod)) == 0 {
					used.Add(pod)
					in = append(in, pod)
				}
				checkTotals(t, node, used, in)
			}
			for _, pod := range in {
				used.Remove(pod)
			}
			if used.Pods != 0 || len(used.Requests) != 0 || len(used.Ports) != 0 {
				t.Errorf("resources left after the removal of all pods: %+v", used)
			}
		})
	}
}

// checkTotals recomputes the totals and compares them with the node.
func checkTotals(t *testing.T, node Node, used Used, in []*corev1.Pod) {
	t.Helper()
	if used.Pods != len(in) || int64(used.Pods) > node.Allocatable.Pods().Value() {
		t.Fatalf("got %d pods, want %d", used.Pods, len(in))
	}
	total := map[corev1.ResourceName]int64{}
	var ports []podspec.HostPort
	for _, pod := range in {
		for name, q := range podspec.Requests(pod) {
			total[name] += q.MilliValue()
		}
		mine := podspec.HostPorts(pod)
		for _, p := range mine {
			if slices.ContainsFunc(ports, p.Conflicts) {
				t.Fatalf("port %v has two users", p)
			}
		}
		ports = append(ports, mine...)
	}
	for name, milli := range total {
		capacity, counted := node.Allocatable[name], used.Requests[name]
		if milli > capacity.MilliValue() {
			t.Fatalf("%s: %dm of %s are used", name, milli, capacity.String())
		}
		if counted.MilliValue() != milli {
			t.Fatalf("%s: got %s, want %dm", name, counted.String(), milli)
		}
	}
}

func randomPod(r *rand.Rand) *corev1.Pod {
	pod := &corev1.Pod{}
	requests := func() corev1.ResourceList {
		l := corev1.ResourceList{}
		for _, most := range []struct {
			name   corev1.ResourceName
			amount int64
		}{{"cpu", 1}, {"memory", 400 << 20}, {"example.com/gpu", 2}, {"hugepages-2Mi", 4 << 20}} {
			if r.IntN(2) == 0 {
				l[most.name] = *resource.NewMilliQuantity(r.Int64N(most.amount*1000+1), resource.DecimalSI)
			}
		}
		return l
	}
	for i := range 1 + r.IntN(2) {
		c := corev1.Container{Name: fmt.Sprint("c", i), Resources: corev1.ResourceRequirements{Requests: requests()}}
		if r.IntN(3) == 0 {
			c.Ports = []corev1.ContainerPort{{ContainerPort: 1, HostPort: int32(80 + 2*r.IntN(3) + i),
				HostIP: []string{"", "0.0.0.0", "10.0.0.1", "::1"}[r.IntN(4)]}}
		}
		pod.Spec.Containers = append(pod.Spec.Containers, c)
	}
	for i := range r.IntN(3) {
		c := corev1.Container{Name: fmt.Sprint("i", i), Resources: corev1.ResourceRequirements{Requests: requests()}}
		if r.IntN(2) == 0 {
			always := corev1.ContainerRestartPolicyAlways
			c.RestartPolicy = &always
		}
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
	}
	podspec.SetDefaults(pod)
	return pod
}

// FuzzCheck verifies that Check does not panic, does not change its arguments, and that every
// rejection is complete.
func FuzzCheck(f *testing.F) {
	f.Add([]byte(`{}`), []byte(`{}`))
	f.Add(
		[]byte(
			`{"spec":{"containers":[{"resources":{"requests":{"cpu":"9e18","memory":"1n"}},`+
				`"ports":[{"hostPort":1,"hostIP":"x"}]}]}}`,
		),
		[]byte(
			`{"spec":{"taints":[{"key":"a","effect":"NoExecute"}]},"status":{"allocatable":{"pods":"1","cpu":"1"}}}`,
		),
	)
	f.Add(
		[]byte(
			`{"spec":{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{`+
				`"nodeSelectorTerms":[{"matchExpressions":[{"key":"a","operator":"Gt","values":["1"]}],`+
				`"matchFields":[{"key":"metadata.name"}]}]}}}}}`,
		),
		[]byte(`{"metadata":{"name":"n","labels":{"a":"2"}}}`),
	)
	f.Add(
		[]byte(
			`{"spec":{"securityContext":{"sysctls":[{"name":"net/a"}]},`+
				`"tolerations":[{"operator":"Lt","value":"1"}],"overhead":{"cpu":"-1"}}}`,
		),
		[]byte(`{"spec":{"taints":[{"key":"a","value":"0","effect":"NoExecute"}]}}`),
	)
	f.Fuzz(func(t *testing.T, rawPod, rawNode []byte) {
		var pod corev1.Pod
		var n corev1.Node
		if json.Unmarshal(rawPod, &pod) != nil || json.Unmarshal(rawNode, &n) != nil {
			return
		}
		podspec.SetDefaults(&pod)
		node := Node{
			Name:          n.Name,
			Labels:        n.Labels,
			Taints:        n.Spec.Taints,
			Allocatable:   n.Status.Allocatable,
			UnsafeSysctls: []string{"net.*", "*"},
		}
		before, nodeBefore := pod.DeepCopy(), n.DeepCopy()
		var used Used
		refusals := Check(node, used, &pod)
		for _, r := range refusals {
			if r.Reason == "" || r.Message == "" {
				t.Fatalf("incomplete rejection: %+v", r)
			}
		}
		used.Add(&pod)
		Check(node, used, &pod)
		if diff := cmp.Diff(before, &pod) + cmp.Diff(nodeBefore, &n); diff != "" {
			t.Fatalf("Check modified its arguments:\n%s", diff)
		}
		used.Remove(&pod)
		if used.Pods != 0 || len(used.Ports) != 0 {
			t.Fatalf("usage left after the removal: %+v", used)
		}
		for name, q := range used.Requests {
			if q.Sign() > 0 {
				t.Fatalf("%s of %s left after the removal", q.String(), name)
			}
		}
	})
}
