package images

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
)

// smallDisk is a disk on which pulls use the space in takes. A pull that does not
// fit fails and frees its space.
type smallDisk struct {
	mu    sync.Mutex
	s     DiskSpace
	takes map[string]uint64
}

func (d *smallDisk) space() (DiskSpace, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.s, true
}

func (d *smallDisk) set(s DiskSpace) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.s = s
}

// pull is the hook of the fake service for each pull.
func (d *smallDisk) pull(image string, _ *runtimeapi.AuthConfig) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.takes[image] > d.s.Free {
		return status.Error(codes.Unknown, "write: no space left on device")
	}
	d.s.Free -= d.takes[image]
	return nil
}

const mib = uint64(1) << 20

func TestDiskPressureBlocksNonCriticalPulls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.add(imageNamed("local", "reg.io/local:1"))
		d := &smallDisk{s: DiskSpace{Free: 10 * mib, Reserved: 38 * mib,
			Pressure: "imagefs.available is 10Mi, less than 38Mi"}}
		var changes atomic.Int32
		i := New(Options{Service: f, Standalone: true, DiskSpace: d.space,
			OnWaitingForSpaceChanged: func() { changes.Add(1) }})
		defer i.Close()
		ends := []<-chan error{startPull(t.Context(), i, newPod("low", 0), "reg.io/low:1", nil)}
		synctest.Wait()
		if waitReason := i.WaitingForSpace("reg.io/low:1"); waitReason != d.s.Pressure || changes.Load() != 1 {
			t.Errorf("got wait reason %q and %d notifications", waitReason, changes.Load())
		}
		if s := i.PullStatus("reg.io/low:1"); s != "reg.io/low:1, waiting for disk space: "+d.s.Pressure {
			t.Errorf("status %q", s)
		}
		// Pulls behind it start if they are for critical pods or for present images.
		critical := startPull(t.Context(), i, newPod("critical", 2e9), "reg.io/critical:1", nil)
		always := pullAction("reg.io/local:1")
		always.Policy = corev1.PullAlways
		_, err := i.Pull(t.Context(), newPod("again", 0), always, nil)
		if err != nil || <-critical != nil {
			t.Errorf("a pull that needs no space got %v", err)
		}
		ends = append(ends, startPull(t.Context(), i, newPod("shared", 0), "reg.io/shared:1", nil))
		synctest.Wait()
		if want := []string{"reg.io/critical:1", "reg.io/local:1"}; !sameSet(f.started(), want) {
			t.Errorf("pulled: %v, want %v", f.started(), want)
		}
		// A critical pod that needs the same image starts the shared pull.
		ends = append(ends, startPull(t.Context(), i, newPod("urgent", 2e9), "reg.io/shared:1", nil))
		synctest.Wait()
		if !slices.Contains(f.started(), "reg.io/shared:1") || i.WaitingForSpace("reg.io/shared:1") != "" {
			t.Error("the pull shared with a critical pod waits")
		}
		before := changes.Load()
		d.set(DiskSpace{Free: 100 * mib, Reserved: 38 * mib})
		time.Sleep(2 * spaceRecheckInterval)
		synctest.Wait()
		for _, end := range ends {
			if err := <-end; err != nil {
				t.Error(err)
			}
		}
		if i.WaitingForSpace("reg.io/low:1") != "" || changes.Load() <= before {
			t.Errorf("change of available space was not reported")
		}
	})
}

func TestPullOfKnownSizeWaitsForSpace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		d := &smallDisk{s: DiskSpace{Free: 100 * mib, Reserved: 10 * mib},
			takes: map[string]uint64{"reg.io/big:1": 48 * mib, "reg.io/small:1": mib}}
		f.pullErr = d.pull
		i := New(Options{Service: f, DiskSpace: d.space})
		defer i.Close()
		if err := <-startPull(t.Context(), i, newPod("first", 0), "reg.io/big:1", nil); err != nil {
			t.Fatal(err)
		}
		if _, err := i.FreeSpace(t.Context(), GCOptions{}, never); err != nil {
			t.Fatal(err)
		}
		d.set(DiskSpace{Free: 57 * mib, Reserved: 10 * mib}) // and other data was written
		again := startPull(t.Context(), i, newPod("again", 0), "reg.io/big:1", nil)
		synctest.Wait()
		n := len(f.started())
		if want := "it takes 48.0Mi, and 57.0Mi are free, of which 10.0Mi are reserved"; i.WaitingForSpace(
			"reg.io/big:1") != want {
			t.Errorf("got wait reason %q, want %q", i.WaitingForSpace("reg.io/big:1"), want)
		}
		if err := <-startPull(t.Context(), i, newPod("small", 0), "reg.io/small:1", nil); err != nil || n != 1 {
			t.Errorf("small pull behind the waiting one: %v after %d pulls", err, n)
		}
		d.set(DiskSpace{Free: 58 * mib, Reserved: 10 * mib})
		if err := <-again; err != nil {
			t.Error(err)
		}
	})
}

func TestPullThatFailedForSpaceWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		d := &smallDisk{s: DiskSpace{Free: 36 * mib}, takes: map[string]uint64{"reg.io/big:1": 48 * mib}}
		f.pullErr = d.pull
		i := New(Options{Service: f, DiskSpace: d.space})
		defer i.Close()
		wantKind(t, <-startPull(t.Context(), i, newPod("p", 0), "reg.io/big:1", nil), plan.NoSpace, "ErrImagePull")
		began := time.Now()
		end := startPull(t.Context(), i, newPod("p", 0), "reg.io/big:1", nil)
		synctest.Wait()
		if waitReason := i.WaitingForSpace("reg.io/big:1"); waitReason != "it takes more than 36.0Mi, and "+
			"36.0Mi are free" {
			t.Errorf("unexpected wait reason %q", waitReason)
		}
		// A recorded size does not delay a pull forever.
		wantKind(t, <-end, plan.NoSpace, "ErrImagePull")
		if waited := time.Since(began); waited < sizeTrustPeriod || waited > sizeTrustPeriod+2*spaceRecheckInterval {
			t.Errorf("pull was retried after %s", waited)
		}
		end = startPull(t.Context(), i, newPod("p", 0), "reg.io/big:1", nil)
		synctest.Wait()
		d.set(DiskSpace{Free: 60 * mib})
		began = time.Now()
		if err := <-end; err != nil || time.Since(began) > 2*spaceRecheckInterval {
			t.Errorf("with enough space it took %s: %v", time.Since(began), err)
		}
	})
}

func TestSpaceIsFreedForPull(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		d := &smallDisk{s: DiskSpace{Free: 10 * mib, Pressure: "too little"}}
		var i *Manager
		i = New(Options{Service: f, DiskSpace: d.space, FreeSpace: func(ctx context.Context, enough func() bool) {
			o := GCOptions{InUse: func() map[string]bool { return map[string]bool{"used": true} }}
			if _, err := i.FreeSpace(ctx, o, func() bool {
				if len(f.removedIDs()) > 0 {
					d.set(DiskSpace{Free: 50 * mib})
				}
				return enough()
			}); err != nil {
				t.Error(err)
			}
		}})
		defer i.Close()
		for _, name := range []string{"used", "a", "b"} {
			f.add(imageNamed(name, "reg.io/"+name+":1"))
			time.Sleep(time.Second)
		}
		if err := <-startPull(t.Context(), i, newPod("p", 0), "reg.io/new:1", nil); err != nil {
			t.Fatal(err)
		}
		if removed := f.removedIDs(); len(removed) != 1 || removed[0] == "used" {
			t.Errorf("removed: %v, want one that is not in use", removed)
		}
	})
}

func TestWaitForSpaceCanBeCanceled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &smallDisk{s: DiskSpace{Pressure: "too little"}}
		i := New(Options{Service: newFake(), DiskSpace: d.space, FreeSpace: func(ctx context.Context,
			_ func() bool) {
			<-ctx.Done()
		}})
		defer i.Close()
		ctx, cancel := context.WithCancel(t.Context())
		end := startPull(ctx, i, newPod("p", 0), "reg.io/a:1", nil)
		synctest.Wait()
		cancel()
		wantKind(t, <-end, plan.Canceled, "ErrImagePull")
		synctest.Wait()
		if p := i.ActivePulls(); len(p) != 0 {
			t.Errorf("still in progress: %+v", p)
		}
		// The timer must have stopped, because the bubble would not end otherwise.
	})
}

func TestSpaceIsSharedByRunningPulls(t *testing.T) {
	t.Parallel()
	now := time.Now()
	d := &smallDisk{s: DiskSpace{Free: 100 * mib}}
	g := newPullLimiter(5, 0, 1, func() time.Time { return now })
	g.space = d.space
	g.sizes = map[string]pullSize{"a": {bytes: 60 * mib}, "b": {bytes: 60 * mib}, "c": {bytes: 40 * mib}}
	var requests []*pullRequest
	for _, ref := range []string{"a", "b", "c"} {
		requests = append(requests, g.enqueue(pullSpec{ref: ref}))
	}
	began := func() (out []string) {
		for _, k := range requests {
			if !k.startedAt.IsZero() {
				out = append(out, k.ref)
			}
		}
		return out
	}
	if got := strings.Join(began(), " "); got != "a c" {
		t.Errorf("started: %s, want a and c, which fit together", got)
	}
	if want := "it takes 60.0Mi, and 100.0Mi are free and 60.0Mi are needed by " +
		"running pulls"; requests[1].waitReason != want {
		t.Errorf("got wait reason %q, want %q", requests[1].waitReason, want)
	}
	d.set(DiskSpace{Free: 40 * mib}) // a is pulled
	g.recordSize(requests[0], nil)
	g.release(requests[0])
	d.set(DiskSpace{Free: 61 * mib})
	g.release(requests[2])
	if got := strings.Join(began(), " "); got != "a b c" {
		t.Errorf("started: %s", got)
	}
	if n := g.sizes["a"]; n.bytes != 60*mib {
		t.Errorf("recorded %+v for a pull that was not exclusive", n)
	}
	g.close()
}

func imageNamed(id, name string) *runtimeapi.Image {
	return &runtimeapi.Image{Id: id, RepoTags: []string{name}, Size: 100}
}

func sameSet(a, b []string) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(a, b)
}
