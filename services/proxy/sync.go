package proxy

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"berth/services"
	"berth/services/proxy/ruleset"
)

// syncer is the part of a Proxy that the goroutine of Run owns.
type syncer struct {
	*Proxy
	kernel  *kernel // nil until it could be opened
	health  *healthServers
	cleaner *cleaner
	pending map[services.Name]struct{}
	// full is true if the tables may differ from the state.
	full       bool
	restarted  bool // the tables may be those of an earlier run
	nextAudit  time.Time
	nextCheck  time.Time
	generation uint32 // of the ruleset, when the tables were intact
	commits    uint32 // own transactions until then
	backoff    time.Duration
	retryAt    time.Time // not before, after a failure
}

// maxUpdates limits the Services of a transaction.
const maxUpdates = 500

func newSyncer(p *Proxy) *syncer {
	return &syncer{
		Proxy: p, pending: map[services.Name]struct{}{}, full: true, restarted: true,
		health: newHealthServers(p), cleaner: newCleaner(p),
	}
}

// stop releases everything but the rules.
func (s *syncer) stop() {
	s.cleaner.stop()
	s.health.stop()
	if s.kernel != nil {
		s.kernel.close()
	}
}

// add notes changed Services.
func (s *syncer) add(names map[services.Name]struct{}) {
	if len(names) == 0 {
		return
	}
	maps.Copy(s.pending, names)
	s.opt.Metrics.queued()
	s.opt.Metrics.pending(len(s.pending))
}

// sync does what is due and returns the time until the next call.
func (s *syncer) sync(ctx context.Context) time.Duration {
	start := time.Now()
	if wait := s.retryAt.Sub(start); wait > 0 {
		return wait
	}
	s.noteDamage(start)
	full := s.full || start.After(s.nextAudit)
	if !full && len(s.pending) == 0 && !s.nodeChanged() {
		s.cleaner.start()
		return s.checkInterval
	}
	err := s.changes(ctx, full)
	if err == nil && full {
		err = s.compare()
	}
	if ctx.Err() != nil {
		return s.checkInterval
	}
	s.report(start, full, err)
	if err != nil {
		s.full = true
		s.backoff = min(max(2*s.backoff, minBackoff), maxBackoff)
		s.retryAt = time.Now().Add(s.backoff)
		return s.backoff
	}
	s.full, s.backoff = false, 0
	if full {
		s.nextAudit = time.Now().Add(s.auditInterval)
		s.health.retry(s.state.Node())
	}
	s.noteGeneration()
	s.cleaner.start()
	return s.checkInterval
}

// noteDamage checks whether the tables are intact if any table of the host has changed since this
// proxy's last change.
func (s *syncer) noteDamage(now time.Time) {
	if s.kernel == nil || s.full || now.Before(s.nextCheck) {
		return
	}
	s.nextCheck = now.Add(s.checkInterval)
	n, err := s.kernel.generation()
	if err != nil || n == s.generation {
		return
	}
	s.generation, s.commits = n, s.kernel.socket.commits
	if state, err := s.kernel.load(); err != nil || state != tablesIntact || s.kernel.missingTargets(s.state) > 0 {
		s.opt.Log.Warn("service rules changed by another program; repairing", "err", err)
		s.full = true
	}
}

// noteGeneration notes the generation of the ruleset after changes of this proxy. If other programs have changed
// something meanwhile, the next check looks at the tables.
func (s *syncer) noteGeneration() {
	own := s.kernel.socket.commits - s.commits
	s.commits += own
	if n, err := s.kernel.generation(); err == nil && n == s.generation+own {
		s.generation = n
	}
}

func (s *syncer) nodeChanged() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.Node() != s.node
}

