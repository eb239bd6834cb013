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

// exitResult is the exit of a process.
type exitResult struct {
	code   int32
	reason string // empty: derived from the code
}

// process executes the steps of a container until the last one, a stop signal or a request to exit.
type process struct {
	steps       []string
	term        chan struct{}   // closed by the first stop signal
	exitRequest chan exitResult // a request to exit immediately
	done        chan struct{}   // closed when the process has exited
	once        sync.Once

	ignoreTerm bool
	onTerm     *exitResult // nil: 143
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
	return &process{steps: steps, term: make(chan struct{}), exitRequest: make(chan exitResult, 1),
		done: make(chan struct{})}
}

// signal delivers the stop signal, once.
func (p *process) signal() { p.once.Do(func() { close(p.term) }) }

// exit requests the process to exit immediately. The first request wins.
func (p *process) exit(e exitResult) {
	select {
	case p.exitRequest <- e:
	default:
	}
}

// wait waits until the process has exited, for at most d. Zero means no limit.
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

// run executes the steps of a container and records its exit.
func (r *Runtime) run(c *container, p *process) {
	end := exitResult{}
	if len(p.steps) == 0 {
		end = *p.sleep(r.ctx, -1)
	}
	for step := range split(p.steps) {
		if e := r.step(c, p, step); e != nil {
			end = *e
			break
		}
	}
	r.exited(c, end)
}

// split yields the steps between single commas.
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

// step executes one step. It returns how the process exits, or nil if it continues.
func (r *Runtime) step(c *container, p *process, s []string) *exitResult {
	args := s[1:]
	switch s[0] {
	case "exit":
		return &exitResult{code: int32(parseNumber(args, 0))}
	case "crash":
		return &exitResult{code: 2}
	case "sleep":
		d := time.Duration(-1)
		if len(args) > 0 {
			d = parseDuration(args[0])
		}
		return p.sleep(r.ctx, d)
	case "serve", "tcp", "udp", "follow", "await":
		return p.sleep(r.ctx, -1)
	case "spin":
		if len(args) > 0 {
			return p.sleep(r.ctx, parseDuration(args[0]))
		}
		return p.sleep(r.ctx, -1)
	case "ignore-term":
		p.ignoreTerm = true
	case "on-term":
		p.onTerm = &exitResult{code: int32(parseNumber(args, 1))}
		if len(args) > 0 {
			p.termDelay = parseDuration(args[0])
		}
	case "print", "warn":
		if r.appendLog(c, logLine(s[0], strings.Join(args, " "))) != nil {
			return &exitResult{code: 1}
		}
	case "write":
		if r.writeFile(c, args) != nil {
			return &exitResult{code: 1}
		}
	}
	return nil
}

// sleep waits for d, or forever if d is negative. It returns how the process exited meanwhile, or
// nil if it did not.
func (p *process) sleep(ctx context.Context, d time.Duration) *exitResult {
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
		return &exitResult{code: 137}
	case e := <-p.exitRequest:
		return &e
	case <-up:
		return nil
	case <-term:
	}
	end := exitResult{code: 143}
	if p.onTerm != nil {
		end = *p.onTerm
	}
	t := time.NewTimer(p.termDelay)
	defer t.Stop()
	select {
	case e := <-p.exitRequest:
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

// appendLog appends to the container's log, if files are enabled.
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

// writeFile writes to a file that is mounted from the host, if files are enabled.
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

func parseNumber(args []string, i int) int64 {
	if i >= len(args) {
		return 0
	}
	n, err := strconv.ParseInt(args[i], 0, 64)
	if err != nil {
		return 64
	}
	return n
}

func parseDuration(s string) time.Duration {
	if d, err := time.ParseDuration(s); err == nil {
		return d
	}
	seconds, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return 0
	}
	return time.Duration(seconds * float64(time.Second))
}

// command executes the steps of a command in a running container and returns its output and exit
// code. Its error is a gRPC status.
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
			for i := range parseNumber(step, 1) {
				fmt.Fprintf(&out, "line %d\n", i+1)
			}
		case "exit":
			return out.Bytes(), errs.Bytes(), int32(parseNumber(step, 1)), nil
		case "sleep":
			d := time.Duration(1<<62 - 1)
			if len(step) > 1 {
				d = parseDuration(step[1])
			}
			if err := wait(ctx, d); err != nil {
				return nil, nil, 0, status.Error(codes.DeadlineExceeded,
					"failed to exec in container: timeout exceeded: "+err.Error())
			}
		}
	}
	return out.Bytes(), errs.Bytes(), 0, nil
}
