package storage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// Options configures the embedded member.
type Options struct {
	Dir string // created if it does not exist
	Log *slog.Logger
	// UnsafeNoFsync disables fsync: acknowledged writes are lost if the machine fails. For tests
	// only.
	UnsafeNoFsync bool
	// MinFreeBytes is the free space of the file system below which writes are rejected. 0 is the
	// default.
	MinFreeBytes int64
	// DefragmentationInterval is how often the store is checked for unused space. 0 is the default.
	DefragmentationInterval time.Duration
	// QuotaBytes is the size of the store, including old revisions, above which writes are
	// rejected. 0 is the default.
	QuotaBytes int64
	// EarlyCompactionInterval is how often the store is checked for an early compaction. 0 is the
	// default.
	EarlyCompactionInterval time.Duration
	// WatchProgressInterval is how often a watch gets a progress notification if it requests them.
	// 0 is etcd's default. It is shared by all members of the process.
	WatchProgressInterval time.Duration
}

// Member is a running single-member etcd cluster inside this process.
type Member struct {
	etcd            *embed.Etcd
	sockets         string // directory of the sockets
	ownsSockets     bool   // the directory of the sockets is temporary
	log             *slog.Logger
	debugOnly       *atomic.Bool // during start and stop etcd's messages are logged at debug level
	fatal           *fatalHook
	dir             string
	minFree         int64
	defragInterval  time.Duration
	quota           int64
	compactInterval time.Duration
	lowFreeBytes    atomic.Int64 // free bytes if below minFree, else -1
	overQuotaBytes  atomic.Int64 // bytes in use if over quota, else -1
	stop            context.CancelFunc
	done            sync.WaitGroup
}

// dataDirName is the subdirectory with etcd's data.
const dataDirName = "data"

// maxSocketPath is the maximum length of a socket path (sun_path without the NUL byte).
const maxSocketPath = 100

// startTimeout limits the time from start to the election of a leader.
const startTimeout = time.Minute

// Start opens the store in the directory and waits until it accepts writes.
func Start(ctx context.Context, o Options) (_ *Member, err error) {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	if err := os.Chmod(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	m := &Member{
		log:            o.Log,
		sockets:        o.Dir,
		debugOnly:      &atomic.Bool{},
		dir:            o.Dir,
		minFree:        cmp.Or(o.MinFreeBytes, defaultMinFreeBytes),
		defragInterval: cmp.Or(o.DefragmentationInterval, defaultDefragInterval),
		quota: cmp.Or(
			o.QuotaBytes,
			defaultQuotaBytes,
		),
		compactInterval: cmp.Or(o.EarlyCompactionInterval, defaultCompactInterval),
		fatal:           &fatalHook{failed: make(chan error, 1)},
	}
	m.lowFreeBytes.Store(-1)
	m.overQuotaBytes.Store(-1)
	m.debugOnly.Store(true)
	if len(filepath.Join(o.Dir, "client.sock")) > maxSocketPath {
		if m.sockets, err = os.MkdirTemp("", "berth-etcd-"); err != nil {
			return nil, fmt.Errorf("store: socket directory: %w", err)
		}
		m.ownsSockets = true
		link := filepath.Join(o.Dir, socketsLinkName)
		if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) { // left by a killed process
			return nil, fmt.Errorf("store: %w", err)
		}
		if err := os.Symlink(m.sockets, link); err != nil {
			return nil, fmt.Errorf("store: %w", err)
		}
	}
	if m.etcd, err = m.open(m.config(o)); err != nil {
		m.removeSockets()
		return nil, describeOpenError(o.Dir, err)
	}
	select {
	case <-m.etcd.Server.ReadyNotify():
	case err = <-m.etcd.Err():
	case err = <-m.fatal.failed:
	case <-ctx.Done():
		err = ctx.Err()
	case <-time.After(startTimeout):
		err = fmt.Errorf("not ready within %s", startTimeout)
	}
	if err == nil {
		err = m.disarmNoSpaceAlarm(ctx)
	}
	if err != nil {
		m.etcd.Close()
		m.removeSockets()
		return nil, describeOpenError(o.Dir, err)
	}
	m.debugOnly.Store(false)
	keep, stop := context.WithCancel(context.WithoutCancel(ctx))
	m.stop = stop
	m.done.Go(func() { m.maintain(keep) })
	return m, nil
}

