package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
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
		for _, s := range pod.Stages {
			if len(s.Actions) == 0 {
				continue
			}
			fmt.Fprintf(&b, "  %s\n", clean(s.Stage))
			for _, a := range s.Actions {
				fmt.Fprintf(&b, "    %s\n", clean(plannedAction(a)))
			}
		}
		for _, r := range pod.Reasons {
			fmt.Fprintf(&b, "  then waiting for: %s\n", clean(reasonText(r, now)))
		}
	}
	if len(p.Pods) == 0 {
		b.WriteString("The manifest contains no pods.\n")
	}
	writeWarnings(&b, p.Warnings)
	return b.String()
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
