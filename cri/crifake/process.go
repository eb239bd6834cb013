package crifake

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// ending is how a process ends.
type ending struct {
	code   int32
	reason string // empty: what the code means
}

// process does the steps of a container until the last one, a signal or an
// order to exit.
type process struct {
	steps []string
	term  chan struct{} // closed by the first stop signal
	over  chan ending   // an order to end at once
	done  chan struct{} // closed when it has ended
	once  sync.Once

	ignoreTerm bool
	onTerm     *ending // nil: 143
	termDelay  time.Duration
}

func (r *Runtime) newProcess(c *container) *process {
	var steps []string
	if r.opts.Steps != nil {
		steps = r.opts.Steps(c.config)
	}
	if steps == nil {
		steps = c.config.GetArgs()
		if cmd := c.config.GetCommand(); len(cmd) > 0 {
			steps = append(slices.Clone(cmd[1:]), steps...)
		}
	}
	return &process{steps: steps, term: make(chan struct{}), over: make(chan ending, 1), done: make(chan struct{})}
}

// signal delivers the stop signal, once.
func (p *process) signal() { p.once.Do(func() { close(p.term) }) }

// exit orders the process to end at once; the first order counts.
func (p *process) exit(e ending) {
	select {
	case p.over <- e:
	default:
	}
}

// wait waits until the process has ended, for at most d; zero: for ever.
func (p *process) wait(ctx context.Context, d time.Duration) error {
	if d > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d)
		defer cancel()
	}
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// run does the steps of a container and notes its end.
func (r *Runtime) run(c *container, p *process) {
	end := ending{}
	if len(p.steps) == 0 {
		end = *p.rest(r.ctx, -1)
	}
	for step := range split(p.steps) {
		if e := r.step(c, p, step); e != nil {
			end = *e
			break
		}
	}
	r.exited(c, end)
}

// split gives the steps between lone commas.
func split(args []string) func(func([]string) bool) {
	return func(yield func([]string) bool) {
		for len(args) > 0 {
			step := args
			if i := slices.Index(args, ","); i >= 0 {
				step, args = args[:i], args[i+1:]
			} else {
				args = nil
			}
			if len(step) > 0 && !yield(step) {
				return
			}
		}
	}
}

// step does one step and returns how the process ends, nil if it goes on.
func (r *Runtime) step(c *container, p *process, s []string) *ending {
	args := s[1:]
	switch s[0] {
	case "exit":
		return &ending{code: int32(number(args, 0))}
	case "crash":
		return &ending{code: 2}
	case "sleep":
		d := time.Duration(-1)
		if len(args) > 0 {
			d = length(args[0])
		}
		return p.rest(r.ctx, d)
	case "serve", "tcp", "udp", "follow", "await":
		return p.rest(r.ctx, -1)
	case "spin":
		if len(args) > 0 {
			return p.rest(r.ctx, length(args[0]))
		}
		return p.rest(r.ctx, -1)
	case "ignore-term":
		p.ignoreTerm = true
	case "on-term":
		p.onTerm = &ending{code: int32(number(args, 1))}
		if len(args) > 0 {
			p.termDelay = length(args[0])
		}
	case "print", "warn":
		if r.appendLog(c, logLine(s[0], strings.Join(args, " "))) != nil {
			return &ending{code: 1}
		}
	case "write":
		if r.writeFile(c, args) != nil {
			return &ending{code: 1}
		}
	}
	return nil
}

// rest lets time pass, for ever if d is negative, and returns how the process
// was ended meanwhile, nil if it was not.
func (p *process) rest(ctx context.Context, d time.Duration) *ending {
	var up <-chan time.Time
	if d >= 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		up = t.C
	}
	term := p.term
	if p.ignoreTerm {
		term = nil
	}
	select {
	case <-ctx.Done():
		return &ending{code: 137}
	case e := <-p.over:
		return &e
	case <-up:
		return nil
	case <-term:
	}
	end := ending{code: 143}
	if p.onTerm != nil {
		end = *p.onTerm
	}
	t := time.NewTimer(p.termDelay)
	defer t.Stop()
	select {
	case e := <-p.over:
		return &e
	case <-ctx.Done():
	case <-t.C:
	}
	return &end
}

func logLine(step, text string) []byte {
	stream := map[string]string{"print": "stdout", "warn": "stderr"}[step]
	return fmt.Appendf(nil, "%s %s F %s\n", time.Now().Format(time.RFC3339Nano), stream, text)
}

// appendLog adds to the container's log, if files are wanted.
func (r *Runtime) appendLog(c *container, line []byte) error {
	path := c.logPath()
	if !r.opts.WriteFiles || path == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	if _, err := f.Write(line); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}

// writeFile writes to a file that is mounted from the host, if files are wanted.
func (r *Runtime) writeFile(c *container, args []string) error {
	if !r.opts.WriteFiles || len(args) == 0 {
		return nil
	}
	for _, m := range c.config.GetMounts() {
		if m.ContainerPath == args[0] {
			return os.WriteFile(m.HostPath, []byte(strings.Join(args[1:], " ")), 0o644)
		}
	}
	return nil
}

func number(args []string, i int) int64 {
	if i >= len(args) {
		return 0
	}
	n, err := strconv.ParseInt(args[i], 0, 64)
	if err != nil {
		return 64
	}
	return n
}

func length(s string) time.Duration {
	if d, err := time.ParseDuration(s); err == nil {
		return d
	}
	seconds, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return 0
	}
	return time.Duration(seconds * float64(time.Second))
}

// command does the steps of a command in a running container and returns its
// outputs and exit code. Its error is gRPC's.
func command(ctx context.Context, cmd []string) (stdout, stderr []byte, code int32, err error) {
	var out, errs bytes.Buffer
	for step := range split(cmd) {
		text := strings.Join(step[1:], " ") + "\n"
		switch step[0] {
		case "print":
			out.WriteString(text)
		case "warn":
			errs.WriteString(text)
		case "lines":
			for i := range number(step, 1) {
				fmt.Fprintf(&out, "line %d\n", i+1)
			}
		case "exit":
			return out.Bytes(), errs.Bytes(), int32(number(step, 1)), nil
		case "sleep":
			d := time.Duration(1<<62 - 1)
			if len(step) > 1 {
				d = length(step[1])
			}
			if err := wait(ctx, d); err != nil {
				return nil, nil, 0, status.Error(codes.DeadlineExceeded, "failed to exec in container: timeout exceeded: "+err.Error())
			}
		}
	}
	return out.Bytes(), errs.Bytes(), 0, nil
}
