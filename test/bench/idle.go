package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"berth/test/hosts"
)

// idle measures memory and CPU of the idle agent and containerd, then CPU of containerd with the same pods
// while the agent is stopped.
func (b *bench) idle(ctx context.Context) error {
	rss, err := b.rss()
	if err != nil {
		return err
	}
	agent, daemon, err := b.idleCPU(ctx)
	if err != nil {
		return err
	}
	if err := pause(ctx, max(idleWait-*idle, 0)); err != nil {
		return err
	}
	rest, err := b.rss()
	if err != nil {
		return err
	}
	if err := b.agent.Stop(ctx); err != nil {
		return err
	}
	_, daemonOnly, err := b.idleCPU(ctx)
	if err != nil {
		return err
	}
	if err := b.agent.Start(ctx); err != nil {
		return err
	}
	if err := b.agent.WaitReady(ctx); err != nil {
		return err
	}
	b.add(fmt.Sprintf("resident memory, %d pods", *burst), mib(rest), "-", "", "<= 38 MiB")
	b.add(fmt.Sprintf("resident memory, %d pods, right after the last start", *burst), mib(rss), "-", "", "<= 38 MiB")
	b.add(fmt.Sprintf("CPU with %d idle pods, agent", *burst), percent(agent), "0", "", "<= 0.3 %")
	// test/hosts configures containerd 2.x to collect container stats once a minute. With its default
	// of once a second, containerd alone would miss this goal.
	how, goal := ", its stats_collect_period set to 1m", "<= 1 %"
	if b.host.Version == hosts.Version16 {
		how, goal = polling, "<= 3 %"
	}
	b.add(fmt.Sprintf("CPU with %d idle pods, agent and containerd%s", *burst, how), percent(agent+daemon),
		percent(daemonOnly)+" (containerd alone)", "", goal)
	return nil
}

const polling = " 1.6, which is polled"

// polled measures the CPU with many idle pods on a containerd without events.
func (b *bench) polled(ctx context.Context) error {
	p, err := b.newPods(ctx)
	if err != nil {
		return err
	}
	defer func() { p.close() }()
	if _, err := p.burst(ctx, *burst, "ignore-term", ",", "sleep", "1h"); err != nil {
		return err
	}
	p.close()
	agent, daemon, err := b.idleCPU(ctx)
	if err != nil {
		return err
	}
	if p, err = b.newPods(ctx); err != nil {
		return err
	}
	b.add(fmt.Sprintf("CPU with %d idle pods, agent and containerd%s", *burst, polling), percent(agent+daemon),
		percent(agent)+" (agent alone)", "", "<= 3 %")
	_, err = p.deleteBurst(ctx, *burst)
	return err
}

// percent formats CPU time during the idle phase as a share of one CPU.
func percent(d time.Duration) string { return fmt.Sprintf("%.2f %%", 100*d.Seconds()/idle.Seconds()) }

// idleCPU waits until the machine is idle and returns the CPU time used during the idle phase.
func (b *bench) idleCPU(ctx context.Context) (agent, daemon time.Duration, err error) {
	var before, after [2]time.Duration
	for _, step := range []struct {
		wait time.Duration
		into *[2]time.Duration
	}{{10 * time.Second, &before}, {*idle, &after}} {
		if err := pause(ctx, step.wait); err != nil {
			return 0, 0, err
		}
		if step.into[0], step.into[1], err = b.cpu(); err != nil {
			return 0, 0, err
		}
	}
	return after[0] - before[0], after[1] - before[1], nil
}

// cpu returns the CPU time that the agent and containerd have used since their start.
func (b *bench) cpu() (agent, daemon time.Duration, err error) {
	if agent, err = cpuOf(b.agent.Pid()); err != nil {
		agent = 0 // it is stopped
	}
	daemon, err = cpuOf(b.host.Pid())
	return agent, daemon, err
}

// cpuTimes holds the CPU times of the agent, of containerd and of this program, one value per run.
type cpuTimes struct{ agent, daemon, client []time.Duration }

// in runs f and appends the CPU times that it used.
func (s *cpuTimes) in(b *bench, f func() (time.Duration, error)) (time.Duration, error) {
	agent, daemon, err := b.cpu()
	if err != nil {
		return 0, err
	}
	client, err := cpuOf(os.Getpid())
	if err != nil {
		return 0, err
	}
	took, err := f()
	if err != nil {
		return 0, err
	}
	agent2, daemon2, err := b.cpu()
	if err != nil {
		return 0, err
	}
	asker2, err := cpuOf(os.Getpid())
	s.agent, s.daemon, s.client = append(s.agent, agent2-agent), append(s.daemon, daemon2-daemon), append(s.client,
		asker2-client)
	return took, err
}

func mean(all []time.Duration) (sum time.Duration) {
	for _, d := range all {
		sum += d
	}
	return sum / time.Duration(len(all))
}

func cpuOf(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+2:]))
	user, err := strconv.ParseInt(f[11], 10, 64)
	system, err2 := strconv.ParseInt(f[12], 10, 64)
	if err := errors.Join(err, err2); err != nil {
		return 0, fmt.Errorf("/proc/%d/stat: %w", pid, err)
	}
	return time.Duration(user+system) * 10 * time.Millisecond, nil
}
