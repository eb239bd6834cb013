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

// unobserved drops observed writes and returns the remaining ones of an object.
func (e *expectations) unobserved(key string, owner types.UID) []expectation {
	e.mu.Lock()
	defer e.mu.Unlock()
	of := e.byKey[key]
	if of == nil {
		return nil
	}
	if of.uid != owner {
		delete(e.byKey, key) // of a former object with this name
		return nil
	}
	out := make([]expectation, 0, len(of.writes))
	for uid, write := range of.writes {
		if write.observed() {
			delete(of.writes, uid)
			continue
		}
		out = append(out, write)
	}
	if len(of.writes) == 0 && of.failed == nil {
		delete(e.byKey, key)
	}
	return out
}

// wait returns how long the object may have to wait for its writes to be observed: 0 if all are. Writes that are
// missing for expectationTimeout are confirmed by a live read first.
func (e *expectations) wait(ctx context.Context, key string, owner types.UID) (time.Duration, error) {
	missing := e.unobserved(key, owner)
	wait := time.Duration(0)
	for _, write := range missing {
		age := time.Since(write.since)
		if age < expectationTimeout {
			wait = max(wait, expectationTimeout-age)
			continue
		}
		lost, err := write.lost(ctx)
		if err != nil {
			return 0, err
		}
		if lost {
			e.drop(key, write)
			continue
		}
		wait = expectationTimeout
	}
	return wait, nil
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
