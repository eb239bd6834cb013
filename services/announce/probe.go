package announce

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"time"

	"berth/services"
	"berth/services/announce/election"
)

// Before a node announces an address, it asks whether another host has it, as RFC 5227 (ARP probes) and
// RFC 4862 (duplicate address detection) describe. Both wait for seconds, which a failover does not have:
// hosts of one network answer within milliseconds.
const (
	probeCount    = 3 // of one round
	probeInterval = 100 * time.Millisecond
	// probeRounds is how many rounds an unknown host has to answer before it is a conflict. The beats of a
	// node that has just started may arrive after its answer.
	probeRounds = 3
	// probeValid is how long a round without an answer counts.
	probeValid = 3 * time.Second
	// conflictRetry is the time until an address with a conflict is probed again.
	conflictRetry = 10 * time.Second
	// defendInterval limits the announcements against a host that uses an announced address (RFC 5227, 2.4).
	defendInterval = 10 * time.Second
)

// Conflict is a host that has an address of a load balancer and is no node.
type Conflict struct {
	Service         *services.Service
	Address         netip.Addr
	Interface       string
	HardwareAddress string
	// Announced is true if this node announces the address nevertheless: the other host has appeared later.
	Announced bool
	// Over is true if the host does not answer any more.
	Over bool
}

// Message returns a sentence for users.
func (c Conflict) Message() string {
	switch {
	case c.Over:
		return fmt.Sprintf("no other host has load balancer address %s any more", c.Address)
	case c.Announced:
		return fmt.Sprintf("the host with hardware address %s uses load balancer address %s too", c.HardwareAddress,
			c.Address)
	}
	return fmt.Sprintf("load balancer address %s is not announced: the host with hardware address %s has it", c.Address,
		c.HardwareAddress)
}

// probe is the check of an address that this node can serve.
type probe struct {
	running bool
	waited  bool      // this round has been extended
	sent    int       // packets of this round
	round   int       // rounds with an answer
	next    time.Time // when the next packet is due, the round ends, or the next round starts
	answers []string  // hardware addresses of hosts that answered in this round
	clearAt time.Time // end of the last round without an answer; zero: none
	holder  string    // hardware address of the host that has the address; empty: no conflict
}

// start begins a round.
func (p *probe) start(now time.Time) {
	p.running, p.round = true, 0
	p.again(now)
}

// again begins a further round.
func (p *probe) again(now time.Time) { p.sent, p.waited, p.next, p.answers = 0, false, now, nil }

// setLevels passes the addresses that this node can serve to the election, except those with a conflict.
func (s *segment) setLevels(now time.Time, levels map[netip.Addr]election.Level) {
	maps.DeleteFunc(s.probes, func(a netip.Addr, _ *probe) bool {
		_, still := levels[a]
		return !still
	})
	for a := range levels {
		if s.probes[a] == nil { // the round ends with the settle time
			s.probes[a] = &probe{next: now.Add(s.opt.Timing.Settle - probeCount*probeInterval)}
		}
	}
	s.levels = levels
	s.publishProbes()
	s.passLevels(now)
}

func (s *segment) passLevels(now time.Time) {
	free := maps.Clone(s.levels)
	maps.DeleteFunc(free, func(a netip.Addr, _ election.Level) bool { return s.probes[a].holder != "" })
	s.election.SetLevels(now, free)
	s.decideAt = now
}

// publishProbes publishes the set of addresses that are being probed to concurrent readers.
func (s *segment) publishProbes() {
	set := make(map[netip.Addr]struct{}, len(s.probes))
	for a := range s.probes {
		set[a] = struct{}{}
	}
	s.probed.Store(&set)
}

// mayAnnounce reports whether no other host has an elected address, as far as this node knows. If it does not
// know, it asks. An address that another node announces until now is not asked for: that node would know.
func (s *segment) mayAnnounce(now time.Time, a netip.Addr) bool {
	p := s.probes[a]
	switch {
	case p == nil || p.holder != "":
		return false
	case s.announces(a), s.election.HeldByPeer(a):
		return true
	case p.running:
		return false
	case !p.clearAt.IsZero() && now.Sub(p.clearAt) < probeValid:
		return true
	}
	p.start(now)
	return false
}

