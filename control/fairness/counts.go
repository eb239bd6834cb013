package fairness

import (
	"context"
	"log/slog"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/flowcontrol/request"
)

const (
	// countPeriod is how often objects are counted, as upstream.
	countPeriod = time.Minute
	// sampledObjects is the number of objects that determine the average size of uncached objects.
	sampledObjects = 16
)

// StatsFunc returns the number and the average size of the objects of a resource.
type StatsFunc func(ctx context.Context) (storage.Stats, error)

// Resource is a resource whose objects are counted.
type Resource struct {
	schema.GroupResource

	Stats StatsFunc
}

// Counter reports how many objects each resource has, from which the filter estimates the work of lists.
// It counts all resources one after the other: the library has a goroutine and a timer for each.
type Counter struct {
	Tracker request.StorageObjectCountTracker
	// Resources returns the resources to count.
	Resources func() []Resource
	Log       *slog.Logger
}

// Run counts objects until ctx is done.
func (c *Counter) Run(ctx context.Context) {
	tick := time.NewTicker(countPeriod)
	defer tick.Stop()
	for {
		c.count(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// count makes one pass. Counts that fail become stale, and lists of the resource expensive.
func (c *Counter) count(ctx context.Context) {
	for _, resource := range c.Resources() {
		stats, err := resource.Stats(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			c.Log.Debug("objects not counted", "resource", resource.String(), "err", err)
			continue
		}
		c.Tracker.Set(resource.String(), stats)
	}
}

// StoredStats returns a function that counts the keys with a prefix in etcd and takes their average size
// from the first ones. The library knows the size of objects only if they have a watch cache, and takes
// the maximum for others.
func StoredStats(client clientv3.KV, prefix string) StatsFunc {
	return func(ctx context.Context) (storage.Stats, error) {
		response, err := client.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithLimit(sampledObjects))
		if err != nil {
			return storage.Stats{}, err
		}
		stats := storage.Stats{ObjectCount: response.Count}
		for _, kv := range response.Kvs {
			stats.EstimatedAverageObjectSizeBytes += int64(len(kv.Value))
		}
		if n := int64(len(response.Kvs)); n > 0 {
			stats.EstimatedAverageObjectSizeBytes /= n
		}
		return stats, nil
	}
}
