package exectracker

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// modelProcess is a process of the model, with what is true about it.
type modelProcess struct {
	process
	outputs []string
	probe   bool // started by the interrupted command
	user    bool // started by a user exec
}

// model is a container whose processes start others, execs and pipelines. Each exec gets two pipes, for its
// outputs, that the shim reads until the runtime deletes the exec.
type model struct {
	r       *rand.Rand
	now     time.Duration
	nextPID int
	pipes   int
	alive   []*modelProcess
	execs   map[int]bool    // PIDs of the first processes of execs
	read    map[string]bool // pipes that the shim reads
	unread  map[string]bool // pipes of an exec that was deleted
}

func (m *model) pipe(byShim bool) string {
	m.pipes++
	name := fmt.Sprintf("pipe:[%d]", m.pipes)
	m.read[name] = byShim
	return name
}

// start adds a process. A nil parent starts an exec.
func (m *model) start(parent *modelProcess, ownSession bool, outputs ...string) *modelProcess {
	m.now += time.Duration(1+m.r.IntN(100)) * tick
	m.nextPID++
	p := &modelProcess{process: process{pid: m.nextPID, started: m.now}, outputs: outputs}
	if p.session = p.pid; parent != nil {
		p.probe, p.user, p.parent = parent.probe, parent.user, parent.pid
		if !ownSession {
			p.session = parent.session
		}
		if len(outputs) == 0 {
			p.outputs = slices.Clone(parent.outputs)
		}
	}
	m.alive = append(m.alive, p)
	return p
}

func (m *model) exec() *modelProcess {
	p := m.start(nil, true, m.pipe(true), m.pipe(true))
	m.execs[p.pid] = true
	return p
}

// delete ends an exec's first process and has the shim close its ends of the pipes.
func (m *model) delete(p *modelProcess) {
	m.end(p)
	for _, pipe := range p.outputs {
		m.read[pipe], m.unread[pipe] = false, true
	}
}

func (m *model) end(p *modelProcess) {
	m.alive = slices.DeleteFunc(m.alive, func(x *modelProcess) bool { return x == p })
}

// work lets random processes of the same origin start children and pipelines, and leaders end.
func (m *model) work(of []*modelProcess, steps int) {
	for range steps {
		p := of[m.r.IntN(len(of))]
		switch {
		case !slices.Contains(m.alive, p):
		case m.r.IntN(4) == 0 && p != m.alive[0]:
			m.end(p)
		case m.r.IntN(3) == 0: // writes to another process, which may end
			pipe := m.pipe(false)
			m.unread[pipe] = m.r.IntN(2) == 0
			of = append(of, m.start(p, m.r.IntN(2) == 0, pipe, p.outputs[1]))
		default:
			of = append(of, m.start(p, m.r.IntN(3) == 0))
		}
	}
}

func (m *model) find(pid int) *modelProcess {
	i := slices.IndexFunc(m.alive, func(p *modelProcess) bool { return p.pid == pid })
	if i < 0 {
		return &modelProcess{}
	}
	return m.alive[i]
}

func (m *model) container(init *modelProcess) container {
	c := container{init: init.process, hasCommandLine: func(int, []string) bool { return false }}
	for _, p := range m.alive {
		c.members = append(c.members, p.process)
		if m.execs[p.pid] {
			c.leaders = append(c.leaders, p.pid)
		}
	}
	c.pipes = func(pid int) []string { return m.find(pid).outputs }
	c.outputs = func(pid int) []string {
		return slices.DeleteFunc(slices.Clone(m.find(pid).outputs), func(pipe string) bool {
			return !m.read[pipe] || slices.Contains(init.outputs, pipe)
		})
	}
	c.unread = func(pid int) []string {
		pipes := m.find(pid).outputs
		for _, pipe := range pipes {
			if !m.unread[pipe] || slices.Contains(init.outputs, pipe) {
				return nil
			}
		}
		return pipes
	}
	return c
}

