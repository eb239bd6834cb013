package controllers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"berth/workloads"
)

// workload describes a kind of workload to the reconciler. O is the type of its objects, S that of their status.
type workload[O workloads.Object, S any] struct {
	kind    schema.GroupVersionKind
	objects *objectType
	// children are the types of objects that an object of the kind controls. Their changes queue the controlling
	// object, and those of objects without a controller the objects that select them.
	children []*objectType
	// written are further types that decisions write. Their changes queue nothing.
	written []*objectType
	// related are further informers that decide reads, with the keys of the objects to queue for a change.
	related []related
	// selector selects children. An object adopts the selected ones that have no controller. Nil: it adopts none.
	selector func(O) *metav1.LabelSelector
	// decide decides about an object with the children in the informers. failed is the write of the last decision that
	// failed, or nil.
	decide func(obj O, now time.Time, failed *workloads.WriteError) workloads.Decision[S]
	// status returns the status in an object, for reading and writing.
	status func(O) *S
	// updateStatus writes the status of an object.
	updateStatus func(ctx context.Context, obj O) (O, error)
	workers      int // number of concurrent syncs, as upstream's default
	// childDelay, if set, returns how long a change of a child may wait, so that one sync handles several changes.
	childDelay func(O) time.Duration
	// synced, if set, is called after each sync, before measure, to keep what the next decision needs.
	synced func(syncReport[O, S])
	// measure, if set, updates metrics after each sync.
	measure func(syncReport[O, S])
}

// syncReport is what one sync has done.
type syncReport[O workloads.Object, S any] struct {
	object O
	// status is the status that was written. Nil: none.
	status *S
	// writes are the executed writes of decisions, with created objects as the API returned them.
	writes        []workloads.Write
	failedCreates int
	// stale is the type of a write that the informers have not observed. The sync was skipped because of it.
	stale *objectType
	err   error
	took  time.Duration
}

// has reports whether an object was written with the verb.
func (s *syncReport[O, S]) has(verb workloads.Verb) bool {
	return slices.ContainsFunc(s.writes, func(w workloads.Write) bool { return w.Verb == verb })
}

// related is an informer that a kind depends on.
type related struct {
	informer cache.SharedIndexInformer
	keys     func(obj any) []string
	// updateKeys, if set, returns the keys for an update. Nil: those of the old and of the new object.
	updateKeys func(before, after any) []string
}

// reconciler executes the decisions of one kind.
type reconciler[O workloads.Object, S any] struct {
	workload[O, S]
	executor
}

// newReconciler returns the controller of a kind of workload.
func newReconciler[O workloads.Object, S any](c Config, w workload[O, S]) (*controller, error) {
	r := &reconciler[O, S]{workload: w, executor: executor{
		kind: w.kind, objects: w.objects, types: map[reflect.Type]*objectType{}, events: c.Events, log: c.Log,
		slots: make(chan struct{}, maxConcurrentWrites),
	}}
	for _, of := range slices.Concat([]*objectType{w.objects}, w.children, w.written) {
		r.types[of.goType] = of
	}
	ctrl := c.newController(r.sync)
	ctrl.workers = w.workers
	if err := ctrl.watch(w.objects.informer, objectKey); err != nil {
		return nil, err
	}
	for _, child := range w.children {
		if err := indexByController(child.informer); err != nil {
			return nil, err
		}
		if err := ctrl.addEventHandler(child.informer, r.childHandler(ctrl, child.ignoreOwnedAdds)); err != nil {
			return nil, err
		}
	}
	for _, other := range w.written {
		ctrl.waitFor(other.informer)
	}
	for _, other := range w.related {
		if err := ctrl.addEventHandler(other.informer, relatedHandler(ctrl, other)); err != nil {
			return nil, err
		}
	}
	return ctrl, nil
}

