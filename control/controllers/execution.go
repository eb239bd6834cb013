package controllers

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"reflect"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/record"

	"berth/workloads"
)

// burstReplicas is the maximum number of objects created or deleted in one sync. The rest follows when the
// informers have observed them.
const burstReplicas = 500

// maxConcurrentWrites is the number of writes of one kind of workload that are in flight at once. The API server
// handles at most 200 writes at once. It rejects others, of all its clients, which then wait for a second.
const maxConcurrentWrites = 50

var (
	// errOutdated ends a sync that was decided on an old observation. The next one observes more.
	errOutdated = errors.New("observation outdated")
	// errNamespaceTerminating ends a sync without a retry: the object is deleted together with its namespace.
	errNamespaceTerminating = errors.New("namespace is being terminated")
)

// executor executes the writes of decisions for one kind. It is safe for concurrent use.
type executor struct {
	kind         schema.GroupVersionKind
	objects      *objectType
	types        map[reflect.Type]*objectType
	events       record.EventRecorder
	log          *slog.Logger
	expectations expectations
	slots        chan struct{} // capacity maxConcurrentWrites
}

// execution executes one decision.
type execution struct {
	*executor
	key   string
	owner workloads.Object // as observed
	// version is the resource version of owner, updated by own writes.
	version  string
	verified bool
	budget   int // how many objects may still be created or deleted

	// status is the written status, a pointer. Nil: none was written.
	status any
	// mu guards the executed writes, with created objects as the API returned them, and the number of failed ones.
	mu            sync.Mutex
	executed      []workloads.Write
	failedCreates int
}

func (x *executor) start(key string, owner workloads.Object) *execution {
	return &execution{executor: x, key: key, owner: owner, version: owner.GetResourceVersion(), budget: burstReplicas}
}

// apply executes writes in order. It stops at the first failure, which is a *workloads.WriteError or one of the
// errors above. A sync that has reached burstReplicas stops with a *workloads.WriteError of workloads.ErrTruncated.
func (x *execution) apply(ctx context.Context, writes []workloads.Write) error {
	for len(writes) > 0 {
		n := leadingGroup(writes)
		if err := x.applyGroup(ctx, writes[:n]); err != nil {
			return err
		}
		writes = writes[n:]
	}
	return nil
}

// leadingGroup returns how many writes at the start have the same verb and type.
func leadingGroup(writes []workloads.Write) int {
	for i := range writes {
		if writes[i].Verb != writes[0].Verb ||
			reflect.TypeOf(writes[i].Object) != reflect.TypeOf(writes[0].Object) {
			return i
		}
	}
	return len(writes)
}

// applyGroup executes writes of one verb and type concurrently. Creates are sent in batches of 1, 2, 4 and so on, so
// that a request that is always rejected is sent once instead of n times.
func (x *execution) applyGroup(ctx context.Context, writes []workloads.Write) error {
	verb, all := writes[0].Verb, writes
	if verb == workloads.Create || verb == workloads.Delete {
		writes = writes[:min(len(all), x.budget)]
		x.budget -= len(writes)
	}
	if err := x.verifyOwner(ctx, writes); err != nil {
		return err
	}
	size := len(writes)
	if verb == workloads.Create {
		size = 1
	}
	for done := 0; done < len(writes); size *= 2 {
		batch := writes[done:min(done+size, len(writes))]
		if err := inParallel(len(batch), func(i int) error {
			x.slots <- struct{}{}
			defer func() { <-x.slots }()
			return x.write(ctx, batch[i])
		}); err != nil {
			return err
		}
		done += len(batch)
	}
	if len(writes) > 0 {
		x.log.Info("objects written", "key", x.key, "verb", verb.String(),
			"type", x.types[reflect.TypeOf(writes[0].Object)].goType.Elem().Name(), "count", len(writes))
	}
	if len(writes) < len(all) {
		return &workloads.WriteError{Write: all[len(writes)], Err: workloads.ErrTruncated}
	}
	return nil
}

// verifyOwner reads the decided object from the API if a write demands it.
func (x *execution) verifyOwner(ctx context.Context, writes []workloads.Write) error {
	for _, w := range writes {
		if !w.VerifyOwner || x.verified {
			continue
		}
		live, err := x.objects.get(ctx, x.owner.GetNamespace(), x.owner.GetName())
		switch {
		case apierrors.IsNotFound(err):
			return errOutdated
		case err != nil:
			return &workloads.WriteError{Write: w, Err: err}
		case live.GetUID() != x.owner.GetUID(), live.GetDeletionTimestamp() != nil:
			return errOutdated
		}
		x.verified = true
	}
	return nil
}

