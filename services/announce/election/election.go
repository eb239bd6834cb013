package election

import (
	"cmp"
	"hash/fnv"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Level is how well a node can serve an address. A node without a claim cannot serve it.
type Level uint8

// Levels, in ascending order.
const (
	// Terminating: the Service has only terminating endpoints on the node, and needs some there.
	Terminating Level = iota + 1
	// Ready: the node can serve the address.
	Ready
)

// Phase is what a node does with an address.
type Phase uint8

// Phases, in ascending order.
const (
	// Candidate: the node does not announce the address.
	Candidate Phase = iota
	// Resuming: an earlier process of the node announced the address. The node announces it soon, if
	// no other one does.
	Resuming
	// Announcing: the node announces the address.
	Announcing
)

// Claim is what a node says about an address.
type Claim struct {
	Address netip.Addr
	Level   Level
	Phase   Phase
	// Term grows each time the address moves. Of two announcers, the one with the higher term stays.
	Term uint32
}

// Beat is the message that a node sends at each interval and after each change.
type Beat struct {
	Node string
	// Start distinguishes the processes of a node: later ones have a higher value. Sequence grows with
	// each beat of a process.
	Start, Sequence uint64
	// Leaving is true for the last beat of a node that stops.
	Leaving bool
	Claims  []Claim
}

// Timing has the delays of an election. All nodes need the same.
type Timing struct {
	// Interval is the time between beats.
	Interval time.Duration
	// Timeout is the time after the last beat at which a node counts as gone. A new process waits as
	// long before it claims anything.
	Timeout time.Duration
	// Settle is how long a node has a new claim before it announces the address, so that the nodes
	// which learn about it at the same time hear each other first.
	Settle time.Duration
}

// Default returns the timing of the agent: five beats are missed before a node counts as gone. With the
// probes of package announce, an address moves within 2.5 s of the death of a node.
func Default() Timing {
	return Timing{Interval: 400 * time.Millisecond, Timeout: 2 * time.Second, Settle: 600 * time.Millisecond}
}

// Election is the state of one node on one network segment. It is not safe for concurrent use.
type Election struct {
	self     string
	start    uint64
	timing   Timing
	joinAt   time.Time // no claims before
	resume   map[netip.Addr]uint32
	sequence uint64
	own      map[netip.Addr]*own
	peers    map[string]*peer // by key of Receive
	changed  bool             // the claims differ from those of the last beat
	ran      time.Time        // of the last decision
}

// own is the state of an address that this node can serve.
type own struct {
	Claim

	readyAt  time.Time // end of the settle time
	seenTerm uint32    // highest term of any node
}

// peer is another node.
type peer struct {
	Beat

	heard  time.Time
	claims map[netip.Addr]Claim
}

// New returns the state of a node. resume has the terms of the addresses that an earlier process of the
// node announced; it may be nil.
func New(self string, start uint64, resume map[netip.Addr]uint32, t Timing, now time.Time) *Election {
	return &Election{
		self: self, start: start, timing: t, joinAt: now.Add(t.Timeout), resume: resume, own: map[netip.Addr]*own{},
		peers: map[string]*peer{}, changed: true,
	}
}

// SetLevels replaces the addresses that this node can serve.
func (e *Election) SetLevels(now time.Time, levels map[netip.Addr]Level) {
	for a := range e.own {
		if _, can := levels[a]; !can {
			delete(e.own, a)
			delete(e.resume, a)
			e.changed = true
		}
	}
	for a, level := range levels {
		o := e.own[a]
		if o == nil {
			o = &own{Claim: Claim{Address: a}, readyAt: now.Add(e.timing.Settle)}
			if earliest := e.joinAt.Add(e.timing.Settle); o.readyAt.Before(earliest) {
				o.readyAt = earliest
			}
			if term, ok := e.resume[a]; ok && now.Before(e.joinAt) {
				o.Phase, o.Term, o.seenTerm, o.readyAt = Resuming, term, term, now.Add(e.timing.Settle)
			}
			delete(e.resume, a)
			e.own[a], e.changed = o, true
		}
		if o.Level != level {
			o.Level, e.changed = level, true
		}
	}
}

// Receive applies a beat of another node. key identifies its host, also among nodes of the same name. It
// returns the addresses that both the other node and this one announce.
func (e *Election) Receive(now time.Time, key string, b Beat) (both []netip.Addr) {
	p := e.peers[key]
	if p != nil && (b.Start < p.Start || b.Start == p.Start && b.Sequence <= p.Sequence) {
		return nil // late, or of an earlier process
	}
	if b.Leaving {
		delete(e.peers, key)
		return nil
	}
	p = &peer{Beat: b, heard: now, claims: make(map[netip.Addr]Claim, len(b.Claims))}
	for _, c := range b.Claims {
		p.claims[c.Address] = c
		o := e.own[c.Address]
		if o == nil {
			continue
		}
		o.seenTerm = max(o.seenTerm, c.Term)
		if o.Phase == Announcing && c.Phase == Announcing {
			both = append(both, c.Address)
		}
	}
	e.peers[key] = p
	return both
}

// Decide returns the addresses that this node announces from now on, sorted, and the time of the next
// decision if no beat arrives earlier.
func (e *Election) Decide(now time.Time) (announce []netip.Addr, next time.Time) {
	next = now.Add(e.timing.Interval)
	e.excuse(now)
	for key, p := range e.peers {
		gone := p.heard.Add(e.timing.Timeout)
		if !now.Before(gone) {
			delete(e.peers, key)
		} else if gone.Before(next) {
			next = gone
		}
	}
	for a, o := range e.own {
		e.decide(now, o)
		if o.Phase == Announcing {
			announce = append(announce, a)
		} else if now.Before(o.readyAt) && o.readyAt.Before(next) {
			next = o.readyAt
		}
	}
	slices.SortFunc(announce, netip.Addr.Compare)
	return announce, next
}

// excuse extends the timeouts of peers by the time in which this node did not run: their beats may wait in
// its sockets. A node decides at each interval unless it has no CPU time or is suspended.
func (e *Election) excuse(now time.Time) {
	stalled := now.Sub(e.ran) - e.timing.Interval
	if !e.ran.IsZero() && stalled > e.timing.Interval/2 {
		for _, p := range e.peers {
			if p.heard = p.heard.Add(stalled); p.heard.After(now) {
				p.heard = now
			}
		}
	}
	e.ran = now
}

// decide updates the phase of an address. An announcer stays until it hears another one that ranks
// before it, so that an address that moves to a better node is announced all the time.
func (e *Election) decide(now time.Time, o *own) {
	first := true
	for _, p := range e.peers {
		c, claims := p.claims[o.Address]
		if !claims || compare(e.self, o.Claim, p.Node, c) < 0 {
			continue
		}
		if o.Phase != Announcing || c.Phase == Announcing {
			first = false
		}
	}
	switch phase := o.Phase; {
	case !first && phase != Candidate:
		o.Phase, e.changed = Candidate, true
	case first && phase != Announcing && !now.Before(o.readyAt):
		o.Phase, o.Term, e.changed = Announcing, max(o.Term, o.seenTerm)+1, true
		o.seenTerm = o.Term
	}
}

// compare is negative if the claim x of node a ranks before the claim y of node b for the same address.
// The hash spreads addresses over nodes.
func compare(a string, x Claim, b string, y Claim) int {
	return cmp.Or(
		cmp.Compare(y.Level, x.Level), cmp.Compare(y.Phase, x.Phase), cmp.Compare(y.Term, x.Term),
		cmp.Compare(score(b, x.Address), score(a, x.Address)), strings.Compare(a, b),
	)
}

func score(node string, a netip.Addr) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(a.AsSlice()) // a hash never fails
	_, _ = h.Write([]byte(node))
	// FNV changes the high bits little for the last bytes, which are all that distinguishes most nodes.
	x := h.Sum64()
	x = (x ^ x>>33) * 0xff51afd7ed558ccd
	return x ^ x>>33
}

