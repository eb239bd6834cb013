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
	podGarbagePeriod = 20 * time.Second
	// A pod whose node is unknown waits that long: the node may be just coming.
	nodeQuarantine = 40 * time.Second
)

// sweeper removes pods that no node will ever report on again.
type sweeper struct {
	Config

	pods  corelisters.PodLister
	nodes corelisters.NodeLister
	gone  map[string]time.Time // nodes that pods name and nobody knows, since when
}

func podGarbage(c Config) ([]*worker, error) {
	pods, nodes := c.Informers.Core().V1().Pods(), c.Informers.Core().V1().Nodes()
	s := &sweeper{Config: c, pods: pods.Lister(), nodes: nodes.Lister(), gone: map[string]time.Time{}}
	w := c.worker(func(context.Context, string) (time.Duration, error) { return 0, nil })
	w.needs(pods.Informer(), nodes.Informer())
	w.also = every(podGarbagePeriod, s.sweep)
	return []*worker{w}, nil
}

func (s *sweeper) sweep(ctx context.Context) {
	pods, err := s.pods.List(labels.Everything())
	if err != nil {
		return // a lister over memory has no errors
	}
	s.sweepEnded(ctx, pods)
	s.findGone(pods)
	for _, pod := range pods {
		switch {
		case pod.Spec.NodeName == "" && pod.DeletionTimestamp != nil:
			s.remove(ctx, pod, "")
		case pod.Spec.NodeName != "" && s.lost(ctx, pod.Spec.NodeName):
			s.remove(ctx, pod, "PodGC: node no longer exists")
		case pod.DeletionTimestamp != nil && s.outOfService(pod):
			s.remove(ctx, pod, "PodGC: node is out of service")
		}
	}
}

// sweepEnded removes the oldest of the ended pods, if there are too many.
func (s *sweeper) sweepEnded(ctx context.Context, pods []*corev1.Pod) {
	var ended []*corev1.Pod
	for _, pod := range pods {
		if p := pod.Status.Phase; p == corev1.PodSucceeded || p == corev1.PodFailed {
			ended = append(ended, pod)
		}
	}
	if len(ended) <= s.TerminatedPods {
		return
	}
	slices.SortFunc(ended, func(a, b *corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	for _, pod := range ended[:len(ended)-s.TerminatedPods] {
		s.remove(ctx, pod, "")
	}
}

// findGone keeps since when a node that pods name is unknown.
func (s *sweeper) findGone(pods []*corev1.Pod) {
	named := map[string]bool{}
	for _, pod := range pods {
		if name := pod.Spec.NodeName; name != "" {
			if _, err := s.nodes.Get(name); apierrors.IsNotFound(err) {
				named[name] = true
			}
		}
	}
	for name := range s.gone {
		if !named[name] {
			delete(s.gone, name)
		}
	}
	for name := range named {
		if _, known := s.gone[name]; !known {
			s.gone[name] = time.Now()
		}
	}
}

// lost reports whether the node has been unknown long enough, and is so to the
// server too.
func (s *sweeper) lost(ctx context.Context, name string) bool {
	since, ok := s.gone[name]
	if !ok || time.Since(since) < nodeQuarantine {
		return false
	}
	_, err := s.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	return apierrors.IsNotFound(err)
}

func (s *sweeper) outOfService(pod *corev1.Pod) bool {
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
func (s *sweeper) remove(ctx context.Context, pod *corev1.Pod, why string) {
	ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	err := error(nil)
	if why != "" && !ended {
		err = s.disrupt(ctx, pod, "DeletionByPodGC", why, corev1.PodFailed)
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
