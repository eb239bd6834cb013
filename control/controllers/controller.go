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

// controller processes the keys of a rate-limited work queue. A key is never processed by two
// workers at once. A key added during its sync is processed again.
type controller struct {
	// sync reconciles one key. If requeueAfter > 0, the key is queued again after that time, and with an error at that
	// time at the latest.
	sync func(ctx context.Context, key string) (requeueAfter time.Duration, err error)
	// prepare, if set, runs before the workers and is retried until it succeeds.
	prepare func(ctx context.Context) error
	// background, if set, runs beside the workers until ctx is done.
	background   func(ctx context.Context)
	workers      int // number of goroutines; 0 means 1
	queue        workqueue.TypedRateLimitingInterface[string]
	log          *slog.Logger
	cachesSynced []cache.InformerSynced
	unregister   []func() // removes the event handlers
}

func (c Config) newController(syncFunc func(context.Context, string) (time.Duration, error)) *controller {
	created := &controller{
		sync: syncFunc, log: c.Log,
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](minRetryDelay, maxRetryDelay),
			workqueue.TypedRateLimitingQueueConfig[string]{Name: c.queueName}),
	}
	if c.created != nil {
		*c.created = append(*c.created, created)
	}
	return created
}

// watch queues the keys returned by keys for every change of an object.
func (c *controller) watch(of cache.SharedIndexInformer, keys func(obj any) []string) error {
	enqueue := func(obj any) {
		obj = lastKnown(obj)
		for _, key := range keys(obj) {
			c.queue.Add(key)
		}
	}
	return c.addEventHandler(of, cache.ResourceEventHandlerFuncs{
		AddFunc:    enqueue,
		UpdateFunc: func(_, obj any) { enqueue(obj) },
		DeleteFunc: enqueue,
	})
}

// addEventHandler registers a handler that queues keys itself.
func (c *controller) addEventHandler(of cache.SharedIndexInformer, funcs cache.ResourceEventHandlerFuncs) error {
	reg, err := of.AddEventHandler(funcs)
	if err != nil {
		return fmt.Errorf("add event handler: %w", err)
	}
	c.cachesSynced = append(c.cachesSynced, reg.HasSynced)
	c.unregister = append(c.unregister, func() {
		_ = of.RemoveEventHandler(reg)
	}) // fails only if the informer is stopped
	return nil
}

// waitFor adds informers that the controller reads without a handler to those that must be synced.
func (c *controller) waitFor(of ...cache.SharedIndexInformer) {
	for _, i := range of {
		c.cachesSynced = append(c.cachesSynced, i.HasSynced)
	}
}

// lastKnown returns the object of an event: of a deletion that the watch has missed, its last known state.
func lastKnown(obj any) any {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		return tombstone.Obj
	}
	return obj
}

// objectKey returns the key of the object: "namespace/name" or "name".
func objectKey(obj any) []string {
	key, err := cache.MetaNamespaceKeyFunc(obj)
	if err != nil {
		return nil
	}
	return []string{key}
}

// namespaceKey returns the namespace of the object as key.
func namespaceKey(obj any) []string {
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil
	}
	return []string{m.GetNamespace()}
}

func (c *controller) run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer c.queue.ShutDown()
	defer func() {
		for _, unregister := range c.unregister {
			unregister()
		}
	}()
	if !c.waitUntilReady(ctx) {
		return
	}
	if c.background != nil {
		wg.Go(func() { c.background(ctx) })
	}
	for range max(1, c.workers) {
		wg.Go(func() {
			for c.processNextItem(ctx) {
			}
		})
	}
	<-ctx.Done()
}

// waitUntilReady runs prepare and waits for the caches. It reports false if ctx is done.
func (c *controller) waitUntilReady(ctx context.Context) bool {
	for wait := minRetryDelay; c.prepare != nil; wait = min(2*wait, maxRetryDelay) {
		err := c.prepare(ctx)
		if err == nil {
			break
		}
		c.log.Warn("controller start failed; retrying", "err", err)
		select {
		case <-ctx.Done():
			return false
		case <-time.After(wait):
		}
	}
	return cache.WaitForCacheSync(ctx.Done(), c.cachesSynced...)
}

func (c *controller) processNextItem(ctx context.Context) bool {
	key, closed := c.queue.Get()
	if closed {
		return false
	}
	defer c.queue.Done(key)
	requeueAfter, err := c.sync(ctx, key)
	switch {
	case ctx.Err() != nil:
		return false
	case err != nil:
		// Conflicts are expected with concurrent writers and not logged.
		if !apierrors.IsConflict(err) {
			c.log.Warn("sync failed; retrying", "key", key, "err", err)
		}
		c.queue.AddRateLimited(key)
	default:
		c.queue.Forget(key)
	}
	if requeueAfter > 0 {
		c.queue.AddAfter(key, requeueAfter)
	}
	return true
}

// periodically runs do immediately and then once per period.
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

// ignoreNotFound returns nil for a NotFound error.
func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
