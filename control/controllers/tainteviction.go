package controllers

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"berth/admission"
)

// taintEvictionController evicts pods that do not, or no longer, tolerate the NoExecute taints of
// their node.
type taintEvictionController struct {
	Config

	pods  corelisters.PodLister
	nodes corelisters.NodeLister
	// startTime is the time of the first sync, with synced caches.
	startTime func() time.Time

	mu sync.Mutex
	// firstObserved is when taints without timeAdded were first observed. Taints set by kubectl
	// have no timeAdded.
	firstObserved map[types.UID]map[corev1.Taint]time.Time
}

func newTaintEvictionController(c Config) ([]*controller, error) {
	pods, nodes := c.Informers.Core().V1().Pods(), c.Informers.Core().V1().Nodes()
	e := &taintEvictionController{
		Config: c, pods: pods.Lister(), nodes: nodes.Lister(), startTime: sync.OnceValue(time.Now),
		firstObserved: map[types.UID]map[corev1.Taint]time.Time{},
	}
	if err := c.indexPods(); err != nil {
		return nil, err
	}
	ctrl := c.newController(e.sync)
	ctrl.workers = 4
	err := ctrl.watch(pods.Informer(), func(obj any) []string {
		if pod, ok := obj.(*corev1.Pod); ok && pod.Spec.NodeName != "" && pod.DeletionTimestamp == nil {
			return objectKey(obj)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if err := ctrl.addEventHandler(nodes.Informer(), cache.ResourceEventHandlerFuncs{
		DeleteFunc: e.forgetNode}); err != nil {
		return nil, err
	}
	return []*controller{ctrl}, ctrl.watch(nodes.Informer(), func(obj any) (keys []string) {
		node, ok := obj.(*corev1.Node)
		if !ok || len(noExecuteTaints(node)) == 0 {
			e.forgetNode(obj)
			return nil // a pod with a pending eviction checks the taints when it is due
		}
		for _, pod := range c.podsOn(node.Name) {
			keys = append(keys, objectKey(pod)...)
		}
		return keys
	})
}

// datedTaints returns the NoExecute taints of the node, all with timeAdded.
func (e *taintEvictionController) datedTaints(node *corev1.Node) []corev1.Taint {
	taints := noExecuteTaints(node)
	e.mu.Lock()
	defer e.mu.Unlock()
	previous, current := e.firstObserved[node.UID], map[corev1.Taint]time.Time{}
	for i := range taints {
		t := &taints[i]
		if t.TimeAdded != nil {
			continue
		}
		key := corev1.Taint{Key: t.Key, Effect: t.Effect}
		first, known := previous[key]
		if !known {
			first = time.Now()
		}
		current[key] = first
		t.TimeAdded = &metav1.Time{Time: first}
	}
	if len(current) == 0 {
		delete(e.firstObserved, node.UID)
	} else {
		e.firstObserved[node.UID] = current
	}
	return taints
}

// forgetNode drops the recorded taints of a node that was deleted or has no NoExecute taint.
func (e *taintEvictionController) forgetNode(obj any) {
	obj = lastKnown(obj)
	if node, ok := obj.(*corev1.Node); ok {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.firstObserved, node.UID)
	}
}

func noExecuteTaints(node *corev1.Node) (out []corev1.Taint) {
	for _, t := range node.Spec.Taints {
		if t.Effect == corev1.TaintEffectNoExecute {
			out = append(out, t)
		}
	}
	return out
}

func (e *taintEvictionController) sync(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil //nolint:nilerr // invalid key
	}
	pod, err := e.pods.Pods(namespace).Get(name)
	if err != nil || pod.DeletionTimestamp != nil || pod.Spec.NodeName == "" {
		return 0, ignoreNotFound(err)
	}
	node, err := e.nodes.Get(pod.Spec.NodeName)
	if err != nil {
		return 0, ignoreNotFound(err)
	}
	evictAt, evict := evictionTime(pod, e.datedTaints(node), e.startTime())
	if !evict {
		return 0, nil
	}
	if left := time.Until(evictAt); left > 0 {
		return left, nil
	}
	if deleted, err := e.evict(ctx, pod); err != nil || !deleted {
		return 0, err
	}
	measureTaintDeletion(evictAt)
	return 0, nil
}

// evictionTime returns when the toleration of the taints expires. Toleration periods start at the
// latest of timeAdded, the binding of the pod and the start of this controller: while the control
// server was down, a recovered node could not report that it is ready.
func evictionTime(pod *corev1.Pod, taints []corev1.Taint, started time.Time) (evictAt time.Time, evict bool) {
	earliest := boundAt(pod)
	if started.After(earliest) {
		earliest = started
	}
	for _, t := range taints {
		since := earliest
		if t.TimeAdded != nil && t.TimeAdded.After(since) {
			since = t.TimeAdded.Time
		}
		shortest, tolerated := time.Duration(-1), false
		for _, tol := range pod.Spec.Tolerations {
			if !admission.Tolerated(t, []corev1.Toleration{tol}) {
				continue
			}
			tolerated = true
			if tol.TolerationSeconds != nil {
				seconds := time.Duration(max(0, *tol.TolerationSeconds)) * time.Second
				if shortest < 0 || seconds < shortest {
					shortest = seconds
				}
			}
		}
		switch {
		case !tolerated:
			return time.Time{}, true
		case shortest < 0:
		case !evict || since.Add(shortest).Before(evictAt):
			evictAt, evict = since.Add(shortest), true
		}
	}
	return evictAt, evict
}

// boundAt returns when the pod was bound to its node.
func boundAt(pod *corev1.Pod) time.Time {
	bound := pod.CreationTimestamp.Time // for a pod created with spec.nodeName
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue && c.LastTransitionTime.After(bound) {
			bound = c.LastTransitionTime.Time
		}
	}
	return bound
}