// open starts etcd. A fatal error ends only the failing goroutine, see fatalHook, and StartEtcd may
// then never return. Its goroutine is abandoned.
func (m *Member) open(c *embed.Config) (*embed.Etcd, error) {
	type result struct {
		etcd *embed.Etcd
		err  error
	}
	started := make(chan result, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil { // etcd panics on some kinds of damage
				started <- result{nil, cmp.Or(m.fatal.lastError(), fmt.Errorf("%v", r))}
			}
		}()
		e, err := embed.StartEtcd(c)
		started <- result{e, err}
	}()
	select {
	case r := <-started:
		return r.etcd, r.err
	case err := <-m.fatal.failed:
		return nil, err
	}
}

func (m *Member) config(o Options) *embed.Config {
	c := embed.NewConfig()
	c.Name = memberName
	c.Dir = filepath.Join(o.Dir, dataDirName)
	client := url.URL{Scheme: "unix", Path: filepath.Join(m.sockets, "client.sock")}
	// A single-member cluster has no peers, but etcd requires a peer listener. It takes the path of
	// that socket from the host of the URL. Without a host it would open an abstract socket, which
	// every user of the machine can connect to.
	peer := url.URL{Scheme: "unix", Host: filepath.Join(m.sockets, "peer.sock")}
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peer}, []url.URL{unusedPeerURL}
	c.InitialCluster = c.Name + "=" + unusedPeerURL.String()
	// etcd's own quota raises an alarm that rejects every later write, including deletes. The
	// package enforces the quota itself, see maintain.
	c.QuotaBackendBytes = -1
	// The log keeps as many entries, of a MiB or more each. No follower has to catch up from
	// memory.
	c.SnapshotCount, c.SnapshotCatchUpEntries = 1000, 1
	c.MaxSnapFiles, c.MaxWalFiles = 2, 2
	c.WatchProgressNotifyInterval = o.WatchProgressInterval
	c.EnableGRPCGateway = false
	c.Metrics = "basic"
	c.UnsafeNoFsync = o.UnsafeNoFsync
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(
		zap.New(zapCore{o.Log, m.debugOnly, m.fatal}, zap.WithFatalHook(m.fatal), zap.WithPanicHook(m.fatal)),
	)
	return c
}

// Endpoints returns the addresses for Connect.
func (m *Member) Endpoints() []string {
	return []string{"unix://" + filepath.Join(m.sockets, "client.sock")}
}

// Failed returns a channel that receives the error if the member fails. Acknowledged writes are in
// the store.
func (m *Member) Failed() <-chan error { return m.fatal.failed }

// stopTimeout limits the shutdown of a member that may have failed.
const stopTimeout = 20 * time.Second

// Close stops the member and waits for it.
func (m *Member) Close() {
	m.stop()
	m.done.Wait()
	m.debugOnly.Store(true)
	ended := make(chan struct{})
	go func() { defer close(ended); m.etcd.Close() }()
	select {
	case <-ended:
	case <-time.After(stopTimeout): // a failed member may never stop
		m.log.Error("store shutdown timed out", "dir", m.dir)
	}
	m.removeSockets()
}

func (m *Member) removeSockets() {
	if !m.ownsSockets {
		return
	}
	if err := errors.Join(os.RemoveAll(m.sockets), os.Remove(filepath.Join(m.dir, socketsLinkName))); err != nil {
		m.log.Warn("socket directory removal failed", "dir", m.sockets, "err", err)
	}
}
