package crilog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// output collects the output of a follower.
type output struct {
	mu   sync.Mutex
	text strings.Builder
	more chan struct{} // receives after a write
}

func newSink() *output { return &output{more: make(chan struct{}, 1)} }

func (s *output) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text.Write(p)
	select {
	case s.more <- struct{}{}:
	default:
	}
	return len(p), nil
}

func (s *output) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// await waits until the text ends with the suffix.
func (s *output) await(t *testing.T, suffix string) {
	t.Helper()
	timeout := time.After(time.Minute)
	for !strings.HasSuffix(s.String(), suffix) {
		select {
		case <-s.more:
		case <-timeout:
			t.Fatalf("timeout waiting for %q: got %q", suffix, s.String())
		}
	}
}

// fakeRuntime writes a log like a container runtime.
type fakeRuntime struct {
	t    *testing.T
	path string
	mu   sync.Mutex
	f    *os.File
}

func newFakeRuntime(t *testing.T) *fakeRuntime {
	r := &fakeRuntime{t: t, path: filepath.Join(t.TempDir(), "0.log")}
	if err := r.reopen(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.f.Close() })
	return r
}

func (r *fakeRuntime) reopen() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	f, err := os.OpenFile(r.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o640)
	if err != nil {
		return err
	}
	if r.f != nil {
		r.f.Close()
	}
	r.f = f
	return nil
}

func (r *fakeRuntime) raw(text string) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, err := r.f.WriteString(text); err != nil {
		r.t.Error(err)
	}
}

func (r *fakeRuntime) writeLines(lines ...string) {
	r.t.Helper()
	for _, l := range lines {
		r.raw(stamp + " stdout F " + l + "\n")
	}
}

// rotate calls Rotate at the given second, which must be after the last one.
func (r *fakeRuntime) rotate(second int) {
	r.t.Helper()
	done, err := Rotate(r.path,
		Rotation{MaxSize: 1, MaxFiles: 100, Now: day(1).Add(time.Duration(second) * time.Second),
			Reopen: r.reopen})
	if err != nil || !done {
		r.t.Errorf("rotated %t: %v", done, err)
	}
}

// follower is a running Read with Follow.
type follower struct {
	*output
	done  chan struct{}
	ended chan error
}

func follow(t *testing.T, path string, change ...func(*Options)) *follower {
	t.Helper()
	f := &follower{newSink(), make(chan struct{}), make(chan error, 1)}
	o := Options{Path: path, Follow: true, Done: f.done, Stdout: f}
	for _, c := range change {
		c(&o)
	}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		f.ended <- Read(ctx, o)
	}()
	t.Cleanup(func() {
		cancel()
		<-stopped
	})
	return f
}