// evict deletes the pod. deleted is false if the pod was already deleted, which the cache may not show
// yet: its own patch of the pod triggers another sync.
func (e *taintEvictionController) evict(ctx context.Context, pod *corev1.Pod) (deleted bool, err error) {
	current, err := e.markDisrupted(ctx, pod, "DeletionByTaintManager",
		"Taint manager: deleting due to NoExecute taint", "")
	if err != nil || current == nil || current.DeletionTimestamp != nil {
		return false, err
	}
	e.Events.Eventf(pod, corev1.EventTypeNormal, "TaintManagerEviction", "Marking for deletion Pod %s/%s",
		pod.Namespace, pod.Name)
	e.Log.Info("pod evicted by taint", "pod", pod.Namespace+"/"+pod.Name, "node", pod.Spec.NodeName)
	return true, e.deletePod(ctx, pod, nil)
}

// markDisrupted adds the DisruptionTarget condition to the pod and sets its phase unless that is
// empty. It returns the patched pod, or nil if the pod does not exist.
func (c Config) markDisrupted(ctx context.Context, pod *corev1.Pod, reason, message string,
	phase corev1.PodPhase) (*corev1.Pod, error) {
	status := map[string]any{"conditions": []corev1.PodCondition{{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, ObservedGeneration: pod.Generation,
		Reason: reason, Message: message, LastTransitionTime: metav1.Now(),
	}}}
	if phase != "" {
		status["phase"] = phase
	}
	return c.patchPodStatus(ctx, pod, status)
}

// patchPodStatus returns the patched pod, or nil if the pod does not exist.
func (c Config) patchPodStatus(ctx context.Context, pod *corev1.Pod, status map[string]any) (*corev1.Pod, error) {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": status})
	if err != nil {
		return nil, fmt.Errorf("patch status of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	patched, err := c.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, body,
		metav1.PatchOptions{}, "status")
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil //nolint:nilnil // documented: no pod
	case err != nil:
		return nil, fmt.Errorf("patch status of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return patched, nil
}

// deletePod deletes the pod with this UID. If grace is nil, the pod's own grace period applies.
func (c Config) deletePod(ctx context.Context, pod *corev1.Pod, grace *int64) error {
	err := c.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: grace, Preconditions: &metav1.Preconditions{UID: &pod.UID},
	})
	if ignoreNotFound(err) != nil {
		return fmt.Errorf("delete pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}
