package mutations

import (
	"context"
	"fmt"
	"net/http"
	"sync"
)

// writeEvery is how many accepted creations are sent for one that is written.
const writeEvery = 10

// notWritten are groups and kinds whose objects change how the server handles other requests, or that no server without
// controllers can delete.
var notWritten = map[string]bool{
	"admissionregistration.k8s.io": true, "apiregistration.k8s.io": true, "flowcontrol.apiserver.k8s.io": true,
	"Namespace": true, "ResourceQuota": true, "LimitRange": true, "PriorityClass": true, "StorageClass": true,
	"IngressClass": true, "ServiceCIDR": true, "Node": true, "ServiceAccount": true,
}

// writer writes objects of a kind one after the other: they have the same name.
type writer struct {
	mu    sync.Mutex
	locks map[string]*sync.Mutex
	sent  map[string]int // accepted creations by base
}

// next reports whether the next accepted creation of a base is written, and returns the lock for it.
func (w *writer) next(b *base) (*sync.Mutex, bool) {
	if notWritten[b.kind.Group] || notWritten[b.kind.Kind] {
		return nil, false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.locks == nil {
		w.locks, w.sent = map[string]*sync.Mutex{}, map[string]int{}
	}
	w.sent[b.id]++
	lock := w.locks[b.kind.Kind]
	if lock == nil {
		lock = &sync.Mutex{}
		w.locks[b.kind.Kind] = lock
	}
	return lock, w.sent[b.id]%writeEvery == 1
}

// writeBoth writes an accepted creation to both servers, reads what they have stored, and deletes it. It returns false
// if the mutation is not written.
func (r *run) writeBoth(ctx context.Context, p pair) (bool, []groupKey, error) {
	lock, ok := r.writes.next(p.base)
	if !ok {
		return false, nil, nil
	}
	lock.Lock()
	defer lock.Unlock()
	both := [2]*judgement{}
	for i, s := range []*server{r.oracle, r.tested} {
		j, err := s.write(ctx, p.base, p.mutation)
		if err != nil {
			return false, nil, err
		}
		both[i] = j
	}
	keys := compare(both[0], both[1])
	for _, key := range keys {
		key.kind, key.verb = p.base.kind.name(), "written"
		r.add(key, describe(p.mutation, both[0], both[1]))
	}
	return true, keys, nil
}

// write creates a mutated object, reads it and deletes it. It returns what was read, normalized, or why the object was
// rejected.
func (s *server) write(ctx context.Context, b *base, m *mutation) (*judgement, error) {
	sent, err := apply(b.forCreate(), m.Edits)
	if err != nil {
		return nil, err
	}
	// Dry runs of other mutations use the name of new objects meanwhile.
	if m, ok := sent["metadata"].(map[string]any); ok && m["name"] == newName(stringField(b.metadata(), "name")) {
		m["name"] = stringField(m, "name") + "-written"
	}
	created, err := s.send(ctx, http.MethodPost, b.collection()+"?fieldValidation=Strict&fieldManager=mutations", sent)
	if err != nil || created.object == nil {
		return created, err
	}
	metadata, _ := created.object["metadata"].(map[string]any)
	path := b.collection() + "/" + stringField(metadata, "name")
	read, err := s.send(ctx, http.MethodGet, path, nil)
	if err != nil {
		return nil, err
	}
	if read.object == nil {
		return nil, fmt.Errorf("GET %s: %s", path, read.message)
	}
	if err := s.remove(ctx, path, read.object); err != nil {
		return nil, err
	}
	normalize(b.kind, read.object, sent, m.Edits)
	return read, nil
}

// remove deletes an object without its finalizers, because no controller removes them.
func (s *server) remove(ctx context.Context, path string, object map[string]any) error {
	object = copyJSON(object).(map[string]any)
	metadata, _ := object["metadata"].(map[string]any)
	if metadata["finalizers"] != nil {
		delete(metadata, "finalizers")
		j, err := s.send(ctx, http.MethodPut, path, object)
		if err != nil {
			return err
		}
		if j.object == nil {
			return fmt.Errorf("PUT %s without finalizers: %s", path, j.message)
		}
	}
	j, err := s.send(ctx, http.MethodDelete, path+"?propagationPolicy=Background", map[string]any{
		"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0})
	if err != nil {
		return err
	}
	if j.Code >= http.StatusBadRequest && j.Code != http.StatusNotFound {
		return fmt.Errorf("DELETE %s: %s", path, j.message)
	}
	return nil
}
