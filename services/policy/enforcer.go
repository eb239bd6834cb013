package policy

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netns"
	"k8s.io/apimachinery/pkg/types"

	"berth/services/policy/rules"
)

// Options configures an Enforcer.
type Options struct {
	Store *Store
	// Enabled reports whether policies are enforced. If it returns false, the table is removed. Nil
	// means true. Call Trigger when the result changes.
	Enabled func() bool
	// NetNS is the network namespace to configure. Zero: that of the process.
	NetNS netns.NsHandle
	Log   *slog.Logger
	// LoadBridgeFilter loads the kernel module br_netfilter. If it is nil, the module must be loaded.
	LoadBridgeFilter func() error
	// OnChange is called with each new status in order. It must not block. May be nil.
	OnChange func(Status)
}

// Status is the state of the enforcement.
type Status struct {
	// Enabled is false if policies are not enforced on purpose.
	Enabled bool
	// Synced is false until the input is complete. The rules of an earlier run stay until then.
	Synced bool
	Numbers
	// BridgeProblem says why policies are not enforced between pods of one bridge; empty if they are.
	BridgeProblem string
	// Err says why the rules could not be written; empty if they were.
	Err string
}

// Enforcer keeps the rules of a node in the kernel. See New.
type Enforcer struct {
	opt     Options
	kernel  kernel
	metrics *metrics
	wake    chan struct{} // capacity 1

	mu       sync.Mutex
	status   Status
	reported bool
	known    bool                    // the kernel has the ruleset of the Store as of applied
	audit    bool                    // compare the kernel with the ruleset in the next sync
	removed  bool                    // there is no table
	applied  uint64                  // version of the Store
	released map[netip.Addr]struct{} // addresses whose connections must be forgotten
	advanced chan struct{}
}

const (
	auditInterval = 5 * time.Minute       // between comparisons of the kernel with the ruleset
	settleDelay   = 10 * time.Millisecond // changes come in bursts
	retryInterval = 2 * time.Second
)

// ErrUnknownPod is returned by WaitInstalled for a pod that the Store does not have.
var ErrUnknownPod = errors.New("pod unknown to the network policy store")

// New returns an Enforcer. It does not change the kernel.
func New(o Options) *Enforcer {
	if o.NetNS == 0 {
		o.NetNS = netns.None()
	}
	if o.Enabled == nil {
		o.Enabled = func() bool { return true }
	}
	return &Enforcer{
		opt: o, kernel: kernel{o.NetNS}, metrics: newMetrics(), wake: make(chan struct{}, 1),
		advanced: make(chan struct{}), released: map[netip.Addr]struct{}{},
	}
}

// Status returns the current status.
func (e *Enforcer) Status() Status {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.status
}

// Trigger schedules a sync that compares the kernel with the ruleset.
func (e *Enforcer) Trigger() {
	e.mu.Lock()
	e.audit = true
	e.mu.Unlock()
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// WaitInstalled waits until the rules of a pod of this node are in place. It returns at once if
// policies are not enforced, if there are none, or if the pod uses the host network. Before the Store is
// synced, it waits. The error is ErrUnknownPod, that of Store.SetUnreadable or that of ctx.
func (e *Enforcer) WaitInstalled(ctx context.Context, uid types.UID) error {
	for e.opt.Enabled() {
		version, known := e.opt.Store.localVersion(uid)
		if !known {
			return ErrUnknownPod
		}
		needed, err := e.opt.Store.waitReason()
		if err != nil || !needed {
			return err
		}
		e.mu.Lock()
		done, advanced := version == 0 || e.known && e.applied >= version, e.advanced
		e.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-advanced:
		}
	}
	return nil
}

// Run keeps the kernel in sync until ctx ends.
func (e *Enforcer) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		deleted, stop := e.kernel.subscribe()
		e.syncUntilUnsubscribed(ctx, deleted)
		stop()
	}
	return nil
}

// syncUntilUnsubscribed syncs until ctx ends, or until some time after the subscription was lost, so
// that the caller subscribes again.
func (e *Enforcer) syncUntilUnsubscribed(ctx context.Context, deleted <-chan struct{}) {
	audit := time.NewTicker(auditInterval)
	defer audit.Stop()
	var subscribe <-chan time.Time
	for {
		var retry <-chan time.Time
		if e.Sync() != nil {
			retry = time.After(retryInterval)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(settleDelay):
		}
		select {
		case <-ctx.Done():
			return
		case <-e.wake:
		case <-e.opt.Store.Changed():
		case _, more := <-deleted:
			if !more {
				deleted, subscribe = nil, time.After(retryInterval)
			}
			e.requestAudit()
		case <-audit.C:
			e.requestAudit()
		case <-subscribe:
			e.requestAudit()
			return
		case <-retry:
		}
	}
}

func (e *Enforcer) requestAudit() {
	e.mu.Lock()
	e.audit = true
	e.mu.Unlock()
}

// Sync applies the changes of the Store to the kernel now.
func (e *Enforcer) Sync() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	start := time.Now()
	now, err := e.sync()
	if err != nil {
		now.Err = err.Error()
		e.known = false
		e.metrics.failures.Inc()
	}
	e.metrics.duration.Observe(time.Since(start).Seconds())
	close(e.advanced)
	e.advanced = make(chan struct{})
	if e.reported && now == e.status {
		return err
	}
	e.logChanges(now)
	e.status, e.reported = now, true
	if e.opt.OnChange != nil {
		e.opt.OnChange(now)
	}
	return err
}

