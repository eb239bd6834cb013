package images

import (
	"context"
	"fmt"
	"time"

	"berth/agent/plan"
)

// DiskSpace is how the disk that images lie on stands.
type DiskSpace struct {
	Free     uint64 // bytes
	Reserved uint64 // bytes of it that no pull may take: pods would be evicted for it
	Pressure string // why no pull may begin now, with the figures; empty: they may
}

const (
	lookAgain = time.Second     // for room, while somebody waits for it
	tellAgain = time.Minute     // why they wait, with new figures; and room is made again
	believed  = 5 * time.Minute // what is only believed of a pull's size holds it up no longer
	mostNeeds = 1000            // pulls whose size is remembered
)

// need is what is known of the room that a pull takes.
type need struct {
	bytes uint64
	more  bool // it takes more than that: so much was free when it failed
}

// shut says why a pull may not begin for want of room; empty: it may. Those of
// critical pods may always. The lock is held.
func (g *gate) shut(t *ticket, s DiskSpace) string {
	if t.critical || t.here {
		return ""
	}
	if s.Pressure != "" {
		return s.Pressure
	}
	n, sized := g.needs[t.ref]
	if !sized || !t.since.IsZero() && g.now().Sub(t.since) >= believed {
		return ""
	}
	var others uint64 // what those who are inside may still take
	for o := range g.inside {
		others += g.needs[o.ref].bytes
	}
	room := s.Free - min(s.Free, s.Reserved+others)
	if room > n.bytes || room == n.bytes && !n.more {
		return ""
	}
	text := "it takes " + mebibytes(n.bytes)
	if n.more {
		text = "it takes more than " + mebibytes(n.bytes)
	}
	text += fmt.Sprintf(", and %s are free", mebibytes(s.Free))
	if s.Reserved > 0 {
		text += fmt.Sprintf(", of which %s must stay so", mebibytes(s.Reserved))
	}
	if others > 0 {
		text += fmt.Sprintf(" and %s are for pulls that are under way", mebibytes(others))
	}
	return text
}

func mebibytes(n uint64) string { return fmt.Sprintf("%.1fMi", float64(n)/(1<<20)) }

// next is the first in the queue that may begin for all the room there is; nil:
// none. Those before it are held. The lock is held.
func (g *gate) next() *ticket {
	if len(g.queue) == 0 {
		return nil
	}
	s, known := g.room()
	for _, t := range g.queue {
		why := g.shut(t, s)
		if why == "" || !known {
			return t
		}
		if s.Pressure != "" {
			t.since = time.Time{}
		} else if t.since.IsZero() {
			t.since = g.now()
		}
		g.hold(t, why)
	}
	return nil
}

// room is how the disk stands now, if that is known. The lock is held.
func (g *gate) room() (s DiskSpace, known bool) {
	if g.space == nil {
		return s, false
	}
	return g.space()
}

// hold keeps why a ticket waits for room. Figures change all the time: they are
// told anew now and then only. The lock is held.
func (g *gate) hold(t *ticket, why string) {
	now := g.now()
	if t.held != "" && now.Sub(t.told) < tellAgain {
		return
	}
	t.held, t.told = why, now
	t.tell()
}

// tell lets who waits for the ticket know that something about it has changed.
func (t *ticket) tell() {
	select {
	case t.news <- struct{}{}:
	default:
	}
}

// fits reports whether a ticket waits for no room, now.
func (g *gate) fits(t *ticket) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	s, known := g.room()
	return !known || !t.began.IsZero() || g.shut(t, s) == ""
}

// learn keeps what the end of a pull tells of the room that it takes, if no other
// was under way meanwhile. It comes before leave.
func (g *gate) learn(t *ticket, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now, known := g.room()
	if !known || !t.alone {
		return
	}
	if len(g.needs) >= mostNeeds {
		clear(g.needs)
	}
	left := now.Free
	switch {
	case err == nil && left < t.free:
		g.needs[t.ref] = need{bytes: t.free - left}
	case err == nil: // there was nothing to bring, or somebody else has given more back
		delete(g.needs, t.ref)
	case plan.KindOf(err) == plan.NoSpace:
		g.needs[t.ref] = need{bytes: t.free, more: true}
	}
}

// enter waits until the pull of an image may begin. While there is no room for it,
// it has some made.
func (i *Manager) enter(ctx context.Context, t *ticket, here func(context.Context) bool) error {
	told := false
	err := i.gate.wait(ctx, t, func() {
		told = true
		i.heldChanged()
		if here(ctx) { // nothing, or next to nothing, is to come
			i.gate.letIn(t)
			return
		}
		i.makeRoom(ctx, t)
		i.gate.look()
	})
	if told {
		i.heldChanged()
	}
	return err
}

// makeRoom has what nobody needs removed until the ticket fits, one at a time.
func (i *Manager) makeRoom(ctx context.Context, t *ticket) {
	if i.room == nil {
		return
	}
	select {
	case i.making <- struct{}{}:
	case <-ctx.Done():
		return
	}
	defer func() { <-i.making }()
	enough := func() bool { return ctx.Err() != nil || i.gate.fits(t) }
	if !enough() {
		i.room(ctx, enough)
	}
}

// WaitingForSpace says why the pull of an image waits for room on the disk, with the figures;
// empty: it does not.
func (i *Manager) WaitingForSpace(image string) string {
	if p, there := i.progress(image); there {
		return p.WaitingForSpace
	}
	return ""
}

// FreeSpace removes images that nobody needs, for a node that is short of space: the
// least recently used first, those below MinAge last, for a pod may be about to come
// for them, until there is enough room. Of o only MinAge, Keep, KeepBrought, Pinned
// and InUse count.
func (i *Manager) FreeSpace(ctx context.Context, o GCOptions, enough func() bool) (GCResult, error) {
	return i.collect(ctx, o, policy{high: 100, low: 100, minAge: o.MinAge, everything: true}, disk{}, enough)
}
