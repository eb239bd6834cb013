package storage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// testOptions returns options for a directory.
func testOptions(dir string) Options {
	return Options{Dir: dir, Log: slog.New(slog.DiscardHandler), UnsafeNoFsync: true, MinFreeBytes: 1}
}

// withMember runs a member and calls a function with a client.
func withMember(t *testing.T, dir string, do func(context.Context, *Member, *clientv3.Client)) {
	t.Helper()
	withMemberOptions(t, testOptions(dir), do)
}

func withMemberOptions(t *testing.T, o Options, do func(context.Context, *Member, *clientv3.Client)) {
	t.Helper()
	m, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	c, err := Connect(t.Context(), ClientConfig{Endpoints: m.Endpoints()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	do(t.Context(), m, c.Client)
}

// TestMemberKeepsDataAcrossRestart also checks that only the server's user can open the sockets.
func TestMemberKeepsDataAcrossRestart(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "etcd")
	withMember(t, dir, func(ctx context.Context, _ *Member, c *clientv3.Client) {
		if _, err := c.Put(ctx, "a", "1"); err != nil {
			t.Error(err)
		}
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("data directory: %v, %v", info, err)
		}
	})
	withMember(t, dir, func(ctx context.Context, _ *Member, c *clientv3.Client) {
		if got, err := c.Get(ctx, "a"); err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "1" {
			t.Errorf("got %v, %v", got, err)
		}
	})
}

// TestMemberMovesSocketsForLongPath checks that the sockets are in a temporary directory if their
// path would exceed the limit of about 100 bytes, and that it is removed.
func TestMemberMovesSocketsForLongPath(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), strings.Repeat("x", maxSocketPath))
	var sockets string
	withMember(t, dir, func(_ context.Context, m *Member, _ *clientv3.Client) {
		sockets = m.sockets
		if info, err := os.Stat(sockets); err != nil || info.Mode().Perm() != 0o700 || strings.HasPrefix(sockets, dir) {
			t.Errorf("sockets in %s: %v, %v", sockets, info, err)
		}
	})
	if _, err := os.Stat(sockets); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("sockets left in %s: %v", sockets, err)
	}
}

func TestMemberCheckSpace(t *testing.T) {
	t.Parallel()
	m := &Member{dir: t.TempDir(), log: slog.New(slog.DiscardHandler), minFree: 1}
	m.lowFreeBytes.Store(-1)
	m.overQuotaBytes.Store(-1)
	m.checkFreeSpace()
	if err := m.CheckSpace(); err != nil {
		t.Errorf("with one byte required: %v", err)
	}
	m.minFree = 1 << 62
	m.checkFreeSpace()
	if err := m.CheckSpace(); err == nil || !strings.Contains(err.Error(), m.dir) ||
		!strings.Contains(err.Error(), "deletes are still served") {
		t.Errorf("with more required than any file system has: %v", err)
	}
	m.minFree = 1
	m.checkFreeSpace()
	if err := m.CheckSpace(); err != nil {
		t.Errorf("with space again: %v", err)
	}
}

// smallQuotaOptions returns options with a small quota and a short compaction interval.
func smallQuotaOptions(t *testing.T) Options {
	o := testOptions(t.TempDir())
	o.QuotaBytes, o.EarlyCompactionInterval = 32<<20, 50*time.Millisecond
	return o
}

// eventually retries until do returns true. After a minute it fails the test with the message failure.
func eventually(t *testing.T, failure string, do func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !do(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(failure)
		}
	}
}

