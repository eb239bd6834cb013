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

// store is a real store of the test's own.
func store(t *testing.T) *clientv3.Client {
	t.Helper()
	member, err := storage.Start(t.Context(), storage.Options{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler), Unsafe: true, Floor: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(member.Close)
	client, err := storage.Connect(t.Context(), storage.Servers{Endpoints: member.Endpoints()})
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

func TestClaims(t *testing.T) {
	t.Parallel()
	c, ctx := claims{store(t)}, t.Context()
	first, err := c.take(ctx, portName(30001), "one", "default/one")
	if err != nil || first.again {
		t.Fatalf("%+v, %v", first, err)
	}
	if got, err := c.take(ctx, portName(30001), "two", "default/two"); !errors.Is(err, errTaken) {
		t.Errorf("taken twice: %+v, %v", got, err)
	}
	if got, err := c.look(ctx, portName(30001)); err != nil || got == nil || got.owner != "one" || got.service != "default/one" {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := c.look(ctx, portName(30002)); err != nil || got != nil {
		t.Errorf("nobody's is %+v, %v", got, err)
	}
	// Two requests of one owner: what the first gives back is not the second's.
	second, err := c.take(ctx, portName(30001), "one", "default/one")
	if err != nil || !second.again || second.revision <= first.revision {
		t.Fatalf("%+v after %+v, %v", second, first, err)
	}
	if err := c.give(ctx, first); err != nil {
		t.Fatal(err)
	}
	if _, err := c.take(ctx, portName(30001), "two", "default/two"); !errors.Is(err, errTaken) {
		t.Errorf("an older claim that is given back takes the newer one with it: %v", err)
	}
	if all, err := c.all(ctx); err != nil || len(all) != 1 || all[portName(30001)].revision != second.revision {
		t.Errorf("%v, %v", all, err)
	}
	if err := c.give(ctx, second); err != nil {
		t.Fatal(err)
	}
	if _, err := c.take(ctx, portName(30001), "two", "default/two"); err != nil {
		t.Errorf("what was given back is not free: %v", err)
	}
}

// TestARangeIsGivenToItsEnd: by many at once, each name to one of them, until
// there is none left.
func TestARangeIsGivenToItsEnd(t *testing.T) {
	t.Parallel()
	const size, askers = 24, 40
	client := store(t)
	var mu sync.Mutex
	var got []int64
	var full atomic.Int32
	var all sync.WaitGroup
	for i := range askers {
		all.Go(func() {
			a := &allotment{claims: claims{client}, owner: types.UID(rune('A' + i)), service: "default/s"}
			n, err := a.choose(t.Context(), band(size), size, func(n int64) name { return portName(int32(30000 + n)) })
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
	if len(got) != size || len(slices.Compact(got)) != size || full.Load() != askers-size {
		t.Errorf("%d got %v, for %d there was none", len(got), got, full.Load())
	}
}

// TestALookClaimsNothing: a dry run sees what is taken and takes nothing.
func TestALookClaimsNothing(t *testing.T) {
	t.Parallel()
	c := claims{store(t)}
	if _, err := c.take(t.Context(), portName(30001), "one", "default/one"); err != nil {
		t.Fatal(err)
	}
	dry := &allotment{claims: c, owner: "two", service: "default/two", dry: true}
	if err := dry.take(t.Context(), portName(30001)); !errors.Is(err, errTaken) {
		t.Errorf("another's: %v", err)
	}
	if err := dry.take(t.Context(), portName(30002)); err != nil {
		t.Error(err)
	}
	if got, err := c.look(t.Context(), portName(30002)); err != nil || got != nil || len(dry.fresh) != 0 {
		t.Errorf("a look has claimed %+v, %v", got, err)
	}
}
