package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"berth/nodeapi"
)

func (b *bench) binary(context.Context) error {
	info, err := os.Stat(b.agent.Binary)
	if err != nil {
		return err
	}
	b.add("size of berth", fmt.Sprintf("%d MiB", info.Size()>>20), "-", "", "<= 45 MiB")
	return nil
}

// idleWait is the idle time before memory is measured. The agent releases memory to the OS some seconds
// after a start or a burst.
const idleWait = time.Minute

// memoryIdle measures the memory of an agent without pods.
func (b *bench) memoryIdle(ctx context.Context) error {
	if err := pause(ctx, idleWait); err != nil {
		return err
	}
	now, err := b.rss()
	if err != nil {
		return err
	}
	b.add("resident memory, idle", mib(now), "-", "", "<= 30 MiB")
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func (b *bench) rss() (int64, error) { return rssOf(b.agent.Pid()) }

func rssOf(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	pages, err := strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
	return pages * int64(os.Getpagesize()), err
}

func mib(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

// warm starts one pod at a time, alternating with the baseline.
func (b *bench) warm(ctx context.Context) error {
	p, err := b.newPods(ctx)
	if err != nil {
		return err
	}
	defer p.close()
	x, err := b.newBaseline(ctx)
	if err != nil {
		return err
	}
	var agentTimes, limit, overhead []time.Duration
	for i := range 6 * *rounds {
		took, err := x.burst(ctx, 1, 1, "sleep", "1h")
		if err != nil {
			return err
		}
		if _, err := x.removeAll(ctx); err != nil {
			return err
		}
		agentTook, err := p.burst(ctx, 1, "sleep", "1h")
		if err != nil {
			return err
		}
		over, err := b.overhead(ctx, p.client, "p000")
		if err != nil {
			return err
		}
		if _, err := p.deleteBurst(ctx, 1); err != nil {
			return err
		}
		if i > 0 { // the first round warms up
			limit, agentTimes, overhead = append(limit, took), append(agentTimes, agentTook), append(overhead, over)
		}
	}
	b.add("one warm pod, file written -> Running observed, median", ms(median(agentTimes)), ms(median(limit)),
		ratio(median(agentTimes), median(limit)), "<= 1.10 x")
	b.add("agent's overhead per pod, p50", ms(quantile(overhead, 0.5)), "0", "", "<= 10 ms")
	b.add("agent's overhead per pod, p99", ms(quantile(overhead, 0.99)), "0", "", "<= 30 ms")
	return nil
}

// overhead returns the time from the first sync of a pod to the end of its last container start, minus
// the three mutating calls.
func (b *bench) overhead(ctx context.Context, client *nodeapi.Client, name string) (time.Duration, error) {
	t, err := client.Timeline(ctx, "default", name)
	if err != nil {
		return 0, err
	}
	var first, last time.Time
	var calls time.Duration
	for _, s := range t.Spans {
		if first.IsZero() {
			first = s.Start
		}
		if mutating(s.Name) {
			calls += s.End.Sub(s.Start)
		}
		if s.Name == "start" {
			last = s.End
		}
	}
	if last.IsZero() || calls == 0 {
		return 0, fmt.Errorf("no container start in the timeline of %s: %+v", name, t.Spans)
	}
	return last.Sub(first) - calls, nil
}

// burst starts and deletes many pods at once, alternating with the baseline, and measures memory and CPU
// while they are idle.
func (b *bench) burst(ctx context.Context) error {
	p, err := b.newPods(ctx)
	if err != nil {
		return err
	}
	defer func() { p.close() }()
	x, err := b.newBaseline(ctx)
	if err != nil {
		return err
	}
	var start, startLimit, end, endLimit []time.Duration
	var agentTimes, limit cpuTimes
	for i := range *rounds {
		took, err := limit.in(b, func() (time.Duration, error) {
			return x.burst(ctx, *burst, 8, "ignore-term", ",", "sleep", "1h")
		})
		if err != nil {
			return err
		}
		startLimit = append(startLimit, took)
		if took, err = x.removeAll(ctx); err != nil {
			return err
		}
		endLimit = append(endLimit, took)
		if took, err = agentTimes.in(b, func() (time.Duration, error) {
			return p.burst(ctx, *burst, "ignore-term", ",",
				"sleep", "1h")
		}); err != nil {
			return err
		}
		start = append(start, took)
		if i == *rounds-1 {
			p.close()
			if err := b.idle(ctx); err != nil {
				return err
			}
			if p, err = b.newPods(ctx); err != nil {
				return err
			}
		}
		if took, err = p.deleteBurst(ctx, *burst); err != nil {
			return err
		}
		end = append(end, took)
	}
	b.add(fmt.Sprintf("%d pods at once, last Running, median of %d", *burst, *rounds), ms(median(start)),
		ms(median(startLimit)), ratio(median(start), median(startLimit)), "<= 1.10 x")
	of := "of it: CPU of "
	b.add(of+"the agent, mean", ms(mean(agentTimes.agent)), "0", "", "")
	b.add(of+"containerd's own process, mean", ms(mean(agentTimes.daemon)), ms(mean(limit.daemon)),
		ratio(mean(agentTimes.daemon), mean(limit.daemon)), "")
	b.add(of+"the client, mean", ms(mean(agentTimes.client)), ms(mean(limit.client)), "", "")
	b.add(fmt.Sprintf("%d pods deleted at once, grace 1 s, all deleted, median", *burst), ms(median(end)),
		ms(median(endLimit)), ratio(median(end), median(endLimit)), "<= 1.2 x")
	return nil
}

func ms(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d)/1e6) }

func ratio(a, b time.Duration) string { return fmt.Sprintf("%.2f x", float64(a)/float64(b)) }
