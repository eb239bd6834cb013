package images

import (
	"context"
	"errors"
	"fmt"
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

// startPull starts a pull in the background.
func startPull(ctx context.Context, i *Manager, pod *corev1.Pod, image string, secrets plan.Objects) <-chan error {
	end := make(chan error, 1)
	go func() {
		_, err := i.Pull(ctx, pod, pullAction(image), secrets)
		end <- err
	}()
	return end
}

func TestConcurrentPullsAreShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		release := f.block("reg.io/a:1")
		i := New(Options{Service: f})
		defer i.Close()
		var wg sync.WaitGroup
		var good atomic.Int32
		for n := range 100 {
			wg.Go(func() {
				img, err := i.Pull(t.Context(), newPod(fmt.Sprint("p", n), 0), pullAction("reg.io/a:1"), nil)
				if err == nil && img.ID == "id-of-reg.io/a:1" {
					good.Add(1)
				}
			})
		}
		synctest.Wait()
		if p := i.ActivePulls(); len(p) != 1 || len(p[0].Pods) != 100 || p[0].Image != "reg.io/a:1" ||
			p[0].StartedAt.IsZero() {
			t.Errorf("in progress: %+v", p)
		}
		if s := i.PullStatus("reg.io/a:1"); s != "reg.io/a:1, for 100 pods" || i.PullStatus("reg.io/a") != "" {
			t.Errorf("status %q", s)
		}
		release()
		wg.Wait()
		if good.Load() != 100 || len(f.started()) != 1 {
			t.Errorf("got %d waiters with the image and %d pulls, want 100 and 1", good.Load(), len(f.started()))
		}
		if p := i.ActivePulls(); len(p) != 0 {
			t.Errorf("still in progress: %+v", p)
		}
	})
}

func TestPullsWithDifferentCredentialsAreNotShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		release := f.block("reg.io/a:1")
		i := New(Options{Service: f})
		defer i.Close()
		one := plan.Objects{secretRef("s"): dockerConfig(map[string]string{"reg.io": "one"})}
		two := plan.Objects{secretRef("s"): dockerConfig(map[string]string{"reg.io": "two"})}
		ends := []<-chan error{
			startPull(t.Context(), i, newPod("a", 0, "s"), "reg.io/a:1", one),
			startPull(t.Context(), i, newPod("b", 0, "s"), "reg.io/a:1", one),
			startPull(t.Context(), i, newPod("c", 0, "s"), "reg.io/a:1", two),
			startPull(t.Context(), i, newPod("d", 0), "reg.io/a:1", one),
		}
		synctest.Wait()
		release()
		for _, end := range ends {
			if err := <-end; err != nil {
				t.Error(err)
			}
		}
		if n := len(f.started()); n != 3 {
			t.Errorf("got %d pulls, want 3: with two secrets and without a secret", n)
		}
	})
}

func TestCanceledWaiterDoesNotAffectOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		release := f.block("reg.io/a:1")
		i := New(Options{Service: f})
		defer i.Close()
		ctx, cancel := context.WithCancel(t.Context())
		first := startPull(ctx, i, newPod("first", 0), "reg.io/a:1", nil)
		synctest.Wait()
		second := startPull(t.Context(), i, newPod("second", 0), "reg.io/a:1", nil)
		synctest.Wait()
		cancel()
		wantKind(t, <-first, plan.Canceled, "ErrImagePull")
		synctest.Wait()
		if p := i.ActivePulls(); len(p) != 1 || !slices.Equal(p[0].Pods, []string{"ns/second"}) {
			t.Errorf("after the first waiter left: %+v", p)
		}
		release()
		if err := <-second; err != nil {
			t.Errorf("the remaining waiter got %v", err)
		}
	})
}

func TestLastWaiterCancelsPull(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		release := f.block("reg.io/a:1")
		i := New(Options{Service: f, MaxParallel: 1})
		defer i.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		wantKind(t, <-startPull(ctx, i, newPod("p", 0), "reg.io/a:1", nil), plan.Timeout, "ErrImagePull")
		synctest.Wait()
		if p := i.ActivePulls(); len(p) != 0 {
			t.Errorf("still in progress: %+v", p)
		}
		release()
		if err := <-startPull(t.Context(), i, newPod("q", 0), "reg.io/a:1", nil); err != nil {
			t.Errorf("the slot was not released: %v", err)
		}
	})
}

