package exectracker

import (
	"slices"
	"time"
)

// grants are the commands of one container that users were given the address of.
type grants []note

// grantFor is how long after it was asked for a user's command may begin: the
// runtime keeps its address for a minute.
const grantFor = time.Minute + soonAfter

// TrackUserExec notes that a user is about to be given the address of a command in a
// container, where the runtime begins it when he asks: what begins there soon may
// be his, and is not taken for what a command of the agent has become.
func (r *Tracker) TrackUserExec(container string, command []string) {
	n := &note{Container: container, Command: command, Began: sinceBoot(time.Now()), Granted: true}
	if err := r.notes.write(n); err != nil {
		r.opt.Log.Debug("note a user's command", "err", err)
	}
	r.mu.Lock() // from here on others read it
	old := r.outdated(n.Began)
	r.granted = append(r.granted, n)
	r.mu.Unlock()
	r.forget(old)
}

func (r *Tracker) forget(old []*note) {
	for _, o := range old {
		r.notes.remove(*o)
	}
}

// outdated takes away and returns the grants that no command of the same container,
// under way or cut off, may be mistaken for any more. A command that hangs keeps
// those of its own container, and no others. r.mu is held.
func (r *Tracker) outdated(now time.Duration) (old []*note) {
	if len(r.granted) == 0 {
		return nil
	}
	first := map[string]time.Duration{} // when the oldest such command was asked for, by container
	asked := func(n *note) {
		if at, there := first[n.Container]; !there || n.Began < at {
			first[n.Container] = n.Began
		}
	}
	for n := range r.under {
		asked(n)
	}
	for _, c := range r.cut {
		asked(&c.note)
	}
	r.granted = slices.DeleteFunc(r.granted, func(g *note) bool {
		at, there := first[g.Container]
		if !there {
			at = now
		}
		over := g.Began+grantFor < min(at, now)-2*tick
		if over {
			old = append(old, g)
		}
		return over
	})
	return old
}

// grantsIn are those of a container.
func (r *Tracker) grantsIn(container string) (all grants) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, g := range r.granted {
		if g.Container == container {
			all = append(all, *g)
		}
	}
	return all
}

// may reports whether a process may be a user's command. One that still runs the
// words of the agent's own command is his only if those are his words too.
func (all grants) may(p process, command []string) bool {
	return slices.ContainsFunc(all, func(g note) bool {
		in := p.started >= g.Began-2*tick && p.started <= g.Began+grantFor
		return in && (slices.Equal(g.Command, command) || !hasWords(p.pid, command))
	})
}
