package exectracker

import (
	"context"
	"slices"
	"time"

	"berth/agent/plan"
)

const (
	// firstObservation is when a running command is first looked up on the host. Its session cannot
	// be determined after it was killed. The delay doubles until the command is found.
	firstObservation = time.Second
	// timeoutMargin is how long before the timeout it is observed again.
	timeoutMargin = 200 * time.Millisecond
	// killInterval is the interval of kills after the timeout, killWindow their duration.
	killInterval = 50 * time.Millisecond
	killWindow   = 10 * time.Second
	// maxKillRounds limits the rounds in which killed processes may have started new ones.
	maxKillRounds = 5
)

// execWatcher observes one running command. When it times out, the runtime kills the command but
// not its child processes, and returns only when all holders of the command's output pipes have
// ended.
type execWatcher struct {
	tracker  *Tracker
	record   *record
	began    time.Time
	timeout  time.Duration // 0: none
	done     chan struct{}
	timedOut bool // set before done is closed

	pid int // the container's init process; 0: unknown
}

func (w *execWatcher) watch(ctx context.Context) {
	next := firstObservation
	if w.timeout > 0 {
		next = min(next, w.timeout/2)
	}
	for wait(w.done, time.Until(w.began.Add(next))) {
		if !w.observe(ctx) {
			return
		}
		switch now := time.Since(w.began); {
		case w.timeout <= 0 && len(w.record.Sessions) > 0:
			return
		case w.timeout <= 0: // the runtime has not started it yet, or it ended at once
			next = 2 * now
		case now > w.timeout+killWindow:
			return
		case now >= w.timeout:
			if w.pid != 0 {
				if len(w.record.Sessions) == 0 && now > w.timeout+timeoutMargin { // it was killed right after its start
					w.observeOrphans()
				}
				w.killRemaining()
			}
			next = now + killInterval
		case now >= w.timeout-timeoutMargin:
			next = now + killInterval
		case len(w.record.Sessions) == 0:
			next = min(2*now, w.timeout-timeoutMargin)
		default:
			next = w.timeout - timeoutMargin
		}
	}
	if w.timedOut && w.pid != 0 {
		w.killRemaining()
	}
}

// observe records the sessions of the command. It returns false if the container is gone.
func (w *execWatcher) observe(ctx context.Context) bool {
	if w.pid == 0 {
		pid, err := w.tracker.opt.Runtime.ContainerPID(context.WithoutCancel(ctx), w.record.Container)
		if kind := plan.KindOf(err); err != nil {
			return kind != plan.NotFound && kind != plan.Unsupported
		}
		w.pid = pid
	}
	changed := false
	users := w.tracker.userExecsIn(w.record.Container)
	from := w.record.RequestedAt
	for _, s := range commandsOf(w.pid, w.record.Command, from, from+startSlack, users) {
		if !slices.Contains(w.record.Sessions, s) {
			w.record.Sessions = append(w.record.Sessions, s)
			changed = true
		}
	}
	if len(w.record.Sessions) == 0 {
		w.observeOrphans()
	}
	if w.record.observeTrees(w.pid, w.record.Sessions) || changed {
		if err := w.tracker.records.write(w.record); err != nil {
			w.tracker.opt.Log.Debug("exec record write failed", "err", err)
		}
	}
	return true
}

// observeOrphans records the sessions of a command whose first process ended before it was observed.
// Beside another command in the same container, they cannot be distinguished from those of that
// command.
func (w *execWatcher) observeOrphans() {
	users := w.tracker.userExecsIn(w.record.Container)
	found := orphanedSessions(w.pid, *w.record, users)
	if !w.tracker.runsBeside(w.record) { // after the observation
		w.record.Sessions = found
	}
}

// killRemaining kills the remaining processes of a killed command, and the processes that those
// have started meanwhile.
func (w *execWatcher) killRemaining() {
	for range maxKillRounds {
		n := killSessions(w.pid, w.record.Sessions, w.record.RequestedAt, 0) + w.record.killTrees(w.pid)
		if n == 0 {
			return
		}
		w.tracker.opt.Log.Info("processes of timed-out command killed", "containerID", w.record.Container, "processes",
			n)
	}
}

// wait waits for the duration. It returns false if done was closed first.
func wait(done <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-done:
		return false
	case <-t.C:
		return true
	}
}
