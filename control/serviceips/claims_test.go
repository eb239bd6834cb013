package serviceips

import (
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/types"

	"berth/control/storage"
)

// newTestStore starts an etcd for the test.
func newTestStore(t *testing.T) *clientv3.Client {
	t.Helper()
	member, err := storage.Start(
		t.Context(),
		storage.Options{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler), UnsafeNoFsync: true, MinFreeBytes: 1},
	)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(member.Close)
	client, err := storage.Connect(t.Context(), storage.ClientConfig{Endpoints: member.Endpoints()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
	return client.Client
}

func TestClaimStore(t *testing.T) {
	t.Parallel()
	c, ctx := claimStore{newTestStore(t)}, t.Context()
	first, err := c.acquire(ctx, portKey(30001), "one", "default/one")
	if err != nil || first.renewed {
		t.Fatalf("got %+v, %v", first, err)
	}
	if got, err := c.acquire(ctx, portKey(30001), "two", "default/two"); !errors.Is(err, errAllocated) {
		t.Errorf("claimed twice: %+v, %v", got, err)
	}
	if got, err := c.get(ctx, portKey(30001)); err != nil || got == nil || got.owner != "one" ||
		got.service != "default/one" {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, err := c.get(ctx, portKey(30002)); err != nil || got != nil {
		t.Errorf("free key: %+v, %v", got, err)
	}
	// Two requests of one owner: the release by the first does not affect the second.
	second, err := c.acquire(ctx, portKey(30001), "one", "default/one")
	if err != nil || !second.renewed || second.revision <= first.revision {
		t.Fatalf("got %+v after %+v, %v", second, first, err)
	}
	if err := c.release(ctx, first); err != nil {
		t.Fatal(err)
	}
	if _, err := c.acquire(ctx, portKey(30001), "two", "default/two"); !errors.Is(err, errAllocated) {
		t.Errorf("the release of an older claim deleted the newer one: %v", err)
	}
	if all, err := c.list(ctx); err != nil || len(all) != 1 || all[portKey(30001)].revision != second.revision {
		t.Errorf("got %v, %v", all, err)
	}
	if err := c.release(ctx, second); err != nil {
		t.Fatal(err)
	}
	if _, err := c.acquire(ctx, portKey(30001), "two", "default/two"); err != nil {
		t.Errorf("a released key is not free: %v", err)
	}
}

// TestAllocatorExhaustsRangeConcurrently checks that concurrent allocations get distinct keys until
// the range is full.
func TestAllocatorExhaustsRangeConcurrently(t *testing.T) {
	t.Parallel()
	const size, workers = 24, 40
	client := newTestStore(t)
	var mu sync.Mutex
	var got []int64
	var full atomic.Int32
	var all sync.WaitGroup
	for i := range workers {
		all.Go(func() {
			a := &allocator{claims: claimStore{client}, owner: types.UID(rune('A' + i)), service: "default/s"}
			n, err := a.claimFree(
				t.Context(),
				staticBandSize(size),
				size,
				func(n int64) claimKey { return portKey(int32(30000 + n)) },
			)
			switch {
			case err == nil:
				mu.Lock()
				defer mu.Unlock()
				got = append(got, n)
			case errors.Is(err, errFull):
				full.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	all.Wait()
	slices.Sort(got)
	if len(got) != size || len(slices.Compact(got)) != size || full.Load() != workers-size {
		t.Errorf("%d got %v, %d failed", len(got), got, full.Load())
	}
}

// TestAllocatorDryRunClaimsNothing checks that a dry run detects claimed keys and claims none.
func TestAllocatorDryRunClaimsNothing(t *testing.T) {
	t.Parallel()
	c := claimStore{newTestStore(t)}
	if _, err := c.acquire(t.Context(), portKey(30001), "one", "default/one"); err != nil {
		t.Fatal(err)
	}
	dry := &allocator{claims: c, owner: "two", service: "default/two", dryRun: true}
	if err := dry.claim(t.Context(), portKey(30001)); !errors.Is(err, errAllocated) {
		t.Errorf("another's: %v", err)
	}
	if err := dry.claim(t.Context(), portKey(30002)); err != nil {
		t.Error(err)
	}
	if got, err := c.get(t.Context(), portKey(30002)); err != nil || got != nil || len(dry.claimed) != 0 {
		t.Errorf("the dry run claimed %+v, %v", got, err)
	}
}
