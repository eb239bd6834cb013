package fairness

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/flowcontrol/request"
)

// fakeKV returns values for the prefix /registry/toys/.
type fakeKV struct {
	clientv3.KV

	values []string
}

// Get checks the request and returns at most as many values as its limit.
func (f *fakeKV) Get(_ context.Context, key string, options ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	op := clientv3.OpGet(key, options...)
	if key != "/registry/toys/" || string(op.RangeBytes()) != "/registry/toys0" {
		return nil, errors.New("unexpected request")
	}
	out := &etcdserverpb.RangeResponse{Count: int64(len(f.values))}
	for _, v := range f.values[:min(len(f.values), sampledObjects)] {
		out.Kvs = append(out.Kvs, &mvccpb.KeyValue{Value: []byte(v)})
	}
	return (*clientv3.GetResponse)(out), nil
}

func TestStoredStats(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		values []string
		want   storage.Stats
	}{
		{nil, storage.Stats{}},
		{[]string{"12", "3456"}, storage.Stats{ObjectCount: 2, EstimatedAverageObjectSizeBytes: 3}},
		{make([]string, 100), storage.Stats{ObjectCount: 100}},
	} {
		got, err := StoredStats(&fakeKV{values: c.values}, "/registry/toys/")(t.Context())
		if err != nil || got != c.want {
			t.Errorf("%d objects: got %+v, %v, want %+v", len(c.values), got, err, c.want)
		}
	}
}

// TestCounterContinuesAfterErrors counts two resources of which the first fails.
func TestCounterContinuesAfterErrors(t *testing.T) {
	t.Parallel()
	c := &Counter{Tracker: request.NewStorageObjectCountTracker(), Log: slog.New(slog.DiscardHandler),
		Resources: func() []Resource {
			return []Resource{
				{schema.GroupResource{Resource: "bad"}, func(context.Context) (storage.Stats, error) {
					return storage.Stats{}, errors.New("no store")
				}},
				{schema.GroupResource{Group: "example.com", Resource: "toys"},
					func(context.Context) (storage.Stats, error) { return storage.Stats{ObjectCount: 7}, nil }},
			}
		}}
	c.count(t.Context())
	if got, err := c.Tracker.Get("toys.example.com"); err != nil || got.ObjectCount != 7 {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := c.Tracker.Get("bad"); !errors.Is(err, request.ObjectCountNotFoundErr) {
		t.Errorf("resource without a count: got %v", err)
	}
}
