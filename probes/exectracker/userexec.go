package exectracker

import (
	"slices"
	"time"
)

// userExecs are the exec requests of users in one container.
type userExecs []record

// userExecWindow is how long after the request a user exec may start: the runtime keeps its URL for
// a minute.
const userExecWindow = time.Minute + startWindow

// TrackUserExec records that a user is about to get the URL of an exec in a container, which the
// runtime starts when the user connects. A process that starts there soon may belong to the user
// and is not attributed to a command of the agent.
func (r *Tracker) TrackUserExec(container string, command []string) {
	n := &record{Container: container, Command: command, RequestedAt: sinceBoot(time.Now()), UserExec: true}
	if err := r.records.write(n); err != nil {
		r.opt.Log.Debug("user exec record write failed", "err", err)
	}
	r.mu.Lock() // shared from here on
	old := r.expireUserExecs(n.RequestedAt)
	r.userExecs = append(r.userExecs, n)
	r.mu.Unlock()
	r.removeRecords(old)
}

func (r *Tracker) removeRecords(old []*record) {
	for _, o := range old {
		r.records.remove(*o)
	}
}

// expireUserExecs removes and returns the user execs that cannot be mistaken any more for a running
// or interrupted command of the same container. The caller holds r.mu.
func (r *Tracker) expireUserExecs(now time.Duration) (old []*record) {
	if len(r.userExecs) == 0 {
		return nil
	}
	first := map[string]time.Duration{} // request time of the oldest command, by container
	add := func(n *record) {
		if at, there := first[n.Container]; !there || n.RequestedAt < at {
			first[n.Container] = n.RequestedAt
		}
	}
	for n := range r.running {
		add(n)
	}
	for _, c := range r.interrupted {
		add(&c.record)
	}
	r.userExecs = slices.DeleteFunc(r.userExecs, func(g *record) bool {
		at, there := first[g.Container]
		if !there {
			at = now
		}
		expired := g.RequestedAt+userExecWindow < min(at, now)-2*tick
		if expired {
			old = append(old, g)
		}
		return expired
	})
	return old
}

// userExecsIn returns the user execs of a container.
func (r *Tracker) userExecsIn(container string) (all userExecs) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, g := range r.userExecs {
		if g.Container == container {
			all = append(all, *g)
		}
	}
	return all
}

// mayMatch reports whether a process may be a user exec. A process with the command line of the
// agent's command is one only if the user has requested the same command.
func (all userExecs) mayMatch(p process, command []string) bool {
	return all.match(p.started, command, func() bool { return hasCommandLine(p.pid, command) })
}

// match is mayMatch for a process that started at the given time. same reports whether it has the
// command line of the command.
func (all userExecs) match(started time.Duration, command []string, same func() bool) bool {
	return slices.ContainsFunc(all, func(g record) bool {
		in := started >= g.RequestedAt-2*tick && started <= g.RequestedAt+userExecWindow
		return in && (slices.Equal(g.Command, command) || !same())
	})
}
