package controllers

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	coordinationlisters "k8s.io/client-go/listers/coordination/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
)

const (
	reasonStatusUnknown = "NodeStatusUnknown"
	reasonNeverUpdated  = "NodeStatusNeverUpdated"
)

// nodeLifecycleController marks the nodes that have fallen silent, and gives every node the
// taints that its conditions ask for.
type nodeLifecycleController struct {
	Config

	nodes  corelisters.NodeLister
	leases coordinationlisters.LeaseLister

	mu         sync.Mutex
	heartbeats map[string]heartbeat

	// The last node that got a taint that ends its pods, and when; look's own.
	lastEviction    time.Time
	lastEvictedNode types.UID
}

// heartbeat is the last sign of life: what it was, and when it was seen by this
// server's clock. The node's own clock is never compared with ours.
type heartbeat struct {
	value      string
	observedAt time.Time
}

func newNodeLifecycleController(c Config) ([]*controller, error) {
	nodes, leases := c.Informers.Core().V1().Nodes(), c.Informers.Coordination().V1().Leases()
	n := &nodeLifecycleController{Config: c, nodes: nodes.Lister(), leases: leases.Lister(), heartbeats: map[string]heartbeat{}}
	if err := c.indexPods(); err != nil {
		return nil, err
	}
	w := c.newController(n.sync)
	if err := w.watch(nodes.Informer(), n.affectedNodes); err != nil {
		return nil, err
	}
	w.waitFor(c.Informers.Core().V1().Pods().Informer())
	return []*controller{w}, w.watch(leases.Informer(), func(obj any) []string {
		if lease, ok := obj.(*coordinationv1.Lease); ok && lease.Namespace == corev1.NamespaceNodeLease {
			return []string{lease.Name}
		}
		return nil
	})
}

// affectedNodes are the nodes to look at when one has changed: all of them when it was
// the last one to be lost, for those before it are to keep their pods after all.
func (n *nodeLifecycleController) affectedNodes(obj any) []string {
	keys := objectKey(obj)
	node, ok := obj.(*corev1.Node)
	if !ok || isReady(node) || n.anyReady() {
		return keys
	}
	nodes, err := n.nodes.List(labels.Everything())
	if err != nil {
		return keys
	}
	for _, other := range nodes {
		if len(noExecuteTaints(other)) > 0 {
			keys = append(keys, objectKey(other)...)
		}
	}
	return keys
}

func (n *nodeLifecycleController) sync(ctx context.Context, name string) (time.Duration, error) {
	node, err := n.nodes.Get(name)
	if err != nil {
		n.mu.Lock()
		delete(n.heartbeats, name)
		n.mu.Unlock()
		return 0, ignoreNotFound(err)
	}
	left := n.NodeMonitorGracePeriod - time.Since(n.observeHeartbeat(node))
	if left <= 0 {
		node, err = n.markUnknown(ctx, node)
		if err != nil {
			return 0, err
		}
		left = n.NodeMonitorGracePeriod
	}
	if err := n.markPodsNotReady(ctx, node); err != nil {
		return 0, err
	}
	again, err := n.syncTaints(ctx, node)
	if again > 0 {
		left = min(left, again)
	}
	return left, err
}

