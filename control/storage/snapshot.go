package storage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"
)

// memberName is the name of the single member. unusedPeerURL is its advertised peer address, to
// which nothing connects.
const memberName = "berth"

var unusedPeerURL = url.URL{Scheme: "unix", Host: "peer:0"}

const (
	// A snapshot consists of pages of a multiple of pageSize and a checksum of checksumSize.
	// Without the checksum it is truncated.
	checksumSize, pageSize = 32, 512
	// revisionBump is added to the revision of a restored store. It exceeds the number of writes
	// since the snapshot, so that no revision is used twice. The value is that of the etcd and
	// Kubernetes documentation.
	revisionBump = 1_000_000_000
)

// socketsLinkName is a link to the directory of the sockets if they are in a temporary directory.
const socketsLinkName = "sockets"

// Snapshot writes a consistent snapshot of the store in that directory. The store is served by a
// member of this or another process.
func Snapshot(ctx context.Context, dir string, to io.Writer) (err error) {
	sockets := dir
	if elsewhere, err := os.Readlink(filepath.Join(dir, socketsLinkName)); err == nil {
		sockets = elsewhere
	}
	socket := filepath.Join(sockets, "client.sock")
	if _, err := os.Stat(socket); err != nil {
		return fmt.Errorf("store snapshot: %w", err)
	}
	client, err := Connect(ctx, ClientConfig{Endpoints: []string{"unix://" + socket}})
	if err != nil {
		return fmt.Errorf("store snapshot: %w", err)
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	got, err := client.Client.SnapshotWithVersion(ctx)
	if err != nil {
		return fmt.Errorf("store snapshot: %w", err)
	}
	n, err := io.Copy(to, got.Snapshot)
	err = errors.Join(err, got.Snapshot.Close())
	if err == nil && n%pageSize != checksumSize {
		err = fmt.Errorf("truncated after %d bytes", n)
	}
	if err != nil {
		return fmt.Errorf("store snapshot: %w", err)
	}
	return nil
}

// Restore creates a member's directory from a snapshot file. The directory must not exist. All
// earlier revisions count as compacted, including those written after the snapshot: a watch from
// one of them is rejected, and its client lists again.
func Restore(file, dir string) (err error) {
	defer func() {
		if r := recover(); r != nil { // etcd's fatal errors panic, see below
			err = fmt.Errorf("%v", r)
		}
		if err != nil {
			err = fmt.Errorf("restore store: %w", err)
		}
	}()
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	err = snapshot.NewV3(zap.NewNop().WithOptions(zap.WithFatalHook(zapcore.WriteThenPanic))).
		Restore(snapshot.RestoreConfig{
			SnapshotPath: file, Name: memberName, OutputDataDir: filepath.Join(dir, dataDirName),
			PeerURLs: []string{
				unusedPeerURL.String(),
			}, InitialCluster: memberName + "=" + unusedPeerURL.String(), InitialClusterToken: "berth",
			RevisionBump: revisionBump, MarkCompacted: true,
		})
	if err != nil {
		return err
	}
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	// etcdutl does not sync everything that it writes.
	return errors.Join(unix.Syncfs(int(f.Fd())), f.Close())
}
