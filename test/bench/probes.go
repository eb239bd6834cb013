package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/nodeapi"
	"berth/test/images"
)

// site is a web server of this process that counts who asks, and when.
type site struct {
	at     string // host:port
	server *http.Server
	done   chan error

	mu     sync.Mutex
	asked  map[string][]time.Time // by path
	answer func(path string, first time.Time) int
}

// newSite serves on an address of the machine that pods' probes may name.
func (b *bench) newSite(ctx context.Context) (*site, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(b.host.Gateway.String(), "0"))
	if err != nil {
		return nil, err
	}
	s := &site{at: l.Addr().String(), asked: map[string][]time.Time{}, done: make(chan error, 1)}
	s.server = &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.asked[r.URL.Path] = append(s.asked[r.URL.Path], time.Now())
		if s.answer != nil {
			w.WriteHeader(s.answer(r.URL.Path, s.asked[r.URL.Path][0]))
		}
	})}
	go func() { s.done <- s.server.Serve(l) }() // waited for by close
	return s, nil
}

func (s *site) close() {
	_ = s.server.Close()
	<-s.done
}

func (s *site) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = map[string][]time.Time{}
}

// action is a probe of this site in YAML flow.
func (s *site) action(path string) string {
	host, port, _ := net.SplitHostPort(s.at)
	return fmt.Sprintf("httpGet: {host: %s, port: %s, path: %s}", host, port, path)
}

// sleeper is a container that does nothing, with more YAML flow of its own.
func sleeper(name, more string) string {
	return fmt.Sprintf("  - {name: %s, image: %q, command: [sleep, 1d], %s}\n", name, images.BusyboxRef, more)
}

func podOf(name, containers string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec:\n  terminationGracePeriodSeconds: 0\n  containers:\n%s", name, containers)
}

func ready(e nodeapi.PodEvent) bool { return isReady(e) == corev1.ConditionTrue }

func isReady(e nodeapi.PodEvent) corev1.ConditionStatus {
	for _, c := range e.Pod.Status.Conditions {
		if c.Type == corev1.PodReady && e.Type != nodeapi.Deleted {
			return c.Status
		}
	}
	return ""
}

