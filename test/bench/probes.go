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

// probeTarget is a web server in this process that records the times of requests.
type probeTarget struct {
	addr   string // host:port
	server *http.Server
	done   chan error

	mu       sync.Mutex
	requests map[string][]time.Time // by path
	answer   func(path string, first time.Time) int
}

// newProbeTarget starts a server on an address that probes can reach.
func (b *bench) newProbeTarget(ctx context.Context) (*probeTarget, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(b.host.Gateway.String(), "0"))
	if err != nil {
		return nil, err
	}
	s := &probeTarget{addr: l.Addr().String(), requests: map[string][]time.Time{}, done: make(chan error, 1)}
	s.server = &http.Server{ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.requests[r.URL.Path] = append(s.requests[r.URL.Path], time.Now())
			if s.answer != nil {
				w.WriteHeader(s.answer(r.URL.Path, s.requests[r.URL.Path][0]))
			}
		})}
	go func() { s.done <- s.server.Serve(l) }() // close receives the result
	return s, nil
}

func (s *probeTarget) close() {
	_ = s.server.Close()
	<-s.done
}

func (s *probeTarget) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = map[string][]time.Time{}
}

// action returns a probe of this server in YAML flow style.
func (s *probeTarget) action(path string) string {
	host, port, _ := net.SplitHostPort(s.addr)
	return fmt.Sprintf("httpGet: {host: %s, port: %s, path: %s}", host, port, path)
}

// sleepContainer returns an idle container. more is YAML flow style for further fields.
func sleepContainer(name, more string) string {
	return fmt.Sprintf("  - {name: %s, image: %q, command: [sleep, 1d], %s}\n", name, images.BusyboxRef, more)
}

func podManifest(name, containers string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec:\n  terminationGracePeriodSeconds: 0\n"+
		"containers:\n%s", name, containers)
}

func ready(e nodeapi.PodEvent) bool { return readyStatus(e) == corev1.ConditionTrue }

func readyStatus(e nodeapi.PodEvent) corev1.ConditionStatus {
	for _, c := range e.Pod.Status.Conditions {
		if c.Type == corev1.PodReady && e.Type != nodeapi.Deleted {
			return c.Status
		}
	}
	return ""
}

