package controllers

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

const (
	minRetryDelay = 20 * time.Millisecond
	maxRetryDelay = 30 * time.Second
)

// controller looks at one key after the other. A key that is told again while it is
// looked at is looked at once more.
type controller struct {
	// sync does what is missing for the key; again > 0: and is told to look again
	// after that time.
	sync func(ctx context.Context, key string) (again time.Duration, err error)
	// prepare, if given, comes first, and again until it succeeds.
	prepare func(ctx context.Context) error
	// background, if given, runs beside, until ctx ends.
	background   func(ctx context.Context)
	workers      int // goroutines; 0: one
	queue        workqueue.TypedRateLimitingInterface[string]
	log          *slog.Logger
	cachesSynced []cache.InformerSynced
	unregister   []func() // ends the watches
}

func (c Config) newController(look func(context.Context, string) (time.Duration, error)) *controller {
	return &controller{
		sync: look, log: c.Log,
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](minRetryDelay, maxRetryDelay)),
	}
}

// watch tells the worker the keys that a changed object concerns.
func (w *controller) watch(of cache.SharedIndexInformer, keys func(obj any) []string) error {
	tell := func(obj any) {
		if lost, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = lost.Obj
		}
		for _, key := range keys(obj) {
			w.queue.Add(key)
		}
	}
	return w.addEventHandler(of, cache.ResourceEventHandlerFuncs{
		AddFunc:    tell,
		UpdateFunc: func(_, obj any) { tell(obj) },
		DeleteFunc: tell,
	})
}

// addEventHandler is watch for those who see for themselves what a change concerns.
func (w *controller) addEventHandler(of cache.SharedIndexInformer, funcs cache.ResourceEventHandlerFuncs) error {
	reg, err := of.AddEventHandler(funcs)
	if err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	w.cachesSynced = append(w.cachesSynced, reg.HasSynced)
	w.unregister = append(w.unregister, func() { _ = of.RemoveEventHandler(reg) }) // an error says that it is stopped
	return nil
}

// waitFor makes the worker wait for what it reads without being told of it.
func (w *controller) waitFor(of ...cache.SharedIndexInformer) {
	for _, i := range of {
		w.cachesSynced = append(w.cachesSynced, i.HasSynced)
	}
}

// objectKey is the key of an object by its own name: "namespace/name" or "name".
func objectKey(obj any) []string {
	key, err := cache.MetaNamespaceKeyFunc(obj)
	if err != nil {
		return nil
	}
	return []string{key}
}

// namespaceKey is the key of the namespace that an object is in.
func namespaceKey(obj any) []string {
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil
	}
	return []string{m.GetNamespace()}
}

func (w *controller) run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer w.queue.ShutDown()
	defer func() {
		for _, leave := range w.unregister {
			leave()
		}
	}()
	if !w.waitUntilReady(ctx) {
		return
	}
	if w.background != nil {
		wg.Go(func() { w.background(ctx) })
	}
	for range max(1, w.workers) {
		wg.Go(func() {
			for w.processNextItem(ctx) {
			}
		})
	}
	<-ctx.Done()
}

// waitUntilReady prepares and waits until all is known that is looked at.
func (w *controller) waitUntilReady(ctx context.Context) bool {
	for wait := minRetryDelay; w.prepare != nil; wait = min(2*wait, maxRetryDelay) {
		err := w.prepare(ctx)
		if err == nil {
			break
		}
		w.log.Warn("will begin a little later", "error", err)
		select {
		case <-ctx.Done():
			return false
		case <-time.After(wait):
		}
	}
	return cache.WaitForCacheSync(ctx.Done(), w.cachesSynced...)
}

func (w *controller) processNextItem(ctx context.Context) bool {
	key, closed := w.queue.Get()
	if closed {
		return false
	}
	defer w.queue.Done(key)
	again, err := w.sync(ctx, key)
	switch {
	case ctx.Err() != nil:
		return false
	case err != nil:
		// Two who write at once is the usual case and no news.
		if !apierrors.IsConflict(err) {
			w.log.Warn("will look again", "key", key, "error", err)
		}
		w.queue.AddRateLimited(key)
		return true
	}
	w.queue.Forget(key)
	if again > 0 {
		w.queue.AddAfter(key, again)
	}
	return true
}

// periodically runs something at once and then again and again.
func periodically(period time.Duration, do func(ctx context.Context)) func(context.Context) {
	return func(ctx context.Context) {
		ticker := time.NewTicker(period)
		defer ticker.Stop()
		for {
			do(ctx)
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
		}
	}
}

// ignoreNotFound drops an error that says that the object is gone.
func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