// TestMemberCompactsEarlyUnderRewrites checks that frequent updates of one object do not fill the
// store.
func TestMemberCompactsEarlyUnderRewrites(t *testing.T) {
	t.Parallel()
	withMemberOptions(t, smallQuotaOptions(t), func(ctx context.Context, m *Member, c *clientv3.Client) {
		text := strings.Repeat("x", 1<<20)
		put := func() int64 {
			put, err := c.Put(ctx, "a", text)
			if err != nil {
				t.Fatal(err)
			}
			return put.Header.Revision
		}
		first := put()
		for range 31 {
			put()
		}
		eventually(t, "the first revision is never compacted", func() bool {
			_, err := c.Get(ctx, "a", clientv3.WithRev(first))
			return errors.Is(err, rpctypes.ErrCompacted)
		})
		eventually(t, "the space of old revisions is not freed", func() bool {
			// A commit's freed pages count as free after the next commit.
			if _, err := c.Put(ctx, "b", "1"); err != nil {
				t.Fatal(err)
			}
			m.etcd.Server.Backend().ForceCommit()
			return m.etcd.Server.Backend().SizeInUse() < m.quota/2
		})
		if got, err := c.Get(ctx, "a"); err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Value) != text {
			t.Errorf("the current value is lost: %v", err)
		}
	})
}

// TestMemberAcceptsDeletesOverQuota checks that a store over quota reports it and still accepts
// writes, and that it recovers when objects are deleted.
func TestMemberAcceptsDeletesOverQuota(t *testing.T) {
	t.Parallel()
	withMemberOptions(t, smallQuotaOptions(t), func(ctx context.Context, m *Member, c *clientv3.Client) {
		text := strings.Repeat("x", 1<<20)
		n := 0
		eventually(t, "the store is never full", func() bool {
			n++
			if _, err := c.Put(ctx, "many/"+strconv.Itoa(n), text); err != nil {
				t.Fatal(err)
			}
			return m.CheckSpace() != nil
		})
		if err := m.CheckSpace(); !strings.Contains(err.Error(), m.dir) || !strings.Contains(err.Error(), "is full") ||
			!strings.Contains(err.Error(), "deletes are still served") {
			t.Errorf("got %v", err)
		}
		if got, err := c.Get(ctx, "many/", clientv3.WithPrefix(), clientv3.WithCountOnly()); err != nil ||
			got.Count != int64(n) {
			t.Errorf("want %d keys, got %v, %v", n, got, err)
		}
		if _, err := c.Delete(ctx, "many/", clientv3.WithPrefix()); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the store is still full after all keys were deleted", func() bool {
			if _, err := c.Put(ctx, "probe", "1"); err != nil {
				t.Fatal(err)
			}
			return m.CheckSpace() == nil
		})
	})
}

// TestMemberDisarmsNoSpaceAlarm checks that a start clears the alarm. etcd itself never does.
func TestMemberDisarmsNoSpaceAlarm(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	withMember(t, dir, func(ctx context.Context, m *Member, c *clientv3.Client) {
		server := m.etcd.Server
		_, err := server.Alarm(
			ctx,
			&pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, MemberID: uint64(server.MemberID()),
				Alarm: pb.AlarmType_NOSPACE},
		)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Put(ctx, "a", "1"); !errors.Is(err, rpctypes.ErrNoSpace) {
			t.Fatalf("the alarm rejects no writes: %v", err)
		}
	})
	withMember(t, dir, func(ctx context.Context, _ *Member, c *clientv3.Client) {
		if _, err := c.Put(ctx, "a", "1"); err != nil {
			t.Error(err)
		}
	})
}