// probesHTTP configures 500 probes per second and measures them on the server side.
func (b *bench) probesHTTP(ctx context.Context) error {
	const podCount, containers = 10, 25 // with two probes each
	p, err := b.newPods(ctx)
	if err != nil {
		return err
	}
	defer p.close()
	s, err := b.newProbeTarget(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	for i := range podCount {
		var cs strings.Builder
		for j := range containers {
			cs.WriteString(sleepContainer(fmt.Sprintf("c%d", j),
				fmt.Sprintf("readinessProbe: {%s, periodSeconds: 1}, livenessProbe: {%s, periodSeconds: 1}",
					s.action(fmt.Sprintf("/%d/%d/r", i, j)), s.action(fmt.Sprintf("/%d/%d/l", i, j)))))
		}
		if err := p.writeManifest(fmt.Sprintf("http%d", i), podManifest(fmt.Sprintf("http%d", i),
			cs.String())); err != nil {
			return err
		}
	}
	if err := p.waitFor(ctx, podCount, ready); err != nil {
		return err
	}
	if err := pause(ctx, 5*time.Second); err != nil {
		return err
	}
	s.reset()
	before, _, err := b.cpu()
	if err != nil {
		return err
	}
	start := time.Now()
	if err := pause(ctx, *probing); err != nil {
		return err
	}
	took := time.Since(start)
	after, _, err := b.cpu()
	if err != nil {
		return err
	}
	runs, missed, late := s.periods(start, took)
	b.add("500 HTTP probes/s: run per second", fmt.Sprintf("%.1f", float64(runs)/took.Seconds()), "500", "", ">= 499")
	b.add("500 HTTP probes/s: periods without a probe", fmt.Sprint(missed), "0", "", "<= 0")
	b.add("500 HTTP probes/s: deviation from the period, p99", ms(quantile(late, 0.99)), "0", "", "")
	b.add("500 HTTP probes/s: CPU of the agent", fmt.Sprintf("%.1f %%", 100*(after-before).Seconds()/took.Seconds()),
		"0", "", "reported")
	for i := range podCount {
		if err := p.remove(fmt.Sprintf("http%d", i)); err != nil {
			return err
		}
	}
	return p.waitFor(ctx, podCount, deleted)
}

// periods evaluates the requests of a time interval: their number, the number of one-second periods
// without a request per path, and the deviation of each gap from one second.
func (s *probeTarget) periods(start time.Time, took time.Duration) (runs, missed int, off []time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	const paths = 500
	missed = (paths - len(s.requests)) * int(took/time.Second)
	for _, all := range s.requests {
		runs += len(all)
		last := start
		for i, at := range append(all, start.Add(took)) {
			gap := at.Sub(last)
			missed += int((gap - 500*time.Millisecond) / time.Second) // a delay below half a period is not a miss
			if i > 0 && i < len(all) {
				off = append(off, (gap - time.Second).Abs())
			}
			last = at
		}
	}
	return runs, missed, off
}

// probesExec compares exec probes with the same commands run through CRI in the same containers. Short
// slices of both alternate: other load on the machine affects both. More probes are due than the machine
// can run, and both sides use the same parallelism. The agent is stopped during baseline slices.
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
			fmt.Fprintf(&cs, "  - {name: c%d, image: %q, args: [sleep, 1h], readinessProbe: %s, livenessProbe: %s}\n",
				j, images.TestboxRef, probe, probe)
		}
		if err := p.writeManifest(fmt.Sprintf("exec%d", i), podManifest(fmt.Sprintf("exec%d", i),
			cs.String())); err != nil {
			return err
		}
	}
	if err := p.waitFor(ctx, pods, ready); err != nil {
		return err
	}
	var probeRates, limit, ratio []float64
	for range *rounds * execSlices {
		made, err := b.probeRate(ctx)
		if err != nil {
			return err
		}
		bare, err := b.execBaseline(ctx)
		if err != nil {
			return err
		}
		probeRates, limit, ratio = append(probeRates, made), append(limit, bare), append(ratio, made/bare)
	}
	b.add(fmt.Sprintf("exec probes per second, saturated machine, median of %d pairs of slices", len(ratio)),
		fmt.Sprintf("%.1f", medianFloat(probeRates)), fmt.Sprintf("%.1f", medianFloat(limit)),
		fmt.Sprintf("%.2f x", medianFloat(ratio)), ">= 0.95 x")
	for i := range pods {
		if err := p.remove(fmt.Sprintf("exec%d", i)); err != nil {
			return err
		}
	}
	return p.waitFor(ctx, pods, deleted)
}

func medianFloat(of []float64) float64 {
	of = slices.Sorted(slices.Values(of))
	return of[len(of)/2]
}

const (
	execSlices = 4 // per side and round
	execSlice  = 3 * time.Second
	execPause  = 500 * time.Millisecond // lets calls of the other side finish
)

// probeRate returns the number of exec probes per second that the agent runs.
func (b *bench) probeRate(ctx context.Context) (float64, error) {
	if err := pause(ctx, execPause); err != nil {
		return 0, err
	}
	first, err := b.metric(ctx, "prober_probe_total{", `pod="exec`)
	if err != nil {
		return 0, err
	}
	start := time.Now()
	if err := pause(ctx, execSlice); err != nil {
		return 0, err
	}
	took := time.Since(start)
	last, err := b.metric(ctx, "prober_probe_total{", `pod="exec`)
	return (last - first) / took.Seconds(), err
}

// execBaseline returns the number of commands per second that the runtime runs while the agent is stopped,
// with the parallelism of the agent.
func (b *bench) execBaseline(ctx context.Context) (rate float64, err error) {
	if err := syscall.Kill(b.agent.Pid(), syscall.SIGSTOP); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, syscall.Kill(b.agent.Pid(), syscall.SIGCONT)) }()
	if err := pause(ctx, execPause); err != nil {
		return 0, err
	}
	return b.execs(ctx, 8*runtime.GOMAXPROCS(0)) // default of probes.Options
}

