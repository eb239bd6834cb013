package images

import (
	"sync"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
)

func TestPresenceIsAskedOnceUntilForgotten(t *testing.T) {
	t.Parallel()
	f := newFake()
	f.add(&runtimeapi.Image{Id: "i", RepoTags: []string{"reg.io/a:1"}})
	i := newImages(t, Options{Service: f})
	for range 3 {
		if img, here, err := i.Present(t.Context(), podNamed("p", 0), "reg.io/a:1", nil); !here || err != nil || img.ID != "i" {
			t.Fatalf("%+v %v %v", img, here, err)
		}
	}
	if f.inspects != 1 {
		t.Errorf("asked %d times, want once", f.inspects)
	}
	i.Forget("reg.io/a:1")
	if _, here, _ := i.Present(t.Context(), podNamed("p", 0), "reg.io/a:1", nil); !here || f.inspects != 2 {
		t.Errorf("after Forget asked %d times, want twice", f.inspects)
	}
}

func TestAbsenceIsAskedEveryTime(t *testing.T) {
	t.Parallel()
	f := newFake()
	i := newImages(t, Options{Service: f})
	for n := range 3 {
		if _, here, err := i.Present(t.Context(), podNamed("p", 0), "reg.io/a:1", nil); here || err != nil || f.inspects != n+1 {
			t.Fatalf("here %v, err %v, asked %d times", here, err, f.inspects)
		}
	}
}

func TestAPulledImageIsPresentWithoutAsking(t *testing.T) {
	t.Parallel()
	f := newFake()
	i := newImages(t, Options{Service: f})
	if _, err := i.Pull(t.Context(), podNamed("p", 0), pullOf("reg.io/a"), nil); err != nil {
		t.Fatal(err)
	}
	asked := f.inspects
	if img, here, err := i.Present(t.Context(), podNamed("p", 0), "reg.io/a", nil); !here || err != nil || img.ID != "id-of-reg.io/a:latest" || f.inspects != asked {
		t.Errorf("%+v %v %v, asked %d times", img, here, err, f.inspects-asked)
	}
}

func TestAnAnswerOlderThanForgetIsNotKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.add(&runtimeapi.Image{Id: "i", RepoTags: []string{"reg.io/a:1"}})
		f.look = make(chan struct{})
		i := New(Options{Service: f})
		defer i.Close()
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() { _, _, _ = i.Present(t.Context(), podNamed("p", 0), "reg.io/a:1", nil) })
		}
		synctest.Wait()
		i.Forget("reg.io/a:1")
		close(f.look)
		wg.Wait()
		if f.inspects != 1 {
			t.Errorf("ten askers asked the runtime %d times, want once", f.inspects)
		}
		_, _, _ = i.Present(t.Context(), podNamed("p", 0), "reg.io/a:1", nil)
		if f.inspects != 2 {
			t.Error("an answer from before Forget was kept")
		}
	})
}

func TestUserAndDigestOfAnImage(t *testing.T) {
	t.Parallel()
	f := newFake()
	f.add(&runtimeapi.Image{Id: "i", RepoTags: []string{"reg.io/num:1", "reg.io/other:1"}, RepoDigests: []string{"reg.io/other@sha256:1", "reg.io/num@sha256:2"}, Size: 5, Uid: &runtimeapi.Int64Value{Value: 0}})
	f.add(&runtimeapi.Image{Id: "j", RepoTags: []string{"reg.io/named:1"}, Username: "app"})
	i := newImages(t, Options{Service: f})
	num, _, err := i.Present(t.Context(), podNamed("p", 0), "reg.io/num:1", nil)
	if err != nil || num.UID == nil || *num.UID != 0 || num.User != "" || num.Ref != "reg.io/num@sha256:2" || num.Size != 5 {
		t.Errorf("%+v %v", num, err)
	}
	named, _, err := i.Present(t.Context(), podNamed("p", 0), "reg.io/named:1", nil)
	if err != nil || named.UID != nil || named.User != "app" || named.Ref != "j" {
		t.Errorf("%+v %v", named, err)
	}
}

func TestAnImageThatCannotBeInspected(t *testing.T) {
	t.Parallel()
	f := newFake()
	f.lookErr = status.Error(codes.Unavailable, "connection refused")
	i := newImages(t, Options{Service: f})
	_, _, err := i.Present(t.Context(), podNamed("p", 0), "reg.io/a:1", nil)
	wantKind(t, err, plan.Unavailable, "ImageInspectError")
}
