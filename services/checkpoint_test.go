package services

import (
	"context"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
)

// TestCheckpoint changes a Store under seeds, also across restarts, and compares what is restored
// with what the store had.
func TestCheckpoint(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 2))
			disk := map[string][]byte{}
			writes := 0
			put := func(values map[string][]byte) {
				for key, value := range values {
					writes++
					if value == nil {
						delete(disk, key)
					} else {
						disk[key] = value
					}
				}
			}
			store := NewStore()
			for round := range 5 {
				c := &Checkpoint{Store: store, Put: put}
				if err := c.Restore(maps.Clone(disk)); err != nil {
					t.Fatal(err)
				}
				if round > 0 && !store.Synced() && len(disk) > 0 {
					t.Error("a restored store is not synced")
				}
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan struct{})
				go func() { c.Run(ctx); close(ended) }()
				synctest.Wait()
				writes = 0
				for range rng.IntN(20) {
					name := Name{"ns", string(rune('a' + rng.IntN(4)))}
					switch rng.IntN(4) {
					case 0:
						ip := netip.AddrFrom4([4]byte{10, 0, 0, byte(rng.IntN(9))})
						store.SetService(&Service{Name: name, ClusterIPs: []netip.Addr{ip}})
					case 1:
						store.DeleteService(name)
					case 2:
						store.SetSlice(&Slice{Service: name, Name: name.Name + "-x",
							Ports: []EndpointPort{{"p", "TCP", 7}}})
					case 3:
						store.DeleteSlice(SliceKey{Namespace: "ns", Name: name.Name + "-x"})
					}
				}
				cancel()
				<-ended
				restored := NewStore()
				if err := (&Checkpoint{Store: restored, Put: put}).Restore(maps.Clone(disk)); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(contents(store), contents(restored), compareAddresses); diff != "" {
					t.Fatalf("seed %d round %d: (-store +restored)\n%s", seed, round, diff)
				}
				store = restored
			}
			c := &Checkpoint{Store: store, Put: put}
			if err := c.Restore(maps.Clone(disk)); err != nil {
				t.Fatal(err)
			}
			writes = 0
			sub := store.Subscribe()
			c.write(sub.Take())
			sub.Close()
			if writes != 0 {
				t.Errorf("%d values were written without a change", writes)
			}
		})
	}
}

type content struct {
	Service *Service
	Slices  []*Slice
}

func contents(s *Store) map[Name]content {
	out := map[Name]content{}
	sub := s.Subscribe()
	defer sub.Close()
	for name := range sub.Take() {
		var c content
		if c.Service, c.Slices = s.Service(name); c.Service != nil || len(c.Slices) > 0 {
			out[name] = c
		}
	}
	return out
}

// TestDamagedCheckpoint: a damaged value does not affect the others.
func TestDamagedCheckpoint(t *testing.T) {
	t.Parallel()
	store := NewStore()
	err := (&Checkpoint{Store: store}).Restore(map[string][]byte{
		"service/ns/bad":  []byte("{"),
		"service/ns/good": []byte(`{"service":{"Namespace":"ns","Name":"good"}}`),
	})
	if err == nil || !strings.Contains(err.Error(), "service/ns/bad") {
		t.Errorf("got error %v, want one for service/ns/bad", err)
	}
	if names := store.Names(); !slices.Equal(names, []Name{{"ns", "good"}}) {
		t.Errorf("restored %v", names)
	}
}
