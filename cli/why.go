package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"berth/nodeapi"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"
)

func (c *factory) why() *cobra.Command {
	return podView[nodeapi.PodExplanation]{
		use:   "why POD|TYPE/NAME",
		short: "Show what a pod, a workload or a Service is waiting for and what happens next",
		long: "Show what a pod is waiting for, or why not all pods of a workload are ready, and what happens\n" +
			"next. For a Service, show which endpoints this node uses, and why nothing answers.\n\n" + workloadArgs +
			"\nA Service is service/NAME or svc/NAME.",
		fetch: func(ctx context.Context, client *nodeapi.Client, t target) (nodeapi.PodExplanation, error) {
			return client.Why(ctx, t.namespace, t.name)
		},
		text: func(_ target, _ screen, y nodeapi.PodExplanation) (string, error) { return whyText(y, c.now()), nil },
		workload: func(ctx context.Context, client *nodeapi.Client, kind string, t target) (objectView, error) {
			w, err := client.WhyWorkload(ctx, kind, t.namespace, t.name)
			return objectView{w, func() (string, error) { return whyWorkloadText(w, c.now()), nil }}, err
		},
		service: whyService,
	}.command(c)
}

func whyWorkloadText(w nodeapi.WorkloadExplanation, now time.Time) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", clean(w.Summary))
	if len(w.WaitingFor) > 0 {
		b.WriteString("\nWaiting for:\n")
		for _, x := range w.WaitingFor {
			writeWait(&b, x, now)
		}
	}
	writeNext(&b, w.Next, now)
	for _, pod := range w.Pods {
		fmt.Fprintf(&b, "\nDetails of a pod: berth why %s/%s\n", clean(pod.Namespace), clean(pod.Name))
		break
	}
	return b.String()
}

func whyText(y nodeapi.PodExplanation, now time.Time) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s (%s)\n", clean(y.Summary), clean(string(y.Phase)))
	if len(y.WaitingFor) > 0 {
		b.WriteString("\nWaiting for:\n")
		for _, w := range y.WaitingFor {
			writeWait(&b, w, now)
		}
	}
	if len(y.InProgress) > 0 {
		b.WriteString("\nIn progress:\n")
		for _, w := range y.InProgress {
			text := spaced(w.Action, w.Target)
			if !w.Since.IsZero() {
				text += ", for " + human(now.Sub(w.Since))
			}
			if w.Detail != "" {
				text += ": " + w.Detail
			}
			fmt.Fprintf(&b, "  %s\n", clean(text))
		}
	}
	writeNext(&b, y.Next, now)
	if len(y.OtherPods) > 0 {
		b.WriteString("\nAnother pod with this name is waiting for:\n")
		for _, w := range y.OtherPods {
			writeWait(&b, w, now)
		}
	}
	writeNetworkPolicies(&b, y.NetworkPolicies)
	writeLastPass(&b, y, now)
	return b.String()
}

// writeNetworkPolicies writes which policies isolate the pod. It writes nothing if none does.
func writeNetworkPolicies(b *strings.Builder, p *nodeapi.PodNetworkPolicies) {
	if p == nil || p.Error == "" && !p.Ingress.Isolated && !p.Egress.Isolated {
		return
	}
	b.WriteString("\nNetwork policies")
	if !p.Installed {
		b.WriteString(", not installed yet")
	}
	b.WriteString(":\n")
	if p.Error != "" {
		fmt.Fprintf(b, "  unknown: %s\n", clean(p.Error))
		return
	}
	writePolicyDirection(b, "Ingress", &p.Ingress)
	writePolicyDirection(b, "Egress", &p.Egress)
}

func writePolicyDirection(b *strings.Builder, name string, d *nodeapi.PolicyDirection) {
	if !d.Isolated {
		fmt.Fprintf(b, "  %s: not isolated\n", name)
		return
	}
	fmt.Fprintf(b, "  %s: %d packets dropped that no policy allows\n", name, d.DroppedPackets)
	for _, p := range d.Policies {
		fmt.Fprintf(b, "    %s: %d connections of this node allowed\n", clean(p.Name), p.AllowedConnections)
		for _, rule := range p.Allows {
			fmt.Fprintf(b, "      allows %s\n", clean(rule))
		}
		if len(p.Allows) == 0 {
			b.WriteString("      allows nothing\n")
		}
	}
}

func writeNext(b *strings.Builder, steps []nodeapi.Step, now time.Time) {
	if len(steps) == 0 {
		return
	}
	b.WriteString("\nNext steps:\n")
	for i, s := range steps {
		text := spaced(s.Action, s.Target)
		if !s.At.IsZero() {
			text += " at " + clockIn(now, s.At)
		}
		if s.After != "" {
			text += ", after " + s.After
		}
		fmt.Fprintf(b, "  %d. %s\n", i+1, clean(text))
	}
}

func writeWait(b *strings.Builder, w nodeapi.WaitReason, now time.Time) {
	text := clean(spaced(w.Reason, w.Target))
	if w.Message != "" {
		text += ": " + clean(w.Message)
	}
	fmt.Fprintf(b, "  %s\n", text)
	var facts []string
	if !w.Since.IsZero() {
		facts = append(facts, fmt.Sprintf("for %s (since %s)", human(now.Sub(w.Since)), clock(now, w.Since)))
	}
	if w.Failures > 0 {
		facts = append(facts, fmt.Sprintf("%d consecutive failures", w.Failures))
	}
	if w.Until.IsZero() {
		facts = append(facts, "until the state changes")
	} else {
		facts = append(facts, "until "+clockIn(now, w.Until))
	}
	fmt.Fprintf(b, "    %s\n", strings.Join(facts, ", "))
	for _, f := range w.Details {
		fmt.Fprintf(b, "    %s: %s\n", clean(f.Name), clean(f.Value))
	}
}

func writeLastPass(b *strings.Builder, y nodeapi.PodExplanation, now time.Time) {
	if y.Syncs == 0 {
		b.WriteString("\nNot synced yet\n")
		return
	}
	fmt.Fprintf(b, "\nLast sync: #%d", y.Syncs)
	if !y.LastSync.IsZero() {
		fmt.Fprintf(b, ", %s ago", human(now.Sub(y.LastSync)))
	}
	if y.NextSync.IsZero() {
		b.WriteString("; next sync on the next change\n")
	} else {
		fmt.Fprintf(b, "; next sync at %s, or on the next change\n", clockIn(now, y.NextSync))
	}
	for _, r := range y.Reasons {
		fmt.Fprintf(b, "  %s\n", clean(reasonText(r, now)))
	}
}

func spaced(a, b string) string { return strings.TrimSpace(a + " " + b) }

// human formats a duration and never returns a negative one, because the clocks of the agent and
// the client are read at different moments.
func human(d time.Duration) string { return duration.HumanDuration(max(d, 0)) }

// clock is the time of day, with the date if it differs from now.
func clock(now, t time.Time) string {
	t = t.In(now.Location())
	if t.Format(time.DateOnly) != now.Format(time.DateOnly) {
		return t.Format(time.DateTime)
	}
	return t.Format(time.TimeOnly)
}

// clockIn is a future time: "15:04:38, in 20s".
func clockIn(now, t time.Time) string {
	if !t.After(now) {
		return clock(now, t) + ", now"
	}
	return clock(now, t) + ", in " + human(t.Sub(now))
}
