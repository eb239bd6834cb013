package exectracker

import (
	"context"
	"slices"
	"time"
)

const (
	// noteAfter is when a command that goes on is looked up on the host: what its
	// session is, nobody can tell any more when it has been killed.
	noteAfter = time.Second
	// margin is how long before the timeout it is looked up again.
	margin = 200 * time.Millisecond
	// pauseOver is how often what is left is looked for then, and bound for how long.
	pauseOver = 50 * time.Millisecond
	bound     = 10 * time.Second
	// endRounds is how often in a row what was killed may have begun more.
	endRounds = 5
)

// watcher looks after one command under way: the runtime kills the command that
// is not over in time, not what it has started, and says so only when all that
// holds the command's outputs has ended.
type watcher struct {
	runner  *Tracker
	note    *note
	began   time.Time
	timeout time.Duration // 0: none
	over    chan struct{}
	late    bool // it was not over in time; said before over is closed

	pid int // the container's first process; 0: not asked yet
}

func (w *watcher) watch(ctx context.Context) {
	next := noteAfter
	if w.timeout > 0 {
		next = min(next, w.timeout/2)
	}
	for wait(w.over, time.Until(w.began.Add(next))) {
		if !w.look(ctx) {
			return
		}
		switch now := time.Since(w.began); {
		case w.timeout <= 0:
			return
		case now > w.timeout+bound:
			return
		case now >= w.timeout:
			if len(w.note.Sessions) == 0 && now > w.timeout+margin { // it was killed as soon as it ran
				w.note.Sessions = straysOf(w.pid, w.note.Began)
			}
			w.end()
			next = now + pauseOver
		case now >= w.timeout-margin:
			next = now + pauseOver
		default:
			next = w.timeout - margin
		}
	}
	if w.late && w.pid != 0 {
		w.end()
	}
}

// look notes the sessions of the command; false: its container has just gone.
func (w *watcher) look(ctx context.Context) bool {
	if w.pid == 0 {
		pid, err := w.runner.opt.Runtime.ContainerPID(context.WithoutCancel(ctx), w.note.Container)
		if err != nil {
			return false
		}
		w.pid = pid
	}
	news := false
	for _, s := range commandsOf(w.pid, w.note.Command, w.note.Began, w.note.Began+startSlack, w.runner.grantsIn(w.note.Container)) {
		if !slices.Contains(w.note.Sessions, s) {
			w.note.Sessions = append(w.note.Sessions, s)
			news = true
		}
	}
	if w.note.learn(w.pid, w.note.Sessions) || news {
		if err := w.runner.notes.write(w.note); err != nil {
			w.runner.opt.Log.Debug("note a command", "err", err)
		}
	}
	return true
}

// end kills what is left of commands that have been killed, and what that has
// begun meanwhile.
func (w *watcher) end() {
	for range endRounds {
		n := killSessions(w.pid, w.note.Sessions, w.note.Began, 0) + w.note.endFamilies(w.pid)
		if n == 0 {
			return
		}
		w.runner.opt.Log.Info("a command was not over in time; what it had started was ended", "container", w.note.Container, "processes", n)
	}
}

// wait waits for that long; false: it was over before.
func wait(over <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-over:
		return false
	case <-t.C:
		return true
	}
}
