package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"berth/nodeapi"

	"github.com/spf13/cobra"
)

func (c *factory) probes() *cobra.Command {
	return podView[nodeapi.PodProbes]{
		use:   "probes POD",
		short: "Show the probes of a pod with their recent results",
		fetch: func(ctx context.Context, client *nodeapi.Client, t target) (nodeapi.PodProbes, error) {
			return client.Probes(ctx, t.namespace, t.name)
		},
		text: func(_ target, _ screen, p nodeapi.PodProbes) (string, error) { return probesText(p, c.now()) },
	}.command(c)
}

func probesText(p nodeapi.PodProbes, now time.Time) (string, error) {
	var b strings.Builder
	if len(p.Probes) == 0 {
		fmt.Fprintf(&b, "pod %s/%s has no probes\n", clean(p.Namespace), clean(p.Name))
		return b.String(), nil
	}
	if !p.Now.IsZero() {
		now = p.Now.In(now.Location())
	}
	rows := [][]string{{"CONTAINER", "PROBE", "STATE", "CONSECUTIVE", "NEXT RUN", "PERIOD", "TIMEOUT", "ACTION"}}
	runs := [][]string{{"CONTAINER", "PROBE", "TIME", "RESULT", "DURATION", "OUTPUT"}}
	for _, x := range p.Probes {
		state := string(x.State)
		if x.WaitingFor != "" {
			state = "waiting for " + x.WaitingFor
		}
		rows = append(rows, []string{
			clean(x.Container), clean(x.Kind), clean(state), consecutive(x), nextRun(x, now),
			fmt.Sprintf("%ds", x.PeriodSeconds), fmt.Sprintf("%ds", x.TimeoutSeconds), clean(x.Action),
		})
		for _, r := range x.Recent {
			result := r.Result
			if r.Result == "failure" && !r.CountsTowardThreshold {
				result += " (not counted)"
			}
			runs = append(runs, []string{
				clean(x.Container), clean(x.Kind), r.At.In(now.Location()).Format("15:04:05.000"), clean(result),
				short(
					time.Duration(r.Seconds * float64(time.Second)),
				), orNone(shortened(clean(strings.TrimSpace(r.Output)), maxOutput)),
			})
		}
	}
	t := table{w: &b}
	if err := t.print(rows...); err != nil {
		return "", err
	}
	if len(runs) > 1 {
		b.WriteString("\nRecent results:\n")
		t := table{w: &b, indent: "  "}
		if err := t.print(runs...); err != nil {
			return "", err
		}
	}
	return b.String(), nil
}

// maxOutput is the maximum length of a probe output in the table. -o json prints more.
const maxOutput = 120

func shortened(text string, most int) string {
	if r := []rune(text); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return text
}

// consecutive shows consecutive results and their threshold: ok 1/1, failed 2/3.
func consecutive(x nodeapi.Probe) string {
	switch {
	case x.Failures > 0:
		return fmt.Sprintf("failed %d/%d", x.Failures, x.FailureThreshold)
	case x.Successes > 0:
		return fmt.Sprintf("ok %d/%d", x.Successes, x.SuccessThreshold)
	}
	return "-"
}

func nextRun(x nodeapi.Probe, now time.Time) string {
	switch {
	case x.Running:
		return "now"
	case x.NextRun.IsZero():
		return "-"
	default:
		return "in " + short(max(x.NextRun.Sub(now), 0))
	}
}