func TestPullDuringCancellationStartsNewPull(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		calls := newInflightPulls()
		slow := make(chan struct{})
		var running, most, n atomic.Int32
		call := func(ctx context.Context, _ *inflightPull) (plan.Image, error) {
			most.Store(max(most.Load(), running.Add(1)))
			defer running.Add(-1)
			if n.Add(1) == 1 {
				<-ctx.Done()
				<-slow // returns long after it was canceled
				return plan.Image{}, ctx.Err()
			}
			return plan.Image{Size: 7}, nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		first := make(chan error, 1)
		go func() { _, _, err := calls.do(ctx, "k", waiter{}, call); first <- err }()
		synctest.Wait()
		cancel()
		if err := <-first; !errors.Is(err, context.Canceled) {
			t.Errorf("the waiter that left got %v", err)
		}
		second := make(chan uint64, 1)
		go func() { v, _, _ := calls.do(t.Context(), "k", waiter{}, call); second <- v.Size }()
		synctest.Wait()
		close(slow)
		if v := <-second; v != 7 || most.Load() != 1 {
			t.Errorf("got %d with %d concurrent pulls, want 7 with 1", v, most.Load())
		}
		calls.close()
	})
}

func TestPullParallelism(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		o    Options
		most int
	}{{Options{}, 5}, {Options{MaxParallel: 2}, 2}, {Options{MaxParallel: 1}, 1}} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			c.o.Service = f
			i := New(c.o)
			defer i.Close()
			var ends []<-chan error
			var releases []func()
			for n := range 8 {
				image := fmt.Sprintf("reg.io/a:%d", n)
				releases = append(releases, f.block(image))
				ends = append(ends, startPull(t.Context(), i, newPod("p", 0), image, nil))
			}
			synctest.Wait()
			for _, r := range releases {
				r()
				synctest.Wait()
			}
			for _, end := range ends {
				if err := <-end; err != nil {
					t.Error(err)
				}
			}
			if f.maxRunning != c.most {
				t.Errorf("%+v: %d concurrent pulls, want %d", c.o, f.maxRunning, c.most)
			}
		})
	}
}

func TestPullPriority(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		release := f.block("reg.io/blocker:1")
		i := New(Options{Service: f, MaxParallel: 1})
		defer i.Close()
		ends := []<-chan error{startPull(t.Context(), i, newPod("blocker", 0), "reg.io/blocker:1", nil)}
		synctest.Wait()
		for _, p := range []struct {
			image    string
			priority int32
		}{{"reg.io/low:1", -5}, {"reg.io/first:1", 0}, {"reg.io/second:1", 0}, {"reg.io/high:1", 2e9},
			{"reg.io/raised:1",
				0}, {"reg.io/raised:1", 1000}} {
			time.Sleep(time.Second)
			ends = append(ends, startPull(t.Context(), i, newPod("p", p.priority), p.image, nil))
			synctest.Wait()
		}
		var queue []string
		for _, p := range i.ActivePulls() {
			queue = append(queue, fmt.Sprintf("%s %d %v", p.Image, p.QueuePosition, p.StartedAt.IsZero()))
		}
		want := []string{"reg.io/blocker:1 0 false", "reg.io/low:1 4 true", "reg.io/first:1 2 true",
			"reg.io/second:1 3 true", "reg.io/high:1 0 true", "reg.io/raised:1 1 true"}
		if !slices.Equal(queue, want) {
			t.Errorf("queue %q, want %q", queue, want)
		}
		release()
		for _, end := range ends {
			if err := <-end; err != nil {
				t.Error(err)
			}
		}
		order := []string{"reg.io/blocker:1", "reg.io/high:1", "reg.io/raised:1", "reg.io/first:1", "reg.io/second:1",
			"reg.io/low:1"}
		if got := f.started(); !slices.Equal(got, order) {
			t.Errorf("order %q, want %q", got, order)
		}
	})
}

func TestPullRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		i := New(Options{Service: f, QPS: 5, Burst: 10, MaxParallel: 100})
		defer i.Close()
		began := time.Now()
		var ends []<-chan error
		for n := range 30 {
			ends = append(ends, startPull(t.Context(), i, newPod("p", 0), fmt.Sprintf("reg.io/a:%d", n), nil))
		}
		for _, c := range []struct {
			after time.Duration
			want  int
		}{{0, 10}, {199 * time.Millisecond, 10}, {201 * time.Millisecond, 11}, {2001 * time.Millisecond,
			20}, {4001 * time.Millisecond, 30}} {
			time.Sleep(c.after - time.Since(began))
			synctest.Wait()
			if got := len(f.started()); got != c.want {
				t.Errorf("after %s: got %d started pulls, want %d", c.after, got, c.want)
			}
		}
		for _, end := range ends {
			if err := <-end; err != nil {
				t.Error(err)
			}
		}
		time.Sleep(time.Hour) // idle, so the burst is full again
		for n := range 12 {
			startPull(t.Context(), i, newPod("p", 0), fmt.Sprintf("reg.io/b:%d", n), nil)
		}
		synctest.Wait()
		if got := len(f.started()); got != 40 {
			t.Errorf("after the idle time: got %d started pulls, want 40", got)
		}
		time.Sleep(time.Second)
	})
}

func TestCanceledQueuedPullReleasesToken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		i := New(Options{Service: f, QPS: 1, Burst: 1, MaxParallel: 1})
		defer i.Close()
		<-startPull(t.Context(), i, newPod("p", 0), "reg.io/a:1", nil)
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		wantKind(t, <-startPull(ctx, i, newPod("p", 0), "reg.io/b:1", nil), plan.Timeout, "ErrImagePull")
		began := time.Now()
		if err := <-startPull(t.Context(), i, newPod("p", 0), "reg.io/c:1", nil); err != nil {
			t.Error(err)
		}
		if d := time.Since(began).Round(time.Millisecond); d != 500*time.Millisecond {
			t.Errorf("the next pull waited %s, want the rest of the second", d)
		}
		if got := f.started(); !slices.Equal(got, []string{"reg.io/a:1", "reg.io/c:1"}) {
			t.Errorf("pulled %q", got)
		}
	})
}

func TestCloseCancelsPulls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.block("reg.io/a:1")
		i := New(Options{Service: f, MaxParallel: 1})
		running := startPull(t.Context(), i, newPod("p", 0), "reg.io/a:1", nil)
		synctest.Wait()
		waiting := startPull(t.Context(), i, newPod("p", 0), "reg.io/b:1", nil)
		synctest.Wait()
		i.Close()
		wantKind(t, <-running, plan.Canceled, "ErrImagePull")
		wantKind(t, <-waiting, plan.Canceled, "ErrImagePull")
		wantKind(t, <-startPull(t.Context(), i, newPod("p", 0), "reg.io/c:1", nil), plan.Canceled, "ErrImagePull")
	})
}

func TestPullTriesAllCredentials(t *testing.T) {
	t.Parallel()
	f := newFake()
	f.pullErr = func(_ string, auth *runtimeapi.AuthConfig) error {
		if auth.GetUsername() != "good" {
			return errDenied
		}
		return nil
	}
	i := newImages(t, Options{Service: f})
	secrets := plan.Objects{
		secretRef("bad"):  dockerConfig(map[string]string{"reg.io/team": "bad"}),
		secretRef("good"): dockerConfig(map[string]string{"reg.io": "good", "other.io": "other"}),
	}
	if _, err := i.Pull(t.Context(), newPod("p", 0, "bad", "good"), pullAction("reg.io/team/a:1"),
		secrets); err != nil {
		t.Fatal(err)
	}
	if len(f.auths) != 2 || f.auths[0].Username != "bad" || f.auths[1].Password != "password-of-good" {
		t.Errorf("got %d pulls with credentials", len(f.auths))
	}
}

func TestPullStopsAtNoSpace(t *testing.T) {
	t.Parallel()
	f := newFake()
	f.pullErr = func(string, *runtimeapi.AuthConfig) error {
		return status.Error(codes.Unknown, "write /var/lib/x: no space left on device")
	}
	i := newImages(t, Options{Service: f})
	secrets := plan.Objects{secretRef("s"): dockerConfig(map[string]string{"reg.io": "one", "*.io": "two"})}
	_, err := i.Pull(t.Context(), newPod("p", 0, "s"), pullAction("reg.io/a:1"), secrets)
	wantKind(t, err, plan.NoSpace, "ErrImagePull")
	if len(f.auths) != 1 {
		t.Errorf("got %d pulls with credentials", len(f.auths))
	}
}

