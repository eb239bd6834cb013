package controllers

import (
	"context"
	"fmt"
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
	// A pod whose node is unknown waits that long: the node may be just coming.
	nodeQuarantine = 40 * time.Second
)

// podGCController removes pods that no node will ever report on again.
type podGCController struct {
	Config

	pods         corelisters.PodLister
	nodes        corelisters.NodeLister
	missingNodes map[string]time.Time // nodes that pods name and nobody knows, since when
}

func newPodGCController(c Config) ([]*controller, error) {
	pods, nodes := c.Informers.Core().V1().Pods(), c.Informers.Core().V1().Nodes()
	s := &podGCController{Config: c, pods: pods.Lister(), nodes: nodes.Lister(), missingNodes: map[string]time.Time{}}
	w := c.newController(func(context.Context, string) (time.Duration, error) { return 0, nil })
	w.waitFor(pods.Informer(), nodes.Informer())
	w.background = periodically(podGCPeriod, s.collect)
	return []*controller{w}, nil
}

func (s *podGCController) collect(ctx context.Context) {
	pods, err := s.pods.List(labels.Everything())
	if err != nil {
		return // a lister over memory has no errors
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

// collectTerminated removes the oldest of the ended pods, if there are too many.
func (s *podGCController) collectTerminated(ctx context.Context, pods []*corev1.Pod) {
	var ended []*corev1.Pod
	for _, pod := range pods {
		if p := pod.Status.Phase; p == corev1.PodSucceeded || p == corev1.PodFailed {
			ended = append(ended, pod)
		}
	}
	if len(ended) <= s.TerminatedPodGCThreshold {
		return
	}
	slices.SortFunc(ended, func(a, b *corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	for _, pod := range ended[:len(ended)-s.TerminatedPodGCThreshold] {
		s.remove(ctx, pod, "")
	}
}

// updateMissingNodes keeps since when a node that pods name is unknown.
func (s *podGCController) updateMissingNodes(pods []*corev1.Pod) {
	named := map[string]bool{}
	for _, pod := range pods {
		if name := pod.Spec.NodeName; name != "" {
			if _, err := s.nodes.Get(name); apierrors.IsNotFound(err) {
				named[name] = true
			}
		}
	}
	for name := range s.missingNodes {
		if !named[name] {
			delete(s.missingNodes, name)
		}
	}
	for name := range named {
		if _, known := s.missingNodes[name]; !known {
			s.missingNodes[name] = time.Now()
		}
	}
}

// nodeRemoved reports whether the node has been unknown long enough, and is so to the
// server too.
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
	return (ready == nil || ready.Status != corev1.ConditionTrue) && slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == corev1.TaintNodeOutOfService && !admission.Tolerated(t, pod.Spec.Tolerations)
	})
}

// remove ends a pod in the API at once; one that may have run is marked failed
// first, so that its owner counts it.
func (s *podGCController) remove(ctx context.Context, pod *corev1.Pod, why string) {
	ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	err := error(nil)
	if why != "" && !ended {
		err = s.markDisrupted(ctx, pod, "DeletionByPodGC", why, corev1.PodFailed)
	}
	if err == nil {
		err = s.deletePod(ctx, pod, new(int64))
	}
	if err != nil {
		s.Log.Warn("garbage stays", "pod", pod.Namespace+"/"+pod.Name, "error", fmt.Errorf("remove: %w", err))
		return
	}
	s.Log.Info("pod is removed", "pod", pod.Namespace+"/"+pod.Name, "why", why)
}
