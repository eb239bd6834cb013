package images

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var noon = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

// imageUsedBefore is an image of 10 bytes that was last used the given minutes before noon.
func imageUsedBefore(id string, minutes int, change ...func(*storedImage)) storedImage {
	t := noon.Add(-time.Duration(minutes) * time.Minute)
	s := storedImage{id: id, size: 10, detected: t, lastUsed: t}
	for _, c := range change {
		c(&s)
	}
	return s
}

func markInUse(s *storedImage)  { s.inUse = true }
func markFresh(s *storedImage)  { s.detected = noon.Add(-time.Minute) }
func never() bool               { return false }
func markPinned(s *storedImage) { s.pinned = "for a reason" }

func TestSelectRemovals(t *testing.T) {
	t.Parallel()
	threshold := gcPolicy{high: 85, low: 80, minAge: 2 * time.Minute}
	aged := threshold
	aged.maxAge = time.Hour
	for _, c := range []struct {
		name   string
		images []storedImage
		p      gcPolicy
		used   uint64 // of 100
		want   []string
		short  uint64
	}{
		{"nothing is removed below the threshold", []storedImage{imageUsedBefore("a", 9)}, threshold, 84, nil, 0},
		{"the oldest are removed from the high down to the low threshold", []storedImage{imageUsedBefore("new", 3),
			imageUsedBefore("old", 9), imageUsedBefore("mid", 6)}, threshold, 91, []string{"old", "mid"}, 0},
		{"no more than necessary is removed", []storedImage{imageUsedBefore("new", 3), imageUsedBefore("old", 9)},
			threshold, 85,
			[]string{"old"}, 0},
		{"images in use are kept", []storedImage{imageUsedBefore("a", 9, markInUse), imageUsedBefore("b", 5)},
			threshold, 85,
			[]string{"b"}, 0},
		{"pinned images are kept", []storedImage{imageUsedBefore("a", 9, markPinned), imageUsedBefore("b", 5)},
			threshold, 85,
			[]string{"b"}, 0},
		{"young images are kept", []storedImage{imageUsedBefore("a", 1), imageUsedBefore("b", 5)}, threshold, 95,
			[]string{"b"}, 5},
		{"the shortfall is returned", []storedImage{imageUsedBefore("a", 5)}, threshold, 99, []string{"a"}, 9},
		{"a threshold of 100 disables removal", []storedImage{imageUsedBefore("a", 9)}, gcPolicy{high: 100, low: 80},
			100,
			nil, 0},
		{"images above the maximum age are removed at any usage", []storedImage{imageUsedBefore("a", 61),
			imageUsedBefore("b", 59)},
			aged, 10, []string{"a"}, 0},
		{"images in use are kept above the maximum age", []storedImage{imageUsedBefore("a", 61, markInUse),
			imageUsedBefore("b",
				61, markPinned)}, aged, 10, nil, 0},
		{"removals for age free space", []storedImage{imageUsedBefore("a", 61), imageUsedBefore("b", 59)},
			aged, 90, []string{"a"}, 0},
		{"under disk pressure all unused images are removed",
			[]storedImage{imageUsedBefore("a", 0), imageUsedBefore("b", 5,
				markInUse), imageUsedBefore("c", 5, markPinned), imageUsedBefore(
				"d", 7)}, gcPolicy{high: 100, low: 100, allUnused: true}, 0, []string{"d", "a"}, 0},
		{"under disk pressure young images come last", []storedImage{imageUsedBefore("a", 1), imageUsedBefore("b", 5),
			imageUsedBefore("c", 9,
				markFresh)}, gcPolicy{high: 100, low: 100, minAge: 2 * time.Minute, allUnused: true}, 0,
			[]string{"b", "c", "a"}, 0},
		{"nothing is removed if the disk size is unknown", []storedImage{imageUsedBefore("a", 9)}, threshold, 0, nil,
			0},
	} {
		d := diskUsage{c.used, 100}
		if c.used == 0 {
			d = diskUsage{}
		}
		remove, short := selectRemovals(noon, c.images, c.p, d)
		var got []string
		for _, r := range remove {
			got = append(got, r.id)
			if r.message == "" {
				t.Errorf("%s: %s is removed without a reason", c.name, r.id)
			}
		}
		if !slices.Equal(got, c.want) || short != c.short {
			t.Errorf("%s: %v, shortfall %d, want %v, %d", c.name, got, short, c.want, c.short)
		}
	}
}

