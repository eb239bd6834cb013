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
	// Unsafe skips fsync: acknowledged writes are lost when the machine dies. For
	// tests only.
	Unsafe bool
	// Floor is how many bytes must be free on the file system for writes to be
	// taken; 0 is the default.
	Floor int64
	// TidyEvery is how often the size of the file is looked at; 0 is the default.
	TidyEvery time.Duration
	// Limit is how many bytes the store may hold, with its past, for writes to be
	// taken; 0 is the default.
	Limit int64
	// ThinEvery is how often it is asked whether the past takes too much of that; 0 is
	// the default.
	ThinEvery time.Duration
	// ProgressEvery is how often a watch that asks for it is told how far the store has
	// come; 0 is etcd's default. It is one for all members of this process.
	ProgressEvery time.Duration
}

// Member is a running etcd of one member inside this process.
type Member struct {
	etcd    *embed.Etcd
	sockets string // the directory of the sockets
	own     bool   // sockets was made for this run only
	log     *slog.Logger
	quiet   *atomic.Bool // while starting and ending, etcd's words are for debugging only
	words   *lastWords
	dir     string
	floor   int64
	tidy    time.Duration
	limit   int64
	thin    time.Duration
	scarce  atomic.Int64 // free bytes when there are too few of them, else -1
	full    atomic.Int64 // bytes that the store holds when they are too many, else -1
	stop    context.CancelFunc
	done    sync.WaitGroup
}

// dataName is, in the member's directory, that of its data.
const dataName = "data"

// longestSocket is what a socket's path may have (sun_path, less the NUL).
const longestSocket = 100

// startWithin bounds the time from start to the first leader.
const startWithin = time.Minute

// Start opens the store in the directory and waits until it can be written.
func Start(ctx context.Context, o Options) (_ *Member, err error) {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	if err := os.Chmod(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	m := &Member{log: o.Log, sockets: o.Dir, quiet: &atomic.Bool{}, dir: o.Dir, floor: cmp.Or(o.Floor, floor), tidy: cmp.Or(o.TidyEvery, tidyEvery),
		limit: cmp.Or(o.Limit, limit), thin: cmp.Or(o.ThinEvery, thinEvery), words: &lastWords{failed: make(chan error, 1)}}
	m.scarce.Store(-1)
	m.full.Store(-1)
	m.quiet.Store(true)
	if len(filepath.Join(o.Dir, "client.sock")) > longestSocket {
		if m.sockets, err = os.MkdirTemp("", "berth-etcd-"); err != nil {
			return nil, fmt.Errorf("store: directory of sockets: %w", err)
		}
		m.own = true
		link := filepath.Join(o.Dir, linkName)
		if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) { // of one that was killed
			return nil, fmt.Errorf("store: %w", err)
		}
		if err := os.Symlink(m.sockets, link); err != nil {
			return nil, fmt.Errorf("store: %w", err)
		}
	}
	if m.etcd, err = m.open(m.config(o)); err != nil {
		m.removeSockets()
		return nil, explain(o.Dir, err)
	}
	select {
	case <-m.etcd.Server.ReadyNotify():
	case err = <-m.etcd.Err():
	case err = <-m.words.failed:
	case <-ctx.Done():
		err = ctx.Err()
	case <-time.After(startWithin):
		err = fmt.Errorf("not ready within %s", startWithin)
	}
	if err == nil {
		err = m.disarm(ctx)
	}
	if err != nil {
		m.etcd.Close()
		m.removeSockets()
		return nil, explain(o.Dir, err)
	}
	m.quiet.Store(false)
	keep, stop := context.WithCancel(context.WithoutCancel(ctx))
	m.stop = stop
	m.done.Go(func() { m.keep(keep) })
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
				started <- result{nil, cmp.Or(m.words.last(), fmt.Errorf("%v", r))}
			}
		}()
		e, err := embed.StartEtcd(c)
		started <- result{e, err}
	}()
	select {
	case r := <-started:
		return r.etcd, r.err
	case err := <-m.words.failed:
		return nil, err
	}
}

func (m *Member) config(o Options) *embed.Config {
	c := embed.NewConfig()
	c.Name = memberName
	c.Dir = filepath.Join(o.Dir, dataName)
	client := url.URL{Scheme: "unix", Path: filepath.Join(m.sockets, "client.sock")}
	// Nobody speaks to a cluster of one as a peer, but etcd wants to listen. It
	// takes the path of that socket from the host of the URL, and without one it
	// would open an abstract socket, which any user of the machine can reach.
	peer := url.URL{Scheme: "unix", Host: filepath.Join(m.sockets, "peer.sock")}
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peer}, []url.URL{nobody}
	c.InitialCluster = c.Name + "=" + nobody.String()
	// etcd's own bound raises an alarm that refuses every write from then on, also
	// those by which the store would become smaller. Room and the past are looked after
	// in keep.
	c.QuotaBackendBytes = -1
	// The log keeps as many writes, of a MiB and more, and nobody has to catch up from
	// those in memory.
	c.SnapshotCount, c.SnapshotCatchUpEntries = 1000, 1
	c.MaxSnapFiles, c.MaxWalFiles = 2, 2
	c.WatchProgressNotifyInterval = o.ProgressEvery
	c.EnableGRPCGateway = false
	c.Metrics = "basic"
	c.UnsafeNoFsync = o.Unsafe
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.New(logged{o.Log, m.quiet, m.words}, zap.WithFatalHook(m.words), zap.WithPanicHook(m.words)))
	return c
}

// Endpoints are the addresses for Connect.
func (m *Member) Endpoints() []string {
	return []string{"unix://" + filepath.Join(m.sockets, "client.sock")}
}

// Failed gives the error that ended the member, if one does. What was
// acknowledged before is in the store.
func (m *Member) Failed() <-chan error { return m.words.failed }

// endWithin bounds the end of a member that may be broken.
const endWithin = 20 * time.Second

// Close ends the member and waits for it.
func (m *Member) Close() {
	m.stop()
	m.done.Wait()
	m.quiet.Store(true)
	ended := make(chan struct{})
	go func() { defer close(ended); m.etcd.Close() }()
	select {
	case <-ended:
	case <-time.After(endWithin): // one that has failed may never end
		m.log.Error("the store does not end", "dir", m.dir)
	}
	m.removeSockets()
}

func (m *Member) removeSockets() {
	if !m.own {
		return
	}
	if err := errors.Join(os.RemoveAll(m.sockets), os.Remove(filepath.Join(m.dir, linkName))); err != nil {
		m.log.Warn("sockets of the store stay behind", "dir", m.sockets, "error", err)
	}
}
