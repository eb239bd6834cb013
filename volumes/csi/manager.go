package csi

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"berth/internal/apiclient"
	"berth/volumes/keylock"
)

// Client is the API server: an *apiclient.Client.
type Client interface {
	Get(ctx context.Context, r apiclient.Resource, namespace, name string, into runtime.Object) error
	Create(
		ctx context.Context, r apiclient.Resource, namespace string, obj, into runtime.Object, nameAndSub ...string,
	) error
	Patch(
		ctx context.Context, r apiclient.Resource, namespace, name string, kind types.PatchType, patch []byte,
		into runtime.Object, sub ...string,
	) error
	Delete(ctx context.Context, r apiclient.Resource, namespace, name string, o metav1.DeleteOptions) error
}

// Options configures a Manager. RootDir is required.
type Options struct {
	RootDir  string // absolute; see the package documentation
	NodeName string
	Client   Client // nil: the node has no API server, and sets up no new volumes

	// Started is closed when the pods of the previous run are known. Before, nothing is unstaged. Nil:
	// they are known.
	Started <-chan struct{}
	// OnChange is called when VolumesInUse has changed, and must be reported soon. May be nil.
	OnChange func()
	// OnCall is called after each call of a driver. May be nil.
	OnCall func(driver, method string, took time.Duration, err error)
	Log    *slog.Logger

	BuiltIn map[string]BuiltIn // drivers that are part of the agent, by name

	// RunningPods returns the pods that are running and not terminating, for drivers that are called again
	// periodically. Nil: there are none.
	RunningPods func() []*corev1.Pod

	// VolumeName returns the name in a pod of the volume with a name in paths. Nil: the name in paths.
	VolumeName func(pod *corev1.Pod, specName string) string
	// OnEvent records an event of a pod, and of its claim unless that is nil. May be nil.
	OnEvent func(pod *corev1.Pod, claim *corev1.PersistentVolumeClaim, eventType, reason, message string)

	// Saved is the last state passed to Save by an earlier run: CSIDriver objects, for a boot without the
	// server. Nil: none.
	Saved []byte
	Save  func(state []byte) // must not block; may be nil

	CallTimeout   time.Duration // of a call; zero: 2 min, as upstream
	AttachTimeout time.Duration // of waiting for an attachment; zero: 2 min
	DriverTimeout time.Duration // of waiting for a driver to register; zero: 2 min
	RetryMin      time.Duration // first delay of what Run repeats; zero: 500 ms
	RetryMax      time.Duration // zero: 2 min

	RepublishInterval time.Duration // of drivers with requiresRepublish; zero: 1 min
	StatsAge          time.Duration // of statistics when they are measured again; zero: 1 min
	HealthInterval    time.Duration // of checking the health of volumes; zero: 1 min
	ExpandInterval    time.Duration // of reading the claims of running pods, which may grow; zero: 1 min

	// For tests: connect connects to a driver, mounted reads the mount table, devices handles device files,
	// fault may end a test run between two steps.
	connect func(endpoint string) (nodeClient, error)
	mounted func(path string) (bool, error)
	devices deviceFiles
	fault   func(step string)
}

// Manager calls the CSI drivers of the node. It is safe for concurrent use.
type Manager struct {
	opt  Options
	wake chan struct{} // signals work for Run; capacity 1
	sync chan struct{} // signals a change for the CSINode and the Node; capacity 1
	wg   sync.WaitGroup

	mu      sync.Mutex
	running context.Context // context of Run; nil: not running
	enabled map[string]bool // built-in drivers that are registered or being registered
	stats   map[podVolume]measurement
	drivers map[string]*driver
	changed chan struct{}            // closed and replaced when drivers or node have changed
	locks   keylock.Locks[volumeKey] // of volumes in use by a call
	calls   map[podVolume]progress
	missing map[podVolume]bool // an earlier SetUp has failed because the driver was not registered
	wanted  map[podVolume]want // volumes of pods, from the first SetUp until TearDown
	staged  map[volumeKey]bool // staged by this process
	onHost  map[volumeKey]bool // volumes that may be staged or published, as of the last pass of Run
	scanned bool               // onHost is known
	specs   map[string]cachedSpec
	node    nodeState
	removed map[string]bool // deregistered drivers that the CSINode may still have

	expansions map[volumeKey]*expansion
}

// podVolume identifies a volume of a pod.
type podVolume struct {
	uid      types.UID
	specName string
}

// want is the use of a volume by a pod.
type want struct {
	key    volumeKey
	attach bool // a controller attaches the volume
}

