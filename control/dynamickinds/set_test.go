package dynamickinds

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// record has the calls that a follower got, and the informers that it may use.
type record struct {
	calls     []string
	informers map[string]cache.SharedIndexInformer
}

func (r *record) follow(t *testing.T, s *Set[string]) (stop func()) {
	t.Helper()
	r.informers = map[string]cache.SharedIndexInformer{}
	return s.Follow(func(of metav1.APIResource, informer cache.SharedIndexInformer) {
		r.calls = append(r.calls, fmt.Sprint("added ", of.Name, " ", of.Version))
		r.informers[of.Name] = informer
	}, func(of metav1.APIResource) {
		r.calls = append(r.calls, fmt.Sprint("removed ", of.Name, " ", of.Version))
		if !r.informers[of.Name].IsStopped() {
			t.Errorf("%s was removed while its informer runs", of.Name)
		}
	})
}

func (r *record) require(t *testing.T, want ...string) {
	t.Helper()
	slices.Sort(r.calls)
	if !slices.Equal(r.calls, want) {
		t.Errorf("got calls %q, want %q", r.calls, want)
	}
	r.calls = nil
}

func resource(name, version string) metav1.APIResource {
	return metav1.APIResource{Group: "example.com", Version: version, Name: name, Kind: name}
}

func TestFollowersGetKindsThatComeAndGo(t *testing.T) {
	t.Parallel()
	var failures []string
	opened := map[string]int{}
	s := New[string](func(r metav1.APIResource) (cache.SharedIndexInformer, error) {
		if r.Name == "broken" {
			return nil, errors.New("no store")
		}
		opened[r.Name]++
		return cache.NewSharedIndexInformer(&cache.ListWatch{
			ListFunc: func(metav1.ListOptions) (runtime.Object, error) {
				return &metav1.PartialObjectMetadataList{}, nil
			},
			WatchFunc: func(metav1.ListOptions) (watch.Interface, error) { return watch.NewFake(), nil },
		}, &metav1.PartialObjectMetadata{}, 0, nil), nil
	}, func(err error) { failures = append(failures, err.Error()) })
	t.Cleanup(s.Close)

	s.Put("a", resource("apples", "v1"))
	if len(opened) > 0 {
		t.Error("a kind without a follower is watched")
	}
	var first, second record
	stopFirst := first.follow(t, s)
	first.require(t, "added apples v1")
	s.Put("b", resource("pears", "v1"))
	s.Put("a", resource("apples", "v1")) // no change
	first.require(t, "added pears v1")

	stopSecond := second.follow(t, s)
	second.require(t, "added apples v1", "added pears v1")
	if second.informers["apples"] != first.informers["apples"] || opened["apples"] != 1 {
		t.Error("followers do not share an informer")
	}
	s.Replace(map[string]metav1.APIResource{"a": resource("apples", "v2"), "c": resource("broken", "v1")})
	want := []string{"added apples v2", "removed apples v1", "removed pears v1"}
	first.require(t, want...)
	second.require(t, want...)
	if !slices.Equal(failures, []string{"watch broken.example.com: no store"}) {
		t.Errorf("got failures %q", failures)
	}
	s.Remove("unknown")
	s.Remove("c")
	first.require(t)

	stopFirst()
	if second.informers["apples"].IsStopped() {
		t.Error("an informer stopped although it has a follower")
	}
	stopSecond()
	if !second.informers["apples"].IsStopped() {
		t.Error("an informer runs without a follower")
	}
	s.Remove("a")
	second.require(t)
}