// write executes one write.
func (x *execution) write(ctx context.Context, w workloads.Write) error {
	r := x.types[reflect.TypeOf(w.Object)]
	written, err := w.Object, error(nil)
	switch w.Verb {
	case workloads.Create:
		// The decision is a value that the client must not modify.
		written, err = r.create(ctx, copyOf(w.Object))
		if apierrors.IsAlreadyExists(err) {
			err = cmp.Or(x.confirmExists(ctx, r, w.Object), err)
		}
	case workloads.Update:
		written, err = r.update(ctx, copyOf(w.Object))
	case workloads.Patch:
		var body []byte
		if body, err = patchBody(w); err == nil {
			written, err = r.patch(ctx, w.Base, body)
		}
	case workloads.Delete:
		if err = r.remove(ctx, w.Object, w.Propagation); err == nil || replaced(err) {
			x.expectations.expectDeletion(x.key, x.owner.GetUID(), r, w.Object)
		}
	}
	switch {
	case w.Verb == workloads.Delete && replaced(err):
		return nil // the object was gone already
	case errors.Is(err, errOutdated), w.Verb != workloads.Create && apierrors.IsConflict(err):
		return errOutdated
	case replaced(err):
		x.expectations.expectDeletion(x.key, x.owner.GetUID(), r, w.Object)
		return errOutdated
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return errNamespaceTerminating
	case err != nil:
		if !apierrors.IsAlreadyExists(err) {
			x.record(w.Failure, err.Error())
		}
		if w.Verb == workloads.Create {
			x.mu.Lock()
			x.failedCreates++
			x.mu.Unlock()
		}
		return &workloads.WriteError{Write: w, Err: err}
	}
	if w.Verb != workloads.Delete {
		x.expect(r, written)
	}
	w.Object = written
	x.mu.Lock()
	x.executed = append(x.executed, w)
	x.mu.Unlock()
	x.record(w.Success, written.GetName())
	return nil
}

// expect records a write that the informers have to observe before the next decision.
func (x *execution) expect(r *objectType, written workloads.Object) {
	x.expectations.expectVersion(x.key, x.owner.GetUID(), r, written)
	if written.GetUID() == x.owner.GetUID() {
		x.version = written.GetResourceVersion()
	}
}

// confirmExists returns errOutdated if the informer has not observed the object that prevents the creation of obj,
// or if that object is gone again. A decision can handle only what it observes.
func (x *execution) confirmExists(ctx context.Context, r *objectType, obj workloads.Object) error {
	live, err := r.get(ctx, obj.GetNamespace(), obj.GetName())
	if apierrors.IsNotFound(err) {
		return errOutdated
	}
	if err != nil {
		return err
	}
	stored := r.stored(obj.GetNamespace() + "/" + obj.GetName())
	if stored != nil && stored.GetUID() == live.GetUID() {
		return nil
	}
	x.expect(r, live)
	return errOutdated
}

// replaced reports whether a write failed because the object with the expected UID is gone.
func replaced(err error) bool {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return true
	}
	status := apierrors.APIStatus(nil)
	if !apierrors.IsInvalid(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	for _, cause := range status.Status().Details.Causes {
		if cause.Field == "metadata.uid" {
			return true
		}
	}
	return false
}

func copyOf(obj workloads.Object) workloads.Object {
	out, _ := obj.DeepCopyObject().(workloads.Object) // DeepCopyObject returns the type of its receiver
	return out
}

// record records an event for the decided object. value replaces "%s" in the message.
func (x *execution) record(e workloads.Event, value string) {
	if e.Reason == "" {
		return
	}
	x.events.Event(&corev1.ObjectReference{
		APIVersion: x.kind.GroupVersion().String(), Kind: x.kind.Kind, Namespace: x.owner.GetNamespace(),
		Name: x.owner.GetName(), UID: x.owner.GetUID(), ResourceVersion: x.version,
	}, e.Type, e.Reason, strings.ReplaceAll(e.Message, "%s", value))
}

// outdated returns the error with which an outdated sync is retried. Conflicts are not logged.
func (x *execution) outdated(err error) error {
	return apierrors.NewConflict(schema.GroupResource{Group: x.kind.Group, Resource: x.kind.Kind}, x.key, err)
}

// childKeys returns the key of the object of this kind that controls obj.
func (x *executor) childKeys(obj metav1.Object) []string {
	ref := metav1.GetControllerOfNoCopy(obj)
	if ref == nil || ref.Kind != x.kind.Kind || ref.APIVersion != x.kind.GroupVersion().String() {
		return nil
	}
	return []string{obj.GetNamespace() + "/" + ref.Name}
}

// inParallel calls do n times concurrently, waits for all calls, and returns the first error.
func inParallel(n int, do func(i int) error) error {
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { errs[i] = do(i) })
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