// finish simulates the exit of the container and waits until the follower returns.
func (f *follower) finish(t *testing.T, want string) {
	t.Helper()
	close(f.done)
	select {
	case err := <-f.ended:
		if err != nil {
			t.Errorf("ended with %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("still following a minute after the container exited")
	}
	if got := f.String(); got != want {
		i := 0
		for i < min(len(got), len(want)) && got[i] == want[i] {
			i++
		}
		t.Errorf("from byte %d: got %.100q, want %.100q", i, got[i:], want[i:])
	}
}

func TestFollow(t *testing.T) { // L3, L4
	none := int64(0)
	for _, row := range []struct {
		name   string
		change func(*Options)
		act    func(*fakeRuntime, *follower)
		want   string
	}{
		{"lines are read as they are written", nil, func(r *fakeRuntime, f *follower) {
			f.await(t, "before\n")
			r.writeLines("a")
			f.await(t, "a\n")
			r.writeLines("b", "c")
			f.await(t, "c\n")
		}, "before\na\nb\nc\n"},
		{"everything before the exit is read", nil, func(r *fakeRuntime, f *follower) { r.writeLines("a", "b") },
			"before\na\nb\n"},
		{"with a tail of zero only new lines", func(o *Options) { o.Tail = &none }, func(r *fakeRuntime, f *follower) {
			for !strings.Contains(f.String(), "new") { // until the follower has started
				r.writeLines("new")
			}
		}, ""},
		{"a record written in two parts is one line", nil, func(r *fakeRuntime, f *follower) {
			f.await(t, "before\n")
			r.raw(stamp + " std")
			r.raw("out F to")
			r.raw("gether\n")
			f.await(t, "together\n")
		}, "before\ntogether\n"},
		{"following continues in the next file", nil, func(r *fakeRuntime, f *follower) {
			f.await(t, "before\n")
			r.rotate(1)
			r.writeLines("a")
			f.await(t, "a\n")
			r.rotate(2)
			r.writeLines("b")
			f.await(t, "b\n")
		}, "before\na\nb\n"},
		{"several rotations lose no line", nil, func(r *fakeRuntime, f *follower) {
			f.await(t, "before\n")
			for i := range 5 {
				r.writeLines(fmt.Sprint("a", i))
				r.rotate(i)
			}
			r.writeLines("b")
			f.await(t, "b\n")
		}, "before\na0\na1\na2\na3\na4\nb\n"},
		{"a container that exits right after rotations loses no line", nil, func(r *fakeRuntime, f *follower) {
			f.await(t, "before\n")
			for i := range 3 {
				r.writeLines(fmt.Sprint("a", i))
				r.rotate(i)
			}
		}, "before\na0\na1\na2\n"},
		{"the runtime writes to the renamed file until it reopens", nil, func(r *fakeRuntime, f *follower) {
			f.await(t, "before\n")
			if err := os.Rename(r.path, r.path+".20260101-000001"); err != nil {
				r.t.Fatal(err)
			}
			r.writeLines("moved")
			f.await(t, "moved\n")
			old := r.f
			r.f = nil
			if err := r.reopen(); err != nil {
				r.t.Fatal(err)
			}
			defer old.Close()
			if _, err := old.WriteString(stamp + " stdout F late\n"); err != nil {
				r.t.Fatal(err)
			}
			r.writeLines("new")
			f.await(t, "new\n")
		}, "before\nmoved\nlate\nnew\n"},
		{"a truncated log is read from its start", nil, func(r *fakeRuntime, f *follower) {
			r.writeLines("a", "b")
			f.await(t, "b\n")
			if err := os.Truncate(r.path, 0); err != nil {
				r.t.Fatal(err)
			}
			r.writeLines("c")
			f.await(t, "c\n")
		}, "before\na\nb\nc\n"},
		{"an incomplete line is emitted at the end", nil, func(r *fakeRuntime, f *follower) {
			r.raw(stamp + " stdout P prompt")
		}, "before\nprompt"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			r := newFakeRuntime(t)
			r.writeLines("before")
			var changes []func(*Options)
			if row.change != nil {
				changes = append(changes, row.change)
			}
			f := follow(t, r.path, changes...)
			row.act(r, f)
			want := row.want
			if row.change != nil {
				want = f.String()
				if strings.Contains(want, "before") {
					t.Errorf("an old line was read: %q", want)
				}
				close(f.done)
				if err := <-f.ended; err != nil {
					t.Error(err)
				}
				return
			}
			f.finish(t, want)
		})
	}
}

func TestFollowWaitsForLog(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "0.log")
	f := follow(t, path)
	r := &fakeRuntime{t: t, path: path}
	if err := r.reopen(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.f.Close() })
	r.writeLines("a")
	f.await(t, "a\n")
	f.finish(t, "a\n")
}

func TestFollowEndsWithoutLog(t *testing.T) {
	t.Parallel()
	f := follow(t, filepath.Join(t.TempDir(), "0.log"))
	close(f.done)
	if err := <-f.ended; !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

func TestFollowEndsWithContext(t *testing.T) {
	t.Parallel()
	r := newFakeRuntime(t)
	r.writeLines("a")
	ctx, cancel := context.WithCancel(t.Context())
	s, ended := newSink(), make(chan error, 1)
	go func() { ended <- Read(ctx, Options{Path: r.path, Follow: true, Stdout: s}) }()
	s.await(t, "a\n")
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestFollowEndsAtByteLimit(t *testing.T) {
	t.Parallel()
	r := newFakeRuntime(t)
	r.writeLines("abcdef")
	f := follow(t, r.path, func(o *Options) { o.LimitBytes = 3 })
	if err := <-f.ended; err != nil || f.String() != "abc" {
		t.Errorf("got %q, %v", f.String(), err)
	}
}

// TestFollowersReadEachRotatedLineOnce has a writer that writes as fast as
// it can and rotates at random, and followers that start at any time.
func TestFollowersReadEachRotatedLineOnce(t *testing.T) { // L3, L4
	t.Parallel()
	const lines, seed = 3000, 7
	r := newFakeRuntime(t)
	var want strings.Builder
	for i := range lines {
		fmt.Fprintf(&want, "line %d\n", i)
	}
	rnd := rand.New(rand.NewPCG(seed, seed))
	followers := []*follower{follow(t, r.path)}
	for i := range lines {
		r.writeLines(fmt.Sprint("line ", i))
		if rnd.IntN(100) == 0 {
			r.rotate(i)
		}
		if i%1000 == 500 {
			followers = append(followers, follow(t, r.path))
		}
	}
	for _, f := range followers {
		f.finish(t, want.String())
	}
}
