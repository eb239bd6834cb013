package exectracker

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A child that has made a session of its own, as daemons do, does not end with
// its command's session. Two things still tell that it is the command's own:
// it was seen to descend from it while that ran, or it holds an end of the pipes
// that the command was given for its outputs, which it can only have from there.

// family is what one command has started, as far as it was seen.
type family struct {
	Leader  member   `json:"leader"`
	Outputs []string `json:"outputs,omitempty"` // the leader's, as /proc names pipes
	Members []member `json:"members,omitempty"` // that have left its session
}

// member is one process for good: its number may be another's later.
type member struct {
	PID     int           `json:"pid"`
	Started time.Duration `json:"started"` // since boot
}

func memberOf(p process) member { return member{p.pid, p.started} }

func (m member) lives() bool {
	p, lives := readProcess(m.PID)
	return lives && p.started == m.Started
}

// learn looks at the families of the commands whose sessions these are. It
// reports whether anything is new.
func (n *note) learn(init int, sessions []int) (news bool) {
	for _, s := range sessions {
		p, lives := readProcess(s)
		if !lives {
			news = n.learnOfOrphans(init, s) || news
			continue
		}
		i := slices.IndexFunc(n.Families, func(f family) bool { return f.Leader == memberOf(p) })
		if i < 0 {
			i, news = len(n.Families), true
			n.Families = append(n.Families, family{Leader: memberOf(p), Outputs: outputsOf(init, s)})
		}
		f := &n.Families[i]
		for _, d := range descendants(s) {
			if d.session != s && !slices.Contains(f.Members, memberOf(d)) {
				f.Members, news = append(f.Members, memberOf(d)), true
			}
		}
	}
	return news
}

// learnOfOrphans asks those that are left of a session for their command's
// outputs, if nobody has seen the command itself.
func (n *note) learnOfOrphans(init, session int) (news bool) {
	if slices.ContainsFunc(n.Families, func(f family) bool { return f.Leader.PID == session }) {
		return false
	}
	group := cgroupOf(init)
	f := family{Leader: member{PID: session}}
	for _, p := range processes() {
		if p.session == session && p.started >= n.Began-2*tick && cgroupOf(p.pid) == group {
			f.Outputs = append(f.Outputs, outputsOf(init, p.pid)...)
		}
	}
	if len(f.Outputs) > 0 {
		n.Families = append(n.Families, f)
	}
	return len(f.Outputs) > 0
}

// descendants are the processes whose parents lead to one, without it.
func descendants(of int) (found []process) {
	found = childrenOf(of)
	for i := 0; i < len(found); i++ { // found grows
		found = append(found, childrenOf(found[i].pid)...)
	}
	return found
}

// endFamilies kills what lives, in the container that init is the first process
// of, of families whose own first process does not live any more, and returns
// how many it was.
func (n *note) endFamilies(init int) (killed int) {
	group := cgroupOf(init)
	if group == "" {
		return 0 // the container is gone, and everything with it
	}
	for _, f := range n.Families {
		if f.Leader.lives() {
			continue
		}
		for _, p := range f.living(processes(), func(p process) bool {
			return p.pid != init && p.started >= n.Began-2*tick && cgroupOf(p.pid) == group
		}) {
			if kill(p) {
				killed++
			}
		}
	}
	return killed
}

// living are the members that live, and what they have started since; only what
// may be is looked at.
func (f *family) living(all []process, may func(process) bool) (found []process) {
	for _, p := range all {
		if (slices.Contains(f.Members, memberOf(p)) || p.started >= f.Leader.Started) && may(p) &&
			(slices.Contains(f.Members, memberOf(p)) || holds(p.pid, f.Outputs)) {
			found = append(found, p)
		}
	}
	for i := 0; i < len(found); i++ { // found grows
		for _, p := range all {
			its := p.parent == found[i].pid || p.session == found[i].pid
			if its && !slices.ContainsFunc(found, func(x process) bool { return x.pid == p.pid }) && may(p) {
				found = append(found, p)
			}
		}
	}
	return found
}

// outputsOf are the pipes that a command has for its outputs and the container's
// first process has not.
func outputsOf(init, pid int) (pipes []string) {
	var own []string
	for _, fd := range []string{"fd/0", "fd/1", "fd/2"} {
		if link, err := os.Readlink(procPath(init, fd)); err == nil {
			own = append(own, link)
		}
	}
	for _, fd := range []string{"fd/1", "fd/2"} {
		link, err := os.Readlink(procPath(pid, fd))
		if err == nil && strings.HasPrefix(link, "pipe:") && !slices.Contains(own, link) && !slices.Contains(pipes, link) {
			pipes = append(pipes, link)
		}
	}
	return pipes
}

// holds reports whether a process has one of the pipes open.
func holds(pid int, pipes []string) bool {
	if len(pipes) == 0 {
		return false
	}
	open, err := os.ReadDir(procPath(pid, "fd"))
	if err != nil {
		return false // it has just ended
	}
	return slices.ContainsFunc(open, func(e os.DirEntry) bool {
		link, err := os.Readlink(filepath.Join(procPath(pid, "fd"), e.Name()))
		return err == nil && slices.Contains(pipes, link)
	})
}