// observeHeartbeat takes in the newest sign of life and says when it was seen.
func (n *nodeLifecycleController) observeHeartbeat(node *corev1.Node) time.Time {
	var sign strings.Builder
	if lease, err := n.leases.Leases(corev1.NamespaceNodeLease).Get(node.Name); err == nil && lease.Spec.RenewTime != nil {
		sign.WriteString(lease.Spec.RenewTime.String())
	}
	if ready := nodeCondition(node, corev1.NodeReady); ready != nil && !statusUnknown(ready) {
		sign.WriteString(ready.LastHeartbeatTime.String() + string(ready.Status))
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	last, known := n.heartbeats[node.Name]
	now := sign.String()
	// That we wrote Unknown over the status is no sign of life.
	if !known || now != last.value && !strings.HasPrefix(last.value, now) {
		last.observedAt = time.Now()
	}
	n.heartbeats[node.Name] = heartbeat{now, last.observedAt}
	return last.observedAt
}

func statusUnknown(c *corev1.NodeCondition) bool {
	return c.Status == corev1.ConditionUnknown && (c.Reason == reasonStatusUnknown || c.Reason == reasonNeverUpdated)
}

func nodeCondition(node *corev1.Node, of corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range node.Status.Conditions {
		if node.Status.Conditions[i].Type == of {
			return &node.Status.Conditions[i]
		}
	}
	return nil
}

// markUnknown sets the conditions that the node itself would report to Unknown.
func (n *nodeLifecycleController) markUnknown(ctx context.Context, node *corev1.Node) (*corev1.Node, error) {
	out := node.DeepCopy()
	now := metav1.Now()
	changed := false
	for _, of := range []corev1.NodeConditionType{
		corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure,
	} {
		have := nodeCondition(out, of)
		switch {
		case have == nil:
			out.Status.Conditions = append(out.Status.Conditions, corev1.NodeCondition{
				Type: of, Status: corev1.ConditionUnknown, Reason: reasonNeverUpdated, Message: "Kubelet never posted node status.",
				LastHeartbeatTime: node.CreationTimestamp, LastTransitionTime: now,
			})
			changed = true
		case have.Status != corev1.ConditionUnknown:
			have.Status, have.Reason, have.Message = corev1.ConditionUnknown, reasonStatusUnknown, "Kubelet stopped posting node status."
			have.LastTransitionTime = now
			changed = true
		}
	}
	if !changed {
		return node, nil
	}
	updated, err := n.Client.CoreV1().Nodes().UpdateStatus(ctx, out, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("mark node %s lost: %w", node.Name, err)
	}
	n.Log.Warn("node is lost", "node", node.Name, "silentFor", n.NodeMonitorGracePeriod)
	n.Events.Eventf(node, corev1.EventTypeNormal, "NodeNotReady", "Node %s status is now: NodeNotReady", node.Name)
	return updated, nil
}

// markPodsNotReady takes the pods of a node that is not ready out of service.
func (n *nodeLifecycleController) markPodsNotReady(ctx context.Context, node *corev1.Node) error {
	ready := nodeCondition(node, corev1.NodeReady)
	if ready == nil || ready.Status != corev1.ConditionUnknown {
		return nil
	}
	for _, pod := range n.podsOn(node.Name) {
		i := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
		if i < 0 {
			continue
		}
		condition := pod.Status.Conditions[i]
		condition.Status, condition.LastTransitionTime = corev1.ConditionFalse, metav1.Now()
		if err := n.patchPodStatus(ctx, pod, map[string]any{"conditions": []corev1.PodCondition{condition}}); err != nil {
			return err
		}
		n.Events.Event(pod, corev1.EventTypeWarning, "NodeNotReady", "Node is not ready")
	}
	return nil
}

// syncTaints writes the taints that the node's conditions ask for and takes away
// those that they ask for no more; others are left alone. Again is when to look anew
// at a node whose pods shall not be ended yet.
func (n *nodeLifecycleController) syncTaints(ctx context.Context, node *corev1.Node) (again time.Duration, err error) {
	end, again := n.mayEvict(node)
	want := desiredTaints(node, end)
	kept := slices.DeleteFunc(slices.Clone(node.Spec.Taints), func(t corev1.Taint) bool {
		return slices.Contains(managedTaints, t.Key) && !slices.ContainsFunc(want, func(w corev1.Taint) bool { return w.MatchTaint(&t) })
	})
	for _, w := range want {
		if !slices.ContainsFunc(kept, func(t corev1.Taint) bool { return t.MatchTaint(&w) }) {
			if w.Effect == corev1.TaintEffectNoExecute {
				w.TimeAdded = &metav1.Time{Time: time.Now()}
			}
			kept = append(kept, w)
		}
	}
	if apiequality.Semantic.DeepEqual(kept, node.Spec.Taints) || len(kept)+len(node.Spec.Taints) == 0 {
		return again, nil
	}
	out := node.DeepCopy()
	out.Spec.Taints = kept
	if _, err := n.Client.CoreV1().Nodes().Update(ctx, out, metav1.UpdateOptions{}); apierrors.IsNotFound(err) {
		return 0, nil
	} else if err != nil {
		return 0, fmt.Errorf("taint node %s: %w", node.Name, err)
	}
	if end && !hasEvictionTaint(node) {
		n.lastEviction, n.lastEvictedNode = time.Now(), node.UID
	}
	return again, nil
}

// managedTaints are the keys that this controller gives and takes.
var managedTaints = []string{
	corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable, corev1.TaintNodeMemoryPressure, corev1.TaintNodeDiskPressure,
	corev1.TaintNodePIDPressure, corev1.TaintNodeNetworkUnavailable, corev1.TaintNodeUnschedulable,
}

// desiredTaints are those that the conditions ask for; end tells whether the pods of a
// node that is not ready may be ended.
func desiredTaints(node *corev1.Node, end bool) (out []corev1.Taint) {
	add := func(key string, effect corev1.TaintEffect) { out = append(out, corev1.Taint{Key: key, Effect: effect}) }
	if node.Spec.Unschedulable {
		add(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule)
	}
	for _, c := range node.Status.Conditions {
		switch {
		case c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue:
			key := corev1.TaintNodeNotReady
			if c.Status == corev1.ConditionUnknown {
				key = corev1.TaintNodeUnreachable
			}
			add(key, corev1.TaintEffectNoSchedule)
			if end {
				add(key, corev1.TaintEffectNoExecute)
			}
		case c.Status != corev1.ConditionTrue:
		case c.Type == corev1.NodeMemoryPressure:
			add(corev1.TaintNodeMemoryPressure, corev1.TaintEffectNoSchedule)
		case c.Type == corev1.NodeDiskPressure:
			add(corev1.TaintNodeDiskPressure, corev1.TaintEffectNoSchedule)
		case c.Type == corev1.NodePIDPressure:
			add(corev1.TaintNodePIDPressure, corev1.TaintEffectNoSchedule)
		case c.Type == corev1.NodeNetworkUnavailable:
			add(corev1.TaintNodeNetworkUnavailable, corev1.TaintEffectNoSchedule)
		}
	}
	if nodeCondition(node, corev1.NodeReady) == nil {
		add(corev1.TaintNodeNotReady, corev1.TaintEffectNoSchedule)
	}
	return out
}

// The brake on ending pods: upstream's numbers, with all nodes as one zone.
const (
	// evictionInterval is the time between two nodes whose pods are ended, endSlowly that
	// when most nodes are lost.
	evictionInterval, secondaryEvictionInterval = 10 * time.Second, 100 * time.Second
	// From mostLost nodes on that are mostPercent of all, most are lost.
	unhealthyMinNodes, unhealthyPercent = 3, 55
	// largeClusterThreshold nodes lose no pods at all while most of them are lost.
	largeClusterThreshold = 50
	// evictionRetryPeriod is how soon a node that is held back is looked at again.
	evictionRetryPeriod = 5 * time.Second
)

// mayEvict says whether the pods of a node that is not ready may be ended, and if not
// yet, when to ask again. With no node ready anywhere, it is the server that is cut
// off or that has just come back, and pods that run are not ended for that. With
// most of them lost it is likely a network, and the nodes that are left could not
// take so many pods.
func (n *nodeLifecycleController) mayEvict(node *corev1.Node) (may bool, again time.Duration) {
	if ready := nodeCondition(node, corev1.NodeReady); ready == nil || ready.Status == corev1.ConditionTrue {
		return false, 0
	}
	ready, lost := n.countNodes()
	switch {
	case ready == 0:
		return false, 0 // the first one that is ready again tells
	case hasEvictionTaint(node):
		return true, 0
	}
	every := evictionInterval
	if lost >= unhealthyMinNodes && 100*lost >= unhealthyPercent*(ready+lost) {
		if ready+lost <= largeClusterThreshold {
			return false, evictionRetryPeriod
		}
		every = secondaryEvictionInterval
	}
	// The node that got it may be seen once more as it was before.
	if wait := time.Until(n.lastEviction.Add(every)); wait > 0 && n.lastEvictedNode != node.UID {
		return false, min(wait, evictionRetryPeriod)
	}
	return true, 0
}

// hasEvictionTaint: the node has a taint already that ends its pods because it is not ready.
func hasEvictionTaint(node *corev1.Node) bool {
	return slices.ContainsFunc(noExecuteTaints(node), func(t corev1.Taint) bool {
		return t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable
	})
}

// countNodes tells how many nodes are ready and how many are not, or have been silent for
// so long that they are about to be found out.
func (n *nodeLifecycleController) countNodes() (ready, lost int) {
	nodes, err := n.nodes.List(labels.Everything())
	if err != nil {
		return 0, 0
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, node := range nodes {
		p, known := n.heartbeats[node.Name]
		if isReady(node) && (!known || time.Since(p.observedAt) < n.NodeMonitorGracePeriod) {
			ready++
		} else {
			lost++
		}
	}
	return ready, lost
}

func (n *nodeLifecycleController) anyReady() bool {
	nodes, err := n.nodes.List(labels.Everything())
	if err != nil {
		return false
	}
	return slices.ContainsFunc(nodes, isReady)
}

func isReady(node *corev1.Node) bool {
	ready := nodeCondition(node, corev1.NodeReady)
	return ready != nil && ready.Status == corev1.ConditionTrue
}
