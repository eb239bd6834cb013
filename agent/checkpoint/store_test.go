package checkpoint

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/bbolt"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/v1-story.db")

// record returns a record with content in every part.
func record(name string) Record {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return Record{
		Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name)},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "b:1"}}}},
		Verdict: plan.Verdict{State: plan.Admitted, Reason: "R", Message: "m"},
		Memory: plan.Memory{
			Termination: &plan.Termination{Reason: "Deleted", Grace: 3 * time.Second, RequestedAt: at},
			Restarts:    map[string]plan.RestartState{"a": {Count: 2, NextAttempt: 3, NotBefore: at}},
			Phase:       corev1.PodRunning, StartTime: at,
			Exits: map[string]plan.Container{"a": {ID: "c1", State: plan.Exited, ExitCode: 7, FinishedAt: at}},
			IPs:   []string{"10.0.0.1"},
		},
		Objects: plan.Objects{
			{Kind: plan.Secret, Name: "s"}: {Version: plan.Version{Version: "v1"},
				Secret: &corev1.Secret{
					ObjectMeta: metav1.ObjectMeta{Name: "s"},
					Data:       map[string][]byte{"k": []byte("hunter2")},
				}},
			{Kind: plan.ConfigMap, Name: "c"}: {Version: plan.Version{Missing: true}},
		},
		BootID:  "boot1",
		History: History{Timeline: []byte(`{"version":1,"spans":[]}`)},
	}
}

func options(t *testing.T) Options {
	return Options{
		Path:          filepath.Join(t.TempDir(), "state", "berth.db"),
		CommitDelay:   time.Millisecond,
		RetryInterval: 5 * time.Millisecond,
		Log:           slog.New(slog.NewTextHandler(testWriter{t}, nil)),
	}
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(b)))
	return len(b), nil
}

// open opens a store that must be usable.
func open(t *testing.T, o Options) *Store {
	t.Helper()
	s, quarantined, err := Open(o)
	if err != nil || quarantined != nil {
		t.Fatalf("open: %v, quarantined: %v", err, quarantined)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// run starts Run. The returned function stops it and closes the store.
func run(t *testing.T, s *Store) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return errors.Join(<-done, s.Close())
	})
	t.Cleanup(func() { _ = stop() })
	return stop
}

func load(t *testing.T, s *Store) map[types.UID]Record {
	t.Helper()
	got, err := s.Load()
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within a minute", what)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestRecordsSurviveReopen(t *testing.T) {
	o := options(t)
	s := open(t, o)
	stop := run(t, s)
	s.Put("a", record("a"))
	s.Put("b", record("old"))
	s.Put("b", record("b"))
	bare := Record{Pod: record("c").Pod}
	s.Put("c", bare)
	issued := record("e")
	issued.Objects = plan.Objects{
		{Kind: plan.ClusterTrustBundle, Name: "b"}: {Version: plan.Version{Version: "v1"}, TrustBundle: "pem"},
		{Kind: plan.PodCertificates, Name: "v/0"}: {Version: plan.Version{Version: "v2"},
			PodCertificate: &plan.PodCertificate{Key: "key", Chain: "chain"}},
	}
	s.Put("e", issued)
	s.Put("d", record("d"))
	s.Delete("d")
	s.Delete("unknown")
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	got := load(t, open(t, o))
	want := map[types.UID]Record{"a": record("a"), "b": record("b"), "c": bare, "e": issued}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	st, err := os.Stat(o.Path)
	if err != nil || st.Mode().Perm() != 0o600 { // C7
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
}

func TestSyncDeletesEmptyParts(t *testing.T) {
	o := options(t)
	s := open(t, o)
	stop := run(t, s)
	if err := s.Sync(t.Context(), "a", record("a")); err != nil {
		t.Fatal(err)
	}
	less := Record{Pod: record("a").Pod, Memory: plan.Memory{Phase: corev1.PodFailed}}
	if err := s.Sync(t.Context(), "a", less); err != nil {
		t.Fatal(err)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	less.History = record("a").History // a nil history is left unchanged
	if d := cmp.Diff(map[types.UID]Record{"a": less}, load(t, open(t, o))); d != "" {
		t.Error(d)
	}
}

func TestSyncedRecordIsReadable(t *testing.T) { // C2
	s := open(t, options(t))
	run(t, s)
	for i := range 20 {
		uid := types.UID(fmt.Sprint(i))
		if err := s.Sync(t.Context(), uid, record(string(uid))); err != nil {
			t.Fatal(err)
		}
		if _, ok := load(t, s)[uid]; !ok {
			t.Fatalf("record %s is missing after Sync", uid)
		}
	}
}

func TestSyncsShareCommit(t *testing.T) {
	s := open(t, options(t))
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			if err := s.Sync(t.Context(), types.UID(fmt.Sprint(i)), record("a")); err != nil {
				t.Error(err)
			}
		})
	}
	eventually(t, "all callers wait", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return len(s.waiters) == 100 })
	before := commits(t, s)
	run(t, s)
	all.Wait()
	if n := commits(t, s) - before; n != 1 {
		t.Errorf("%d commits for 100 callers, want 1", n)
	}
}