// TestOrphansInvariants runs random programs, user execs and one interrupted command in a container, and
// ends the first process of the command. No session of the program or of a user is returned, and each
// orphaned process of the command with one of its pipes is, unless a user has requested an exec.
func TestOrphansInvariants(t *testing.T) {
	t.Parallel()
	returned := 0
	for seed := range uint64(2000) {
		m := &model{r: rand.New(rand.NewPCG(seed, 21)), execs: map[int]bool{}, read: map[string]bool{},
			unread: map[string]bool{}, nextPID: 1}
		init := m.start(nil, true, m.pipe(true), m.pipe(true))
		m.work([]*modelProcess{init}, m.r.IntN(10))
		var users userExecs
		userExec := func() {
			if m.r.IntN(3) > 0 {
				return
			}
			users = append(users, record{RequestedAt: m.now, Command: []string{"sh"}})
			p := m.exec()
			p.user = true
			m.work([]*modelProcess{p}, m.r.IntN(6))
			if m.r.IntN(2) == 0 {
				m.end(p)
			}
		}
		userExec()
		m.now += time.Second
		n := record{RequestedAt: m.now, Command: []string{"probe"}}
		command := m.exec()
		command.probe = true
		m.work([]*modelProcess{command}, m.r.IntN(8))
		m.work([]*modelProcess{init}, m.r.IntN(8)) // the program goes on
		userExec()
		deleted := m.r.IntN(2) == 0
		if m.end(command); deleted {
			m.delete(command)
		}

		found := orphans(m.container(init), n, users)
		for _, p := range m.alive {
			is := slices.Contains(found, p.session)
			if is && !p.probe {
				t.Fatalf("seed %d: session %d of a process that is not the command's: %+v", seed, p.session, p)
			}
			orphaned := m.find(p.session).pid == 0
			holds := slices.Contains(p.outputs, command.outputs[0])
			if deleted {
				holds = slices.Equal(p.outputs, command.outputs)
			}
			if p.probe && orphaned && holds && len(users) == 0 && !is {
				t.Fatalf("seed %d: process of the command not found: %+v", seed, p)
			}
		}
		returned += len(found)
	}
	if returned < 200 {
		t.Errorf("got %d orphaned sessions in all runs: the model leaves too few", returned)
	}
}

func TestOrphans(t *testing.T) {
	t.Parallel()
	const pipe, internal = "pipe:[1]", "pipe:[2]"
	init := process{pid: 1, session: 1, started: time.Second}
	late := 10 * time.Second
	for name, row := range map[string]struct {
		members []process
		leaders []int
		outputs map[int][]string // read by the shim
		pipes   map[int][]string
		unread  map[int][]string
		users   userExecs
		want    []int
	}{
		"an orphan with a pipe of the command": {
			members: []process{{pid: 5, session: 4, started: late}}, outputs: map[int][]string{5: {pipe}},
			want: []int{4},
		},
		"a living leader": {
			members: []process{{pid: 4, session: 4, started: late}, {pid: 5, session: 4, started: late}},
			outputs: map[int][]string{5: {pipe}},
		},
		"older than the request": {
			members: []process{{pid: 5, session: 4, started: 2 * time.Second}}, outputs: map[int][]string{5: {pipe}},
		},
		"a pipe that the shim does not read": {
			members: []process{{pid: 5, session: 4, started: late}}, pipes: map[int][]string{5: {internal}},
		},
		"two pipes without a reader": {
			members: []process{{pid: 5, session: 4, started: late}}, unread: map[int][]string{5: {pipe, internal}},
			want: []int{4},
		},
		"two pipes without a reader, one of them of an older process": {
			members: []process{{pid: 3, session: 3, started: 2 * time.Second}, {pid: 5, session: 4, started: late}},
			unread:  map[int][]string{5: {pipe, internal}}, pipes: map[int][]string{3: {pipe}},
		},
		"a pipe of an older process": {
			members: []process{{pid: 3, session: 3, started: 2 * time.Second}, {pid: 5, session: 4, started: late}},
			outputs: map[int][]string{5: {pipe}}, pipes: map[int][]string{3: {pipe}},
		},
		"a pipe of init that it has as another descriptor": {
			members: []process{{pid: 5, session: 4, started: late}},
			outputs: map[int][]string{5: {pipe}}, pipes: map[int][]string{1: {pipe}},
		},
		"a pipe of a running command": {
			members: []process{{pid: 7, session: 7, started: late}, {pid: 5, session: 4, started: late}},
			leaders: []int{7}, outputs: map[int][]string{5: {pipe}, 7: {pipe}},
		},
		"within a minute of a user's request": {
			members: []process{{pid: 5, session: 4, started: late}}, outputs: map[int][]string{5: {pipe}},
			users: userExecs{{RequestedAt: late - 30*time.Second, Command: []string{"sh"}}},
		},
		"long after a user's request": {
			members: []process{{pid: 5, session: 4, started: late}}, outputs: map[int][]string{5: {pipe}},
			users: userExecs{{RequestedAt: late - 90*time.Second, Command: []string{"sh"}}}, want: []int{4},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := container{
				init: init, members: append([]process{init}, row.members...), leaders: row.leaders,
				outputs:        func(pid int) []string { return row.outputs[pid] },
				pipes:          func(pid int) []string { return slices.Concat(row.outputs[pid], row.pipes[pid]) },
				unread:         func(pid int) []string { return row.unread[pid] },
				hasCommandLine: func(int, []string) bool { return false },
			}
			n := record{RequestedAt: 9 * time.Second, Command: []string{"probe"}}
			if got := orphans(c, n, row.users); !slices.Equal(got, row.want) {
				t.Errorf("got sessions %v, want %v", got, row.want)
			}
		})
	}
}
