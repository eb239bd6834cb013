package announce

import (
	"bytes"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"berth/services/announce/election"
)

// link is an interface on which addresses can be announced.
type link struct {
	index    int
	name     string
	mac      net.HardwareAddr
	networks []netip.Prefix // with the node's own addresses, not masked
}

func (l *link) equal(o *link) bool { return l.index == o.index && bytes.Equal(l.mac, o.mac) }

// gratuitousCount is how many times a node announces an address that has moved to it, one per interval:
// a single packet may be lost.
const gratuitousCount = 5

// segment is the network of an interface.
type segment struct {
	link
	*Announcer

	election         *election.Election
	arp, ndp, beats  *os.File
	groups           *groups
	announced        atomic.Pointer[map[netip.Addr]struct{}] // read by the readers
	list             []netip.Addr                            // the same, sorted
	gratuitous       map[netip.Addr]int                      // how many are left to send
	levels           map[netip.Addr]election.Level           // of all addresses that this node can serve
	probes           map[netip.Addr]*probe                   // of the same
	probed           atomic.Pointer[map[netip.Addr]struct{}] // keys of probes, read by the readers
	defended         map[netip.Addr]time.Time                // last defense of an announced address
	parts            map[string]*assembly                    // by source address
	beatAt, decideAt time.Time
	readers          sync.WaitGroup
}

// event is what a reader passes to the goroutine of Run.
type event struct {
	on       *segment
	source   string // hardware address
	beat     *beatPart
	answered netip.Addr // the host has this address
	failed   error      // the interface cannot be read
}

// openSegment opens the sockets of an interface and starts their readers.
func (a *Announcer) openSegment(l link, now time.Time) (s *segment, err error) {
	s = &segment{
		link: l, Announcer: a, gratuitous: map[netip.Addr]int{}, parts: map[string]*assembly{},
		probes: map[netip.Addr]*probe{}, defended: map[netip.Addr]time.Time{},
		election: election.New(a.opt.Node, uint64(now.UnixNano()), a.resumable(l), a.opt.Timing, now),
	}
	s.announced.Store(&map[netip.Addr]struct{}{})
	s.probed.Store(&map[netip.Addr]struct{}{})
	err = inNamespace(a.opt.NetNS, func() (err error) {
		if s.arp, err = openPacketSocket(l.index, protocolARP); err != nil {
			return err
		}
		if s.ndp, err = openPacketSocket(l.index, protocolIPv6); err != nil {
			return err
		}
		if s.beats, err = openPacketSocket(l.index, protocolBeat); err != nil {
			return err
		}
		s.groups, err = openGroups(l.index)
		return err
	})
	if err != nil {
		s.close()
		return nil, err
	}
	for f, handle := range map[*os.File]func([]byte){s.arp: s.receiveARP, s.ndp: s.receiveNDP, s.beats: s.receiveBeat} {
		s.readers.Go(func() { s.read(f, handle) })
	}
	return s, nil
}

// close closes the sockets and waits for the readers.
func (s *segment) close() {
	for _, f := range []*os.File{s.arp, s.ndp, s.beats} {
		if f != nil {
			_ = f.Close()
		}
	}
	s.readers.Wait()
	if s.groups != nil {
		s.groups.close()
	}
}

// read reads frames until the socket is closed or fails.
func (s *segment) read(f *os.File, handle func(frame []byte)) {
	buffer := make([]byte, 2048)
	for {
		n, err := f.Read(buffer)
		if err != nil {
			s.pass(event{on: s, failed: err})
			return
		}
		if n > ethernetHeader && !bytes.Equal(buffer[6:12], s.mac) {
			handle(buffer[:n])
		}
	}
}

// pass hands an event to the goroutine of Run. A flood of events loses some.
func (s *segment) pass(e event) {
	select {
	case s.events <- e:
	default:
	}
}

func (s *segment) announces(a netip.Addr) bool {
	_, ok := (*s.announced.Load())[a]
	return ok
}

// watches reports whether other hosts with an address matter.
func (s *segment) watches(a netip.Addr) bool {
	_, ok := (*s.probed.Load())[a]
	return ok || s.announces(a)
}

// receiveARP answers requests, and notices other hosts with an address.
func (s *segment) receiveARP(frame []byte) {
	p, ok := decodeARP(frame)
	if !ok {
		return
	}
	if s.watches(p.senderIP) && !bytes.Equal(p.senderMAC, s.mac) {
		s.pass(event{on: s, source: string(p.senderMAC), answered: p.senderIP})
		return
	}
	if p.operation == arpRequest && s.announces(p.targetIP) {
		_ = send(s.arp, encodeARP(p.ethernetSrc, arpPacket{
			operation: arpReply, senderMAC: s.mac, senderIP: p.targetIP, targetMAC: p.senderMAC, targetIP: p.senderIP,
		})) // lost: the other host asks again
	}
}

