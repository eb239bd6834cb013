package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// TestSnapshotIsConsistent takes a snapshot while two keys are written in one transaction, with
// sockets in both places. After a restore, all earlier revisions are compacted.
func TestSnapshotIsConsistent(t *testing.T) {
	t.Parallel()
	for name, dir := range map[string]string{"sockets in the data directory": "etcd",
		"sockets in a temporary directory": strings.Repeat("x", maxSocketPath)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at := t.TempDir()
			file, restored := filepath.Join(at, "snapshot"), filepath.Join(at, "restored")
			var last int64
			withMember(t, filepath.Join(at, dir), func(ctx context.Context, m *Member, c *clientv3.Client) {
				var text bytes.Buffer
				last = runWhileWriting(ctx, t, c, func() error { return Snapshot(ctx, m.dir, &text) })
				if err := os.WriteFile(file, text.Bytes(), 0o600); err != nil {
					t.Fatal(err)
				}
			})
			if err := Restore(file, restored); err != nil {
				t.Fatal(err)
			}
			withMember(t, restored, func(ctx context.Context, _ *Member, c *clientv3.Client) {
				one, err := c.Get(ctx, "one")
				if err != nil || len(one.Kvs) != 1 {
					t.Fatalf("got %v, %v", one, err)
				}
				two, err := c.Get(ctx, "two")
				if err != nil || len(two.Kvs) != 1 || string(two.Kvs[0].Value) != string(one.Kvs[0].Value) {
					t.Errorf("one is %s, two %v, %v", one.Kvs[0].Value, two, err)
				}
				if one.Header.Revision <= last {
					t.Errorf("revision %d after the restore, was %d", one.Header.Revision, last)
				}
				event := <-c.Watch(ctx, "one", clientv3.WithRev(last))
				if err := event.Err(); !errors.Is(err, rpctypes.ErrCompacted) {
					t.Errorf("a watch from %d: %v, %v", last, event, err)
				}
				if _, err := c.Put(ctx, "one", "more"); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// runWhileWriting calls a function while two keys are written, and returns the last revision.
func runWhileWriting(ctx context.Context, t *testing.T, c *clientv3.Client, do func() error) (revision int64) {
	t.Helper()
	started, stop := make(chan struct{}), make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() {
		for n := 0; ; n++ {
			value := fmt.Sprint(n)
			done, err := c.Txn(ctx).Then(clientv3.OpPut("one", value), clientv3.OpPut("two", value)).Commit()
			if err != nil {
				t.Error(err)
			} else {
				revision = done.Header.Revision
			}
			if n == 0 {
				close(started)
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	<-started
	err := do()
	close(stop)
	writer.Wait()
	if err != nil {
		t.Fatal(err)
	}
	return revision
}

// TestRestoreRejectsInvalidSnapshot covers truncated and corrupt files.
func TestRestoreRejectsInvalidSnapshot(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "etcd")
	var good bytes.Buffer
	withMember(t, dir, func(ctx context.Context, m *Member, c *clientv3.Client) {
		if _, err := c.Put(ctx, "a", "1"); err != nil {
			t.Error(err)
		}
		if err := Snapshot(ctx, m.dir, &good); err != nil {
			t.Fatal(err)
		}
	})
	if err := Snapshot(t.Context(), dir, &bytes.Buffer{}); err == nil {
		t.Error("snapshot of a store that is not running")
	}
	flipped := bytes.Clone(good.Bytes())
	flipped[len(flipped)/2] ^= 1
	for name, text := range map[string][]byte{"empty": nil, "short": []byte("x"),
		"truncated": good.Bytes()[:good.Len()/2], "flipped bit": flipped} {
		file := filepath.Join(t.TempDir(), "snapshot")
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := Restore(file, filepath.Join(t.TempDir(), "restored")); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}
