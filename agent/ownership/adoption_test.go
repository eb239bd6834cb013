package ownership

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestAdoptable(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		f    Foreign
		want bool
	}{
		"nothing":                               {Foreign{}, false},
		"sandbox of the kubelet":                {Foreign{Kubelet: true}, true},
		"directory only, as during an image":    {Foreign{HasDir: true}, true},
		"sandbox of another berth":              {Foreign{OtherBerth: true}, false},
		"another berth and a directory":         {Foreign{OtherBerth: true, HasDir: true}, false},
		"the kubelet and another berth at once": {Foreign{OtherBerth: true, Kubelet: true}, false},
	} {
		if got := c.f.Adoptable(); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

func TestIsStaticPod(t *testing.T) {
	t.Parallel()
	kubelet := Foreign{Namespace: "ns", Name: "web-node1", Kubelet: true, Static: true}
	with := func(f func(*Foreign)) Foreign {
		out := kubelet
		f(&out)
		return out
	}
	for name, c := range map[string]struct {
		f                    Foreign
		namespace, pod, node string
		want                 bool
	}{
		"name in the file":          {kubelet, "ns", "web", "Node1", true},
		"name with the node":        {kubelet, "ns", "web-node1", "node1", true},
		"other namespace":           {kubelet, "other", "web", "node1", false},
		"other name":                {kubelet, "ns", "we", "node1", false},
		"other node":                {kubelet, "ns", "web", "node2", false},
		"not from a file":           {with(func(f *Foreign) { f.Static = false }), "ns", "web", "node1", false},
		"also a sandbox of a berth": {with(func(f *Foreign) { f.OtherBerth = true }), "ns", "web", "node1", false},
		"without a kubelet's sandbox": {with(func(f *Foreign) { f.Kubelet, f.HasDir = false, true }),
			"ns", "web", "node1", false},
	} {
		if got := c.f.IsStaticPod(c.namespace, c.pod, c.node); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

// storeFake is a local store that can fail, and that only Flush makes durable.
type storeFake struct {
	values, durable map[string][]byte
	records         map[types.UID]bool
	err             error
}

func (s *storeFake) NodeValue(key string) ([]byte, error)  { return s.durable[key], nil }
func (s *storeFake) PutNodeValue(key string, value []byte) { s.values[key] = value }
func (s *storeFake) Delete(uid types.UID)                  { delete(s.records, uid) }
func (s *storeFake) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

func (s *storeFake) Flush(context.Context) error {
	if s.err == nil {
		s.durable = maps.Clone(s.values)
	}
	return s.err
}

// dirsFake are the marks of pod directories.
type dirsFake map[types.UID]bool

func (d dirsFake) Pods(context.Context) ([]types.UID, error) {
	return slices.Sorted(maps.Keys(d)), nil
}

func (d dirsFake) UnmarkDir(uid types.UID) error {
	delete(d, uid)
	return nil
}

func TestReleaseKeepsMarksUntilTheStoreIsWritten(t *testing.T) {
	t.Parallel()
	store := &storeFake{
		values: map[string][]byte{}, records: map[types.UID]bool{"own": true}, err: errors.New("disk full"),
	}
	dirs := dirsFake{"own": true, "adopted": true}
	if _, err := Release(t.Context(), store, dirs, "own"); err == nil || len(dirs) != 2 {
		t.Fatalf("got %v, marks %v, want an error and both marks", err, dirs)
	}
	store.err = nil
	released, err := Release(t.Context(), store, dirs, "own")
	if err != nil || len(released) != 2 || len(dirs) != 0 || len(store.records) != 0 {
		t.Fatalf("got %v, %v, marks %v, records %v", released, err, dirs, store.records)
	}
	h, err := NewHandover(store.durable[StoreKey], func([]byte) {}, func(State) {})
	if err != nil || !h.State().Released["own"] || !h.State().Released["adopted"] {
		t.Errorf("got state %+v, error %v", h.State(), err)
	}
}

// TestSimHandover lets the kubelet and berth take turns, with crashes between any two steps. After each step:
// a pod is adopted or released, never both; what the runtime client knows is what the store has, or newer; and
// nothing is adopted after a release.
func TestSimHandover(t *testing.T) {
	t.Parallel()
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 39))
		store := &storeFake{values: map[string][]byte{}, records: map[types.UID]bool{}}
		dirs := dirsFake{}
		var client State
		open := func() *Handover {
			h, err := NewHandover(store.durable[StoreKey], func(b []byte) { store.values[StoreKey] = b },
				func(s State) { client = s })
			if err != nil {
				t.Fatal(err)
			}
			return h
		}
		h := open()
		for step := range 100 {
			uid := types.UID(fmt.Sprint("uid", rng.IntN(3)))
			pod := &corev1.Pod{}
			pod.UID, pod.Namespace, pod.Name = uid, "ns", "name"
			store.err = nil
			if rng.IntN(5) == 0 {
				store.err = errors.New("disk full")
			}
			switch rng.IntN(4) {
			case 0: // adoption: store, then mark
				h.Adopt(map[types.UID]Adoption{uid: NewAdoption(pod, time.Unix(int64(step), 0))})
				if store.Flush(t.Context()) == nil {
					dirs[uid] = true
				}
			case 1: // the pod is deleted: mark, then store
				delete(dirs, uid)
				h.Forget(uid)
			case 2: // crash
				store.values = maps.Clone(store.durable)
				if store.values == nil {
					store.values = map[string][]byte{}
				}
				h = open()
			case 3: // the agent stops and its pods are handed over
				if store.Flush(t.Context()) != nil {
					break
				}
				if _, err := Release(t.Context(), store, dirs); err != nil {
					break
				}
				if len(dirs) > 0 {
					t.Fatalf("seed %d step %d: marks %v remain", seed, step, dirs)
				}
				if h = open(); len(h.State().Adopted) > 0 {
					t.Fatalf("seed %d step %d: %v is adopted after a release", seed, step, h.State().Adopted)
				}
			}
			s := h.State()
			for uid := range s.Adopted {
				if s.Released[uid] {
					t.Fatalf("seed %d step %d: %s is adopted and released", seed, step, uid)
				}
			}
			if len(client.Adopted) != len(s.Adopted) || len(client.Released) != len(s.Released) {
				t.Fatalf("seed %d step %d: the client has %+v, want %+v", seed, step, client, s)
			}
		}
	}
}