// TestMemberDefragment checks that the file shrinks only if enough space is unused.
func TestMemberDefragment(t *testing.T) {
	t.Parallel()
	withMember(t, t.TempDir(), func(ctx context.Context, m *Member, c *clientv3.Client) {
		text := strings.Repeat("x", 1<<20)
		var last int64
		for range 24 {
			put, err := c.Put(ctx, "a", text)
			if err != nil {
				t.Fatal(err)
			}
			last = put.Header.Revision
		}
		before := m.etcd.Server.Backend().Size()
		m.Defragment(1 << 20)
		if now := m.etcd.Server.Backend().Size(); now < before {
			t.Errorf("without unused space the file shrank from %d to %d", before, now)
		}
		if _, err := c.Compact(ctx, last, clientv3.WithCompactPhysical()); err != nil {
			t.Fatal(err)
		}
		for range 2 { // A commit's freed pages count as free after the next commit.
			if _, err := c.Put(ctx, "b", "1"); err != nil {
				t.Fatal(err)
			}
			m.etcd.Server.Backend().ForceCommit()
		}
		before = m.etcd.Server.Backend().Size()
		m.Defragment(1 << 40)
		if now := m.etcd.Server.Backend().Size(); now != before {
			t.Errorf("defragmented below the minimum: %d, was %d", now, before)
		}
		m.Defragment(1 << 20)
		if now := m.etcd.Server.Backend().Size(); now > before/2 {
			t.Errorf("size %d, was %d", now, before)
		}
		if got, err := c.Get(ctx, "a"); err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Value) != text {
			t.Errorf("the value is lost: %v", err)
		}
	})
}

func TestErrorDescriptions(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("write: %w", syscall.ENOSPC), "no space left"},
		{fmt.Errorf("write: %w", syscall.EDQUOT), "no space left"},
		{errors.New("etcdserver: no space left on device"), "no space left"}, // as text only
		{fmt.Errorf("open: %w", os.ErrPermission), "not readable or not writable by this user"},
		{errors.New("walpb: crc mismatch"), "it was not modified"},
	} {
		if got := describeOpenError("/dir", c.err); !errors.Is(got, c.err) || !strings.Contains(got.Error(), c.want) ||
			!strings.Contains(got.Error(), "/dir") {
			t.Errorf("%v: got %v", c.err, got)
		}
	}
	m := &Member{dir: "/dir"}
	if got := m.DescribeFailure(syscall.ENOSPC); !strings.Contains(got.Error(), "free space") {
		t.Error(got)
	}
	if got := m.DescribeFailure(errors.New("raft: broken")); strings.Contains(got.Error(), "free space") ||
		!strings.Contains(got.Error(), "raft: broken") {
		t.Error(got)
	}
}

// TestFatalHook checks that a fatal error ends its goroutine and is reported once, with its cause.
func TestFatalHook(t *testing.T) {
	t.Parallel()
	w := &fatalHook{failed: make(chan error, 1)}
	if w.lastError() != nil {
		t.Error("error before the first message")
	}
	w.record(
		zapcore.Entry{Message: "failed to save"},
		[]zapcore.Field{zap.Int("n", 1), zap.Error(errors.New("disk failed"))},
	)
	for range 2 {
		returned, ended := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			w.OnWrite(nil, nil)
			close(returned)
		}()
		<-ended
		select {
		case <-returned:
			t.Error("OnWrite returned")
		default:
		}
	}
	if err := <-w.failed; err == nil || err.Error() != "failed to save: disk failed" {
		t.Errorf("got %v", err)
	}
	select {
	case err := <-w.failed:
		t.Errorf("second error: %v", err)
	default:
	}
}

// TestStartRejectsDamagedStore also checks that the damaged file is not modified.
func TestStartRejectsDamagedStore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	withMember(t, dir, func(ctx context.Context, _ *Member, c *clientv3.Client) {
		if _, err := c.Put(ctx, "a", "1"); err != nil {
			t.Error(err)
		}
	})
	db := filepath.Join(dir, "data", "member", "snap", "db")
	garbage := []byte(strings.Repeat("junk", 1<<12))
	if err := os.WriteFile(db, garbage, 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := Start(t.Context(), testOptions(dir))
	if err == nil {
		m.Close()
		t.Fatal("a damaged store was opened")
	}
	if !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "it was not modified") {
		t.Errorf("got %v", err)
	}
	if text, err := os.ReadFile(db); err != nil || string(text) != string(garbage) {
		t.Errorf("the file was modified, %v", err)
	}
}