// commits returns the number of commits so far.
func commits(t *testing.T, s *Store) int {
	t.Helper()
	s.mu.Lock()
	f := s.file
	s.mu.Unlock()
	n := 0
	err := f.db.View(func(tx *bbolt.Tx) error { n = tx.ID(); return nil })
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestUnchangedRecordIsNotCommitted(t *testing.T) {
	s := open(t, options(t))
	run(t, s)
	r := record("a")
	if err := s.Sync(t.Context(), "a", r); err != nil {
		t.Fatal(err)
	}
	before := commits(t, s)
	for range 3 {
		if err := s.Sync(t.Context(), "a", r); err != nil {
			t.Fatal(err)
		}
	}
	if n := commits(t, s) - before; n != 0 {
		t.Errorf("%d commits without changes", n)
	}
}

func TestPutNeverWaits(t *testing.T) { // C1
	s := open(t, options(t)) // Run is not running
	for i := range 10000 {
		s.Put(types.UID(fmt.Sprint(i%10)), record("a"))
		s.Delete("b")
		s.Degraded()
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Sync(ctx, "a", record("a")); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestOpenFailsWhenLocked(t *testing.T) { // C6
	o := options(t)
	open(t, o)
	if _, quarantined, err := Open(o); !errors.Is(err, ErrLocked) || quarantined != nil {
		t.Errorf("got %v and %v, want ErrLocked", err, quarantined)
	}
	if _, err := os.Stat(o.Path); err != nil {
		t.Errorf("the store is missing: %v", err)
	}
}

func TestOpenQuarantinesForeignStore(t *testing.T) { // C3
	bolt := func(fill func(*bbolt.Tx) error) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			db, err := bbolt.Open(path, 0o600, nil)
			if err == nil {
				err = errors.Join(db.Update(fill), db.Close())
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	text := func(s string) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			if err := os.WriteFile(path, []byte(s), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	tests := []struct {
		name, kind, want string
		make             func(t *testing.T, path string)
	}{
		{"some text", "alien", "was not written by berth", text("hello")},
		{"some long text", "alien", "was not written by berth", text(strings.Repeat("hello", 10000))},
		{"a bbolt file of another program", "alien", "was not written by berth", bolt(func(tx *bbolt.Tx) error {
			_, err := tx.CreateBucket([]byte("x"))
			return err
		})},
		{
			"a newer version",
			"newer",
			"has version 2, this release supports versions up to 1",
			bolt(func(tx *bbolt.Tx) error {
				return errors.Join(initialize(tx), tx.Bucket(bucketBerth).Put(keyVersion, []byte("2")))
			}),
		},
		{"a version that is not a number", "damaged", "version is missing", bolt(func(tx *bbolt.Tx) error {
			return errors.Join(initialize(tx), tx.Bucket(bucketBerth).Put(keyVersion, []byte("x")))
		})},
		{"no bucket of pods", "damaged", "version is missing", bolt(func(tx *bbolt.Tx) error {
			return errors.Join(initialize(tx), tx.DeleteBucket(bucketPods))
		})},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := options(t)
			if err := os.MkdirAll(filepath.Dir(o.Path), 0o700); err != nil {
				t.Fatal(err)
			}
			tt.make(t, o.Path)
			before, err := os.ReadFile(o.Path)
			if err != nil {
				t.Fatal(err)
			}
			s, quarantined, err := Open(o)
			if err != nil || quarantined == nil {
				t.Fatalf("open: %v, quarantined: %v", err, quarantined)
			}
			if !strings.Contains(quarantined.String(), tt.want) ||
				!strings.HasPrefix(quarantined.Path, o.Path+"."+tt.kind+"-") {
				t.Errorf("got %s", quarantined)
			}
			after, err := os.ReadFile(quarantined.Path)
			if err != nil || !bytes.Equal(before, after) {
				t.Errorf("the quarantined file has changed: %v", err)
			}
			stop := run(t, s)
			if err := s.Sync(t.Context(), "a", record("a")); err != nil {
				t.Error(err)
			}
			if err := stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestOpenInitializesEmptyStore(t *testing.T) {
	for _, tt := range []struct {
		name string
		make func(path string) error
	}{
		{"an empty file", func(path string) error { return os.WriteFile(path, nil, 0o600) }},
		{"an empty database", func(path string) error {
			db, err := bbolt.Open(path, 0o600, nil)
			if err != nil {
				return err
			}
			return db.Close()
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := options(t)
			if err := errors.Join(os.MkdirAll(filepath.Dir(o.Path), 0o700), tt.make(o.Path)); err != nil {
				t.Fatal(err)
			}
			s := open(t, o)
			run(t, s)
			if err := s.Sync(t.Context(), "a", record("a")); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestLoadDropsDamagedRecord(t *testing.T) { // C4
	o := options(t)
	s := open(t, o)
	stop := run(t, s)
	for _, uid := range []types.UID{"a", "b", "c", "d", "e"} {
		s.Put(uid, record(string(uid)))
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	db, err := bbolt.Open(o.Path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		pods := tx.Bucket(bucketPods)
		return errors.Join(
			pods.Bucket([]byte("a")).Put([]byte(partMemory), []byte("xxxxgarbage")),
			pods.Bucket([]byte("b")).Delete([]byte(partPod)),
			pods.Bucket([]byte("c")).Put([]byte(partTimeline), []byte("x")),
			pods.Bucket([]byte("d")).Put([]byte(partObjects), addChecksum([]byte(`[{"secret": "hunter2"}]`))),
		)
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	o.Log = slog.New(slog.NewTextHandler(&log, nil))
	s = open(t, o)
	got := load(t, s)
	c := record("c")
	c.Timeline = nil // a damaged history part does not affect the record
	if d := cmp.Diff(map[types.UID]Record{"c": c, "e": record("e")}, got); d != "" {
		t.Error(d)
	}
	for _, want := range []string{"podUID=a", "memory: checksum does not match", "podUID=b", "pod: absent", "podUID=d",
		"objects: cannot be decoded"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("%q is not in the log:\n%s", want, log.String())
		}
	}
	if strings.Contains(log.String(), "hunter2") {
		t.Error("the log contains a secret")
	}
	if err := run(t, s)(); err != nil {
		t.Fatal(err)
	}
	if n := len(load(t, open(t, o))); n != 2 {
		t.Errorf("%d records after the damaged ones were dropped, want 2", n)
	}
}

// copyGolden copies a golden store to the path of the options.
func copyGolden(t *testing.T, o Options, file string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(o.Path), 0o700), os.WriteFile(o.Path, b, 0o600)); err != nil {
		t.Fatal(err)
	}
}

func TestLoadReadsEarlierFormats(t *testing.T) {
	withHistory := record("b")
	withHistory.Events, withHistory.Reported = []byte(`{"version":1,"events":[]}`), []byte(`{"version":1,"told":[]}`)
	for file, want := range map[string]map[types.UID]Record{
		"v1.db":       {"a": record("a"), "b": record("b")},
		"v1-story.db": {"a": record("a"), "b": withHistory}, // events and reported waits were added later
	} {
		if *rewrite && file != "v1.db" { // written by the first release
			o := options(t)
			o.Path, o.PreallocateBytes = filepath.Join(t.TempDir(), file), -1
			s := open(t, o)
			stop := run(t, s)
			for uid, r := range want {
				s.Put(uid, r)
			}
			if err := stop(); err != nil {
				t.Fatal(err)
			}
			b, err := os.ReadFile(o.Path)
			if err := errors.Join(err, os.MkdirAll("testdata", 0o755), os.WriteFile(filepath.Join("testdata", file), b,
				0o644)); err != nil {
				t.Fatal(err)
			}
		}
		o := options(t)
		copyGolden(t, o, file)
		s := open(t, o)
		if d := cmp.Diff(want, load(t, s)); d != "" {
			t.Errorf("%s: %s", file, d)
		}
		if clean := s.PreviousRun().CleanExit; clean != (file == "v1-story.db") {
			t.Errorf("%s: clean exit of the previous run: %v", file, clean)
		}
	}
}

func TestUnencodableRecordDoesNotBlockOthers(t *testing.T) {
	s := open(t, options(t))
	run(t, s)
	s.Put("bad", Record{})
	s.Put("", record("x"))
	if err := s.Sync(t.Context(), "a", record("a")); err != nil {
		t.Fatal(err)
	}
	if got := load(t, s); len(got) != 1 {
		t.Errorf("%d records", len(got))
	}
}