// stepProbes sends what is due and evaluates rounds that have ended. It returns when the next step is.
func (s *segment) stepProbes(now time.Time) (next time.Time) {
	next = now.Add(conflictRetry)
	for _, a := range slices.SortedFunc(maps.Keys(s.probes), netip.Addr.Compare) {
		p := s.probes[a]
		for !p.next.IsZero() && !now.Before(p.next) {
			switch {
			case !p.running:
				p.start(now)
			case p.sent < probeCount:
				s.sendProbe(a)
				p.sent++
				p.next = now.Add(probeInterval)
			case !p.waited && now.Sub(p.next) >= probeInterval: // no CPU time: answers may wait in the socket
				p.waited, p.next = true, now.Add(probeInterval)
			default:
				s.endRound(now, a, p)
			}
		}
		if !p.next.IsZero() && p.next.Before(next) {
			next = p.next
		}
	}
	return next
}

// endRound evaluates the answers of a round.
func (s *segment) endRound(now time.Time, a netip.Addr, p *probe) {
	holder := ""
	for _, host := range p.answers {
		if !s.election.HostClaims(host, a) {
			holder = host
		}
	}
	before := p.holder
	switch {
	case holder == "":
		p.running, p.clearAt, p.next, p.holder = false, now, time.Time{}, ""
		if before != "" {
			s.report(a, before, false, true)
			s.passLevels(now)
		}
		s.decideAt = now
	case before == "" && p.round+1 < probeRounds:
		p.round++
		p.again(now)
	default:
		p.running, p.clearAt, p.holder, p.next = false, time.Time{}, holder, now.Add(conflictRetry)
		if before != holder {
			s.opt.Metrics.conflict()
			s.report(a, holder, false, false)
			s.passLevels(now)
		}
	}
}

// answered notes a host that has an address, other than this node.
func (s *segment) answered(now time.Time, a netip.Addr, host string) {
	if s.announces(a) {
		s.contested(now, a, host)
		return
	}
	if p := s.probes[a]; p != nil && p.running && !slices.Contains(p.answers, host) && len(p.answers) < maxAnswers {
		p.answers = append(p.answers, host)
	}
}

const maxAnswers = 8

// contested reports a host that is no node and uses an address that this node announces, and restores the
// caches of clients.
func (s *segment) contested(now time.Time, a netip.Addr, host string) {
	if s.parts[host] != nil {
		return
	}
	if now.Sub(s.defended[a]) >= defendInterval {
		s.defended[a] = now
		s.gratuitous[a] = max(s.gratuitous[a], 1)
	}
	if s.warned[a] == host {
		return
	}
	s.warned[a] = host
	s.opt.Metrics.conflict()
	s.report(a, host, true, false)
}

// report logs a conflict and passes it on.
func (s *segment) report(a netip.Addr, host string, announced, over bool) {
	c := Conflict{
		Service: s.serviceOf(a), Address: a, Interface: s.name, HardwareAddress: net.HardwareAddr(host).String(),
		Announced: announced, Over: over,
	}
	log, text := s.opt.Log.Warn, "load balancer address not announced: another host has it"
	switch {
	case over:
		log, text = s.opt.Log.Info, "load balancer address is free again"
	case announced:
		text = "another host uses the address of a load balancer"
	}
	log(text, "address", a, "interface", s.name, "hardwareAddress", c.HardwareAddress)
	if s.opt.OnConflict != nil && c.Service != nil {
		s.opt.OnConflict(c)
	}
}

// sendProbe asks all hosts of the network for an address, without one of this node.
func (s *segment) sendProbe(a netip.Addr) {
	var err error
	if a.Is4() {
		err = send(s.arp, encodeARP(broadcast, arpPacket{
			operation: arpRequest, senderMAC: s.mac, senderIP: netip.IPv4Unspecified(),
			targetMAC: make(net.HardwareAddr, 6), targetIP: a,
		}))
	} else {
		err = send(s.ndp, encodeDAD(s.mac, a))
	}
	if err != nil {
		s.opt.Log.Debug("address not probed", "address", a, "interface", s.name, "err", err)
	}
}
