package controllers

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"berth/admission"
)

// evictor ends the pods that do not tolerate their node's NoExecute taints, or
// no longer do.
type evictor struct {
	Config

	pods  corelisters.PodLister
	nodes corelisters.NodeLister
}

func taintEviction(c Config) ([]*worker, error) {
	pods, nodes := c.Informers.Core().V1().Pods(), c.Informers.Core().V1().Nodes()
	e := &evictor{Config: c, pods: pods.Lister(), nodes: nodes.Lister()}
	if err := c.indexPods(); err != nil {
		return nil, err
	}
	w := c.worker(e.look)
	w.hands = 4
	err := w.watch(pods.Informer(), func(obj any) []string {
		if pod, ok := obj.(*corev1.Pod); ok && pod.Spec.NodeName != "" && pod.DeletionTimestamp == nil {
			return itself(obj)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return []*worker{w}, w.watch(nodes.Informer(), func(obj any) (keys []string) {
		node, ok := obj.(*corev1.Node)
		if !ok || len(noExecute(node)) == 0 {
			return nil // a pod that waits for its time looks at the taints itself then
		}
		for _, pod := range c.podsOn(node.Name) {
			keys = append(keys, itself(pod)...)
		}
		return keys
	})
}

func noExecute(node *corev1.Node) (out []corev1.Taint) {
	for _, t := range node.Spec.Taints {
		if t.Effect == corev1.TaintEffectNoExecute {
			out = append(out, t)
		}
	}
	return out
}

func (e *evictor) look(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil //nolint:nilerr // no key of ours
	}
	pod, err := e.pods.Pods(namespace).Get(name)
	if err != nil || pod.DeletionTimestamp != nil || pod.Spec.NodeName == "" {
		return 0, ignoreGone(err)
	}
	node, err := e.nodes.Get(pod.Spec.NodeName)
	if err != nil {
		return 0, ignoreGone(err)
	}
	at, goes := endBy(pod, noExecute(node))
	if !goes {
		return 0, nil
	}
	if left := time.Until(at); left > 0 {
		return left, nil
	}
	return 0, e.evict(ctx, pod)
}

// endBy is when the pod's toleration of the taints is over.
func endBy(pod *corev1.Pod, taints []corev1.Taint) (at time.Time, goes bool) {
	for _, t := range taints {
		since := time.Time{}
		if t.TimeAdded != nil {
			since = t.TimeAdded.Time
		}
		least, ever := time.Duration(-1), false
		for _, tol := range pod.Spec.Tolerations {
			if !admission.Tolerated(t, []corev1.Toleration{tol}) {
				continue
			}
			ever = true
			if tol.TolerationSeconds != nil {
				seconds := time.Duration(max(0, *tol.TolerationSeconds)) * time.Second
				if least < 0 || seconds < least {
					least = seconds
				}
			}
		}
		switch {
		case !ever:
			return time.Time{}, true
		case least < 0:
		case !goes || since.Add(least).Before(at):
			at, goes = since.Add(least), true
		}
	}
	return at, goes
}

func (e *evictor) evict(ctx context.Context, pod *corev1.Pod) error {
	e.Events.Eventf(pod, corev1.EventTypeNormal, "TaintManagerEviction", "Marking for deletion Pod %s/%s", pod.Namespace, pod.Name)
	err := e.disrupt(ctx, pod, "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint", "")
	if err != nil {
		return err
	}
	e.Log.Info("pod is ended for its node's taints", "pod", pod.Namespace+"/"+pod.Name, "node", pod.Spec.NodeName)
	return e.deletePod(ctx, pod, nil)
}

// disrupt writes into the pod's status that and why it must go, and its phase
// unless that is empty.
func (c Config) disrupt(ctx context.Context, pod *corev1.Pod, reason, message string, phase corev1.PodPhase) error {
	status := map[string]any{"conditions": []corev1.PodCondition{{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, ObservedGeneration: pod.Generation,
		Reason: reason, Message: message, LastTransitionTime: metav1.Now(),
	}}}
	if phase != "" {
		status["phase"] = phase
	}
	return c.patchPodStatus(ctx, pod, status)
}

func (c Config) patchPodStatus(ctx context.Context, pod *corev1.Pod, status map[string]any) error {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": status})
	if err != nil {
		return fmt.Errorf("write status of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	_, err = c.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status")
	if ignoreGone(err) != nil {
		return fmt.Errorf("write status of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// deletePod deletes this very pod; with no grace given, its own counts.
func (c Config) deletePod(ctx context.Context, pod *corev1.Pod, grace *int64) error {
	err := c.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: grace, Preconditions: &metav1.Preconditions{UID: &pod.UID},
	})
	if ignoreGone(err) != nil {
		return fmt.Errorf("delete pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}