// metric returns the sum of the agent's series with a name prefix and a label.
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

// execs runs commands in the node's containers with width in parallel, and returns the number of commands
// per second.
func (b *bench) execs(ctx context.Context, width int) (float64, error) {
	list, err := b.host.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{
			State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
		},
	})
	if err != nil {
		return 0, err
	}
	if len(list.Containers) == 0 {
		return 0, errors.New("no running containers")
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var n atomic.Int64
	var wg sync.WaitGroup
	errs := make(chan error, width)
	start := time.Now()
	for range width {
		wg.Go(func() {
			for time.Since(start) < execSlice {
				id := list.Containers[int(n.Add(1))%len(list.Containers)].Id
				_, err := b.host.Runtime.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: id,
					Cmd: []string{"/bin/testbox", "exit"}, Timeout: 30})
				if err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	return float64(n.Load()) / time.Since(start).Seconds(), <-errs
}

// probesSpeed measures how soon a container becomes ready after its server starts to respond, and how soon
// it becomes unready after the server stops.
func (b *bench) probesSpeed(ctx context.Context) error {
	p, err := b.newPods(ctx)
	if err != nil {
		return err
	}
	defer p.close()
	s, err := b.newProbeTarget(ctx)
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
	var readyTimes, delays []time.Duration
	for range 20 {
		s.reset()
		if err := p.writeManifest("speed", podManifest("speed", sleepContainer("c",
			"readinessProbe: {"+s.action("/s")+"}"))); err != nil {
			return err
		}
		if err := p.waitFor(ctx, 1, ready); err != nil {
			return err
		}
		now := time.Now()
		s.mu.Lock()
		readyTimes = append(readyTimes, now.Sub(s.requests["/s"][0]))
		s.mu.Unlock()
		if err := p.remove("speed"); err != nil {
			return err
		}
		if err := p.waitFor(ctx, 1, deleted); err != nil {
			return err
		}
	}
	if delays, err = b.deadPorts(ctx, p); err != nil {
		return err
	}
	b.add("ready 120 ms after its start: first probe -> Ready observed, worst of 20", ms(slices.Max(readyTimes)),
		"120.0 ms", "", "<= 250 ms")
	b.add("dead port, period 1 s: closed -> not Ready observed, p99", ms(quantile(delays, 0.99)), "1000.0 ms", "",
		"<= 1050 ms")
	return nil
}

// deadPorts closes ports that probes connect to, at times that are independent of the probe periods. It
// returns the times until the pods were observed as not ready.
func (b *bench) deadPorts(ctx context.Context, p *pods) (delays []time.Duration, err error) {
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
		text := podManifest(fmt.Sprintf("port%d", i),
			sleepContainer("c", fmt.Sprintf("readinessProbe: {tcpSocket: {host: %s, port: %s}, periodSeconds: 1, "+
				"failureThreshold: 1}", host, port)))
		if err := p.writeManifest(fmt.Sprintf("port%d", i), text); err != nil {
			return nil, err
		}
	}
	if err := p.waitFor(ctx, n, ready); err != nil {
		return nil, err
	}
	for round := range 10 {
		if err := pause(ctx, 1500*time.Millisecond+time.Duration(round)*137*time.Millisecond); err != nil {
			return nil, err
		}
		closed := map[string]time.Time{}
		for i := range n {
			closed[fmt.Sprintf("port%d", i)] = time.Now()
			if err := ports[i].Close(); err != nil {
				return nil, err
			}
		}
		err := p.waitFor(ctx, n, func(e nodeapi.PodEvent) bool {
			at, pending := closed[e.Pod.Name]
			if readyStatus(e) != corev1.ConditionFalse {
				return false
			}
			if pending {
				delays = append(delays, time.Since(at))
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
		if err := p.waitFor(ctx, n, ready); err != nil {
			return nil, err
		}
	}
	for i := range n {
		_ = ports[i].Close()
		if err := p.remove(fmt.Sprintf("port%d", i)); err != nil {
			return nil, err
		}
	}
	return delays, p.waitFor(ctx, n, deleted)
}
