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
	lostAfter    = 10 * time.Second // grace period after which a silent node is unreachable
	leaseSeconds = 4                // so that a running node reports its status every second
)

func startTwo(t *testing.T) *TwoNodes {
	t.Helper()
	server := servers.Start(t, func(c *control.Config) { c.NodeMonitorGracePeriod = lostAfter })
	w := &TwoNodes{Server: server, t: t, A: &Pair{t: t, Server: server}, B: &Pair{t: t, Server: server}}
	w.A.issueToken()
	for _, p := range []*Pair{w.A, w.B} {
		p.joinHost(t.TempDir(), pairOptions{Config: map[string]any{"nodeLeaseDurationSeconds": leaseSeconds}})
	}
	for _, p := range []*Pair{w.A, w.B} {
		p.nodeIs("Ready", "True")
	}
	return w
}

// free is a manifest of a pod that the scheduler places.
func (w *TwoNodes) free(name, app, more string) string {
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
- {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: spread}}}
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

// on returns the pods of an app on a node.
func (w *TwoNodes) on(p *Pair, app string) []string {
	out, err := w.TryKubectl(w.t, "", "get", "pods", "-l", "app="+app, "--field-selector", "spec.nodeName="+p.Node, "-o",
		`jsonpath={range .items[*]}{.metadata.name} {end}`)
	if err != nil {
		w.t.Error(out)
	}
	return strings.Fields(out)
}

// taints returns the taints of a node in their order.
func (w *TwoNodes) taints(p *Pair) string {
	return strings.TrimSpace(p.field("node", p.Node, "range .spec.taints[*]}{.key}:{.effect} {end"))
}

// running counts the containers that run on the host, independent of the agent.
func running(p *Pair) int {
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
	restarts = ".status.containerStatuses[0].restartCount"
	idOf     = ".status.containerStatuses[0].containerID"
	ending   = ".metadata.deletionTimestamp"
)

// TestTwoNodes: pods are spread over both nodes, one node becomes unreachable and recovers, and one
// is drained.
func TestTwoNodes(t *testing.T) {
	t.Parallel()
	w := startTwo(t)
	for i := range 4 {
		w.Apply(t, w.free(fmt.Sprint("spread-", i), "spread", spread))
	}
	for i := range 2 {
		w.Apply(t, w.free(fmt.Sprint("apart-", i), "apart", apart))
	}
	for _, name := range []string{"spread-0", "spread-1", "spread-2", "spread-3", "apart-0", "apart-1"} {
		w.A.waitForField("pod", name, ready, "True")
	}
	for _, p := range []*Pair{w.A, w.B} {
		if s, a := w.on(p, "spread"), w.on(p, "apart"); len(s) != 2 || len(a) != 1 {
			t.Fatalf("%s: got %v and %v", p.Node, s, a)
		}
	}
	w.lost()
	w.back()
	w.cordoned()
	w.drained()
}

// lost kills the agent of B.
func (w *TwoNodes) lost() {
	t, b := w.t, w.B
	going, staying := w.on(b, "spread"), w.on(b, "apart")[0]
	id := b.field("pod", staying, idOf)
	if err := b.Agent.Kill9(); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	b.nodeIs("Ready", "Unknown")
	if took := time.Since(killed); took < lostAfter-leaseSeconds*time.Second {
		t.Errorf("the node became unreachable after %s", took)
	}
	b.waitForField("node", b.Node, `.status.conditions[?(@.type=="Ready")].reason`, "NodeStatusUnknown")
	b.until("the taints", func() string {
		if got := w.taints(b); got != "node.kubernetes.io/unreachable:NoSchedule node.kubernetes.io/unreachable:NoExecute" {
			return got
		}
		return ""
	})
	for _, name := range going {
		b.until(name+" to be deleted", func() string {
			if b.field("pod", name, ending) == "" {
				return "not found"
			}
			return ""
		})
		b.waitForField("pod", name, `.status.conditions[?(@.type=="DisruptionTarget")].reason`, "DeletionByTaintManager")
	}
	b.waitForField("pod", staying, ready, "False") // no pod is scheduled there
	w.Apply(t, w.free("late", "late", ""))
	w.A.waitForField("pod", "late", ".spec.nodeName", w.A.Node)
	w.A.waitForField("pod", "late", ready, "True")
	if got := w.on(b, "spread"); len(got) != 2 {
		t.Errorf("got pods without eviction %v", got)
	}
	if at := b.field("pod", staying, ending); at != "" {
		t.Errorf("%s tolerates the taint but has deletionTimestamp %s", staying, at)
	}
	if n := running(b); n != 3 {
		t.Errorf("%d containers run without their agent", n)
	}
	if now := b.field("pod", staying, idOf); now != id {
		t.Errorf("container %s was replaced by %s", id, now)
	}
}

