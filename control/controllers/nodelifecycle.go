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
	"k8s.io/component-helpers/node/topology"
)

const (
	reasonStatusUnknown = "NodeStatusUnknown"
	reasonNeverUpdated  = "NodeStatusNeverUpdated"
)

// nodeLifecycleController sets the conditions of nodes without a heartbeat to Unknown and taints
// nodes by their conditions.
type nodeLifecycleController struct {
	Config

	nodes  corelisters.NodeLister
	leases coordinationlisters.LeaseLister

	mu         sync.Mutex
	heartbeats map[string]heartbeat

	// Time and node of the last NoExecute taint. Used by sync only.
	lastEviction    time.Time
	lastEvictedNode types.UID
}

// heartbeat is the last observed heartbeat and when it was observed, by the clock of this process.
// The node's clock is never used, because it may differ.
type heartbeat struct {
	value      string
	observedAt time.Time
}

func newNodeLifecycleController(c Config) ([]*controller, error) {
	nodes, leases := c.Informers.Core().V1().Nodes(), c.Informers.Coordination().V1().Leases()
	n := &nodeLifecycleController{Config: c, nodes: nodes.Lister(), leases: leases.Lister(),
		heartbeats: map[string]heartbeat{}}
	if err := c.indexPods(); err != nil {
		return nil, err
	}
	ctrl := c.newController(n.sync)
	if err := ctrl.watch(nodes.Informer(), n.affectedNodes); err != nil {
		return nil, err
	}
	ctrl.waitFor(c.Informers.Core().V1().Pods().Informer())
	return []*controller{ctrl}, ctrl.watch(leases.Informer(), func(obj any) []string {
		if lease, ok := obj.(*coordinationv1.Lease); ok && lease.Namespace == corev1.NamespaceNodeLease {
			return []string{lease.Name}
		}
		return nil
	})
}

// affectedNodes returns the nodes to sync after a change of one node. If the last ready node was
// lost, these include the nodes that were tainted before, because their pods must not be evicted
// now.
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
	requeueAfter := n.NodeMonitorGracePeriod - time.Since(n.observeHeartbeat(node))
	if requeueAfter <= 0 {
		node, err = n.markUnknown(ctx, node)
		if err != nil {
			return 0, err
		}
		requeueAfter = n.NodeMonitorGracePeriod
	}
	if err := n.markPodsNotReady(ctx, node); err != nil {
		return 0, err
	}
	retryAfter, err := n.syncTaints(ctx, node)
	if retryAfter > 0 {
		requeueAfter = min(requeueAfter, retryAfter)
	}
	return requeueAfter, err
}

// observeHeartbeat records the newest heartbeat of the node and returns when it was observed.
func (n *nodeLifecycleController) observeHeartbeat(node *corev1.Node) time.Time {
	var value strings.Builder
	if lease, err := n.leases.Leases(corev1.NamespaceNodeLease).Get(node.Name); err == nil &&
		lease.Spec.RenewTime != nil {
		value.WriteString(lease.Spec.RenewTime.String())
	}
	if ready := nodeCondition(node, corev1.NodeReady); ready != nil && !statusUnknown(ready) {
		value.WriteString(ready.LastHeartbeatTime.String() + string(ready.Status))
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	last, known := n.heartbeats[node.Name]
	now := value.String()
	// The Unknown status written by this controller is not a heartbeat.
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

// markUnknown sets the node's Ready and pressure conditions to Unknown.
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
				Type: of, Status: corev1.ConditionUnknown, Reason: reasonNeverUpdated,
				Message:           "Kubelet never posted node status.",
				LastHeartbeatTime: node.CreationTimestamp, LastTransitionTime: now,
			})
			changed = true
		case have.Status != corev1.ConditionUnknown:
			have.Status, have.Reason, have.Message = corev1.ConditionUnknown, reasonStatusUnknown,
				"Kubelet stopped posting node status."
			have.LastTransitionTime = now
			changed = true
		}
	}
	if !changed {
		return node, nil
	}
	updated, err := n.Client.CoreV1().Nodes().UpdateStatus(ctx, out, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("update conditions of node %s: %w", node.Name, err)
	}
	n.Log.Warn("node unreachable", "node", node.Name, "gracePeriod", n.NodeMonitorGracePeriod)
	n.Events.Eventf(node, corev1.EventTypeNormal, "NodeNotReady", "Node %s status is now: NodeNotReady", node.Name)
	return updated, nil
}

// markPodsNotReady sets the Ready condition of the pods on an unreachable node to False.
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
		if _, err := n.patchPodStatus(ctx, pod,
			map[string]any{"conditions": []corev1.PodCondition{condition}}); err != nil {
			return err
		}
		n.Events.Event(pod, corev1.EventTypeWarning, "NodeNotReady", "Node is not ready")
	}
	return nil
}

