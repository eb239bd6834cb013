package controllers

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"berth/workloads"
)

// expectationTimeout is how long a write may be missing from the informer before the object is read from the API
// server.
const expectationTimeout = 5 * time.Second

// expectations records the writes of a reconciler that its informers have not observed yet. They prevent decisions
// on old observations, which would create objects twice when a watch is slow. It is safe for concurrent use.
type expectations struct {
	mu    sync.Mutex
	byKey map[string]*ownerExpectations // by key of the decided object
}

// ownerExpectations are the unobserved writes made for one object.
type ownerExpectations struct {
	uid    types.UID
	writes map[types.UID]expectation // by UID of the written object
	failed *workloads.WriteError     // about which the next sync has to decide
}

// expectation is one write that an informer has to observe.
type expectation struct {
	objectType      *objectType
	namespace, name string
	uid             types.UID
	version         string // observed at this resource version or a later one
	deletion        bool   // observed when the object is being deleted or gone
	since           time.Time
}

// expectVersion records that obj was written and has the resource version in obj.
func (e *expectations) expectVersion(key string, owner types.UID, r *objectType, obj workloads.Object) {
	e.add(key, owner, expectation{
		objectType: r, namespace: obj.GetNamespace(), name: obj.GetName(), uid: obj.GetUID(),
		version: obj.GetResourceVersion(), since: time.Now(),
	})
}

// expectDeletion records that obj was deleted.
func (e *expectations) expectDeletion(key string, owner types.UID, r *objectType, obj workloads.Object) {
	e.add(key, owner, expectation{
		objectType: r, namespace: obj.GetNamespace(), name: obj.GetName(), uid: obj.GetUID(), deletion: true,
		since: time.Now(),
	})
}

func (e *expectations) add(key string, owner types.UID, write expectation) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.of(key, owner).writes[write.uid] = write
}

// of returns the expectations of an object. mu is held.
func (e *expectations) of(key string, owner types.UID) *ownerExpectations {
	of := e.byKey[key]
	if of == nil || of.uid != owner {
		of = &ownerExpectations{uid: owner, writes: map[types.UID]expectation{}}
		if e.byKey == nil {
			e.byKey = map[string]*ownerExpectations{}
		}
		e.byKey[key] = of
	}
	return of
}

// keepFailure records a failed write until the other writes of the sync are observed.
func (e *expectations) keepFailure(key string, owner types.UID, failed *workloads.WriteError) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.of(key, owner).failed = failed
}

// takeFailure returns and forgets the recorded failure of an object, or nil.
func (e *expectations) takeFailure(key string) (failed *workloads.WriteError) {
	e.mu.Lock()
	defer e.mu.Unlock()
	of := e.byKey[key]
	if of == nil {
		return nil
	}
	failed, of.failed = of.failed, nil
	if len(of.writes) == 0 {
		delete(e.byKey, key)
	}
	return failed
}

// forget drops the expectations of a key, whose object is gone.
func (e *expectations) forget(key string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.byKey, key)
}

// unobserved returns one of the writes of an object that are not observed, and false if all are. It drops observed
// ones, so that each is looked up only once.
func (e *expectations) unobserved(key string, owner types.UID) (expectation, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	of := e.byKey[key]
	if of == nil {
		return expectation{}, false
	}
	if of.uid != owner {
		delete(e.byKey, key) // of a former object with this name
		return expectation{}, false
	}
	for uid, write := range of.writes {
		if !write.observed() {
			return write, true
		}
		delete(of.writes, uid)
	}
	if of.failed == nil {
		delete(e.byKey, key)
	}
	return expectation{}, false
}

// wait returns how long the object may have to wait for one of its writes to be observed, and the type of that: 0 if
// all are. Writes that are missing for expectationTimeout are confirmed by a live read first.
func (e *expectations) wait(ctx context.Context, key string, owner types.UID) (wait time.Duration, stale *objectType,
	err error) {
	for {
		write, found := e.unobserved(key, owner)
		if !found {
			return 0, nil, nil
		}
		if age := time.Since(write.since); age < expectationTimeout {
			return expectationTimeout - age, write.objectType, nil
		}
		lost, err := write.lost(ctx)
		if err != nil {
			return 0, nil, err
		}
		if !lost {
			return expectationTimeout, write.objectType, nil
		}
		e.drop(key, write)
	}
}

func (e *expectations) drop(key string, write expectation) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if of := e.byKey[key]; of != nil && of.writes[write.uid] == write {
		delete(of.writes, write.uid)
	}
}

// observed reports whether the informer has observed the write.
func (x expectation) observed() bool {
	obj := x.objectType.stored(x.namespace + "/" + x.name)
	present := obj != nil && obj.GetUID() == x.uid
	if x.deletion {
		return !present || obj.GetDeletionTimestamp() != nil
	}
	if present && !older(obj.GetResourceVersion(), x.version) {
		return true
	}
	// An object that was deleted before it was observed is covered by the version of the whole store.
	store := x.objectType.informer.GetIndexer().LastStoreSyncResourceVersion()
	order, err := resourceversion.CompareResourceVersion(store, x.version)
	return err == nil && order >= 0
}

// older reports whether resource version a is older than b. Versions that cannot be compared are not.
func older(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order < 0
}

// lost reports whether the informer will not observe the write: a written object was deleted, or a deleted one
// exists.
func (x expectation) lost(ctx context.Context) (bool, error) {
	live, err := x.objectType.get(ctx, x.namespace, x.name)
	gone := apierrors.IsNotFound(err) || err == nil && live.GetUID() != x.uid
	switch {
	case err != nil && !gone:
		return false, fmt.Errorf("confirm write of %s/%s: %w", x.namespace, x.name, err)
	case x.deletion:
		return !gone && live.GetDeletionTimestamp() == nil, nil
	}
	return gone, nil
}