// probesHTTP has 500 probes made each second and looks at every one of them
// from the other end.
func (b *bench) probesHTTP(ctx context.Context) error {
	const podsOf, containers = 10, 25 // with two probes each
	p, err := b.newPods(ctx)
	if err != nil {
		return err
	}
	defer p.close()
	s, err := b.newSite(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	for i := range podsOf {
		var cs strings.Builder
		for j := range containers {
			cs.WriteString(sleeper(fmt.Sprintf("c%d", j), fmt.Sprintf("readinessProbe: {%s, periodSeconds: 1}, livenessProbe: {%s, periodSeconds: 1}",
				s.action(fmt.Sprintf("/%d/%d/r", i, j)), s.action(fmt.Sprintf("/%d/%d/l", i, j)))))
		}
		if err := p.put(fmt.Sprintf("http%d", i), podOf(fmt.Sprintf("http%d", i), cs.String())); err != nil {
			return err
		}
	}
	if err := p.until(ctx, podsOf, ready); err != nil {
		return err
	}
	if err := rest(ctx, 5*time.Second); err != nil {
		return err
	}
	s.reset()
	before, _, err := b.cpu()
	if err != nil {
		return err
	}
	began := time.Now()
	if err := rest(ctx, *probing); err != nil {
		return err
	}
	took := time.Since(began)
	after, _, err := b.cpu()
	if err != nil {
		return err
	}
	runs, missed, late := s.periods(began, took)
	b.add("500 HTTP probes/s: made per second", fmt.Sprintf("%.1f", float64(runs)/took.Seconds()), "500", "", ">= 499")
	b.add("500 HTTP probes/s: periods without a probe", fmt.Sprint(missed), "0", "", "<= 0")
	b.add("500 HTTP probes/s: off its period, p99", ms(quantile(late, 0.99)), "0", "", "")
	b.add("500 HTTP probes/s: CPU of the agent", fmt.Sprintf("%.1f %%", 100*(after-before).Seconds()/took.Seconds()), "0", "", "reported")
	for i := range podsOf {
		if err := p.remove(fmt.Sprintf("http%d", i)); err != nil {
			return err
		}
	}
	return p.until(ctx, podsOf, gone)
}

// periods counts the requests of a stretch of time, the whole periods of a
// second that a path was not asked in, and how far each was from a second after
// the one before.
func (s *site) periods(began time.Time, took time.Duration) (runs, missed int, off []time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	const paths = 500
	missed = (paths - len(s.asked)) * int(took/time.Second)
	for _, all := range s.asked {
		runs += len(all)
		last := began
		for i, at := range append(all, began.Add(took)) {
			gap := at.Sub(last)
			missed += int((gap - 500*time.Millisecond) / time.Second) // half a period late is still in it
			if i > 0 && i < len(all) {
				off = append(off, (gap - time.Second).Abs())
			}
			last = at
		}
	}
	return runs, missed, off
}

// probesExec compares commands as probes with the same commands made bare in
// the same containers, in turn and in short slices, so that whatever else the
// machine does falls on both. Far more are due than the machine can make, or the
// figure would be the demand; as many run at once on both sides. The agent
// stands still while bare ones are made.
func (b *bench) probesExec(ctx context.Context) error {
	const pods, containers = 4, 30 // 240 probes are due each second
	p, err := b.newPods(ctx)
	if err != nil {
		return err
	}
	defer p.close()
	for i := range pods {
		var cs strings.Builder
		for j := range containers {
			const probe = "{exec: {command: [/bin/testbox, exit]}, periodSeconds: 1, timeoutSeconds: 30}"
			fmt.Fprintf(&cs, "  - {name: c%d, image: %q, args: [sleep, 1h], readinessProbe: %s, livenessProbe: %s}\n", j, images.TestboxRef, probe, probe)
		}
		if err := p.put(fmt.Sprintf("exec%d", i), podOf(fmt.Sprintf("exec%d", i), cs.String())); err != nil {
			return err
		}
	}
	if err := p.until(ctx, pods, ready); err != nil {
		return err
	}
	var ours, limit, ratio []float64
	for range *rounds * execSlices {
		made, err := b.probesMade(ctx)
		if err != nil {
			return err
		}
		bare, err := b.execBaseline(ctx)
		if err != nil {
			return err
		}
		ours, limit, ratio = append(ours, made), append(limit, bare), append(ratio, made/bare)
	}
	b.add(fmt.Sprintf("exec probes per second, as many as the machine can, median of %d pairs of slices", len(ratio)),
		fmt.Sprintf("%.1f", medianFloat(ours)), fmt.Sprintf("%.1f", medianFloat(limit)), fmt.Sprintf("%.2f x", medianFloat(ratio)), ">= 0.95 x")
	for i := range pods {
		if err := p.remove(fmt.Sprintf("exec%d", i)); err != nil {
			return err
		}
	}
	return p.until(ctx, pods, gone)
}

func medianFloat(of []float64) float64 {
	of = slices.Sorted(slices.Values(of))
	return of[len(of)/2]
}

const (
	execSlices = 4 // of each side per round
	execSlice  = 3 * time.Second
	execPause  = 500 * time.Millisecond // for what the other side has started to end
)

// probesMade is how many probes by command the agent makes per second.
func (b *bench) probesMade(ctx context.Context) (float64, error) {
	if err := rest(ctx, execPause); err != nil {
		return 0, err
	}
	first, err := b.metric(ctx, "prober_probe_total{", `pod="exec`)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := rest(ctx, execSlice); err != nil {
		return 0, err
	}
	took := time.Since(began)
	last, err := b.metric(ctx, "prober_probe_total{", `pod="exec`)
	return (last - first) / took.Seconds(), err
}

// execBaseline is how many commands per second the runtime makes while the agent
// stands still, as many at once as the agent has under way.
func (b *bench) execBaseline(ctx context.Context) (rate float64, err error) {
	if err := syscall.Kill(b.agent.Pid(), syscall.SIGSTOP); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, syscall.Kill(b.agent.Pid(), syscall.SIGCONT)) }()
	if err := rest(ctx, execPause); err != nil {
		return 0, err
	}
	return b.execs(ctx, 8*runtime.GOMAXPROCS(0)) // as probes.Options has it
}

// metric sums the agent's series that begin so and have a label.
func (b *bench) metric(ctx context.Context, name, label string) (sum float64, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+b.health+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, name) && strings.Contains(line, label) {
			var v float64
			if _, err := fmt.Sscan(line[strings.LastIndexByte(line, ' ')+1:], &v); err != nil {
				return 0, fmt.Errorf("%s: %w", line, err)
			}
			sum += v
		}
	}
	return sum, nil
}

