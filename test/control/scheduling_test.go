package control

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"berth/test/hosts"
)

// eventTimeout limits waits for events that normally take milliseconds. On a busy machine, kubectl alone takes seconds.
const eventTimeout = 4 * time.Minute

// eventually calls condition until it returns true. If this takes longer than eventTimeout, the test
// fails with the last state.
func eventually(t testing.TB, what string, condition func() (bool, string)) {
	t.Helper()
	var last string
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), eventTimeout)
	defer cancel()
	err := hosts.WaitFor(ctx, what, func() (ok bool, _ error) {
		ok, last = condition()
		return ok, nil
	})
	if err != nil {
		t.Fatalf("%v; last state:\n%s", err, last)
	}
}

// addNode creates a ready node with free resources, as an agent would.
func addNode(t testing.TB, s *Server, name, cpu string) {
	t.Helper()
	waitForOutput(t, s, "default", "get", "serviceaccount", "default", "-o", "jsonpath={.metadata.name}")
	s.Apply(t, fmt.Sprintf(`
apiVersion: v1
kind: Node
metadata: {name: %s, labels: {kubernetes.io/hostname: %s, zone: z-%s}}
`, name, name, name))
	renewLease(t, s, name)
	timestamp := metav1.Now()
	s.updateNodeStatus(t, name, func(n *corev1.Node) {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue,
			Reason: "KubeletReady", LastHeartbeatTime: timestamp, LastTransitionTime: timestamp}}
		n.Status.Allocatable = resourceList("pods", "20", "cpu", cpu, "memory", "4Gi")
		n.Status.Capacity = n.Status.Allocatable
	})
	eventually(t, "node "+name+" to have no taints", func() (bool, string) {
		out := s.Kubectl(t, "get", "node", name, "-o", "jsonpath={.spec.taints}")
		return out == "", out
	})
}

// updateNodeStatus changes the status of a node. Controllers change the node too, so it tries again after a conflict.
func (s *Server) updateNodeStatus(t testing.TB, name string, change func(*corev1.Node)) {
	t.Helper()
	eventually(t, "the status update of node "+name, func() (bool, string) {
		n, err := s.Client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		change(n)
		_, err = s.Client.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{})
		return err == nil, fmt.Sprint(err)
	})
}

// renewLease renews the lease of a node until the test ends, so that the node stays ready.
func renewLease(t testing.TB, s *Server, name string) {
	t.Helper()
	leases := s.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	renew := func(ctx context.Context) error {
		now := metav1.NowMicro()
		text := fmt.Sprintf(`{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": %q}, `+
			`"spec": {"holderIdentity": %q, "leaseDurationSeconds": 40, "renewTime": %q}}`, name, name,
			now.Format(metav1.RFC3339Micro))
		_, err := leases.Patch(ctx, name, types.ApplyPatchType, []byte(text), metav1.PatchOptions{FieldManager: "test",
			Force: new(true)})
		return err
	}
	if err := renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var renewing sync.WaitGroup
	renewing.Go(func() {
		for every := time.NewTicker(10 * time.Second); ; {
			select {
			case <-ctx.Done():
				every.Stop()
				return
			case <-every.C:
				_ = renew(ctx) // retried by the next tick
			}
		}
	})
	t.Cleanup(func() { cancel(); renewing.Wait() })
}

