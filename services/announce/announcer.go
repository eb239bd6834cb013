package announce

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netns"

	"berth/services"
	"berth/services/announce/election"
)

// Options configures an Announcer.
type Options struct {
	// Node is the name of this node.
	Node  string
	Store *services.Store
	// Serving reports whether this node can serve Services: its rules are in place, it is not excluded
	// from load balancers, and it does not shut down. It is called at each interval. When it becomes
	// false, other nodes take the addresses at once.
	Serving func() bool
	// Resume are the terms of the addresses that an earlier process announced, and Persist stores them
	// for the next one. Both may be nil.
	Resume  map[netip.Addr]uint32
	Persist func(map[netip.Addr]uint32)
	// OnConflict is called when another host has an address, and when it does not have it any more. It must
	// not wait. It may be nil.
	OnConflict func(Conflict)
	// Timing is election.Default unless set.
	Timing election.Timing
	// NetNS is the network namespace. Zero: that of the process.
	NetNS netns.NsHandle
	// Metrics may be nil.
	Metrics *Metrics
	Log     *slog.Logger
}

// Announcer announces addresses of Services. Its exported methods are safe for concurrent use.
type Announcer struct {
	opt    Options
	events chan event
	// The goroutine of Run owns these.
	levels   map[services.Name]map[netip.Addr]election.Level // 0: this node cannot serve the address
	segments map[int]*segment
	links    []link
	own      map[netip.Addr]bool // addresses of this node
	stored   map[netip.Addr]uint32
	warned   map[netip.Addr]string // conflicts

	mu         sync.Mutex
	announcers map[netip.Addr]string
	conflicts  map[netip.Addr]Conflict // of addresses that are not announced
}

const (
	eventQueue    = 256
	retryInterval = 5 * time.Second // of failed interfaces, and the longest time between two looks at them
)

// New returns an Announcer. It changes nothing.
func New(o Options) *Announcer {
	if o.Timing == (election.Timing{}) {
		o.Timing = election.Default()
	}
	if o.NetNS == 0 {
		o.NetNS = netns.None()
	}
	return &Announcer{
		opt: o, events: make(chan event, eventQueue), levels: map[services.Name]map[netip.Addr]election.Level{},
		segments: map[int]*segment{}, stored: o.Resume, warned: map[netip.Addr]string{},
	}
}

// AnnouncedBy returns the node that announces an address, as far as this node knows; empty: not known.
func (a *Announcer) AnnouncedBy(address netip.Addr) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.announcers[address]
}

// Conflict returns the host that has an address which is therefore not announced by this node.
func (a *Announcer) Conflict(address netip.Addr) (Conflict, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	c, ok := a.conflicts[address]
	return c, ok
}

// Run announces addresses until ctx ends.
func (a *Announcer) Run(ctx context.Context) error {
	sub := a.opt.Store.Subscribe()
	defer sub.Close()
	for {
		a.update(sub.Take())
		if len(a.levels) > 0 {
			a.announce(ctx, sub)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-sub.Changed():
		}
	}
}

// announce runs until ctx ends or no Service has an address to announce.
func (a *Announcer) announce(ctx context.Context, sub *services.Subscription) {
	followCtx, stop := context.WithCancel(ctx)
	var follower sync.WaitGroup
	defer follower.Wait()
	defer stop()
	changed := make(chan struct{}, 1)
	follower.Go(func() {
		if err := followLinks(followCtx, a.opt.NetNS, changed); err != nil {
			a.opt.Log.Warn("changes of interfaces are not followed", "checkInterval", retryInterval, "err", err)
		}
	})
	defer a.closeAll()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var lookAt time.Time // at the interfaces
	serving := false
	for ctx.Err() == nil && len(a.levels) > 0 {
		now := time.Now()
		if !now.Before(lookAt) {
			a.look(now)
			lookAt = now.Add(retryInterval)
		}
		if is := a.opt.Serving(); is != serving {
			serving = is
			a.setLevels(now, serving)
		}
		next := a.step(now, lookAt)
		timer.Reset(time.Until(next))
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-changed:
			if soon := time.Now().Add(linkDelay); soon.Before(lookAt) {
				lookAt = soon
			}
		case <-sub.Changed():
			if a.update(sub.Take()) {
				lookAt = time.Time{}
				a.setLevels(time.Now(), serving)
			}
		case e := <-a.events:
			a.handle(e, &lookAt)
		}
	}
}