// execs runs commands in the node's containers, so many at once, and returns
// how many end per second.
func (b *bench) execs(ctx context.Context, width int) (float64, error) {
	list, err := b.host.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}},
	})
	if err != nil {
		return 0, err
	}
	if len(list.Containers) == 0 {
		return 0, errors.New("no container runs")
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var n atomic.Int64
	var wg sync.WaitGroup
	errs := make(chan error, width)
	began := time.Now()
	for range width {
		wg.Go(func() {
			for time.Since(began) < execSlice {
				id := list.Containers[int(n.Add(1))%len(list.Containers)].Id
				_, err := b.host.Runtime.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"/bin/testbox", "exit"}, Timeout: 30})
				if err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	return float64(n.Load()) / time.Since(began).Seconds(), <-errs
}

// probesSpeed measures how soon a container that begins to answer is ready, and
// how soon one that stops is not.
func (b *bench) probesSpeed(ctx context.Context) error {
	p, err := b.newPods(ctx)
	if err != nil {
		return err
	}
	defer p.close()
	s, err := b.newSite(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	var down atomic.Bool
	s.answer = func(_ string, first time.Time) int {
		if time.Since(first) < 120*time.Millisecond || down.Load() {
			return http.StatusServiceUnavailable
		}
		return http.StatusOK
	}
	var soon, noticed []time.Duration
	for range 20 {
		s.reset()
		if err := p.put("speed", podOf("speed", sleeper("c", "readinessProbe: {"+s.action("/s")+"}"))); err != nil {
			return err
		}
		if err := p.until(ctx, 1, ready); err != nil {
			return err
		}
		now := time.Now()
		s.mu.Lock()
		soon = append(soon, now.Sub(s.asked["/s"][0]))
		s.mu.Unlock()
		if err := p.remove("speed"); err != nil {
			return err
		}
		if err := p.until(ctx, 1, gone); err != nil {
			return err
		}
	}
	if noticed, err = b.deadPorts(ctx, p); err != nil {
		return err
	}
	b.add("answers 120 ms after its start: first probe -> Ready seen, worst of 20", ms(slices.Max(soon)), "120.0 ms", "", "<= 250 ms")
	b.add("dead port, period 1 s: closed -> not Ready seen, p99", ms(quantile(noticed, 0.99)), "1000.0 ms", "", "<= 1050 ms")
	return nil
}

// deadPorts closes ports that probes connect to, at moments that have nothing to
// do with their periods, and returns how long it took until the pods were seen
// not to be ready.
func (b *bench) deadPorts(ctx context.Context, p *pods) (noticed []time.Duration, err error) {
	const n = 10
	ports := make([]net.Listener, n)
	open := func(i int) (err error) {
		at := net.JoinHostPort(b.host.Gateway.String(), "0")
		if ports[i] != nil {
			at = ports[i].Addr().String()
		}
		ports[i], err = new(net.ListenConfig).Listen(ctx, "tcp", at)
		return err
	}
	for i := range n {
		if err := open(i); err != nil {
			return nil, err
		}
		host, port, _ := net.SplitHostPort(ports[i].Addr().String())
		text := podOf(fmt.Sprintf("port%d", i), sleeper("c", fmt.Sprintf("readinessProbe: {tcpSocket: {host: %s, port: %s}, periodSeconds: 1, failureThreshold: 1}", host, port)))
		if err := p.put(fmt.Sprintf("port%d", i), text); err != nil {
			return nil, err
		}
	}
	if err := p.until(ctx, n, ready); err != nil {
		return nil, err
	}
	for round := range 10 {
		if err := rest(ctx, 1500*time.Millisecond+time.Duration(round)*137*time.Millisecond); err != nil {
			return nil, err
		}
		closed := map[string]time.Time{}
		for i := range n {
			closed[fmt.Sprintf("port%d", i)] = time.Now()
			if err := ports[i].Close(); err != nil {
				return nil, err
			}
		}
		err := p.until(ctx, n, func(e nodeapi.PodEvent) bool {
			at, waits := closed[e.Pod.Name]
			if isReady(e) != corev1.ConditionFalse {
				return false
			}
			if waits {
				noticed = append(noticed, time.Since(at))
				delete(closed, e.Pod.Name)
			}
			return true
		})
		if err != nil {
			return nil, err
		}
		for i := range n {
			if err := open(i); err != nil {
				return nil, err
			}
		}
		if err := p.until(ctx, n, ready); err != nil {
			return nil, err
		}
	}
	for i := range n {
		_ = ports[i].Close()
		if err := p.remove(fmt.Sprintf("port%d", i)); err != nil {
			return nil, err
		}
	}
	return noticed, p.until(ctx, n, gone)
}

func rest(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
