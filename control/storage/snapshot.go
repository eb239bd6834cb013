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

// memberName is that of the one member, and nobody the address at which no peer asks
// for it.
const memberName = "berth"

var unusedPeerURL = url.URL{Scheme: "unix", Host: "peer:0"}

const (
	// checksumSize is what a snapshot has behind its pages, of which each is a multiple
	// of pageSize: without it, it was cut off.
	checksumSize, pageSize = 32, 512
	// revisionBump is by how much a store that was brought back counts on: by more than was
	// written since its snapshot, so that no number is given twice. It is what etcd's
	// and Kubernetes' own guides say.
	revisionBump = 1_000_000_000
)

// socketsLinkName is, in the member's directory, a link to where its sockets are when
// they are elsewhere.
const socketsLinkName = "sockets"

// Snapshot writes the store that a member serves in that directory, maybe of another
// process, as it is at one moment.
func Snapshot(ctx context.Context, dir string, to io.Writer) (err error) {
	sockets := dir
	if elsewhere, err := os.Readlink(filepath.Join(dir, socketsLinkName)); err == nil {
		sockets = elsewhere
	}
	socket := filepath.Join(sockets, "client.sock")
	if _, err := os.Stat(socket); err != nil {
		return fmt.Errorf("snapshot of the store: %w", err)
	}
	client, err := Connect(ctx, ClientConfig{Endpoints: []string{"unix://" + socket}})
	if err != nil {
		return fmt.Errorf("snapshot of the store: %w", err)
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	got, err := client.Client.SnapshotWithVersion(ctx)
	if err != nil {
		return fmt.Errorf("snapshot of the store: %w", err)
	}
	n, err := io.Copy(to, got.Snapshot)
	err = errors.Join(err, got.Snapshot.Close())
	if err == nil && n%pageSize != checksumSize {
		err = fmt.Errorf("it was cut off after %d bytes", n)
	}
	if err != nil {
		return fmt.Errorf("snapshot of the store: %w", err)
	}
	return nil
}

// Restore makes a member's directory, which is not there, of the file of a snapshot.
// What clients have heard of the store is of the past then, also what was written after
// the snapshot: a watch from there is refused, and they list anew.
func Restore(file, dir string) (err error) {
	defer func() {
		if r := recover(); r != nil { // as etcd says that it does not survive something
			err = fmt.Errorf("%v", r)
		}
		if err != nil {
			err = fmt.Errorf("restore the store: %w", err)
		}
	}()
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	err = snapshot.NewV3(zap.NewNop().WithOptions(zap.WithFatalHook(zapcore.WriteThenPanic))).Restore(snapshot.RestoreConfig{
		SnapshotPath: file, Name: memberName, OutputDataDir: filepath.Join(dir, dataDirName),
		PeerURLs: []string{unusedPeerURL.String()}, InitialCluster: memberName + "=" + unusedPeerURL.String(), InitialClusterToken: "berth",
		RevisionBump: revisionBump, MarkCompacted: true,
	})
	if err != nil {
		return err
	}
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	// Of what was written, some is not synced by itself.
	return errors.Join(unix.Syncfs(int(f.Fd())), f.Close())
}