// receiveNDP answers neighbor solicitations, and notices other hosts with an address.
func (s *segment) receiveNDP(frame []byte) {
	p, ok := decodeNDP(frame)
	if ok && p.advertisement && s.watches(p.target) {
		s.pass(event{on: s, source: string(p.ethernetSrc), answered: p.target})
		return
	}
	if !ok || p.advertisement || !s.announces(p.target) {
		return
	}
	if p.source.IsUnspecified() {
		_ = send(s.ndp, encodeNA(allNodesMAC(), allNodes(), p.target, s.mac, false))
		return
	}
	_ = send(s.ndp, encodeNA(p.ethernetSrc, p.source, p.target, s.mac, true))
}

func (s *segment) receiveBeat(frame []byte) {
	if b, err := decodeBeat(frame[ethernetHeader:]); err == nil {
		s.pass(event{on: s, source: string(frame[6:12]), beat: &b})
	}
}

// handle applies an event that is not a failure.
func (s *segment) handle(now time.Time, e event) {
	if e.answered.IsValid() {
		s.answered(now, e.answered, e.source)
		return
	}
	a := s.parts[e.source]
	if a == nil {
		if len(s.parts) >= maxHosts {
			clear(s.parts)
		}
		a = &assembly{}
		s.parts[e.source] = a
	}
	b, complete := a.add(*e.beat)
	if !complete {
		return
	}
	for _, address := range s.election.Receive(now, e.source+b.Node, b) {
		s.gratuitous[address] = gratuitousCount // the caches of clients may have either host
	}
	s.decideAt = now
}

// maxHosts limits the memory for incomplete beats.
const maxHosts = 1024

// step does what is due, and returns when the next step is.
func (s *segment) step(now time.Time) time.Time {
	probeAt := s.stepProbes(now)
	if !now.Before(s.decideAt) {
		var list []netip.Addr
		list, s.decideAt = s.election.Decide(now)
		s.apply(slices.DeleteFunc(list, func(a netip.Addr) bool { return !s.mayAnnounce(now, a) }))
		probeAt = s.stepProbes(now) // of those that have been elected now
	}
	if s.election.Changed() || !now.Before(s.beatAt) {
		due := !now.Before(s.beatAt)
		s.sendBeat(now, false)
		if due {
			s.beatAt = now.Add(s.opt.Timing.Interval)
			s.repeat()
		}
	}
	return slices.MinFunc([]time.Time{s.beatAt, s.decideAt, probeAt}, time.Time.Compare)
}

func (s *segment) sendBeat(now time.Time, leaving bool) {
	for _, p := range encodeBeat(s.election.Beat(now, leaving)) {
		if err := send(s.beats, append(ethernet(beatGroup, s.mac, protocolBeat), p...)); err != nil {
			s.opt.Log.Debug("heartbeat not sent", "interface", s.name, "err", err)
		}
	}
}

// apply announces the addresses of the list, and no others.
func (s *segment) apply(list []netip.Addr) {
	set := make(map[netip.Addr]struct{}, len(list))
	for _, a := range list {
		set[a] = struct{}{}
	}
	var added, removed []netip.Addr
	for _, a := range list {
		if !s.announces(a) {
			added = append(added, a)
		}
	}
	for _, a := range s.list {
		if _, still := set[a]; !still {
			removed = append(removed, a)
		}
	}
	if len(added)+len(removed) == 0 {
		return
	}
	s.announced.Store(&set)
	s.list = list
	for _, a := range removed {
		delete(s.gratuitous, a)
		delete(s.defended, a)
		delete(s.warned, a)
		s.membership(a, false)
		s.opt.Log.Info("load balancer address released", "address", a, "interface", s.name,
			"node", s.election.Announcer(a))
	}
	for _, a := range added {
		s.membership(a, true)
		s.opt.Metrics.takeover()
		s.opt.Log.Info("load balancer address announced", "address", a, "interface", s.name)
		s.gratuitous[a] = gratuitousCount - 1
		s.sendGratuitous(a)
	}
	s.terms()
}

// membership joins or leaves the group of neighbor solicitations.
func (s *segment) membership(a netip.Addr, join bool) {
	if a.Is4() {
		return
	}
	set := s.groups.leave
	if join {
		set = s.groups.join
	}
	if err := set(a); err != nil {
		s.opt.Log.Warn("multicast group of neighbor solicitations not changed", "address", a, "interface", s.name,
			"join", join, "err", err)
	}
}

// repeat sends the announcements that are left.
func (s *segment) repeat() {
	for a, left := range s.gratuitous {
		if s.gratuitous[a]--; left <= 1 {
			delete(s.gratuitous, a)
		}
		s.sendGratuitous(a)
	}
}

// sendGratuitous tells all hosts of the network that this node has an address.
func (s *segment) sendGratuitous(a netip.Addr) {
	var err error
	if a.Is4() {
		p := arpPacket{operation: arpRequest, senderMAC: s.mac, senderIP: a, targetMAC: make(net.HardwareAddr, 6),
			targetIP: a}
		err = send(s.arp, encodeARP(broadcast, p))
	} else {
		err = send(s.ndp, encodeNA(allNodesMAC(), allNodes(), a, s.mac, false))
	}
	if err != nil {
		s.opt.Log.Debug("address not announced", "address", a, "interface", s.name, "err", err)
	}
}