// back restarts the agent of B.
func (w *TwoNodes) back() {
	t, b := w.t, w.B
	going, staying := w.on(b, "spread"), w.on(b, "apart")[0]
	id := b.field("pod", staying, idOf)
	ctx, cancel := context.WithTimeout(t.Context(), waitBound)
	defer cancel()
	if err := b.Agent.Start(ctx); err != nil {
		t.Fatal(err)
	}
	b.nodeIs("Ready", "True")
	b.until("the taints to go", func() string { return w.taints(b) })
	for _, name := range going {
		b.until(name+" to end", func() string { return b.field("pod", name, ".metadata.name") })
	}
	b.waitForField("pod", staying, ready, "True")
	if now, n := b.field("pod", staying, idOf), b.field("pod", staying, restarts); now != id || n != "0" {
		t.Errorf("container %s: got %s after %s restarts", id, now, n)
	}
	b.until("what they had to go", func() string {
		if n := running(b); n != 1 {
			return fmt.Sprintf("%d containers run", n)
		}
		return ""
	})
	for _, name := range w.on(w.A, "spread") {
		if n, at := b.field("pod", name, restarts), b.field("pod", name, ending); n != "0" || at != "" {
			t.Errorf("%s on the other node: %s restarts, deletionTimestamp %q", name, n, at)
		}
	}
}

// cordoned: B takes no new pods. Spreading is only preferred, so A takes all of them.
func (w *TwoNodes) cordoned() {
	w.Kubectl(w.t, "cordon", w.B.Node)
	w.A.until("the taint", func() string {
		if got := w.taints(w.B); got != "node.kubernetes.io/unschedulable:NoSchedule" {
			return "got " + got
		}
		return ""
	})
	for i := range 2 {
		name := fmt.Sprint("soft-", i)
		w.Apply(w.t, w.free(name, "soft", strings.ReplaceAll(strings.ReplaceAll(spread, "DoNotSchedule", "ScheduleAnyway"),
			"app: spread", "app: soft")))
		w.A.waitForField("pod", name, ".spec.nodeName", w.A.Node)
	}
	w.Kubectl(w.t, "uncordon", w.B.Node)
	w.A.until("the taint to go", func() string { return w.taints(w.B) })
	w.Apply(w.t, w.free("soft-2", "soft", strings.ReplaceAll(spread, "app: spread", "app: soft")))
	w.A.waitForField("pod", "soft-2", ".spec.nodeName", w.B.Node)
	w.A.waitForField("pod", "soft-2", ready, "True")
}

// drained drains B, including pods without a controller.
func (w *TwoNodes) drained() {
	t, b := w.t, w.B
	before := len(w.on(b, "apart")) + len(w.on(b, "soft"))
	out, err := w.TryKubectl(t, "", "drain", b.Node, "--timeout=20s")
	if err == nil || !strings.Contains(out, "cannot delete") || !strings.Contains(out, "use --force to override") {
		t.Errorf("drain without --force: %v\n%s", err, out)
	}
	if now := len(w.on(b, "apart")) + len(w.on(b, "soft")); now != before || now == 0 {
		t.Errorf("%d pods before, %d after a drain without eligible pods", before, now)
	}
	w.Kubectl(t, "drain", b.Node, "--force", "--timeout=60s")
	if left := w.Kubectl(t, "get", "pods", "-o", "name", "--field-selector", "spec.nodeName="+b.Node); left != "" {
		t.Errorf("left: %s", left)
	}
	if n := running(b); n != 0 {
		t.Errorf("%d containers run", n)
	}
	b.nodeIs("Ready", "True")
}