func TestSelectRemovalsInvariants(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 0))
		var images []storedImage
		for n := range r.IntN(12) {
			s := imageUsedBefore(fmt.Sprint("i", n), r.IntN(200))
			s.size, s.inUse = uint64(r.IntN(30)), r.IntN(3) == 0
			if r.IntN(5) == 0 {
				markPinned(&s)
			}
			images = append(images, s)
		}
		before := slices.Clone(images)
		p := gcPolicy{high: r.IntN(101), minAge: time.Duration(r.IntN(60)) * time.Minute,
			maxAge: time.Duration(r.IntN(2)*r.IntN(180)) * time.Minute}
		p.low = r.IntN(p.high + 1)
		remove, short := selectRemovals(noon, images, p, diskUsage{uint64(r.IntN(101)), 100})
		if !slices.EqualFunc(images, before, func(a, b storedImage) bool { return a.id == b.id }) {
			t.Fatalf("seed %d: the input was modified", seed)
		}
		removed := map[string]bool{}
		for _, x := range remove {
			if x.inUse || x.pinned != "" || removed[x.id] {
				t.Fatalf("seed %d: %s is removed: in use %v, pinned %v, twice %v", seed, x.id, x.inUse, x.pinned,
					removed[x.id])
			}
			removed[x.id] = true
		}
		for _, s := range images {
			if short > 0 && s.size > 0 && !s.inUse && s.pinned == "" && noon.Sub(s.detected) >= p.minAge &&
				!removed[s.id] {
				t.Fatalf("seed %d: shortfall %d and %s is kept", seed, short, s.id)
			}
		}
	}
}

func usage(percent uint64) func() (uint64, uint64, error) {
	return func() (uint64, uint64, error) { return percent, 100, nil }
}

func TestRunGC(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.add(&runtimeapi.Image{Id: "used", RepoTags: []string{"docker.io/library/used:latest"}, Size: 10})
		f.add(&runtimeapi.Image{Id: "byid", Size: 10})
		f.add(&runtimeapi.Image{Id: "sandbox", RepoTags: []string{"registry.k8s.io/pause:3.10"}, Size: 10})
		f.add(&runtimeapi.Image{Id: "pinned", Size: 10, Pinned: true})
		f.add(&runtimeapi.Image{Id: "idle", RepoTags: []string{"reg.io/idle:1"}, Size: 10})
		i := New(Options{Service: f})
		defer i.Close()
		rounds := make(chan GCResult, 10)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			i.RunGC(ctx, GCOptions{
				HighThresholdPercent: 85, LowThresholdPercent: 80, MinAge: 2 * time.Minute,
				KeepNames: []string{"registry.k8s.io/pause:3.10"},
				InUse:     func() map[string]bool { return map[string]bool{"used": true, "byid": true, "idle": false} },
				Usage:     usage(95),
				OnCollected: func(c GCResult, err error) {
					if err != nil {
						t.Error(err)
					}
					rounds <- c
				},
			})
		}()
		if _, present, _ := i.Present(t.Context(), newPod("p", 0), "reg.io/idle:1", nil); !present {
			t.Error("image idle is not present")
		}
		time.Sleep(299 * time.Second)
		synctest.Wait()
		if len(rounds) != 0 || len(f.removedIDs()) != 0 {
			t.Errorf("removed before five minutes: %v", f.removedIDs())
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if !slices.Equal(f.removedIDs(), []string{"idle"}) {
			t.Errorf("removed %v, want idle", f.removedIDs())
		}
		if c := <-rounds; c.Freed != 10 || c.Shortfall != 5 || c.Removed[0].Message != "the disk is 95% full" {
			t.Errorf("unexpected result %+v", c)
		}
		if _, present, _ := i.Present(t.Context(), newPod("p", 0), "reg.io/idle:1", nil); present {
			t.Error("a removed image is still present")
		}
		cancel()
		<-done
	})
}

