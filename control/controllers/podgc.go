package controllers

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"

	"berth/admission"
)

const (
	podGCPeriod = 20 * time.Second
	// nodeQuarantine is how long a node must be missing before its pods are deleted. It may be
	// registering.
	nodeQuarantine = 40 * time.Second
)

// podGCController deletes pods that no node will report on again.
type podGCController struct {
	Config

	pods         corelisters.PodLister
	nodes        corelisters.NodeLister
	missingNodes map[string]time.Time // nodes that pods refer to and that do not exist, and since when
}

func newPodGCController(c Config) ([]*controller, error) {
	pods, nodes := c.Informers.Core().V1().Pods(), c.Informers.Core().V1().Nodes()
	s := &podGCController{Config: c, pods: pods.Lister(), nodes: nodes.Lister(), missingNodes: map[string]time.Time{}}
	ctrl := c.newController(func(context.Context, string) (time.Duration, error) { return 0, nil })
	ctrl.waitFor(pods.Informer(), nodes.Informer())
	ctrl.background = periodically(podGCPeriod, s.collect)
	return []*controller{ctrl}, nil
}

func (s *podGCController) collect(ctx context.Context) {
	pods, err := s.pods.List(labels.Everything())
	if err != nil {
		return // the lister reads from memory and does not fail
	}
	s.collectTerminated(ctx, pods)
	s.updateMissingNodes(pods)
	for _, pod := range pods {
		switch {
		case pod.Spec.NodeName == "" && pod.DeletionTimestamp != nil:
			s.remove(ctx, pod, "")
		case pod.Spec.NodeName != "" && s.nodeRemoved(ctx, pod.Spec.NodeName):
			s.remove(ctx, pod, "PodGC: node no longer exists")
		case pod.DeletionTimestamp != nil && s.outOfService(pod):
			s.remove(ctx, pod, "PodGC: node is out of service")
		}
	}
}

// collectTerminated deletes the oldest terminated pods beyond the threshold.
func (s *podGCController) collectTerminated(ctx context.Context, pods []*corev1.Pod) {
	var terminated []*corev1.Pod
	for _, pod := range pods {
		if p := pod.Status.Phase; p == corev1.PodSucceeded || p == corev1.PodFailed {
			terminated = append(terminated, pod)
		}
	}
	if len(terminated) <= s.TerminatedPodGCThreshold {
		return
	}
	slices.SortFunc(terminated, func(a, b *corev1.Pod) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	for _, pod := range terminated[:len(terminated)-s.TerminatedPodGCThreshold] {
		s.remove(ctx, pod, "")
	}
}

// updateMissingNodes records since when the nodes that pods refer to have been missing.
func (s *podGCController) updateMissingNodes(pods []*corev1.Pod) {
	missing := map[string]bool{}
	for _, pod := range pods {
		if name := pod.Spec.NodeName; name != "" {
			if _, err := s.nodes.Get(name); apierrors.IsNotFound(err) {
				missing[name] = true
			}
		}
	}
	for name := range s.missingNodes {
		if !missing[name] {
			delete(s.missingNodes, name)
		}
	}
	for name := range missing {
		if _, known := s.missingNodes[name]; !known {
			s.missingNodes[name] = time.Now()
		}
	}
}

// nodeRemoved reports whether the node has been missing for long enough, confirmed by the API
// server.
func (s *podGCController) nodeRemoved(ctx context.Context, name string) bool {
	since, ok := s.missingNodes[name]
	if !ok || time.Since(since) < nodeQuarantine {
		return false
	}
	_, err := s.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	return apierrors.IsNotFound(err)
}

func (s *podGCController) outOfService(pod *corev1.Pod) bool {
	node, err := s.nodes.Get(pod.Spec.NodeName)
	if err != nil {
		return false
	}
	ready := nodeCondition(node, corev1.NodeReady)
	return (ready == nil || ready.Status != corev1.ConditionTrue) && slices.ContainsFunc(node.Spec.Taints,
		func(t corev1.Taint) bool {
			return t.Key == corev1.TaintNodeOutOfService && !admission.Tolerated(t, pod.Spec.Tolerations)
		})
}

// remove force-deletes a pod. A pod that may have run is marked as failed first, so that its
// controller counts it as failed.
func (s *podGCController) remove(ctx context.Context, pod *corev1.Pod, reason string) {
	terminated := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	err := error(nil)
	if reason != "" && !terminated {
		_, err = s.markDisrupted(ctx, pod, "DeletionByPodGC", reason, corev1.PodFailed)
	}
	if err == nil {
		err = s.deletePod(ctx, pod, new(int64))
	}
	if err != nil {
		s.Log.Warn("pod deletion failed", "pod", pod.Namespace+"/"+pod.Name, "err", err)
		return
	}
	s.Log.Info("pod deleted", "pod", pod.Namespace+"/"+pod.Name, "reason", reason)
}
