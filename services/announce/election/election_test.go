package election

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"
)

func address(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}) }

// world has nodes on one network, which may be partitioned. Time advances in steps of 50 ms.
type world struct {
	t      *testing.T
	rng    *rand.Rand
	now    time.Time
	timing Timing
	nodes  []*node
	group  []int // of each node: nodes of the same group hear each other
	starts uint64
	loss   bool // each beat is lost with a probability of 1:10
}

type node struct {
	name     string
	election *Election // nil: down
	levels   map[netip.Addr]Level
	announce []netip.Addr
	stored   map[netip.Addr]uint32 // survives the process
	beatAt   time.Time
	decideAt time.Time
	until    time.Time // no CPU time before; what the node receives meanwhile waits
	waiting  []received
}

// received is a beat in the socket of a node.
type received struct {
	key  string
	beat Beat
}

const step = 50 * time.Millisecond

func newWorld(t *testing.T, seed uint64, n int) *world {
	w := &world{
		t: t, rng: rand.New(rand.NewPCG(seed, 2)), now: time.Unix(1000, 0), timing: Default(), group: make([]int, n),
	}
	for i := range n {
		w.nodes = append(w.nodes, &node{name: fmt.Sprint("n", i), levels: map[netip.Addr]Level{}})
	}
	return w
}

func (w *world) start(i int) {
	n := w.nodes[i]
	w.starts++
	n.election = New(n.name, w.starts, maps.Clone(n.stored), w.timing, w.now)
	n.election.SetLevels(w.now, n.levels)
	n.announce, n.beatAt, n.decideAt, n.until, n.waiting = nil, w.now, w.now, time.Time{}, nil
}

func (w *world) stop(i int, leaving bool) {
	n := w.nodes[i]
	if n.election != nil && leaving {
		w.send(i, true)
	}
	n.election, n.announce = nil, nil
}

func (w *world) send(i int, leaving bool) {
	n := w.nodes[i]
	b := n.election.Beat(w.now, leaving)
	for j, peer := range w.nodes {
		lost := w.loss && w.rng.IntN(10) == 0
		switch heard := j != i && peer.election != nil && w.group[i] == w.group[j] && !lost; {
		case heard && w.now.Before(peer.until):
			peer.waiting = append(peer.waiting, received{n.name, b})
		case heard:
			peer.election.Receive(w.now, n.name, b)
			peer.decideAt = w.now
		}
	}
}

// run advances the time.
func (w *world) run(d time.Duration) {
	for end := w.now.Add(d); w.now.Before(end); w.now = w.now.Add(step) {
		for _, i := range w.rng.Perm(len(w.nodes)) {
			n := w.nodes[i]
			if n.election == nil || w.now.Before(n.until) {
				continue
			}
			if !w.now.Before(n.decideAt) {
				n.announce, n.decideAt = n.election.Decide(w.now)
				n.stored = n.election.Terms()
			}
			for _, r := range n.waiting { // at worst after the decision
				n.election.Receive(w.now, r.key, r.beat)
				n.decideAt = w.now
			}
			n.waiting = nil
			if n.election.Changed() || !w.now.Before(n.beatAt) {
				n.beatAt = w.now.Add(w.timing.Interval)
				w.send(i, false)
			}
			for _, a := range n.announce {
				if n.levels[a] == 0 {
					w.t.Errorf("E4: %s announces %s, which it cannot serve", n.name, a)
				}
			}
		}
	}
}

func (w *world) setLevel(i int, a netip.Addr, l Level) {
	n := w.nodes[i]
	if n.levels[a] = l; l == 0 {
		delete(n.levels, a)
	}
	if n.election != nil {
		n.election.SetLevels(w.now, n.levels)
		n.announce, n.decideAt = n.election.Decide(w.now)
		n.stored = n.election.Terms()
	}
}

// announcer returns the nodes of a group that announce an address.
func (w *world) announcers(group int, a netip.Addr) (out []string) {
	for i, n := range w.nodes {
		if w.group[i] == group && slices.Contains(n.announce, a) {
			out = append(out, n.name)
		}
	}
	return out
}

// check checks E1 and E2 for a group.
func (w *world) check(group int, a netip.Addr) {
	var best Level
	for i, n := range w.nodes {
		if w.group[i] == group && n.election != nil {
			best = max(best, n.levels[a])
		}
	}
	all := w.announcers(group, a)
	if best == 0 && len(all) == 0 {
		return
	}
	if len(all) != 1 {
		w.t.Errorf("E1, E2: group %d: %v announce %s", group, all, a)
		return
	}
	if i := slices.IndexFunc(w.nodes, func(n *node) bool { return n.name == all[0] }); w.nodes[i].levels[a] != best {
		w.t.Errorf("E2: %s announces %s with level %d instead of %d", all[0], a, w.nodes[i].levels[a], best)
	}
}

// settled is the time after which the invariants hold: a new process joins and settles.
func (w *world) settled() time.Duration {
	return w.timing.Timeout + w.timing.Settle + 2*w.timing.Interval + 4*step
}

// TestModel changes a world at random. After each burst of changes it checks the invariants in all parts.
func TestModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(15) {
		w := newWorld(t, seed, 2+int(seed%5))
		for i := range w.nodes {
			for a := range 4 {
				w.setLevel(i, address(a), Ready)
			}
			w.start(i)
		}
		for round := range 8 {
			for range 1 + w.rng.IntN(4) {
				w.change()
				w.loss = w.rng.IntN(2) == 0
				w.run(time.Duration(w.rng.IntN(40)) * step)
			}
			w.loss = false
			for i := range w.nodes {
				w.stall(i, 0)
			}
			w.run(w.settled())
			for g := range w.nodes {
				for a := range 4 {
					w.check(g, address(a))
				}
			}
			w.checkStable()
			if t.Failed() {
				t.Fatalf("seed %d, round %d", seed, round)
			}
		}
	}
}