// childHandler queues the objects that control or controlled a changed child, or that may adopt it.
func (r *reconciler[O, S]) childHandler(ctrl *controller, ignoreOwnedAdds bool) cache.ResourceEventHandlerFuncs {
	enqueue := func(obj any) {
		obj = lastKnown(obj)
		if child, ok := obj.(metav1.Object); ok {
			for _, key := range r.keysOf(child) {
				ctrl.queue.AddAfter(key, r.delayOf(key))
			}
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if child, ok := obj.(metav1.Object); ignoreOwnedAdds && ok && metav1.GetControllerOfNoCopy(child) != nil {
				return
			}
			enqueue(obj)
		},
		UpdateFunc: func(before, after any) {
			old, ok := before.(metav1.Object)
			child, childOK := after.(metav1.Object)
			if !ok || !childOK || old.GetResourceVersion() == child.GetResourceVersion() {
				return
			}
			oldOwner, owner := metav1.GetControllerOfNoCopy(old), metav1.GetControllerOfNoCopy(child)
			changed := old.GetUID() != child.GetUID() || !apiequality.Semantic.DeepEqual(oldOwner, owner)
			if changed {
				enqueue(old)
			}
			if changed || owner != nil || !maps.Equal(old.GetLabels(), child.GetLabels()) {
				enqueue(child)
			}
		},
		DeleteFunc: enqueue,
	}
}

// delayOf returns how long a change of a child of an object may wait.
func (r *reconciler[O, S]) delayOf(key string) time.Duration {
	if r.childDelay == nil {
		return 0
	}
	obj, found := r.observe(key)
	if !found {
		return 0
	}
	return r.childDelay(obj)
}