// changes applies the pending changes to the state and, unless all tables are compared afterwards,
// to the kernel.
func (s *syncer) changes(ctx context.Context, full bool) error {
	s.mu.Lock()
	nodeChanged := s.state.Node() != s.node
	if nodeChanged {
		s.state.SetNode(s.node)
		for name := range s.state.Names() {
			s.pending[name] = struct{}{}
		}
		s.health.closeAll() // their addresses may have changed
	}
	node := s.node
	s.mu.Unlock()
	if nodeChanged && !full {
		if err := s.kernel.setNode(node); err != nil {
			return fmt.Errorf("write node ranges: %w", err)
		}
	}
	names := slices.SortedFunc(maps.Keys(s.pending), services.Name.Compare)
	for batch := range slices.Chunk(names, maxUpdates) {
		if err := ctx.Err(); err != nil {
			return err
		}
		updates := make([]ruleset.Update, len(batch))
		var changedAt []time.Time
		for i, name := range batch {
			svc, all := s.opt.Store.Service(name)
			updates[i] = ruleset.Update{Name: name, Service: svc, Slices: all}
			before, old := s.state.Service(name)
			s.opt.Metrics.applied(svc != before, !slices.Equal(all, old))
			if at := lastChange(all); at.After(lastChange(old)) {
				changedAt = append(changedAt, at)
			}
		}
		s.mu.Lock()
		change := s.state.Apply(updates)
		s.mu.Unlock()
		for _, name := range batch {
			delete(s.pending, name)
		}
		s.cleaner.add(change.StaleUDP)
		s.health.update(updates, node)
		if full {
			continue
		}
		if err := s.kernel.apply(change, s.state); err != nil {
			return err
		}
		for _, at := range changedAt {
			s.opt.Metrics.programmedAfter(time.Since(at))
		}
	}
	return nil
}

// lastChange returns the time of the last change of endpoints.
func lastChange(all []*services.Slice) (last time.Time) {
	for _, slice := range all {
		if slice.ChangedAt.After(last) {
			last = slice.ChangedAt
		}
	}
	return last
}

// compare makes the tables equal to the state, whatever they have.
func (s *syncer) compare() error {
	if s.kernel == nil {
		k, err := openKernel(s.opt.NetNS)
		if err != nil {
			return err
		}
		s.kernel = k
	}
	tables, err := s.kernel.load()
	if err != nil {
		return fmt.Errorf("read service rules: %w", err)
	}
	if tables != tablesIntact {
		if err := s.kernel.replace(s.state, tables == tablesDamaged); err != nil {
			return fmt.Errorf("write service rules: %w", err)
		}
		s.opt.Log.Info("service rules written")
	} else if err := s.repair(); err != nil {
		return err
	}
	if s.restarted { // an earlier run may not have deleted all stale entries
		s.restarted = false
		s.cleaner.add(s.state.UDPFrontends())
	}
	return nil
}

// repair corrects elements and removes chains that are not used.
func (s *syncer) repair() error {
	if err := s.kernel.setNode(s.state.Node()); err != nil {
		return fmt.Errorf("write node ranges: %w", err)
	}
	n, stale, err := s.kernel.repair(s.state)
	if err != nil {
		return fmt.Errorf("repair service rules: %w", err)
	}
	s.cleaner.add(stale)
	if n > 0 && !s.restarted {
		s.opt.Log.Warn("service rules differed and were repaired", "elements", n)
	}
	if err := s.kernel.collect(s.state); err != nil {
		s.opt.Log.Debug("unused chains not removed", "err", err)
		if _, err := s.kernel.load(); err != nil {
			return fmt.Errorf("read service rules: %w", err)
		}
	}
	return nil
}

// report updates the status, the log and the metrics.
func (s *syncer) report(start time.Time, full bool, err error) {
	now := time.Now()
	s.opt.Metrics.synced(now.Sub(start), full, err)
	s.opt.Metrics.pending(len(s.pending))
	s.opt.Metrics.withoutLocal(s.state)
	s.mu.Lock()
	before := s.status
	if err == nil {
		s.status = Status{Synced: true, LastSync: now}
	} else {
		s.status.Synced, s.status.Err = false, err.Error()
	}
	s.mu.Unlock()
	s.health.healthy.Store(err == nil)
	switch {
	case err != nil && before.Err != err.Error():
		s.opt.Log.Error("service rules sync failed; retrying", "err", err)
	case err == nil && before.Err != "":
		s.opt.Log.Info("service rules sync succeeded again")
	}
	if s.onSync != nil {
		s.onSync(err)
	}
}