// Changed reports whether the claims have changed since the last Beat.
func (e *Election) Changed() bool { return e.changed }

// Beat returns the next beat of this node.
func (e *Election) Beat(now time.Time, leaving bool) Beat {
	e.sequence++
	e.changed = false
	b := Beat{Node: e.self, Start: e.start, Sequence: e.sequence, Leaving: leaving}
	if leaving {
		return b
	}
	for _, o := range e.own {
		if !now.Before(e.joinAt) || o.Phase != Candidate {
			b.Claims = append(b.Claims, o.Claim)
		}
	}
	slices.SortFunc(b.Claims, func(x, y Claim) int { return x.Address.Compare(y.Address) })
	return b
}

// Terms returns the terms of the addresses that this node announces.
func (e *Election) Terms() map[netip.Addr]uint32 {
	out := map[netip.Addr]uint32{}
	for a, o := range e.own {
		if o.Phase == Announcing {
			out[a] = o.Term
		}
	}
	return out
}

// Announcer returns the node that announces an address, as far as this node knows; empty: none.
func (e *Election) Announcer(a netip.Addr) string {
	if o := e.own[a]; o != nil && o.Phase == Announcing {
		return e.self
	}
	name, best := "", Claim{}
	for _, p := range e.peers {
		if c := p.claims[a]; c.Phase == Announcing && (name == "" || compare(p.Node, c, name, best) < 0) {
			name, best = p.Node, c
		}
	}
	return name
}

// HeldByPeer reports whether another node announces an address.
func (e *Election) HeldByPeer(a netip.Addr) bool {
	for _, p := range e.peers {
		if p.claims[a].Phase == Announcing {
			return true
		}
	}
	return false
}

// HostClaims reports whether a node with a key that starts with host can serve an address.
func (e *Election) HostClaims(host string, a netip.Addr) bool {
	for key, p := range e.peers {
		if _, claims := p.claims[a]; claims && strings.HasPrefix(key, host) {
			return true
		}
	}
	return false
}

// Peers returns the number of other nodes that are heard.
func (e *Election) Peers() int { return len(e.peers) }
