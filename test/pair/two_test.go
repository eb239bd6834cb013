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

// Two is a server with two nodes that have joined by a token.
type Two struct {
	*servers.Server
	t    *testing.T
	A, B *Pair
}

const (
	lostAfter    = 10 * time.Second // a node that is silent so long is lost
	leaseSeconds = 4                // so that a living one says so every second
)

func startTwo(t *testing.T) *Two {
	t.Helper()
	server := servers.Start(t, func(c *control.Config) { c.NodeMonitorGracePeriod = lostAfter })
	w := &Two{Server: server, t: t, A: &Pair{t: t, Server: server}, B: &Pair{t: t, Server: server}}
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
func (w *Two) free(name, app, more string) string {
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
	// spread pods stay for a second on a node that is lost.
	spread = `topologySpreadConstraints:
- {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: spread}}}
tolerations:
- {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 1}
- {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 1}`
	// apart pods stay on a node whatever happens to it, as those of a DaemonSet do.
	apart = `affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
    - {weight: 100, podAffinityTerm: {topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: apart}}}}
tolerations:
- {operator: Exists, effect: NoExecute}`
)

// on are the pods of an app on a node.
func (w *Two) on(p *Pair, app string) []string {
	out, err := w.TryKubectl(w.t, "", "get", "pods", "-l", "app="+app, "--field-selector", "spec.nodeName="+p.Node, "-o", `jsonpath={range .items[*]}{.metadata.name} {end}`)
	if err != nil {
		w.t.Error(out)
	}
	return strings.Fields(out)
}

// taints of a node, in the order that it has them.
func (w *Two) taints(p *Pair) string {
	return strings.TrimSpace(p.field("node", p.Node, "range .spec.taints[*]}{.key}:{.effect} {end"))
}

// running counts the containers that run on the host, whatever an agent says.
func running(p *Pair) int {
	list, err := p.Host.Runtime.ListContainers(p.t.Context(), &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}},
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

// TestTwoNodes: pods spread over both; one is lost and comes back; one is emptied.
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
		w.A.is("pod", name, ready, "True")
	}
	for _, p := range []*Pair{w.A, w.B} {
		if s, a := w.on(p, "spread"), w.on(p, "apart"); len(s) != 2 || len(a) != 1 {
			t.Fatalf("on %s there are %v and %v", p.Node, s, a)
		}
	}
	w.lost()
	w.back()
	w.cordoned()
	w.drained()
}

// lost has the agent of B die.
func (w *Two) lost() {
	t, b := w.t, w.B
	going, staying := w.on(b, "spread"), w.on(b, "apart")[0]
	id := b.field("pod", staying, idOf)
	if err := b.Agent.Kill9(); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	b.nodeIs("Ready", "Unknown")
	if took := time.Since(killed); took < lostAfter-leaseSeconds*time.Second {
		t.Errorf("the node is lost after %s", took)
	}
	b.is("node", b.Node, `.status.conditions[?(@.type=="Ready")].reason`, "NodeStatusUnknown")
	b.until("the taints", func() string {
		if got := w.taints(b); got != "node.kubernetes.io/unreachable:NoSchedule node.kubernetes.io/unreachable:NoExecute" {
			return got
		}
		return ""
	})
	for _, name := range going {
		b.until(name+" to be told to end", func() string {
			if b.field("pod", name, ending) == "" {
				return "it is not"
			}
			return ""
		})
		b.is("pod", name, `.status.conditions[?(@.type=="DisruptionTarget")].reason`, "DeletionByTaintManager")
	}
	b.is("pod", staying, ready, "False") // nobody shall be sent there
	w.Apply(t, w.free("late", "late", ""))
	w.A.is("pod", "late", ".spec.nodeName", w.A.Node)
	w.A.is("pod", "late", ready, "True")
	if got := w.on(b, "spread"); len(got) != 2 {
		t.Errorf("of the pods that nobody can end there are %v", got)
	}
	if at := b.field("pod", staying, ending); at != "" {
		t.Errorf("%s, which tolerates the taint, is to end at %s", staying, at)
	}
	if n := running(b); n != 3 {
		t.Errorf("%d containers run without their agent", n)
	}
	if now := b.field("pod", staying, idOf); now != id {
		t.Errorf("container %s was replaced by %s", id, now)
	}
}

// back has the agent of B start again.
func (w *Two) back() {
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
	b.is("pod", staying, ready, "True")
	if now, n := b.field("pod", staying, idOf), b.field("pod", staying, restarts); now != id || n != "0" {
		t.Errorf("container %s is %s after %s restarts", id, now, n)
	}
	b.until("what they had to go", func() string {
		if n := running(b); n != 1 {
			return fmt.Sprintf("%d containers run", n)
		}
		return ""
	})
	for _, name := range w.on(w.A, "spread") {
		if n, at := b.field("pod", name, restarts), b.field("pod", name, ending); n != "0" || at != "" {
			t.Errorf("%s of the other node: %s restarts, ends at %q", name, n, at)
		}
	}
}

// cordoned has B take no new pods: with spreading a mere wish, A takes them all.
func (w *Two) cordoned() {
	w.Kubectl(w.t, "cordon", w.B.Node)
	w.A.until("the taint", func() string {
		if got := w.taints(w.B); got != "node.kubernetes.io/unschedulable:NoSchedule" {
			return "they are " + got
		}
		return ""
	})
	for i := range 2 {
		name := fmt.Sprint("wish-", i)
		w.Apply(w.t, w.free(name, "wish", strings.ReplaceAll(strings.ReplaceAll(spread, "DoNotSchedule", "ScheduleAnyway"), "app: spread", "app: wish")))
		w.A.is("pod", name, ".spec.nodeName", w.A.Node)
	}
	w.Kubectl(w.t, "uncordon", w.B.Node)
	w.A.until("the taint to go", func() string { return w.taints(w.B) })
	w.Apply(w.t, w.free("wish-2", "wish", strings.ReplaceAll(spread, "app: spread", "app: wish")))
	w.A.is("pod", "wish-2", ".spec.nodeName", w.B.Node)
	w.A.is("pod", "wish-2", ready, "True")
}

// drained empties B, whose pods nobody would make again.
func (w *Two) drained() {
	t, b := w.t, w.B
	before := len(w.on(b, "apart")) + len(w.on(b, "wish"))
	out, err := w.TryKubectl(t, "", "drain", b.Node, "--timeout=20s")
	if err == nil || !strings.Contains(out, "cannot delete") || !strings.Contains(out, "use --force to override") {
		t.Errorf("drain without --force: %v\n%s", err, out)
	}
	if now := len(w.on(b, "apart")) + len(w.on(b, "wish")); now != before || now == 0 {
		t.Errorf("of %d pods %d are left by a drain that had to do nothing", before, now)
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
