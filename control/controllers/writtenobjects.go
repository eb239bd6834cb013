package controllers

import (
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"
)

// written reads objects from the store of an informer, and in place of an older state there the object that the
// controller has written. The zero value with a store is ready to use. It is safe for concurrent use.
type written[O metav1.Object] struct {
	store cache.Store

	mu    sync.Mutex
	newer map[string]O
}

// add records a written object.
func (w *written[O]) add(obj O) {
	key, err := cache.MetaNamespaceKeyFunc(obj)
	if err != nil {
		return // obj has metadata
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.newer == nil {
		w.newer = map[string]O{}
	}
	w.newer[key] = obj
}

// get returns an object. It reports false if the store does not have it.
func (w *written[O]) get(key string) (out O, found bool) {
	obj, found, err := w.store.GetByKey(key)
	stored, ok := obj.(O)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil || !found || !ok {
		delete(w.newer, key)
		return out, false
	}
	return w.newest(key, stored), true
}

// list returns all objects.
func (w *written[O]) list() []O {
	all := w.store.List()
	out := make([]O, 0, len(all))
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, obj := range all {
		stored, ok := obj.(O)
		if !ok {
			continue
		}
		if len(w.newer) > 0 {
			key, err := cache.MetaNamespaceKeyFunc(stored)
			if err == nil {
				stored = w.newest(key, stored)
			}
		}
		out = append(out, stored)
	}
	return out
}

// newest returns the written object if it is newer than the stored one, and forgets it otherwise.
func (w *written[O]) newest(key string, stored O) O {
	own, has := w.newer[key]
	if !has {
		return stored
	}
	order, err := resourceversion.CompareResourceVersion(own.GetResourceVersion(), stored.GetResourceVersion())
	if err != nil || order <= 0 || own.GetUID() != stored.GetUID() {
		delete(w.newer, key)
		return stored
	}
	return own
}
