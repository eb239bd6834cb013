package cli

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"berth/nodeapi"

	"github.com/spf13/cobra"
)

func (c *factory) plan() *cobra.Command {
	var file, format string
	cmd := &cobra.Command{
		Use:   "plan -f FILE",
		Short: "Show what applying a manifest would do, without doing it",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFormat(format, "json", "yaml"); err != nil {
				return err
			}
			manifest, err := readManifest(file, cmd.InOrStdin())
			if err != nil {
				return err
			}
			client, err := c.dial()
			if err != nil {
				return err
			}
			defer client.Close()
			p, err := client.Plan(cmd.Context(), manifest)
			if err != nil {
				return err
			}
			if format != "" {
				return encode(cmd.OutOrStdout(), format, p)
			}
			_, err = io.WriteString(cmd.OutOrStdout(), planText(p, c.now()))
			return err
		},
	}
	cmd.Flags().StringVarP(&file, "filename", "f", "", "manifest file, YAML or JSON; - for stdin")
	cmd.Flags().StringVarP(&format, "output", "o", "", "output format: json or yaml")
	return cmd
}

// readManifest does not limit the size: the agent reports the limit.
func readManifest(file string, stdin io.Reader) ([]byte, error) {
	switch file {
	case "":
		return nil, errors.New("must specify -f FILE")
	case "-":
		return io.ReadAll(stdin)
	default:
		return os.ReadFile(file)
	}
}

func planText(p nodeapi.PlanResult, now time.Time) string {
	var b strings.Builder
	for i, pod := range p.Pods {
		if i > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "pod %s/%s: %s\n", clean(pod.Namespace), clean(pod.Name), changeText(pod.Change))
		if pod.Rejection != "" {
			fmt.Fprintf(&b, "  would be rejected: %s\n", clean(pod.Rejection))
		}
		if pod.ResizeRejection != "" {
			fmt.Fprintf(&b, "  would keep its current CPU and memory: %s\n", clean(pod.ResizeRejection))
		}
		writeStages(&b, pod, "  ", now)
	}
	for i, w := range p.Workloads {
		if i+len(p.Pods) > 0 {
			b.WriteString("\n")
		}
		writeWorkloadPlan(&b, w, now)
	}
	if len(p.Pods)+len(p.Workloads) == 0 {
		b.WriteString("The manifest contains no pods and no workloads.\n")
	}
	writeWarnings(&b, p.Warnings)
	return b.String()
}

// writeStages prints the actions of a pod and what it waits for afterwards.
func writeStages(b *strings.Builder, pod nodeapi.PodPlan, indent string, now time.Time) {
	for _, s := range pod.Stages {
		if len(s.Actions) == 0 {
			continue
		}
		fmt.Fprintf(b, "%s%s\n", indent, clean(s.Stage))
		for _, a := range s.Actions {
			fmt.Fprintf(b, "%s  %s\n", indent, clean(plannedAction(a)))
		}
	}
	for _, r := range pod.Reasons {
		fmt.Fprintf(b, "%sthen waiting for: %s\n", indent, clean(reasonText(r, now)))
	}
}

// maxPlannedSteps limits the printed steps of a workload.
const maxPlannedSteps = 40

func writeWorkloadPlan(b *strings.Builder, w nodeapi.WorkloadPlan, now time.Time) {
	change := changeText(w.Change)
	switch w.Change {
	case nodeapi.Update:
		change = "would be updated"
	case nodeapi.Replace:
		change = "would be deleted with its pods and created again"
	case nodeapi.Create, nodeapi.Resize, nodeapi.Unchanged:
	}
	fmt.Fprintf(b, "%s/%s: %s\n", clean(strings.ToLower(w.Kind)+" "+w.Namespace), clean(w.Name), change)
	if len(w.Fields) > 0 {
		fmt.Fprintf(b, "  changed: %s\n", clean(strings.Join(w.Fields, ", ")))
	}
	for _, command := range slices.Sorted(maps.Keys(w.EndedOverrides)) {
		fmt.Fprintf(b, "  override that would end: %s (berth %s)\n", clean(w.EndedOverrides[command]), clean(command))
	}
	var limits []string
	for _, l := range w.Limits {
		limits = append(limits, l.Name+" "+l.Value)
	}
	if len(limits) > 0 {
		fmt.Fprintf(b, "  %s\n", clean(strings.Join(limits, ", ")))
	}
	if !w.NextSchedule.IsZero() {
		fmt.Fprintf(b, "  next schedule: %s\n", clockIn(now, w.NextSchedule))
	}
	for i, s := range w.Steps {
		if i == maxPlannedSteps {
			fmt.Fprintf(b, "  … and %d more steps\n", len(w.Steps)-i)
			break
		}
		text := spaced(s.Action, s.Pod)
		if s.After != "" {
			text += ", after " + s.After
		}
		fmt.Fprintf(b, "  %d. %s\n", i+1, clean(text))
		if s.Rejection != "" {
			fmt.Fprintf(b, "     would be rejected: %s\n", clean(s.Rejection))
		}
	}
	if w.Incomplete {
		b.WriteString("  There are more steps.\n")
	}
	for _, r := range w.Reasons {
		fmt.Fprintf(b, "  note: %s\n", clean(reasonText(r, now)))
	}
	if w.NewPod != nil {
		b.WriteString("  for each new pod\n")
		writeStages(b, *w.NewPod, "    ", now)
	}
}

func changeText(c nodeapi.Change) string {
	switch c {
	case nodeapi.Create:
		return "would be created"
	case nodeapi.Update:
		return "would be updated in place"
	case nodeapi.Resize:
		return "would be resized in place"
	case nodeapi.Replace:
		return "would be replaced by a new pod"
	case nodeapi.Unchanged:
		return "unchanged"
	default:
		return clean(string(c))
	}
}

func plannedAction(a nodeapi.PlannedAction) string {
	text := a.Action
	if a.Target != "" {
		text += " " + a.Target
	}
	if a.Detail != "" {
		text += ": " + a.Detail
	}
	if a.Sync > 1 {
		text += fmt.Sprintf(" (sync %d)", a.Sync)
	}
	return text
}

// reasonText is one decision: "BackOff app: crashed 3 times (until 15:04:38, in 20s)".
func reasonText(r nodeapi.Reason, now time.Time) string {
	text := r.Code
	if r.Target != "" {
		text += " " + r.Target
	}
	if r.Detail != "" {
		text += ": " + r.Detail
	}
	if !r.Until.IsZero() {
		text += fmt.Sprintf(" (until %s)", clockIn(now, r.Until))
	}
	return text
}
