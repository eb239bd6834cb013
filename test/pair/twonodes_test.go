package pair

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/control"
	servers "berth/test/control"
	"berth/test/images"
)

// TwoNodes is a server with two nodes that have joined with a token.
type TwoNodes struct {
	*servers.Server
	t    *testing.T
	A, B *Pair
}

const (
	monitorGracePeriod = 10 * time.Second // NodeMonitorGracePeriod of the server
	leaseSeconds       = 4                // so that a running node reports its status every second
)

// startTwoNodes starts a server and joins two nodes.
func startTwoNodes(t *testing.T) *TwoNodes {
	t.Helper()
	server := servers.Start(t, func(c *control.Config) { c.NodeMonitorGracePeriod = monitorGracePeriod })
	w := &TwoNodes{Server: server, t: t, A: &Pair{t: t, Server: server}, B: &Pair{t: t, Server: server}}
	w.A.createBootstrapToken()
	for _, p := range []*Pair{w.A, w.B} {
		p.joinHost(t.TempDir(), pairOptions{Config: map[string]any{"nodeLeaseDurationSeconds": leaseSeconds}})
	}
	for _, p := range []*Pair{w.A, w.B} {
		p.waitForNodeCondition("Ready", "True")
	}
	return w
}

// podManifest returns the manifest of an unscheduled pod.
func (w *TwoNodes) podManifest(name, app, more string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: default, labels: {app: %s}}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: %q, args: [sleep]}]
  %s
`, name, app, images.TestboxRef, strings.ReplaceAll(more, "\n", "\n  "))
}

const (
	// spread pods tolerate an unreachable node for one second.
	spread = `topologySpreadConstraints:
- {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule,
   labelSelector: {matchLabels: {app: spread}}}
tolerations:
- {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 1}
- {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 1}`
	// apart pods tolerate all taints, like those of a DaemonSet.
	apart = `affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
    - {weight: 100, podAffinityTerm: {topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: apart}}}}
