package images

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
)

func TestWhatANameStandsForIsAskedEveryTime(t *testing.T) {
	t.Parallel()
	f := newFake()
	i := newImages(t, Options{Service: f})
	present := func(want string) {
		t.Helper()
		if img, here, err := i.Present(t.Context(), podNamed("p", 0), "reg.io/a:1", nil); !here || err != nil || img.ID != want {
			t.Errorf("%+v %v %v, want %s", img, here, err, want)
		}
		if img, err := i.Resolve(t.Context(), podNamed("p", 0), "reg.io/a:1", nil); err != nil || img.ID != want {
			t.Errorf("%+v %v, want %s", img, err, want)
		}
	}
	for _, id := range []string{"i", "j"} { // the tag moves
		f.add(&runtimeapi.Image{Id: id, RepoTags: []string{"reg.io/a:1"}})
		present(id)
	}
	if _, err := i.Pull(t.Context(), podNamed("p", 0), pullOf("reg.io/a:1"), nil); err != nil {
		t.Fatal(err)
	}
	present("id-of-reg.io/a:1")
	f.add(&runtimeapi.Image{Id: "k", RepoTags: []string{"reg.io/a:1"}})
	present("k")
}

func TestAnImageThatIsGoneCannotBeResolved(t *testing.T) {
	t.Parallel()
	f := newFake()
	i := newImages(t, Options{Service: f})
	_, err := i.Resolve(t.Context(), podNamed("p", 0), "reg.io/a:1", nil)
	wantKind(t, err, plan.ImageGone, "CreateContainerError")
	f.lookErr = status.Error(codes.Unavailable, "connection refused")
	_, err = i.Resolve(t.Context(), podNamed("p", 0), "reg.io/a:1", nil)
	wantKind(t, err, plan.Unavailable, "ImageInspectError")
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

// TestWhoAskAtOnceAskTheRuntimeOnce, or the pods of a burst would wait for each
// other's answers.
func TestWhoAskAtOnceAskTheRuntimeOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.add(&runtimeapi.Image{Id: "i", RepoTags: []string{"reg.io/a:1"}})
		f.look = make(chan struct{})
		i := New(Options{Service: f})
		defer i.Close()
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() { _, _, _ = i.Present(t.Context(), podNamed("p", 0), "reg.io/a:1", nil) })
		}
		synctest.Wait()
		close(f.look)
		wg.Wait()
		if f.inspects != 1 {
			t.Errorf("fifty askers asked the runtime %d times, want once", f.inspects)
		}
	})
}

func TestALookTellsOfEachImage(t *testing.T) {
	t.Parallel()
	f := newFake()
	f.add(&runtimeapi.Image{Id: "i", RepoTags: []string{"reg.io/a:1"}})
	i := newImages(t, Options{Service: f})
	names := []string{"reg.io/a:1", "reg.io/b:1", "Not/A_Name"}
	seen := i.Observe(t.Context(), podNamed("p", 0), names, nil)
	if a, b, c := seen[names[0]], seen[names[1]], seen[names[2]]; !a.Here || a.ID != "i" || a.Unclear != "" || b.Here || b.Unclear != "" || c.Here || c.Unclear == "" || len(seen) != 3 {
		t.Errorf("%+v", seen)
	}
	f.lookErr = status.Error(codes.Unavailable, "connection refused")
	if a := i.Observe(t.Context(), podNamed("p", 0), names[:1], nil)[names[0]]; a.Here || !strings.Contains(a.Unclear, "connection refused") {
		t.Errorf("%+v", a)
	}
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