// resourceList returns the resources in pairs of name and quantity.
func resourceList(pairs ...string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		out[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return out
}

// podYAML returns the manifest of a pod. more are additional fields of its spec.
func podYAML(name, cpu, more string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, labels: {app: %s}}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: example/web, resources: {requests: {cpu: %q}}}]
%s`, name, name, cpu, more)
}

// waitForBinding waits until the pod is bound and returns its node.
func waitForBinding(t testing.TB, s *Server, pod string) (node string) {
	t.Helper()
	eventually(t, "pod "+pod+" to be bound", func() (bool, string) {
		node = s.Kubectl(t, "get", "pod", pod, "-o", "jsonpath={.spec.nodeName}")
		return node != "", s.Kubectl(t, "describe", "pod", pod)
	})
	return node
}

// waitForUnschedulable waits until the pod's PodScheduled condition has this message.
func waitForUnschedulable(t testing.TB, s *Server, pod, want string) {
	t.Helper()
	eventually(t, "the PodScheduled message of pod "+pod, func() (bool, string) {
		out := s.Kubectl(t, "get", "pod", pod, "-o", `jsonpath={.status.conditions[?(@.type=="PodScheduled")].message}`)
		return out == want, out
	})
}

// TestPodsAreScheduled schedules pods onto two nodes and checks the messages of unschedulable pods.
func TestPodsAreScheduled(t *testing.T) {
	t.Parallel()
	s := Start(t)
	waitForOutput(t, s, "default", "get", "serviceaccount", "default", "-o", "jsonpath={.metadata.name}")
	s.Apply(t, podYAML("early", "100m", ""))
	waitForUnschedulable(t, s, "early", "no nodes available to schedule pods")
	addNode(t, s, "n1", "1")
	addNode(t, s, "n2", "1")
	waitForBinding(t, s, "early")
	s.Apply(t, podYAML("a", "600m", ""))
	s.Apply(t, podYAML("b", "600m", ""))
	if a, b := waitForBinding(t, s, "a"), waitForBinding(t, s, "b"); a == b {
		t.Errorf("both pods are on %s", a)
	}
	eventually(t, "the event Scheduled", func() (bool, string) {
		out := s.Kubectl(t, "describe", "pod", "a")
		return strings.Contains(out, "Successfully assigned default/a to n") &&
				strings.Contains(out, "default-scheduler"),
			out
	})
	s.Apply(t, podYAML("big", "900m", ""))
	waitForUnschedulable(t, s, "big", "0/2 nodes are available: 2 Insufficient cpu. preemption: 0/2 nodes are "+
		"available: 2 No "+
		"preemption victims found for incoming pod.")
	eventually(t, "the event FailedScheduling", func() (bool, string) {
		out := s.Kubectl(t, "describe", "pod", "big")
		return strings.Contains(out, "FailedScheduling") && strings.Contains(out,
			"0/2 nodes are available: 2 Insufficient cpu."), out
	})
	s.Kubectl(t, "taint", "node", "n1", "gpu=yes:NoSchedule")
	s.Kubectl(t, "delete", "pod", "a", "b", "early")
	if got := waitForBinding(t, s, "big"); got != "n2" {
		t.Errorf("pod big was bound to %s, want n2", got)
	}
	s.Kubectl(t, "cordon", "n2")
	s.Apply(t, podYAML("late", "100m", ""))
	waitForUnschedulable(t, s, "late", "0/2 nodes are available: 1 node(s) had untolerated taint(s), 1 node(s) "+
		"were unschedulable. preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.")
	s.Kubectl(t, "taint", "node", "n1", "gpu-")
	if got := waitForBinding(t, s, "late"); got != "n1" {
		t.Errorf("pod late was bound to %s, want n1", got)
	}
	s.Apply(t, podYAML("gated", "1m", "  schedulingGates: [{name: example.com/wait}]"))
	waitForUnschedulable(t, s, "gated", "Scheduling is blocked due to non-empty scheduling gates")
	s.Kubectl(t, "patch", "pod", "gated", "--type=json", "-p", `[{"op": "remove", "path": "/spec/schedulingGates"}]`)
	waitForBinding(t, s, "gated")
	s.Apply(t, podYAML("other", "1m", "  schedulerName: mine"))
	s.Apply(t, podYAML("after", "1m", ""))
	waitForBinding(t, s, "after")
	if got := s.Kubectl(t, "get", "pod", "other", "-o", "jsonpath={.spec.nodeName}"); got != "" {
		t.Errorf("pod of another scheduler was bound to %s", got)
	}
}

// TestPreemption schedules pods with a higher priority, with and without preemption.
func TestPreemption(t *testing.T) {
	t.Parallel()
	s := Start(t)
	addNode(t, s, "n1", "1")
	s.Apply(t, `{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: high}, value: 1000}`)
	s.Apply(t, podYAML("low", "800m", ""))
	waitForBinding(t, s, "low")
	s.Apply(t, `{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: polite}, value: 1000, `+
		`preemptionPolicy: Never}`)
	s.Apply(t, podYAML("never", "800m", "  priority: 1000\n  priorityClassName: polite\n  preemptionPolicy: Never"))
	waitForUnschedulable(t, s, "never", "0/1 nodes are available: 1 Insufficient cpu. preemption: not eligible due to "+
		"preemptionPolicy=Never.")
	s.Kubectl(t, "delete", "pod", "never")
	s.Apply(t, podYAML("high", "800m", "  priority: 1000\n  priorityClassName: high"))
	if got := waitForBinding(t, s, "high"); got != "n1" {
		t.Errorf("pod high was bound to %s, want n1", got)
	}
	if out, err := s.TryKubectl(t, "", "get", "pod", "low"); err == nil {
		t.Errorf("preempted pod low still exists: %s", out)
	}
	eventually(t, "the event Preempted", func() (bool, string) {
		out := s.Kubectl(t, "get", "events", "--field-selector", "reason=Preempted", "-o",
			"jsonpath={.items[*].message}")
		return strings.Contains(out, "Preempted by pod"), out
	})
}

// TestEveryPodIsBound creates pods in sequence. It logs the latency from creation to binding, as observed
// by a watch.
func TestEveryPodIsBound(t *testing.T) {
	t.Parallel()
	s := Start(t)
	addNode(t, s, "n1", "100")
	w, err := s.Client.CoreV1().Pods("default").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	var latencies []time.Duration
	for i := range 30 {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("p%d", i)},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "x"}}}}
		start := time.Now()
		if _, err := s.Client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		for bound := false; !bound; {
			var e watch.Event
			more := true
			select {
			case e, more = <-w.ResultChan():
			case <-time.After(eventTimeout):
				t.Fatalf("pod %s is not bound within %s", pod.Name, eventTimeout)
			}
			if !more {
				t.Fatal("watch channel was closed")
			}
			if p, ok := e.Object.(*corev1.Pod); ok && p.Name == pod.Name && e.Type == watch.Modified &&
				p.Spec.NodeName != "" {
				bound = true
			}
		}
		latencies = append(latencies, time.Since(start))
		if i >= 15 { // the node has capacity for 20
			if err := s.Client.CoreV1().Pods("default").Delete(t.Context(), fmt.Sprintf("p%d", i-15),
				metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
				t.Fatal(err)
			}
		}
	}
	slices.Sort(latencies)
	t.Logf("latency from creation to observed binding: median %s, maximum %s", latencies[len(latencies)/2],
		latencies[len(latencies)-1])
}

// TestNewNodeIsNotScheduledBeforeReady registers a node that is not ready. The scheduler binds a pod
// after the node is ready, and the pod gets the topology labels of the node.
func TestNewNodeIsNotScheduledBeforeReady(t *testing.T) {
	t.Parallel()
	s := Start(t)
	waitForOutput(t, s, "default", "get", "serviceaccount", "default", "-o", "jsonpath={.metadata.name}")
	ctx, node := t.Context(), s.clientAs(t, "system:node:n1", "system:nodes")
	n, err := node.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{corev1.LabelTopologyZone: "a",
			corev1.LabelTopologyRegion: "north"}},
		Status: corev1.NodeStatus{
			Allocatable: resourceList("pods", "20", "cpu", "4", "memory", "4Gi"),
			Capacity:    resourceList("pods", "20", "cpu", "4", "memory", "4Gi"),
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse,
				Reason: "KubeletNotReady"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(n.Spec.Taints) != 1 || n.Spec.Taints[0].Key != corev1.TaintNodeNotReady ||
		n.Spec.Taints[0].Effect != corev1.TaintEffectNoSchedule {
		t.Errorf("new node: got taints %v, want not-ready:NoSchedule", n.Spec.Taints)
	}
	renewLease(t, s, "n1")
	s.Apply(t, podYAML("web", "100m", ""))
	waitForUnschedulable(t, s, "web", "0/1 nodes are available: 1 node(s) had untolerated taint(s). "+
		"preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.")
	eventually(t, "the status update of the node", func() (bool, string) {
		now, err := node.CoreV1().Nodes().Get(ctx, "n1", metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		now.Status.Conditions[0].Status, now.Status.Conditions[0].Reason = corev1.ConditionTrue, "KubeletReady"
		_, err = node.CoreV1().Nodes().UpdateStatus(ctx, now, metav1.UpdateOptions{})
		return err == nil, fmt.Sprint(err)
	})
	waitForBinding(t, s, "web")
	if got := s.Kubectl(t, "get", "pod", "web", "-o", `jsonpath={.metadata.labels}`); got !=
		`{"app":"web","topology.kubernetes.io/region":"north","topology.kubernetes.io/zone":"a"}` {
		t.Errorf("got pod labels %s", got)
	}
}
