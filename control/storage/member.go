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

// Options says how the member of this process is to be.
type Options struct {
	Dir string // for the member's data; made when it is not there
	Log *slog.Logger
	// UnsafeNoFsync skips fsync: acknowledged writes are lost when the machine dies. For
	// tests only.
	UnsafeNoFsync bool
	// MinFreeBytes is how many bytes must be free on the file system for writes to be
	// taken; 0 is the default.
	MinFreeBytes int64
	// DefragmentationInterval is how often the size of the file is looked at; 0 is the default.
	DefragmentationInterval time.Duration
	// QuotaBytes is how many bytes the store may hold, with its past, for writes to be
	// taken; 0 is the default.
	QuotaBytes int64
	// EarlyCompactionInterval is how often it is asked whether the past takes too much of that; 0 is
	// the default.
	EarlyCompactionInterval time.Duration
	// WatchProgressInterval is how often a watch that asks for it is told how far the store has
	// come; 0 is etcd's default. It is one for all members of this process.
	WatchProgressInterval time.Duration
}

// Member is a running etcd of one member inside this process.
type Member struct {
	etcd            *embed.Etcd
	sockets         string // the directory of the sockets
	ownsSockets     bool   // sockets was made for this run only
	log             *slog.Logger
	quiet           *atomic.Bool // while starting and ending, etcd's words are for debugging only
	fatal           *fatalHook
	dir             string
	minFree         int64
	defragInterval  time.Duration
	quota           int64
	compactInterval time.Duration
	lowFreeBytes    atomic.Int64 // free bytes when there are too few of them, else -1
	overQuotaBytes  atomic.Int64 // bytes that the store holds when they are too many, else -1
	stop            context.CancelFunc
	done            sync.WaitGroup
}

// dataDirName is, in the member's directory, that of its data.
const dataDirName = "data"

// maxSocketPath is what a socket's path may have (sun_path, less the NUL).
const maxSocketPath = 100

// startTimeout bounds the time from start to the first leader.
const startTimeout = time.Minute

// Start opens the store in the directory and waits until it can be written.
func Start(ctx context.Context, o Options) (_ *Member, err error) {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	if err := os.Chmod(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	m := &Member{log: o.Log, sockets: o.Dir, quiet: &atomic.Bool{}, dir: o.Dir, minFree: cmp.Or(o.MinFreeBytes, defaultMinFreeBytes), defragInterval: cmp.Or(o.DefragmentationInterval, defaultDefragInterval),
		quota: cmp.Or(o.QuotaBytes, defaultQuotaBytes), compactInterval: cmp.Or(o.EarlyCompactionInterval, defaultCompactInterval), fatal: &fatalHook{failed: make(chan error, 1)}}
	m.lowFreeBytes.Store(-1)
	m.overQuotaBytes.Store(-1)
	m.quiet.Store(true)
	if len(filepath.Join(o.Dir, "client.sock")) > maxSocketPath {
		if m.sockets, err = os.MkdirTemp("", "berth-etcd-"); err != nil {
			return nil, fmt.Errorf("store: directory of sockets: %w", err)
		}
		m.ownsSockets = true
		link := filepath.Join(o.Dir, socketsLinkName)
		if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) { // of one that was killed
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
	m.quiet.Store(false)
	keep, stop := context.WithCancel(context.WithoutCancel(ctx))
	m.stop = stop
	m.done.Go(func() { m.maintain(keep) })
	return m, nil
}

// open starts etcd. What it meets that it does not survive ends only one of its
// goroutines here, and the start may then never return; it is left alone.
func (m *Member) open(c *embed.Config) (*embed.Etcd, error) {
	type result struct {
		etcd *embed.Etcd
		err  error
	}
	started := make(chan result, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil { // some damage makes it stumble over itself
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
	// Nobody speaks to a cluster of one as a peer, but etcd wants to listen. It
	// takes the path of that socket from the host of the URL, and without one it
	// would open an abstract socket, which any user of the machine can reach.
	peer := url.URL{Scheme: "unix", Host: filepath.Join(m.sockets, "peer.sock")}
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peer}, []url.URL{unusedPeerURL}
	c.InitialCluster = c.Name + "=" + unusedPeerURL.String()
	// etcd's own bound raises an alarm that refuses every write from then on, also
	// those by which the store would become smaller. Room and the past are looked after
	// in keep.
	c.QuotaBackendBytes = -1
	// The log keeps as many writes, of a MiB and more, and nobody has to catch up from
	// those in memory.
	c.SnapshotCount, c.SnapshotCatchUpEntries = 1000, 1
	c.MaxSnapFiles, c.MaxWalFiles = 2, 2
	c.WatchProgressNotifyInterval = o.WatchProgressInterval
	c.EnableGRPCGateway = false
	c.Metrics = "basic"
	c.UnsafeNoFsync = o.UnsafeNoFsync
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.New(zapCore{o.Log, m.quiet, m.fatal}, zap.WithFatalHook(m.fatal), zap.WithPanicHook(m.fatal)))
	return c
}

// Endpoints are the addresses for Connect.
func (m *Member) Endpoints() []string {
	return []string{"unix://" + filepath.Join(m.sockets, "client.sock")}
}

// Failed gives the error that ended the member, if one does. What was
// acknowledged before is in the store.
func (m *Member) Failed() <-chan error { return m.fatal.failed }

// stopTimeout bounds the end of a member that may be broken.
const stopTimeout = 20 * time.Second

// Close ends the member and waits for it.
func (m *Member) Close() {
	m.stop()
	m.done.Wait()
	m.quiet.Store(true)
	ended := make(chan struct{})
	go func() { defer close(ended); m.etcd.Close() }()
	select {
	case <-ended:
	case <-time.After(stopTimeout): // one that has failed may never end
		m.log.Error("the store does not end", "dir", m.dir)
	}
	m.removeSockets()
}

func (m *Member) removeSockets() {
	if !m.ownsSockets {
		return
	}
	if err := errors.Join(os.RemoveAll(m.sockets), os.Remove(filepath.Join(m.dir, socketsLinkName))); err != nil {
		m.log.Warn("sockets of the store stay behind", "dir", m.sockets, "error", err)
	}
}