func TestPullPrefersDenialOverNotFound(t *testing.T) {
	t.Parallel()
	f := newFake()
	f.pullErr = func(_ string, auth *runtimeapi.AuthConfig) error {
		if auth.GetUsername() == "denied" {
			return errDenied
		}
		return status.Error(codes.NotFound, "manifest unknown")
	}
	i := newImages(t, Options{Service: f})
	secrets := plan.Objects{secretRef("s"): dockerConfig(map[string]string{"reg.io/a": "blind", "reg.io": "denied"})}
	_, err := i.Pull(t.Context(), newPod("p", 0, "s"), pullAction("reg.io/a:1"), secrets)
	wantKind(t, err, plan.Denied, "ErrImagePull")
	if !strings.Contains(err.Error(), "each of 2 credentials") {
		t.Error(err)
	}
}

func TestPullWarnsAboutMissingSecret(t *testing.T) {
	t.Parallel()
	f := newFake()
	var warnings []string
	i := newImages(t, Options{Service: f, Warn: func(p *corev1.Pod, reason, message string) {
		warnings = append(warnings,
			p.Name+" "+reason+" "+message)
	}})
	if _, err := i.Pull(t.Context(), newPod("p", 0, "gone"), pullAction("reg.io/a:1"), nil); err != nil {
		t.Errorf("a public image needs no secret: %v", err)
	}
	if want := []string{`p FailedToRetrieveImagePullSecret pull secret "gone": not found`}; !slices.Equal(warnings,
		want) {
		t.Errorf("warnings %q, want %q", warnings, want)
	}
	f.pullErr = func(string, *runtimeapi.AuthConfig) error { return errDenied }
	_, err := i.Pull(t.Context(), newPod("p", 0, "gone"), pullAction("reg.io/b:1"), nil)
	wantKind(t, err, plan.Denied, "ErrImagePull")
	if !strings.HasSuffix(err.Error(), `(pull secret "gone": not found)`) {
		t.Errorf("the error does not name the missing secret: %v", err)
	}
}

func TestPullErrorsContainNoSecret(t *testing.T) {
	t.Parallel()
	f := newFake()
	f.pullErr = func(_ string, auth *runtimeapi.AuthConfig) error {
		return status.Errorf(codes.Unknown, "GET https://u:pw@cdn.io/blob?sig=SIGNED&x=1: refused %s", auth.Password)
	}
	i := newImages(t, Options{Service: f})
	secrets := plan.Objects{secretRef("s"): dockerConfig(map[string]string{"reg.io": "one"})}
	_, err := i.Pull(t.Context(), newPod("p", 0, "s"), pullAction("reg.io/a:1"), secrets)
	if s := err.Error(); strings.Contains(s, "password-of") || strings.Contains(s, "SIGNED") ||
		strings.Contains(s, "u:pw") || !strings.Contains(s, "https://…@cdn.io/blob?…: refused …") {
		t.Error(s)
	}
}

func TestInvalidNameIsNotSentToRuntime(t *testing.T) {
	t.Parallel()
	f := newFake()
	i := newImages(t, Options{Service: f})
	_, err := i.Pull(t.Context(), newPod("p", 0), pullAction("Not a name"), nil)
	wantKind(t, err, plan.Invalid, "InvalidImageName")
	_, _, err = i.Present(t.Context(), newPod("p", 0), "nginx:", nil)
	wantKind(t, err, plan.Invalid, "InvalidImageName")
	if len(f.pulled)+f.inspects != 0 {
		t.Error("runtime was called")
	}
}

func TestPullInspectError(t *testing.T) {
	t.Parallel()
	f := newFake()
	f.statusErr = errors.New("broken store")
	i := newImages(t, Options{Service: f})
	_, err := i.Pull(t.Context(), newPod("p", 0), pullAction("reg.io/a:1"), nil)
	wantKind(t, err, plan.Other, "ImageInspectError")
}

func TestPullTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.block("reg.io/a:1")
		i := New(Options{Service: f, Timeout: time.Hour})
		defer i.Close()
		began := time.Now()
		wantKind(t, <-startPull(t.Context(), i, newPod("p", 0), "reg.io/a:1", nil), plan.Timeout, "ErrImagePull")
		if d := time.Since(began); d != time.Hour {
			t.Errorf("pull was canceled after %s", d)
		}
	})
}