func (a *Announcer) handle(e event, lookAt *time.Time) {
	if a.segments[e.on.index] != e.on {
		return // of a closed segment
	}
	if e.failed == nil {
		e.on.handle(time.Now(), e)
		return
	}
	a.opt.Log.Warn("interface failed, its load balancer addresses are not announced", "interface", e.on.name,
		"err", e.failed)
	a.closeSegment(e.on, false)
	if soon := time.Now().Add(linkDelay); soon.Before(*lookAt) {
		*lookAt = soon
	}
}

// update applies changed Services. It reports whether anything has changed.
func (a *Announcer) update(names map[services.Name]struct{}) (changed bool) {
	for name := range names {
		svc, slices := a.opt.Store.Service(name)
		levels := levelsOf(svc, slices, a.opt.Node)
		if maps.Equal(levels, a.levels[name]) {
			continue
		}
		changed = true
		if a.levels[name] = levels; len(levels) == 0 {
			delete(a.levels, name)
		}
	}
	return changed
}

// levelsOf returns the addresses of a Service that nodes announce, and how well this node serves them.
func levelsOf(svc *services.Service, all []*services.Slice, node string) map[netip.Addr]election.Level {
	if svc == nil || !svc.Announce || svc.ProxiedBy != "" {
		return nil
	}
	out := make(map[netip.Addr]election.Level, len(svc.LoadBalancerIPs))
	for _, address := range svc.LoadBalancerIPs {
		out[address] = election.Ready
		if svc.ExternalLocal {
			out[address] = localLevel(all, address.Is6(), node)
		}
	}
	return out
}

// localLevel returns how well the endpoints of the node serve a family with policy Local.
func localLevel(all []*services.Slice, ipv6 bool, node string) (level election.Level) {
	for _, slice := range all {
		if slice.IPv6 != ipv6 {
			continue
		}
		for i := range slice.Endpoints {
			switch e := &slice.Endpoints[i]; {
			case e.Node != node:
			case e.Ready:
				return election.Ready
			case e.Serving && e.Terminating:
				level = election.Terminating
			}
		}
	}
	return level
}

// look compares the interfaces with the segments.
func (a *Announcer) look(now time.Time) {
	links, own, err := listLinks(a.opt.NetNS)
	if err != nil {
		a.opt.Log.Warn("interfaces could not be listed", "retryAfter", retryInterval, "err", err)
		return
	}
	a.links, a.own = links, own
	needed := map[int]*link{}
	for _, levels := range a.levels {
		for address := range levels {
			if l := linkFor(links, address); l != nil {
				needed[l.index] = l
			}
		}
	}
	for index, s := range a.segments {
		if l := needed[index]; l == nil || !s.equal(l) {
			a.closeSegment(s, false)
		}
	}
	for index, l := range needed {
		if a.segments[index] != nil {
			continue
		}
		s, err := a.openSegment(*l, now)
		if err != nil {
			a.opt.Log.Warn("load balancer addresses cannot be announced", "interface", l.name, "err", err)
			continue
		}
		a.segments[index] = s
	}
	a.setLevels(now, a.opt.Serving())
}

// setLevels passes the addresses that this node can serve to the elections.
func (a *Announcer) setLevels(now time.Time, serving bool) {
	byLink := map[int]map[netip.Addr]election.Level{}
	for _, levels := range a.levels {
		for address, level := range levels {
			l := linkFor(a.links, address)
			if l == nil || level == 0 || !serving || a.own[address] {
				continue
			}
			if byLink[l.index] == nil {
				byLink[l.index] = map[netip.Addr]election.Level{}
			}
			byLink[l.index][address] = level
		}
	}
	for index, s := range a.segments {
		s.setLevels(now, byLink[index])
	}
}