tolerations:
- {operator: Exists, effect: NoExecute}`
)

// podsOnNode returns the pods of an app on a node.
func (w *TwoNodes) podsOnNode(p *Pair, app string) []string {
	out, err := w.TryKubectl(w.t, "", "get", "pods", "-l", "app="+app, "--field-selector", "spec.nodeName="+p.Node,
		"-o",
		`jsonpath={range .items[*]}{.metadata.name} {end}`)
	if err != nil {
		w.t.Error(out)
	}
	return strings.Fields(out)
}

// taints returns the keys and effects of the taints of a node, in order.
func (w *TwoNodes) taints(p *Pair) string {
	return strings.TrimSpace(p.field("node", p.Node, "range .spec.taints[*]}{.key}:{.effect} {end"))
}

// runningContainers returns the number of running containers in the runtime of the host.
func runningContainers(p *Pair) int {
	list, err := p.Host.Runtime.ListContainers(p.t.Context(), &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{State: &runtimeapi.ContainerStateValue{
			State: runtimeapi.ContainerState_CONTAINER_RUNNING}},
	})
	if err != nil {
		p.t.Error(err)
	}
	return len(list.GetContainers())
}

const (
	restartCount      = ".status.containerStatuses[0].restartCount"
	containerID       = ".status.containerStatuses[0].containerID"
	deletionTimestamp = ".metadata.deletionTimestamp"
)

// TestTwoNodes spreads pods over two nodes. Then one node becomes unreachable, recovers, and is cordoned
// and drained.
func TestTwoNodes(t *testing.T) {
	t.Parallel()
	w := startTwoNodes(t)
	for i := range 4 {
		w.Apply(t, w.podManifest(fmt.Sprint("spread-", i), "spread", spread))
	}
	for i := range 2 {
		w.Apply(t, w.podManifest(fmt.Sprint("apart-", i), "apart", apart))
	}
	for _, name := range []string{"spread-0", "spread-1", "spread-2", "spread-3", "apart-0", "apart-1"} {
		w.A.waitForField("pod", name, readyStatus, "True")
	}
	for _, p := range []*Pair{w.A, w.B} {
		if s, a := w.podsOnNode(p, "spread"), w.podsOnNode(p, "apart"); len(s) != 2 || len(a) != 1 {
			t.Fatalf("node %s: got spread pods %v and apart pods %v, want two and one", p.Node, s, a)
		}
	}
	w.testNodeUnreachable()
	w.testNodeRecovery()
	w.testCordon()
	w.testDrain()
}

// testNodeUnreachable kills the agent of B. The server taints the node and evicts pods that do not
// tolerate the taint. Their containers keep running.
func (w *TwoNodes) testNodeUnreachable() {
	t, b := w.t, w.B
	evicted, tolerating := w.podsOnNode(b, "spread"), w.podsOnNode(b, "apart")[0]
	id := b.field("pod", tolerating, containerID)
	from := time.Now()
	b.waitForLeaseRenewal(from)
	if err := b.Agent.Kill9(); err != nil {
		t.Fatal(err)
	}
	b.waitForNodeCondition("Ready", "Unknown")
	if elapsed := time.Since(from); elapsed < monitorGracePeriod {
		t.Errorf("node became unreachable %s after a renewal of its lease, before its grace period", elapsed)
	}
	b.waitForField("node", b.Node, `.status.conditions[?(@.type=="Ready")].reason`, "NodeStatusUnknown")
	b.waitUntil("the taints", func() string {
		if got := w.taints(b); got != "node.kubernetes.io/unreachable:NoSchedule "+
			"node.kubernetes.io/unreachable:NoExecute" {
			return got
		}
		return ""
	})
	for _, name := range evicted {
		b.waitUntil(name+" to be deleted", func() string {
			if b.field("pod", name, deletionTimestamp) == "" {
				return "no deletionTimestamp"
			}
			return ""
		})
		b.waitForField("pod", name, `.status.conditions[?(@.type=="DisruptionTarget")].reason`,
			"DeletionByTaintManager")
	}
	b.waitForField("pod", tolerating, readyStatus, "False") // the scheduler does not use the node
	w.Apply(t, w.podManifest("late", "late", ""))
	w.A.waitForField("pod", "late", ".spec.nodeName", w.A.Node)
	w.A.waitForField("pod", "late", readyStatus, "True")
	if got := w.podsOnNode(b, "spread"); len(got) != 2 {
		t.Errorf("got pods %v on the unreachable node, want two", got)
	}
	if at := b.field("pod", tolerating, deletionTimestamp); at != "" {
		t.Errorf("tolerating pod %s: got deletionTimestamp %s, want none", tolerating, at)
	}
	if n := runningContainers(b); n != 3 {
		t.Errorf("got %d running containers without an agent, want 3", n)
	}
	if now := b.field("pod", tolerating, containerID); now != id {
		t.Errorf("container %s was replaced by %s", id, now)
	}
}

// testNodeRecovery restarts the agent of B. It stops the evicted pods and does not change the others.
func (w *TwoNodes) testNodeRecovery() {
	t, b := w.t, w.B
	evicted, tolerating := w.podsOnNode(b, "spread"), w.podsOnNode(b, "apart")[0]
	id := b.field("pod", tolerating, containerID)
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	if err := b.Agent.Start(ctx); err != nil {
		t.Fatal(err)
	}
	b.waitForNodeCondition("Ready", "True")
	b.waitUntil("removal of the taints", func() string { return w.taints(b) })
	for _, name := range evicted {
		b.waitUntil("deletion of pod "+name, func() string { return b.field("pod", name, ".metadata.name") })
	}
	b.waitForField("pod", tolerating, readyStatus, "True")
	if now, n := b.field("pod", tolerating, containerID), b.field("pod", tolerating, restartCount); now != id ||
		n != "0" {
		t.Errorf("got container %s with %s restarts, want %s without restarts", now, n, id)
	}
	b.waitUntil("removal of the containers of evicted pods", func() string {
		if n := runningContainers(b); n != 1 {
			return fmt.Sprintf("got %d running containers", n)
		}
		return ""
	})
	for _, name := range w.podsOnNode(w.A, "spread") {
		if n, at := b.field("pod", name, restartCount), b.field("pod", name, deletionTimestamp); n != "0" || at != "" {
			t.Errorf("pod %s on the other node: got %s restarts, deletionTimestamp %q", name, n, at)
		}
	}
}

// testCordon cordons B. The scheduler binds all pods to A, because their spread constraint is soft.
func (w *TwoNodes) testCordon() {
	w.Kubectl(w.t, "cordon", w.B.Node)
	w.A.waitUntil("the taint", func() string {
		if got := w.taints(w.B); got != "node.kubernetes.io/unschedulable:NoSchedule" {
			return "got " + got
		}
		return ""
	})
	for i := range 2 {
		name := fmt.Sprint("soft-", i)
		w.Apply(w.t, w.podManifest(name, "soft", strings.NewReplacer("DoNotSchedule", "ScheduleAnyway",
			"app: spread", "app: soft").Replace(spread)))
		w.A.waitForField("pod", name, ".spec.nodeName", w.A.Node)
	}
	w.Kubectl(w.t, "uncordon", w.B.Node)
	w.A.waitUntil("removal of the taint", func() string { return w.taints(w.B) })
	w.Apply(w.t, w.podManifest("soft-2", "soft", strings.ReplaceAll(spread, "app: spread", "app: soft")))
	w.A.waitForField("pod", "soft-2", ".spec.nodeName", w.B.Node)
	w.A.waitForField("pod", "soft-2", readyStatus, "True")
}

// testDrain drains B. Pods without a controller require --force.
func (w *TwoNodes) testDrain() {
	t, b := w.t, w.B
	before := len(w.podsOnNode(b, "apart")) + len(w.podsOnNode(b, "soft"))
	out, err := w.TryKubectl(t, "", "drain", b.Node, "--timeout=20s")
	if err == nil || !strings.Contains(out, "cannot delete") || !strings.Contains(out, "use --force to override") {
		t.Errorf("drain without --force: %v\n%s", err, out)
	}
	if now := len(w.podsOnNode(b, "apart")) + len(w.podsOnNode(b, "soft")); now != before || now == 0 {
		t.Errorf("drain without --force: got %d pods, want %d", now, before)
	}
	w.Kubectl(t, "drain", b.Node, "--force", "--timeout=4m")
	if left := w.Kubectl(t, "get", "pods", "-o", "name", "--field-selector", "spec.nodeName="+b.Node); left != "" {
		t.Errorf("pods left after the drain: %s", left)
	}
	if n := runningContainers(b); n != 0 {
		t.Errorf("got %d running containers after the drain, want 0", n)
	}
	b.waitForNodeCondition("Ready", "True")
}
