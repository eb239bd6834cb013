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
	replicaHands = 5
	// replicaBurst is how many pods of a set are made or deleted at a look; the rest
	// follows when the watch has told of them.
	replicaBurst = 500
	// unseenFor is how long a pod that was made may be missing from the watch before
	// the server is asked what became of it.
	unseenFor = 5 * time.Second
)

// replicator keeps as many pods as each set of one kind wants: those that its
// selector finds and that it controls.
type replicator struct {
	Config
	replicaKind

	mu      sync.Mutex
	ledgers map[string]*ledger // by the set's key
}

// ledger is what was done for a set and the watch has not told of. Without it a slow
// watch would make for pods that are made twice.
type ledger struct {
	set    types.UID
	made   map[types.UID]string // pods, with their names
	since  time.Time            // of the last that was made
	doomed map[types.UID]bool   // pods that are deleted
}

func replicaSets(c Config) ([]*worker, error) { return replicas(c, replicaSetKind(c)) }

func replicationControllers(c Config) ([]*worker, error) {
	return replicas(c, replicationControllerKind(c))
}

func replicas(c Config, kind replicaKind) ([]*worker, error) {
	r := &replicator{Config: c, replicaKind: kind, ledgers: map[string]*ledger{}}
	if err := c.indexPods(); err != nil {
		return nil, err
	}
	w := c.worker(r.look)
	w.hands = replicaHands
	if err := w.watch(kind.informer, itself); err != nil {
		return nil, err
	}
	return []*worker{w}, r.watchPods(w)
}

// watchPods tells the worker the sets that a pod belongs to, did belong to, or may
// come to belong to.
func (r *replicator) watchPods(w *worker) error {
	tell := func(pod *corev1.Pod) {
		for _, key := range r.setsOf(pod) {
			w.queue.Add(key)
		}
	}
	return w.handle(r.Informers.Core().V1().Pods().Informer(), cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if pod, ok := obj.(*corev1.Pod); ok {
				tell(pod)
			}
		},
		UpdateFunc: func(before, obj any) {
			old, ok := before.(*corev1.Pod)
			pod, too := obj.(*corev1.Pod)
			if !ok || !too {
				return
			}
			was, is := controllerOf(old), controllerOf(pod)
			if was != is || old.UID != pod.UID {
				tell(old)
			}
			if was != is || is != "" || !maps.Equal(old.Labels, pod.Labels) {
				tell(pod)
			}
		},
		DeleteFunc: func(obj any) {
			if lost, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = lost.Obj
			}
			if pod, ok := obj.(*corev1.Pod); ok {
				r.vanished(pod.UID)
				tell(pod)
			}
		},
	})
}

// controllerOf is the UID of the pod's controller; "": it has none.
func controllerOf(pod *corev1.Pod) types.UID {
	if ref := metav1.GetControllerOfNoCopy(pod); ref != nil {
		return ref.UID
	}
	return ""
}

// setsOf are the keys of the set that controls the pod or, if nothing controls it,
// of those that select it.
func (r *replicator) setsOf(pod *corev1.Pod) (keys []string) {
	if ref := metav1.GetControllerOfNoCopy(pod); ref != nil {
		if ref.Kind == r.Kind && ref.APIVersion == r.GroupVersion().String() {
			return []string{pod.Namespace + "/" + ref.Name}
		}
		return nil
	}
	sets, err := r.list(pod.Namespace)
	if err != nil {
		return nil // a lister over memory has no errors
	}
	for _, set := range sets {
		selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
		if err == nil && selector.Matches(labels.Set(pod.Labels)) {
			keys = append(keys, itself(set)...)
		}
	}
	return keys
}

func (r *replicator) look(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil //nolint:nilerr // no key of ours
	}
	set, err := r.get(namespace, name)
	if err != nil {
		r.forget(key)
		return 0, ignoreGone(err)
	}
	selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
	if err != nil {
		return 0, nil //nolint:nilerr // validation lets none in
	}
	known := r.known(set)
	unseen, err := r.settle(ctx, key, set, known)
	if err != nil {
		return 0, err
	}
	pods, err := r.claim(ctx, set, selector, known)
	if err != nil {
		return 0, err
	}
	there, ending := r.sort(key, pods)
	var failed error
	if set.DeletionTimestamp == nil && !unseen {
		failed = r.manage(ctx, key, set, there)
	}
	status, again := replicaStatus(set, there, ending, failed, time.Now())
	if unseen && again == 0 {
		again = unseenFor
	}
	return again, errors.Join(failed, r.tell(ctx, set, status))
}

// sort parts the pods of a set into those that count and those that are ending; what
// has ended is neither.
func (r *replicator) sort(key string, pods []*corev1.Pod) (there, ending []*corev1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, pod := range pods {
		switch {
		case pod.Status.Phase == corev1.PodSucceeded, pod.Status.Phase == corev1.PodFailed:
		case pod.DeletionTimestamp != nil, r.ledgers[key].doomed[pod.UID]:
			ending = append(ending, pod)
		default:
			there = append(there, pod)
		}
	}
	return there, ending
}

// settle strikes out of the set's ledger what the watch has told of by now, and
// reports whether a pod that was made is still missing.
func (r *replicator) settle(ctx context.Context, key string, set *appsv1.ReplicaSet, known []*corev1.Pod) (unseen bool, err error) {
	r.mu.Lock()
	l := r.ledgers[key]
	if l == nil || l.set != set.UID {
		l = &ledger{set: set.UID, made: map[types.UID]string{}}
		r.ledgers[key] = l
	}
	doomed := map[types.UID]bool{}
	for _, pod := range known {
		delete(l.made, pod.UID)
		if l.doomed[pod.UID] && pod.DeletionTimestamp == nil {
			doomed[pod.UID] = true
		}
	}
	l.doomed = doomed
	missing := map[types.UID]string{}
	if time.Since(l.since) >= unseenFor {
		maps.Copy(missing, l.made)
	}
	r.mu.Unlock()
	for uid, name := range missing {
		pod, err := r.Client.CoreV1().Pods(set.Namespace).Get(ctx, name, metav1.GetOptions{})
		switch {
		case err == nil && pod.UID == uid:
		case err == nil, apierrors.IsNotFound(err):
			r.vanished(uid) // it went faster than the answer that it was made came
		default:
			return true, fmt.Errorf("look for pod %s/%s: %w", set.Namespace, name, err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(l.made) > 0, nil
}

// vanished strikes a pod that is gone out of the ledgers.
func (r *replicator) vanished(pod types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.ledgers {
		delete(l.made, pod)
	}
}

// forget drops what is known of a set that is gone.
func (r *replicator) forget(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.ledgers, key)
}

// tell writes the set's status if it has changed.
func (r *replicator) tell(ctx context.Context, set *appsv1.ReplicaSet, status appsv1.ReplicaSetStatus) error {
	out := *set
	out.Status = status
	if r.same(set, &out) {
		return nil
	}
	if err := r.write(ctx, &out); ignoreGone(err) != nil {
		return fmt.Errorf("write status of %s %s/%s: %w", r.Kind, set.Namespace, set.Name, err)
	}
	return nil
}