func (w *world) change() {
	i := w.rng.IntN(len(w.nodes))
	switch w.rng.IntN(7) {
	case 6:
		w.stall(i, time.Duration(w.rng.IntN(80))*step)
	case 0:
		w.stop(i, w.rng.IntN(2) == 0)
	case 1, 2:
		if w.nodes[i].election != nil {
			w.stop(i, false)
			w.run(time.Duration(w.rng.IntN(20)) * step)
		}
		w.start(i)
	case 3: // a partition, or its end
		split := w.rng.IntN(3)
		for j := range w.group {
			w.group[j] = w.rng.IntN(split + 1)
		}
	default:
		w.setLevel(i, address(w.rng.IntN(4)), Level(w.rng.IntN(3)))
	}
}

// checkStable checks E3: a node that joins, and one that restarts, change nothing.
func (w *world) checkStable() {
	state := func() string {
		var out []string
		for g := range w.nodes {
			for a := range 4 {
				out = append(out, fmt.Sprint(g, address(a), w.announcers(g, address(a))))
			}
		}
		return fmt.Sprint(out)
	}
	before := state()
	i := w.rng.IntN(len(w.nodes))
	if n := w.nodes[i]; n.election != nil {
		w.stop(i, false)
		w.run(w.timing.Timeout - 2*w.timing.Interval - 4*step) // a restart that is fast enough
		w.start(i)
	} else if len(n.levels) > 0 {
		for a := range n.levels {
			n.levels[a] = Terminating // serves nothing better than others
		}
		if w.alone(i) {
			return
		}
		w.start(i)
	}
	w.run(w.settled())
	if after := state(); after != before {
		w.t.Errorf("E3: after node %d has started:\nbefore %s\nafter  %s", i, before, after)
	}
}

// alone reports whether an address that the node can serve has no announcer.
func (w *world) alone(i int) bool {
	for a := range w.nodes[i].levels {
		if len(w.announcers(w.group[i], a)) == 0 {
			return true
		}
	}
	return false
}

// TestFailover measures in the model how long an address has no announcer.
func TestFailover(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		leaving bool
		want    time.Duration
	}{
		"death":    {false, Default().Timeout + 2*step},
		"shutdown": {true, 2 * step},
	} {
		for seed := range uint64(20) {
			w := newWorld(t, seed, 3)
			for i := range w.nodes {
				w.setLevel(i, address(1), Ready)
				w.start(i)
			}
			w.run(w.settled())
			all := w.announcers(0, address(1))
			if len(all) != 1 {
				t.Fatalf("%s, seed %d: %v announce the address", name, seed, all)
			}
			w.run(time.Duration(seed) * step)
			w.stop(slices.IndexFunc(w.nodes, func(n *node) bool { return n.name == all[0] }), c.leaving)
			began := w.now
			for len(w.announcers(0, address(1))) == 0 {
				if w.run(step); w.now.Sub(began) > c.want {
					t.Fatalf("%s, seed %d: no announcer after %s", name, seed, w.now.Sub(began))
				}
			}
		}
	}
}

// stall takes the CPU time from a node.
func (w *world) stall(i int, d time.Duration) { w.nodes[i].until = w.now.Add(d) }

// TestStalledNodesMoveNothing: a node that gets no CPU time takes no address from the announcer when it runs again,
// and the announcer keeps its addresses if it misses four beats.
func TestStalledNodesMoveNothing(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		w := newWorld(t, seed, 3)
		for i := range w.nodes {
			w.setLevel(i, address(1), Ready)
			w.start(i)
		}
		w.run(w.settled())
		before := w.announcers(0, address(1))
		if len(before) != 1 {
			t.Fatalf("seed %d: %v announce the address", seed, before)
		}
		for range 10 {
			w.run(time.Duration(w.rng.IntN(20)) * step)
			for i, n := range w.nodes {
				if n.name == before[0] {
					w.stall(i, 4*w.timing.Interval-2*step)
				} else if w.rng.IntN(2) == 0 {
					w.stall(i, time.Duration(w.rng.IntN(200))*step)
				}
			}
			for range 220 {
				w.run(step)
				if after := w.announcers(0, address(1)); !slices.Equal(after, before) {
					t.Fatalf("seed %d: %v announce the address, before %v", seed, after, before)
				}
			}
		}
	}
}

// TestHealing checks that a partition has an announcer on each side, and that one of them stays.
func TestHealing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, 4)
	for i := range w.nodes {
		w.setLevel(i, address(1), Ready)
		w.start(i)
	}
	w.run(w.settled())
	w.group = []int{0, 0, 1, 1}
	w.run(w.settled())
	w.check(0, address(1))
	w.check(1, address(1))
	sides := append(w.announcers(0, address(1)), w.announcers(1, address(1))...)
	w.group = []int{0, 0, 0, 0}
	w.run(w.timing.Interval + 2*step)
	w.check(0, address(1))
	if after := w.announcers(0, address(1)); len(after) != 1 || !slices.Contains(sides, after[0]) {
		t.Errorf("%v announced the address before, %v after the healing", sides, after)
	}
}

func TestAddressesAreSpread(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, 4)
	for i := range w.nodes {
		for a := range 200 {
			w.nodes[i].levels[address(a)] = Ready
		}
		w.start(i)
	}
	w.run(w.settled())
	for _, n := range w.nodes {
		if got := len(n.announce); got < 25 || got > 75 {
			t.Errorf("node %s announces %d of 200 addresses", n.name, got)
		}
	}
}
