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
	// burstReplicas is how many pods of a set are made or deleted at a look; the rest
	// follows when the watch has told of them.
	burstReplicas = 500
	// expectationTimeout is how long a pod that was made may be missing from the watch before
	// the server is asked what became of it.
	expectationTimeout = 5 * time.Second
)

// replicaController keeps as many pods as each set of one kind wants: those that its
// selector finds and that it controls.
type replicaController struct {
	Config
	replicaKind

	mu           sync.Mutex
	expectations map[string]*expectations // by the set's key
}

// expectations is what was done for a set and the watch has not told of. Without it a slow
// watch would make for pods that are made twice.
type expectations struct {
	setUID      types.UID
	created     map[types.UID]string // pods, with their names
	lastCreated time.Time            // of the last that was made
	deleting    map[types.UID]bool   // pods that are deleted
}

func newReplicaSetController(c Config) ([]*controller, error) {
	return newReplicaController(c, replicaSetKind(c))
}

func newReplicationControllerController(c Config) ([]*controller, error) {
	return newReplicaController(c, replicationControllerKind(c))
}

func newReplicaController(c Config, kind replicaKind) ([]*controller, error) {
	r := &replicaController{Config: c, replicaKind: kind, expectations: map[string]*expectations{}}
	if err := c.indexPods(); err != nil {
		return nil, err
	}
	w := c.newController(r.sync)
	w.workers = replicaWorkers
	if err := w.watch(kind.informer, objectKey); err != nil {
		return nil, err
	}
	return []*controller{w}, r.watchPods(w)
}

// watchPods tells the worker the sets that a pod belongs to, did belong to, or may
// come to belong to.
func (r *replicaController) watchPods(w *controller) error {
	tell := func(pod *corev1.Pod) {
		for _, key := range r.setsOf(pod) {
			w.queue.Add(key)
		}
	}
	return w.addEventHandler(r.Informers.Core().V1().Pods().Informer(), cache.ResourceEventHandlerFuncs{
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
				r.podDeleted(pod.UID)
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
func (r *replicaController) setsOf(pod *corev1.Pod) (keys []string) {
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
			keys = append(keys, objectKey(set)...)
		}
	}
	return keys
}

func (r *replicaController) sync(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil //nolint:nilerr // no key of ours
	}
	set, err := r.get(namespace, name)
	if err != nil {
		r.removeExpectations(key)
		return 0, ignoreNotFound(err)
	}
	selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
	if err != nil {
		return 0, nil //nolint:nilerr // validation lets none in
	}
	known := r.candidatePods(set)
	unseen, err := r.updateExpectations(ctx, key, set, known)
	if err != nil {
		return 0, err
	}
	pods, err := r.claim(ctx, set, selector, known)
	if err != nil {
		return 0, err
	}
	there, ending := r.activeAndTerminating(key, pods)
	var failed error
	if set.DeletionTimestamp == nil && !unseen {
		failed = r.manageReplicas(ctx, key, set, there)
	}
	status, again := replicaStatus(set, there, ending, failed, time.Now())
	if unseen && again == 0 {
		again = expectationTimeout
	}
	return again, errors.Join(failed, r.updateStatus(ctx, set, status))
}

// activeAndTerminating parts the pods of a set into those that count and those that are ending; what
// has ended is neither.
func (r *replicaController) activeAndTerminating(key string, pods []*corev1.Pod) (there, ending []*corev1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, pod := range pods {
		switch {
		case pod.Status.Phase == corev1.PodSucceeded, pod.Status.Phase == corev1.PodFailed:
		case pod.DeletionTimestamp != nil, r.expectations[key].deleting[pod.UID]:
			ending = append(ending, pod)
		default:
			there = append(there, pod)
		}
	}
	return there, ending
}

// updateExpectations strikes out of the set's ledger what the watch has told of by now, and
// reports whether a pod that was made is still missing.
func (r *replicaController) updateExpectations(ctx context.Context, key string, set *appsv1.ReplicaSet, known []*corev1.Pod) (unseen bool, err error) {
	r.mu.Lock()
	l := r.expectations[key]
	if l == nil || l.setUID != set.UID {
		l = &expectations{setUID: set.UID, created: map[types.UID]string{}}
		r.expectations[key] = l
	}
	doomed := map[types.UID]bool{}
	for _, pod := range known {
		delete(l.created, pod.UID)
		if l.deleting[pod.UID] && pod.DeletionTimestamp == nil {
			doomed[pod.UID] = true
		}
	}
	l.deleting = doomed
	missing := map[types.UID]string{}
	if time.Since(l.lastCreated) >= expectationTimeout {
		maps.Copy(missing, l.created)
	}
	r.mu.Unlock()
	for uid, name := range missing {
		pod, err := r.Client.CoreV1().Pods(set.Namespace).Get(ctx, name, metav1.GetOptions{})
		switch {
		case err == nil && pod.UID == uid:
		case err == nil, apierrors.IsNotFound(err):
			r.podDeleted(uid) // it went faster than the answer that it was made came
		default:
			return true, fmt.Errorf("look for pod %s/%s: %w", set.Namespace, name, err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(l.created) > 0, nil
}

// podDeleted strikes a pod that is gone out of the ledgers.
func (r *replicaController) podDeleted(pod types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.expectations {
		delete(l.created, pod)
	}
}

// removeExpectations drops what is known of a set that is gone.
func (r *replicaController) removeExpectations(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.expectations, key)
}

// updateStatus writes the set's status if it has changed.
func (r *replicaController) updateStatus(ctx context.Context, set *appsv1.ReplicaSet, status appsv1.ReplicaSetStatus) error {
	out := *set
	out.Status = status
	if r.statusEqual(set, &out) {
		return nil
	}
	if err := r.updateStatusFunc(ctx, &out); ignoreNotFound(err) != nil {
		return fmt.Errorf("write status of %s %s/%s: %w", r.Kind, set.Namespace, set.Name, err)
	}
	return nil
}