// relatedHandler queues the keys for the changes of a related informer.
func relatedHandler(ctrl *controller, of related) cache.ResourceEventHandlerFuncs {
	enqueue := func(obj any) {
		obj = lastKnown(obj)
		for _, key := range of.keys(obj) {
			ctrl.queue.Add(key)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: enqueue,
		UpdateFunc: func(before, after any) {
			if of.updateKeys == nil {
				enqueue(before)
				enqueue(after)
				return
			}
			for _, key := range of.updateKeys(before, after) {
				ctrl.queue.Add(key)
			}
		},
		DeleteFunc: enqueue,
	}
}

// keysOf returns the key of the object that controls a child or, if it has no controller, the keys of the objects
// that select it.
func (r *reconciler[O, S]) keysOf(child metav1.Object) (keys []string) {
	if metav1.GetControllerOfNoCopy(child) != nil {
		return r.childKeys(child)
	}
	if r.selector == nil {
		return nil
	}
	list, err := r.workload.objects.informer.GetIndexer().ByIndex(cache.NamespaceIndex, child.GetNamespace())
	if err != nil {
		return nil // the informers of a factory have this index
	}
	for _, o := range list {
		obj, ok := o.(O)
		if !ok {
			continue
		}
		selector, err := metav1.LabelSelectorAsSelector(r.selector(obj))
		if err == nil && !selector.Empty() && selector.Matches(labels.Set(child.GetLabels())) {
			keys = append(keys, objectKey(obj)...)
		}
	}
	return keys
}

// sync decides about the object with the given key and executes the decision.
func (r *reconciler[O, S]) sync(ctx context.Context, key string) (time.Duration, error) {
	obj, found := r.observe(key)
	if !found {
		r.expectations.forget(key)
		return 0, nil
	}
	start := time.Now()
	if wait, stale, err := r.expectations.wait(ctx, key, obj.GetUID()); wait > 0 || err != nil {
		r.report(syncReport[O, S]{object: obj, stale: stale, err: err, took: time.Since(start)})
		return wait, err
	}
	if obj, found = r.observe(key); !found { // again: it may have been older than an own write
		return 0, nil
	}
	x := r.start(key, obj)
	again, err := r.reconcile(ctx, x, obj)
	status, _ := x.status.(*S) // nil if none was written
	r.report(syncReport[O, S]{object: obj, status: status, writes: x.executed, failedCreates: x.failedCreates, err: err,
		took: time.Since(start)})
	return again, err
}

func (r *reconciler[O, S]) report(s syncReport[O, S]) {
	if r.synced != nil {
		r.synced(s)
	}
	if r.measure != nil {
		r.measure(s)
	}
}

// reconcile decides about an object and executes the decision.
func (r *reconciler[O, S]) reconcile(ctx context.Context, x *execution, obj O) (time.Duration, error) {
	key := x.key
	if failed := r.expectations.takeFailure(key); failed != nil {
		return time.Millisecond, r.finish(ctx, x, obj, r.decide(obj, time.Now(), failed))
	}
	decision := r.decide(obj, time.Now(), nil)
	switch err := x.apply(ctx, decision.Writes); {
	case errors.Is(err, errNamespaceTerminating):
		return 0, nil
	case errors.Is(err, errOutdated):
		return 0, x.outdated(err)
	case errors.Is(err, workloads.ErrTruncated):
		return r.continueLater(ctx, x, obj, err)
	case err != nil:
		return r.fail(ctx, x, obj, err)
	}
	if err := r.finish(ctx, x, obj, decision); err != nil {
		return 0, err
	}
	return untilWake(decision.Wake), nil
}

// untilWake returns how long a key waits until the wake time of a decision, or 0 if there is none.
func untilWake(wake time.Time) time.Duration {
	if wake.IsZero() {
		return 0
	}
	return max(time.Until(wake), time.Millisecond)
}

// fail writes the status that follows from a failed write, and returns the error for the retry and when to decide at
// the latest, for example because of a deadline.
func (r *reconciler[O, S]) fail(ctx context.Context, x *execution, obj O, err error) (again time.Duration, _ error) {
	_, again, statusErr := r.writeFailure(ctx, x, obj, err)
	return again, fmt.Errorf("sync %s: %w", r.workload.kind.Kind, errors.Join(err, statusErr))
}

// continueLater writes the status of a sync that has reached the limit of writes. The next sync continues.
func (r *reconciler[O, S]) continueLater(ctx context.Context, x *execution, obj O, err error) (time.Duration, error) {
	written, _, err := r.writeFailure(ctx, x, obj, err)
	if !written {
		return expectationTimeout, err // at the latest: observed writes queue the object
	}
	return time.Millisecond, err
}

// writeFailure decides about the failed write in err, if there is one, and writes the status. It reports false if
// other writes of the sync are not observed yet. The next sync writes the status then.
func (r *reconciler[O, S]) writeFailure(ctx context.Context, x *execution, obj O,
	err error) (written bool, again time.Duration, _ error) {
	failed := (*workloads.WriteError)(nil)
	if !errors.As(err, &failed) || ctx.Err() != nil {
		return false, 0, nil //nolint:nilerr // the caller returns err
	}
	if _, found := r.expectations.unobserved(x.key, obj.GetUID()); found {
		r.expectations.keepFailure(x.key, obj.GetUID(), failed)
		return false, 0, nil
	}
	decision := r.decide(obj, time.Now(), failed)
	return true, untilWake(decision.Wake), r.finish(ctx, x, obj, decision)
}

// finish writes the status of a decision and records its events.
func (r *reconciler[O, S]) finish(ctx context.Context, x *execution, obj O, d workloads.Decision[S]) error {
	if err := r.writeStatus(ctx, x, obj, d); err != nil {
		return err
	}
	for _, e := range d.Events {
		x.record(e, "")
	}
	return nil
}

// observe returns the object in the informer.
func (r *reconciler[O, S]) observe(key string) (obj O, found bool) {
	obj, found = r.workload.objects.stored(key).(O)
	return obj, found
}

// writeStatus writes the status and the annotations of a decision if they differ from the observed ones.
func (r *reconciler[O, S]) writeStatus(ctx context.Context, x *execution, obj O, d workloads.Decision[S]) error {
	if d.Status == nil {
		return nil
	}
	next := mustBe[O](copyOf(obj))
	*r.status(next) = *d.Status
	if len(d.Annotations) > 0 {
		annotations := maps.Clone(obj.GetAnnotations())
		if annotations == nil {
			annotations = map[string]string{}
		}
		maps.Copy(annotations, d.Annotations)
		next.SetAnnotations(annotations)
	}
	if apiequality.Semantic.DeepEqual(*r.status(obj), *d.Status) &&
		maps.Equal(obj.GetAnnotations(), next.GetAnnotations()) {
		return nil
	}
	next.SetResourceVersion(x.version)
	written, err := r.updateStatus(ctx, next)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case apierrors.IsConflict(err):
		return x.outdated(err)
	case err != nil:
		return fmt.Errorf("update status: %w", err)
	}
	x.expect(r.workload.objects, written)
	x.status = d.Status
	return nil
}