// TestGCKeepsImagesOfOtherOwners: the images of a kubelet's containers are in use, and unless they are known,
// no image is removed.
func TestGCKeepsImagesOfOtherOwners(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.add(&runtimeapi.Image{Id: "foreign", RepoTags: []string{"reg.io/foreign:1"}, Size: 10})
		f.add(&runtimeapi.Image{Id: "idle", RepoTags: []string{"reg.io/idle:1"}, Size: 10})
		i := New(Options{Service: f})
		defer i.Close()
		var listed atomic.Bool
		ctx, cancel := context.WithCancel(t.Context())
		var gc sync.WaitGroup
		gc.Go(func() {
			i.RunGC(ctx, GCOptions{
				HighThresholdPercent: 85, LowThresholdPercent: 80, Usage: usage(95),
				InUse: func() map[string]bool { return nil },
				InUseByOthers: func(context.Context) (map[string]bool, error) {
					if !listed.Load() {
						return nil, errors.New("runtime is unavailable")
					}
					return map[string]bool{"reg.io/foreign:1": true}, nil
				},
			})
		})
		time.Sleep(time.Hour)
		synctest.Wait()
		if removed := f.removedIDs(); len(removed) > 0 {
			t.Errorf("removed %v while the images of other owners were unknown", removed)
		}
		listed.Store(true)
		time.Sleep(defaultEvery)
		synctest.Wait()
		if removed := f.removedIDs(); !slices.Equal(removed, []string{"idle"}) {
			t.Errorf("removed %v, want idle", removed)
		}
		cancel()
		gc.Wait()
	})
}

// TestRunGCWaitsForPods: after a restart, no image is removed before all pods of the node are known.
func TestRunGCWaitsForPods(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.add(&runtimeapi.Image{Id: "idle", RepoTags: []string{"reg.io/idle:1"}, Size: 10})
		i := New(Options{Service: f})
		defer i.Close()
		var known atomic.Bool
		ctx, cancel := context.WithCancel(t.Context())
		var gc sync.WaitGroup
		gc.Go(func() {
			i.RunGC(ctx, GCOptions{
				HighThresholdPercent: 85, LowThresholdPercent: 80, PodsKnown: known.Load, Usage: usage(95),
				InUse: func() map[string]bool { return nil },
			})
		})
		time.Sleep(time.Hour)
		synctest.Wait()
		if removed := f.removedIDs(); len(removed) > 0 {
			t.Errorf("removed %v while the pods were unknown", removed)
		}
		known.Store(true)
		time.Sleep(defaultEvery)
		synctest.Wait()
		if removed := f.removedIDs(); !slices.Equal(removed, []string{"idle"}) {
			t.Errorf("removed %v, want idle", removed)
		}
		cancel()
		gc.Wait()
	})
}

func TestGCAgesCountFromLastUse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		i := New(Options{Service: f})
		defer i.Close()
		for _, image := range []string{"reg.io/a:1", "reg.io/b:1"} {
			if _, err := i.Pull(t.Context(), newPod("p", 0), pullAction(image), nil); err != nil {
				t.Fatal(err)
			}
		}
		o := GCOptions{HighThresholdPercent: 85, LowThresholdPercent: 80, MinAge: 2 * time.Minute, MaxAge: time.Hour,
			Usage: usage(10)}
		for range 3 {
			time.Sleep(25 * time.Minute)
			if _, _, err := i.Present(t.Context(), newPod("p", 0), "reg.io/b:1", nil); err != nil {
				t.Fatal(err)
			}
			if _, err := i.CollectGarbage(t.Context(), o); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.Equal(f.removedIDs(), []string{"id-of-reg.io/a:1"}) {
			t.Errorf("removed %v, want only the unused image", f.removedIDs())
		}
		o.Usage = usage(99)
		if _, err := i.Pull(t.Context(), newPod("p", 0), pullAction("reg.io/c:1"), nil); err != nil {
			t.Fatal(err)
		}
		if c, err := i.CollectGarbage(t.Context(), o); err != nil || len(c.Removed) != 1 ||
			c.Removed[0].ID != "id-of-reg.io/b:1" {
			t.Errorf("%+v %v: want b and not the new c", c, err)
		}
		f.add(&runtimeapi.Image{Id: "brought", RepoTags: []string{"reg.io/brought:1"}, Size: 100})
		if c, err := i.FreeSpace(t.Context(), GCOptions{KeepPreloaded: true}, never); err != nil ||
			len(c.Removed) != 1 ||
			c.Removed[0].ID != "id-of-reg.io/c:1" {
			t.Errorf("%+v %v: want c, which was pulled", c, err)
		}
		if c, err := i.FreeSpace(t.Context(), GCOptions{}, never); err != nil || len(c.Removed) != 1 {
			t.Errorf("%+v %v: want the preloaded image too without KeepPreloaded", c, err)
		}
	})
}