func (e *Enforcer) logChanges(now Status) {
	old := e.status
	switch {
	case now.Err != "" && now.Err != old.Err:
		e.opt.Log.Error("network policy rules update failed; retrying", "err", now.Err)
	case now.Err == "" && old.Err != "":
		e.opt.Log.Info("network policy rules updated again")
	}
	if now.BridgeProblem != "" && now.BridgeProblem != old.BridgeProblem {
		e.opt.Log.Warn("network policies not enforced between pods of one bridge", "reason", now.BridgeProblem)
	}
	if now.Enabled != old.Enabled && (e.reported || now.Enabled) {
		e.opt.Log.Info("network policy enforcement changed", "enabled", now.Enabled)
	}
}

// sync returns the new status. After an error, the content of the kernel is unknown.
func (e *Enforcer) sync() (Status, error) {
	now := Status{Enabled: e.opt.Enabled()}
	if !now.Enabled {
		return now, e.remove()
	}
	ranges := e.opt.Store.enforcedRanges()
	bridges, err := e.kernel.bridges(ranges)
	if err != nil {
		return now, err
	}
	if len(ranges) > 0 {
		e.opt.Store.setBridges(bridges)
	}
	audit := e.audit || !e.known
	s := e.opt.Store.take(audit)
	if now.Synced, now.Numbers = s.synced, s.numbers; !s.synced {
		return now, nil
	}
	e.removed = false
	if s.numbers.Policies > 0 && len(bridges) > 0 {
		now.BridgeProblem = e.filterBridged(ranges, audit)
	}
	maps.Copy(e.released, s.released)
	if err := e.apply(s, audit); err != nil {
		return now, err
	}
	e.forget(s.numbers.Policies > 0)
	e.known, e.audit, e.applied = true, false, s.version
	return now, nil
}

// remove removes the table.
func (e *Enforcer) remove() error {
	if e.removed {
		return nil
	}
	exists, err := e.kernel.exists()
	if err == nil && exists {
		if err = e.kernel.apply(&rules.Transaction{Remove: true}, nil); err == nil {
			e.opt.Log.Info("network policy rules removed")
		}
	}
	e.known, e.removed = false, err == nil
	return err
}

// filterBridged makes bridged packets subject to the rules. It returns why that is not possible.
func (e *Enforcer) filterBridged(ranges []netip.Prefix, check bool) string {
	if !check && e.status.BridgeProblem == "" && e.status.Policies > 0 {
		return ""
	}
	changed, err := e.kernel.filterBridged(ranges, e.opt.LoadBridgeFilter)
	if changed {
		e.opt.Log.Info("filtering of bridged packets enabled")
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

// apply writes the changes of a state, or the whole ruleset if the kernel differs from it.
func (e *Enforcer) apply(s state, audit bool) error {
	if !audit {
		if s.changes.Empty() {
			return nil
		}
		return e.write(s.changes, nil)
	}
	wasKnown := e.known
	if wasKnown && !s.changes.Empty() {
		if err := e.write(s.changes, nil); err != nil {
			return err
		}
	}
	difference, err := e.kernel.differs(s.whole)
	for range maxDumpAttempts - 1 { // a transaction of another program can disturb the dump
		if err != nil || difference == "" {
			return err
		}
		difference, err = e.kernel.differs(s.whole)
	}
	if err != nil || difference == "" {
		return err
	}
	if wasKnown {
		e.metrics.repairs.Inc()
		e.opt.Log.Warn("network policy rules changed by another program; replacing them", "difference", difference)
	}
	if s.whole == nil {
		return e.write(&rules.Transaction{Remove: true}, nil)
	}
	counts, err := e.kernel.counters()
	if err != nil {
		counts = map[string]expr.Counter{} // better lost counts than no rules
	}
	return e.write(&rules.Transaction{Replace: s.whole}, counts)
}

func (e *Enforcer) write(tx *rules.Transaction, counts map[string]expr.Counter) error {
	e.metrics.transactions.Inc()
	return e.kernel.apply(tx, counts)
}

// forget deletes the connections of addresses that pods have given up, if there are rules.
func (e *Enforcer) forget(enforced bool) {
	released := e.released
	e.released = map[netip.Addr]struct{}{}
	if len(released) == 0 || !enforced {
		return
	}
	n, err := e.kernel.forget(released)
	if err != nil {
		e.opt.Log.Warn("conntrack entries of removed pods not deleted", "err", err)
	}
	if n > 0 {
		e.opt.Log.Debug("conntrack entries of removed pods deleted", "count", n)
	}
}

// subscribe notifies of the removal of berth's table until stop is called. deleted is closed when the
// subscription is lost.
func (k kernel) subscribe() (deleted <-chan struct{}, stop func()) {
	out := make(chan struct{}, 1)
	lost := func() (<-chan struct{}, func()) { close(out); return out, func() {} }
	c, err := k.conn()
	if err != nil {
		return lost()
	}
	monitor := nftables.NewMonitor(nftables.WithMonitorAction(nftables.MonitorActionAny),
		nftables.WithMonitorObject(nftables.MonitorObjectTables))
	events, err := c.AddGenerationalMonitor(monitor)
	if err != nil {
		return lost()
	}
	go func() { // ends with the subscription
		defer close(out)
		for event := range events {
			for _, change := range event.Changes {
				t, ok := change.Data.(*nftables.Table)
				if !ok || change.Type != nftables.MonitorEventTypeDelTable || t.Name != TableName {
					continue
				}
				select {
				case out <- struct{}{}:
				default:
				}
			}
		}
	}()
	return out, func() {
		_ = monitor.Close() // closes events
		for range out {     // wait for the goroutine
		}
	}
}
