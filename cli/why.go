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
		use:   "why POD",
		short: "Show what a pod waits for and what comes next",
		ask: func(ctx context.Context, client *nodeapi.Client, t target) (nodeapi.PodExplanation, error) {
			return client.Why(ctx, t.namespace, t.name)
		},
		text: func(_ target, _ screen, y nodeapi.PodExplanation) (string, error) { return whyText(y, c.now()), nil },
	}.command(c)
}

func whyText(y nodeapi.PodExplanation, now time.Time) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s (%s)\n", clean(y.Summary), clean(string(y.Phase)))
	if len(y.WaitingFor) > 0 {
		b.WriteString("\nIt waits for\n")
		for _, w := range y.WaitingFor {
			writeWait(&b, w, now)
		}
	}
	if len(y.InProgress) > 0 {
		b.WriteString("\nBeing done now\n")
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
	if len(y.Next) > 0 {
		b.WriteString("\nComes next\n")
		for i, s := range y.Next {
			text := spaced(s.Action, s.Target)
			if !s.At.IsZero() {
				text += " at " + clockIn(now, s.At)
			}
			if s.After != "" {
				text += ", after " + s.After
			}
			fmt.Fprintf(&b, "  %d. %s\n", i+1, clean(text))
		}
	}
	if len(y.OtherPods) > 0 {
		b.WriteString("\nAnother pod of this name waits for\n")
		for _, w := range y.OtherPods {
			writeWait(&b, w, now)
		}
	}
	writeLastPass(&b, y, now)
	return b.String()
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
		facts = append(facts, fmt.Sprintf("%d failed in a row", w.Failures))
	}
	if w.Until.IsZero() {
		facts = append(facts, "until something changes")
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
		b.WriteString("\nNo pass has been made for it yet\n")
		return
	}
	fmt.Fprintf(b, "\nDecided in pass %d", y.Syncs)
	if !y.LastSync.IsZero() {
		fmt.Fprintf(b, ", %s ago", human(now.Sub(y.LastSync)))
	}
	if y.NextSync.IsZero() {
		b.WriteString("; the next comes when something changes\n")
	} else {
		fmt.Fprintf(b, "; the next comes at %s or when something changes\n", clockIn(now, y.NextSync))
	}
	for _, r := range y.Reasons {
		fmt.Fprintf(b, "  %s\n", clean(reasonText(r, now)))
	}
}

func spaced(a, b string) string { return strings.TrimSpace(a + " " + b) }

// human is a length of time that never shows below zero: the clocks of two
// programs are read at two moments.
func human(d time.Duration) string { return duration.HumanDuration(max(d, 0)) }

// clock is the time of day, with the day if it is another one than now's.
func clock(now, t time.Time) string {
	t = t.In(now.Location())
	if t.Format(time.DateOnly) != now.Format(time.DateOnly) {
		return t.Format(time.DateTime)
	}
	return t.Format(time.TimeOnly)
}

// clockIn is a time to come: "15:04:38, in 20s".
func clockIn(now, t time.Time) string {
	if !t.After(now) {
		return clock(now, t) + ", now"
	}
	return clock(now, t) + ", in " + human(t.Sub(now))
}