// syncTaints adds and removes the taints that this controller manages, to match the node's
// conditions. Other taints stay. requeueAfter is set for a node whose eviction is delayed.
func (n *nodeLifecycleController) syncTaints(ctx context.Context,
	node *corev1.Node) (requeueAfter time.Duration, err error) {
	evict, requeueAfter := n.mayEvict(node)
	desired := desiredTaints(node, evict)
	taints := slices.DeleteFunc(slices.Clone(node.Spec.Taints), func(t corev1.Taint) bool {
		return slices.Contains(managedTaints, t.Key) && !slices.ContainsFunc(desired, func(w corev1.Taint) bool {
			return w.MatchTaint(&t)
		})
	})
	for _, w := range desired {
		if !slices.ContainsFunc(taints, func(t corev1.Taint) bool { return t.MatchTaint(&w) }) {
			if w.Effect == corev1.TaintEffectNoExecute {
				w.TimeAdded = &metav1.Time{Time: time.Now()}
			}
			taints = append(taints, w)
		}
	}
	if apiequality.Semantic.DeepEqual(taints, node.Spec.Taints) || len(taints)+len(node.Spec.Taints) == 0 {
		return requeueAfter, nil
	}
	out := node.DeepCopy()
	out.Spec.Taints = taints
	if _, err := n.Client.CoreV1().Nodes().Update(ctx, out, metav1.UpdateOptions{}); apierrors.IsNotFound(err) {
		return 0, nil
	} else if err != nil {
		return 0, fmt.Errorf("taint node %s: %w", node.Name, err)
	}
	if evict && !hasEvictionTaint(node) {
		if n.lastEvictedNode != node.UID || time.Since(n.lastEviction) > evictionInterval {
			nodeEvictions.WithLabelValues(topology.GetZoneKey(node)).Inc() // not for the write of a stale node again
		}
		n.lastEviction, n.lastEvictedNode = time.Now(), node.UID
	}
	return requeueAfter, nil
}

// managedTaints are the keys that this controller adds and removes.
var managedTaints = []string{
	corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable, corev1.TaintNodeMemoryPressure, corev1.TaintNodeDiskPressure,
	corev1.TaintNodePIDPressure, corev1.TaintNodeNetworkUnavailable, corev1.TaintNodeUnschedulable,
}

// desiredTaints returns the taints for the node's conditions. evict adds the NoExecute taint of a
// node that is not ready.
func desiredTaints(node *corev1.Node, evict bool) (out []corev1.Taint) {
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
			if evict {
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

// Rate limits of evictions, with upstream's defaults. All nodes count as one zone.
const (
	// evictionInterval is the time between the evictions of two nodes, secondaryEvictionInterval
	// the same during a partial disruption.
	evictionInterval, secondaryEvictionInterval = 10 * time.Second, 100 * time.Second
	// A partial disruption means at least unhealthyMinNodes and unhealthyPercent of the nodes are
	// not ready.
	unhealthyMinNodes, unhealthyPercent = 3, 55
	// clusters up to this size stop evictions during a partial disruption
	largeClusterThreshold = 50
	// evictionRetryPeriod is how soon a node with a delayed eviction is synced again.
	evictionRetryPeriod = 5 * time.Second
)

// mayEvict reports whether the pods of a node that is not ready may be evicted, and if not yet,
// when to check again. Without any ready node, the control server itself is probably disconnected
// or has just started, so no pod is evicted. During a partial disruption a network failure is
// likely, and the remaining nodes could not run that many additional pods.
func (n *nodeLifecycleController) mayEvict(node *corev1.Node) (evict bool, retryAfter time.Duration) {
	if ready := nodeCondition(node, corev1.NodeReady); ready == nil || ready.Status == corev1.ConditionTrue {
		return false, 0
	}
	ready, notReady := n.countNodes()
	switch {
	case ready == 0:
		return false, 0 // the next ready node queues this one
	case hasEvictionTaint(node):
		return true, 0
	}
	interval := evictionInterval
	if notReady >= unhealthyMinNodes && 100*notReady >= unhealthyPercent*(ready+notReady) {
		if ready+notReady <= largeClusterThreshold {
			return false, evictionRetryPeriod
		}
		interval = secondaryEvictionInterval
	}
	// The cache may still hold the last evicted node without its taint.
	if wait := time.Until(n.lastEviction.Add(interval)); wait > 0 && n.lastEvictedNode != node.UID {
		return false, min(wait, evictionRetryPeriod)
	}
	return true, 0
}

// hasEvictionTaint reports whether the node already has a NoExecute taint because it is not ready.
func hasEvictionTaint(node *corev1.Node) bool {
	return slices.ContainsFunc(noExecuteTaints(node), func(t corev1.Taint) bool {
		return t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable
	})
}

// countNodes returns the number of ready and not ready nodes. A node without a recent heartbeat
// counts as not ready before its status says so.
func (n *nodeLifecycleController) countNodes() (ready, notReady int) {
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
			notReady++
		}
	}
	return ready, notReady
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