func TestGCStopsWhenEnoughIsFreed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		i := New(Options{Service: f})
		defer i.Close()
		for _, id := range []string{"a", "b", "c"} {
			f.add(&runtimeapi.Image{Id: id, RepoTags: []string{"reg.io/" + id + ":1"}, Size: 5})
			if _, present, err := i.Present(t.Context(), newPod("p", 0), "reg.io/"+id+":1", nil); !present ||
				err != nil {
				t.Fatal(present, err)
			}
			time.Sleep(time.Minute)
		}
		// Each image uses three times the size that the runtime reports.
		o := GCOptions{HighThresholdPercent: 85, LowThresholdPercent: 80,
			Usage: func() (uint64, uint64, error) { return 95 - 15*uint64(len(f.removedIDs())), 100, nil }}
		c, err := i.CollectGarbage(t.Context(), o)
		if err != nil || !slices.Equal(f.removedIDs(), []string{"a"}) || c.Shortfall != 0 || c.Needed != 15 ||
			c.Removed[0].Reason != ReasonSpace {
			t.Errorf("%+v %v: want only the oldest", c, err)
		}
		// With shared layers, removals free less than the reported sizes.
		o.Usage = func() (uint64, uint64, error) { return 85, 100, nil }
		if c, err := i.CollectGarbage(t.Context(), o); err != nil || !slices.Equal(f.removedIDs(), []string{"a", "b"}) {
			t.Errorf("%+v %v: want the needed bytes according to the reported sizes", c, err)
		}
	})
}

func TestGCKeepsImageUsedMeanwhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.add(&runtimeapi.Image{Id: "a", RepoTags: []string{"reg.io/a:1"}, Size: 100})
		i := New(Options{Service: f})
		defer i.Close()
		images, err := i.listStored(t.Context(), GCOptions{})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if _, present, _ := i.Present(t.Context(), newPod("p", 0), "reg.io/a:1", nil); !present {
			t.Fatal("not present")
		}
		if !i.usedSince("a", images[0].lastUsed) {
			t.Error("a use after the selection was not detected")
		}
	})
}

func TestGCOptionsValidation(t *testing.T) {
	t.Parallel()
	i := newImages(t, Options{Service: newFake()})
	for _, o := range []GCOptions{{HighThresholdPercent: 101}, {HighThresholdPercent: 80, LowThresholdPercent: 85},
		{HighThresholdPercent: 80, LowThresholdPercent: -1}, {HighThresholdPercent: 80,
			MinAge: -1}, {HighThresholdPercent: 80, MinAge: 2, MaxAge: 1}} {
		o.Usage = usage(10)
		if _, err := i.CollectGarbage(t.Context(), o); err == nil {
			t.Errorf("invalid options were accepted: %+v", o)
		}
	}
	broken := errors.New("statfs: no such file")
	_, err := i.CollectGarbage(t.Context(), GCOptions{HighThresholdPercent: 85, LowThresholdPercent: 80,
		Usage: func() (uint64, uint64, error) { return 0, 0, broken }})
	if !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}

func TestGCResultReport(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	var counted []string
	c := GCResult{Needed: 10, Shortfall: 4, Removed: []Removed{{ID: "sha256:1", Names: []string{"a"}, Reason: "age"}}}
	c.Report(slog.New(slog.NewTextHandler(&log, nil)), func(reason string) { counted = append(counted, reason) })
	if len(counted) != 1 || counted[0] != "age" ||
		!strings.Contains(log.String(), `msg="image removed" image=[a] imageID=sha256:1`) {
		t.Errorf("got %q and log\n%s", counted, &log)
	}
	if got := c.ShortfallMessage(); !strings.HasSuffix(got, "but only found 6 bytes eligible to free.") {
		t.Errorf("got %s", got)
	}
}