// New returns a Manager that has called no driver.
func New(o Options) *Manager {
	const timeout = 2 * time.Minute
	o.CallTimeout, o.AttachTimeout = cmp.Or(o.CallTimeout, timeout), cmp.Or(o.AttachTimeout, timeout)
	o.DriverTimeout = cmp.Or(o.DriverTimeout, timeout)
	o.RetryMin, o.RetryMax = cmp.Or(o.RetryMin, 500*time.Millisecond), cmp.Or(o.RetryMax, timeout)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.OnChange == nil {
		o.OnChange = func() {}
	}
	if o.OnCall == nil {
		o.OnCall = func(string, string, time.Duration, error) {}
	}
	if o.connect == nil {
		o.connect = connect
	}
	if o.mounted == nil {
		o.mounted = isMounted
	}
	if o.devices.check == nil {
		o.devices = hostDevices
	}
	if o.fault == nil {
		o.fault = func(string) {}
	}
	if o.OnEvent == nil {
		o.OnEvent = func(*corev1.Pod, *corev1.PersistentVolumeClaim, string, string, string) {}
	}
	o.RepublishInterval = cmp.Or(o.RepublishInterval, time.Minute)
	o.ExpandInterval = cmp.Or(o.ExpandInterval, time.Minute)
	o.StatsAge, o.HealthInterval = cmp.Or(o.StatsAge, time.Minute), cmp.Or(o.HealthInterval, time.Minute)
	if o.VolumeName == nil {
		o.VolumeName = func(_ *corev1.Pod, specName string) string { return specName }
	}
	if o.Save == nil {
		o.Save = func([]byte) {}
	}
	m := &Manager{
		opt: o, wake: make(chan struct{}, 1), sync: make(chan struct{}, 1), changed: make(chan struct{}),
		drivers: map[string]*driver{}, calls: map[podVolume]progress{},
		missing: map[podVolume]bool{}, wanted: map[podVolume]want{}, staged: map[volumeKey]bool{},
		onHost: map[volumeKey]bool{}, stats: map[podVolume]measurement{}, specs: map[string]cachedSpec{},
		removed: map[string]bool{}, enabled: map[string]bool{}, expansions: map[volumeKey]*expansion{},
	}
	if err := m.restoreSpecs(); err != nil {
		o.Log.Warn("saved CSIDriver objects unreadable, reading them from the server", "err", err)
	}
	return m
}

// Run keeps the CSINode and the Node up to date and unstages volumes that no pod uses, until ctx ends.
func (m *Manager) Run(ctx context.Context) error {
	defer m.wg.Wait()
	m.mu.Lock()
	m.running = ctx
	m.mu.Unlock()
	defer func() { // no more measurements
		m.mu.Lock()
		defer m.mu.Unlock()
		m.running = nil
	}()
	if err := os.MkdirAll(filepath.Join(m.opt.RootDir, "plugins"), 0o750); err != nil { // with the sockets of drivers
		m.opt.Log.Warn("plugin directory not created", "err", err)
	}
	m.wg.Go(func() { every(ctx, m.opt.HealthInterval, m.checkConditions) })
	if m.opt.Client != nil {
		m.wg.Go(func() { m.syncNodeInfo(ctx) })
		if m.opt.RunningPods != nil {
			m.wg.Go(func() { m.republish(ctx) })
			m.wg.Go(func() { every(ctx, m.opt.ExpandInterval, m.startExpansions) })
		}
	}
	for name, b := range m.opt.BuiltIn {
		if b.Enabled {
			m.Enable(name)
		}
	}
	if m.opt.Started != nil {
		select {
		case <-m.opt.Started:
		case <-ctx.Done():
			return nil
		}
	}
	m.unstageUnused(ctx)
	return nil
}

// every calls do at an interval until ctx ends.
func every(ctx context.Context, interval time.Duration, do func(context.Context)) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			do(ctx)
		}
	}
}

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// broadcast wakes everything that waits for a driver or for the Node. The caller holds mu.
func (m *Manager) broadcast() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// waitFor waits until done returns true, which is called with mu held after each change. It returns
// false if ctx ends before.
func (m *Manager) waitFor(ctx context.Context, done func() bool) bool {
	for {
		m.mu.Lock()
		ok, changed := done(), m.changed
		m.mu.Unlock()
		if ok {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-changed:
		}
	}
}

// lock waits for the lock of a volume.
func (m *Manager) lock(ctx context.Context, key volumeKey) (unlock func(), err error) {
	return m.locks.Lock(ctx, key)
}

// progress is what SetUp or TearDown of a volume waits for.
type progress struct {
	text  string
	since time.Time
}

// waiting records what SetUp or TearDown of a volume waits for.
func (m *Manager) waiting(v podVolume, text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls[v] = progress{text, time.Now()}
}

func (m *Manager) finished(v podVolume) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.calls, v)
}

// Progress describes what a call of SetUp or TearDown waits for, with the name of the driver and of its
// call. Empty: no call is in progress.
func (m *Manager) Progress(uid types.UID, specName string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	p, ok := m.calls[podVolume{uid, specName}]
	if !ok {
		return ""
	}
	return p.text + " since " + p.since.UTC().Format(time.RFC3339)
}
