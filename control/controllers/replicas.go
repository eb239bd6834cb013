package controllers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

const (
	replicaWorkers = 5
)

// replicaController keeps the desired number of pods for each set of one kind.
type replicaController struct {
	Config
	replicaKind

	mu           sync.Mutex
	expectations map[string]*setExpectations // by key of the set
}

// setExpectations are the creations and deletions of a set that the informer has not observed yet.
// They prevent duplicate pods when the watch is slow.
type setExpectations struct {
	setUID      types.UID
	created     map[types.UID]string // names of created pods
	lastCreated time.Time            // time of the last creation
	deleting    map[types.UID]bool   // pods being deleted
}

func newReplicaSetController(c Config) ([]*controller, error) {
	return newReplicaController(c, replicaSetKind(c))
}

func newReplicationControllerController(c Config) ([]*controller, error) {
	return newReplicaController(c, replicationControllerKind(c))
}

func newReplicaController(c Config, kind replicaKind) ([]*controller, error) {
	r := &replicaController{Config: c, replicaKind: kind, expectations: map[string]*setExpectations{}}
	if err := c.indexPods(); err != nil {
		return nil, err
	}
	ctrl := c.newController(r.sync)
	ctrl.workers = replicaWorkers
	if err := ctrl.watch(kind.informer, objectKey); err != nil {
		return nil, err
	}
	return []*controller{ctrl}, r.watchPods(ctrl)
}

// watchPods queues the sets that control or controlled a changed pod, or that may adopt it.
func (r *replicaController) watchPods(ctrl *controller) error {
	enqueue := func(pod *corev1.Pod) {
		for _, key := range r.setsOf(pod) {
			ctrl.queue.Add(key)
		}
	}
	return ctrl.addEventHandler(r.Informers.Core().V1().Pods().Informer(), cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if pod, ok := obj.(*corev1.Pod); ok {
				enqueue(pod)
			}
		},
		UpdateFunc: func(before, obj any) {
			old, ok := before.(*corev1.Pod)
			pod, newOK := obj.(*corev1.Pod)
			if !ok || !newOK {
				return
			}
			oldOwner, newOwner := controllerOf(old), controllerOf(pod)
			if oldOwner != newOwner || old.UID != pod.UID {
				enqueue(old)
			}
			if oldOwner != newOwner || newOwner != "" || !maps.Equal(old.Labels, pod.Labels) {
				enqueue(pod)
			}
		},
		DeleteFunc: func(obj any) {
			if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = tombstone.Obj
			}
			if pod, ok := obj.(*corev1.Pod); ok {
				r.podDeleted(pod.UID)
				enqueue(pod)
			}
		},
	})
}

// controllerOf returns the UID of the pod's controller, or "".
func controllerOf(pod *corev1.Pod) types.UID {
	if ref := metav1.GetControllerOfNoCopy(pod); ref != nil {
		return ref.UID
	}
	return ""
}

// setsOf returns the key of the set that controls the pod or, if it has no controller, the keys of
// the sets that select it.
func (r *replicaController) setsOf(pod *corev1.Pod) (keys []string) {
	if ref := metav1.GetControllerOfNoCopy(pod); ref != nil {
		if ref.Kind == r.Kind && ref.APIVersion == r.GroupVersion().String() {
			return []string{pod.Namespace + "/" + ref.Name}
		}
		return nil
	}
	sets, err := r.list(pod.Namespace)
	if err != nil {
		return nil // the lister reads from memory and does not fail
	}
	for _, set := range sets {
		selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
		if err == nil && selector.Matches(labels.Set(pod.Labels)) {
			keys = append(keys, objectKey(set)...)
		}
	}
	return keys
}

func (r *replicaController) sync(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil //nolint:nilerr // invalid key
	}
	set, err := r.get(namespace, name)
	if err != nil {
		r.removeExpectations(key)
		return 0, ignoreNotFound(err)
	}
	selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
	if err != nil {
		return 0, nil //nolint:nilerr // rejected by validation
	}
	candidates := r.candidatePods(set)
	unobserved, err := r.updateExpectations(ctx, key, set, candidates)
	if err != nil {
		return 0, err
	}
	pods, err := r.claim(ctx, set, selector, candidates)
	if err != nil {
		return 0, err
	}
	active, terminating := r.activeAndTerminating(key, pods)
	var manageErr error
	if set.DeletionTimestamp == nil && !unobserved {
		manageErr = r.manageReplicas(ctx, key, set, active)
	}
	status, requeueAfter := replicaStatus(set, active, terminating, manageErr, time.Now())
	if unobserved && requeueAfter == 0 {
		requeueAfter = expectationTimeout
	}
	return requeueAfter, errors.Join(manageErr, r.updateStatus(ctx, set, status))
}

// activeAndTerminating splits the pods of a set into active and terminating ones and omits
// terminated ones.
func (r *replicaController) activeAndTerminating(key string, pods []*corev1.Pod) (active, terminating []*corev1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, pod := range pods {
		switch {
		case pod.Status.Phase == corev1.PodSucceeded, pod.Status.Phase == corev1.PodFailed:
		case pod.DeletionTimestamp != nil, r.expectations[key].deleting[pod.UID]:
			terminating = append(terminating, pod)
		default:
			active = append(active, pod)
		}
	}
	return active, terminating
}

// updateExpectations removes observed pods from the expectations of the set and reports whether a
// created pod is still unobserved.
func (r *replicaController) updateExpectations(ctx context.Context, key string, set *appsv1.ReplicaSet,
	candidates []*corev1.Pod) (unobserved bool, err error) {
	r.mu.Lock()
	exp := r.expectations[key]
	if exp == nil || exp.setUID != set.UID {
		exp = &setExpectations{setUID: set.UID, created: map[types.UID]string{}}
		r.expectations[key] = exp
	}
	deleting := map[types.UID]bool{}
	for _, pod := range candidates {
		delete(exp.created, pod.UID)
		if exp.deleting[pod.UID] && pod.DeletionTimestamp == nil {
			deleting[pod.UID] = true
		}
	}
	exp.deleting = deleting
	missing := map[types.UID]string{}
	if time.Since(exp.lastCreated) >= expectationTimeout {
		maps.Copy(missing, exp.created)
	}
	r.mu.Unlock()
	for uid, name := range missing {
		pod, err := r.Client.CoreV1().Pods(set.Namespace).Get(ctx, name, metav1.GetOptions{})
		switch {
		case err == nil && pod.UID == uid:
		case err == nil, apierrors.IsNotFound(err):
			r.podDeleted(uid) // deleted before it was observed
		default:
			return true, fmt.Errorf("get pod %s/%s: %w", set.Namespace, name, err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(exp.created) > 0, nil
}

// podDeleted removes a deleted pod from all expectations.
func (r *replicaController) podDeleted(pod types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, exp := range r.expectations {
		delete(exp.created, pod)
	}
}

// removeExpectations drops the expectations of a deleted set.
func (r *replicaController) removeExpectations(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.expectations, key)
}

// updateStatus writes the status of the set if it has changed.
func (r *replicaController) updateStatus(ctx context.Context, set *appsv1.ReplicaSet,
	status appsv1.ReplicaSetStatus) error {
	out := *set
	out.Status = status
	if r.statusEqual(set, &out) {
		return nil
	}
	if err := r.updateStatusFunc(ctx, &out); ignoreNotFound(err) != nil {
		return fmt.Errorf("update status of %s %s/%s: %w", r.Kind, set.Namespace, set.Name, err)
	}
	return nil
}
