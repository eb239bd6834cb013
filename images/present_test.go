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
	"berth/podspec"
)

func TestPresentFollowsMovedTag(t *testing.T) {
	t.Parallel()
	f := newFake()
	i := newImages(t, Options{Service: f})
	wantPresent := func(want string) {
		t.Helper()
		if img, present, err := i.Present(t.Context(), newPod("p", 0), "reg.io/a:1", nil); !present || err != nil ||
			img.ID != want {
			t.Errorf("%+v %v %v, want %s", img, present, err, want)
		}
		if img, err := i.Resolve(t.Context(), newPod("p", 0), "reg.io/a:1", nil); err != nil || img.ID != want {
			t.Errorf("%+v %v, want %s", img, err, want)
		}
	}
	for _, id := range []string{"i", "j"} { // the tag moves
		f.add(&runtimeapi.Image{Id: id, RepoTags: []string{"reg.io/a:1"}})
		wantPresent(id)
	}
	if _, err := i.Pull(t.Context(), newPod("p", 0), pullAction("reg.io/a:1"), nil); err != nil {
		t.Fatal(err)
	}
	wantPresent("id-of-reg.io/a:1")
	f.add(&runtimeapi.Image{Id: "k", RepoTags: []string{"reg.io/a:1"}})
	wantPresent("k")
}

func TestResolveMissingImage(t *testing.T) {
	t.Parallel()
	f := newFake()
	i := newImages(t, Options{Service: f})
	_, err := i.Resolve(t.Context(), newPod("p", 0), "reg.io/a:1", nil)
	wantKind(t, err, plan.ImageNotFound, "CreateContainerError")
	f.statusErr = status.Error(codes.Unavailable, "connection refused")
	_, err = i.Resolve(t.Context(), newPod("p", 0), "reg.io/a:1", nil)
	wantKind(t, err, plan.Unavailable, "ImageInspectError")
}

func TestAbsenceIsNotCached(t *testing.T) {
	t.Parallel()
	f := newFake()
	i := newImages(t, Options{Service: f})
	for n := range 3 {
		if _, present, err := i.Present(t.Context(), newPod("p", 0), "reg.io/a:1", nil); present || err != nil ||
			f.inspects != n+1 {
			t.Fatalf("present %v, err %v, %d status calls", present, err, f.inspects)
		}
	}
}

// TestConcurrentPresentSharesStatusCall, or the pods of a burst would wait for each
// other's answers.
func TestConcurrentPresentSharesStatusCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.add(&runtimeapi.Image{Id: "i", RepoTags: []string{"reg.io/a:1"}})
		f.statusBlock = make(chan struct{})
		i := New(Options{Service: f})
		defer i.Close()
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() { _, _, _ = i.Present(t.Context(), newPod("p", 0), "reg.io/a:1", nil) })
		}
		synctest.Wait()
		close(f.statusBlock)
		wg.Wait()
		if f.inspects != 1 {
			t.Errorf("got %d status calls for 50 callers, want 1", f.inspects)
		}
	})
}

func TestObserve(t *testing.T) {
	t.Parallel()
	f := newFake()
	f.add(&runtimeapi.Image{Id: "i", RepoTags: []string{"reg.io/a:1"}})
	i := newImages(t, Options{Service: f})
	names := []string{"reg.io/a:1", "reg.io/b:1", "Not/A_Name"}
	seen := i.Observe(t.Context(), newPod("p", 0), names, nil)
	if a, b, c := seen[names[0]], seen[names[1]], seen[names[2]]; !a.Present || a.ID != "i" || a.Err != "" ||
		b.Present ||
		b.Err != "" || c.Present || c.Err == "" || len(seen) != 3 {
		t.Errorf("%+v", seen)
	}
	f.statusErr = status.Error(codes.Unavailable, "connection refused")
	if a := i.Observe(t.Context(), newPod("p", 0), names[:1], nil)[names[0]]; a.Present ||
		!strings.Contains(a.Err, "connection refused") {
		t.Errorf("%+v", a)
	}
}

func TestImageUserAndDigest(t *testing.T) {
	t.Parallel()
	f := newFake()
	f.add(&runtimeapi.Image{Id: "i", RepoTags: []string{"reg.io/num:1", "reg.io/other:1"},
		RepoDigests: []string{"reg.io/other@sha256:1",
			"reg.io/num@sha256:2"}, Size: 5, Uid: &runtimeapi.Int64Value{Value: 0}})
	f.add(&runtimeapi.Image{Id: "j", RepoTags: []string{"reg.io/named:1"}, Username: "app"})
	i := newImages(t, Options{Service: f})
	num, _, err := i.Present(t.Context(), newPod("p", 0), "reg.io/num:1", nil)
	if err != nil || num.UID == nil || *num.UID != 0 || num.User != "" || num.Ref != "reg.io/num@sha256:2" ||
		num.Size != 5 {
		t.Errorf("%+v %v", num, err)
	}
	named, _, err := i.Present(t.Context(), newPod("p", 0), "reg.io/named:1", nil)
	if err != nil || named.UID != nil || named.User != "app" || named.Ref != "j" {
		t.Errorf("%+v %v", named, err)
	}
}

func TestPresentInspectError(t *testing.T) {
	t.Parallel()
	f := newFake()
	f.statusErr = status.Error(codes.Unavailable, "connection refused")
	i := newImages(t, Options{Service: f})
	_, _, err := i.Present(t.Context(), newPod("p", 0), "reg.io/a:1", nil)
	wantKind(t, err, plan.Unavailable, "ImageInspectError")
}

var hex64 = strings.Repeat("0123456789abcdef", 4)

func TestWithDefaultTag(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"nginx":                        "nginx:latest",
		"nginx:latest":                 "nginx:latest",
		"nginx:1":                      "nginx:1",
		"localhost:5000/x":             "localhost:5000/x:latest",
		"nginx@sha256:" + hex64:        "nginx@sha256:" + hex64,
		"nginx:latest@sha256:" + hex64: "nginx:latest@sha256:" + hex64,
	} {
		n, err := podspec.ParseImageName(in)
		if err != nil {
			t.Fatal(err)
		}
		got := withDefaultTag(in, n)
		if got != want {
			t.Errorf("%q: got request %q, want %q", in, got, want)
		}
		if parsed, err := podspec.ParseImageName(got); err != nil || parsed != n {
			t.Errorf("%q requested as %q: parsed as %s (%v), want %s", in, got, parsed, err, n)
		}
	}
}