// step does what is due on all segments, and returns when the next step is.
func (a *Announcer) step(now, next time.Time) time.Time {
	announced, peers := 0, 0
	announcers, conflicts := map[netip.Addr]string{}, map[netip.Addr]Conflict{}
	for _, s := range a.segments {
		if at := s.step(now); at.Before(next) {
			next = at
		}
		announced += len(s.list)
		peers += s.election.Peers()
		for address, p := range s.probes {
			if p.holder != "" {
				conflicts[address] = Conflict{
					Service: a.serviceOf(address), Address: address, Interface: s.name,
					HardwareAddress: net.HardwareAddr(p.holder).String(),
				}
			}
		}
	}
	for _, levels := range a.levels {
		for address := range levels {
			if l := linkFor(a.links, address); l != nil && a.segments[l.index] != nil {
				announcers[address] = a.segments[l.index].election.Announcer(address)
			}
		}
	}
	a.opt.Metrics.state(announced, peers, len(conflicts))
	a.mu.Lock()
	a.announcers, a.conflicts = announcers, conflicts
	a.mu.Unlock()
	return next
}

// serviceOf returns the Service that has an address, or nil.
func (a *Announcer) serviceOf(address netip.Addr) *services.Service {
	for name, levels := range a.levels {
		if _, has := levels[address]; has {
			svc, _ := a.opt.Store.Service(name)
			return svc
		}
	}
	return nil
}

// resumable returns the terms of the addresses on a network that an earlier process announced.
func (a *Announcer) resumable(l link) map[netip.Addr]uint32 {
	out := map[netip.Addr]uint32{}
	for address, term := range a.opt.Resume {
		if linkFor([]link{l}, address) != nil {
			out[address] = term
		}
	}
	a.opt.Resume = maps.Clone(a.opt.Resume)
	for address := range out {
		delete(a.opt.Resume, address)
	}
	return out
}

// terms stores the terms of the announced addresses.
func (a *Announcer) terms() {
	all := map[netip.Addr]uint32{}
	for _, s := range a.segments {
		maps.Copy(all, s.election.Terms())
	}
	if a.opt.Persist != nil && !maps.Equal(all, a.stored) {
		a.stored = all
		a.opt.Persist(all)
	}
}

func (a *Announcer) closeSegment(s *segment, leaving bool) {
	delete(a.segments, s.index)
	if leaving {
		s.sendBeat(time.Now(), true)
	}
	s.close()
}

// closeAll ends all announcements. If there is still something to announce, the other nodes wait for
// Timing.Timeout: the next process may resume.
func (a *Announcer) closeAll() {
	leaving := len(a.levels) == 0
	for _, s := range a.segments {
		a.closeSegment(s, leaving)
	}
	a.opt.Metrics.state(0, 0, 0)
	a.mu.Lock()
	a.announcers, a.conflicts = nil, nil
	a.mu.Unlock()
}

// StoreKey is the key in the agent's local store of what the node announces.
const StoreKey = "load-balancer-terms"

// EncodeTerms returns the value for the local store.
func EncodeTerms(terms map[netip.Addr]uint32) []byte {
	value, err := json.Marshal(terms)
	if err != nil {
		panic(fmt.Sprintf("encode terms: %v", err)) // plain data: a bug
	}
	return value
}

// DecodeTerms decodes a value of the local store.
func DecodeTerms(value []byte) (terms map[netip.Addr]uint32, err error) {
	if len(value) == 0 {
		return nil, nil
	}
	if err := json.Unmarshal(value, &terms); err != nil {
		return nil, fmt.Errorf("%s: %w", StoreKey, err)
	}
	return terms, nil
}
