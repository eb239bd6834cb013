package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"berth/nodeapi"

	"github.com/spf13/cobra"
)

func (c *factory) evict() *cobra.Command {
	var explain bool
	var signal, format string
	cmd := &cobra.Command{
		Use:   "evict --explain",
		Short: "Show the order in which pods would be evicted under node pressure",
		Long: `Show the order in which pods would be evicted if the node ran out of memory, disk or process IDs, with
the current usage that determines the order. No pod is evicted by this command: berth evicts pods one
at a time when an eviction threshold is met.

The order is: pods with unknown usage, pods that use more than their requests, pods with lower
priority, pods with the highest usage above their requests (process IDs and inodes cannot be
requested). Critical pods are never evicted. "at least" marks usage that could not be counted
completely in time.`,
		Example: `  berth evict --explain
  berth evict --explain --signal nodefs.available -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !explain {
				return errors.New("pods cannot be evicted manually: use --explain to show the eviction order")
			}
			if err := checkFormat(format, "json", "yaml"); err != nil {
				return err
			}
			client, err := c.dial()
			if err != nil {
				return err
			}
			defer client.Close()
			e, err := client.Eviction(cmd.Context(), signal)
			switch {
			case err != nil:
				return err
			case format != "":
				return encode(cmd.OutOrStdout(), format, e)
			}
			return writeEviction(cmd.OutOrStdout(), c.screen(cmd.OutOrStdout()), e)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&explain, "explain", false, "show the eviction order")
	f.StringVar(
		&signal,
		"signal",
		"",
		"eviction signal, as in evictionHard (default: the active signals, or memory, disk and processes)",
	)
	f.StringVarP(&format, "output", "o", "", "output format: json or yaml")
	fixed(
		cmd,
		"signal",
		"memory.available",
		"nodefs.available",
		"nodefs.inodesFree",
		"imagefs.available",
		"imagefs.inodesFree",
		"containerfs.available",
		"containerfs.inodesFree",
		"pid.available",
		"allocatableMemory.available",
	)
	fixed(cmd, "output", "json", "yaml")
	return cmd
}

func writeEviction(w io.Writer, s screen, e nodeapi.EvictionPreview) error {
	for i, x := range e.Signals {
		if i > 0 {
			if _, err := fmt.Fprintln(w); err != nil {
				return err
			}
		}
		color := ""
		if x.UnderPressure {
			color = colorError
		}
		if _, err := fmt.Fprintln(w, s.paint(color, clean(x.Message))); err != nil {
			return err
		}
		if len(x.Order) == 0 {
			if _, err := fmt.Fprintln(w, "  no pods can be evicted"); err != nil {
				return err
			}
			continue
		}
		t := table{w: w, indent: "  "}
		if err := t.print(rankRows(x)...); err != nil {
			return err
		}
	}
	if len(e.Exempt) == 0 {
		return nil
	}
	var b strings.Builder
	b.WriteString("\nNever evicted:\n")
	for _, p := range e.Exempt {
		fmt.Fprintf(&b, "  %s/%s: %s\n", clean(p.Namespace), clean(p.Name), clean(p.Reason))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// rankRows are the rows of one order. Columns for requests are omitted for resources that cannot be
// requested.
func rankRows(x nodeapi.EvictionSignal) [][]string {
	head := []string{"ORDER", "NAMESPACE", "NAME", "USES"}
	if x.Requestable {
		head = append(head, "REQUESTS", "EXCEEDS")
	}
	rows := [][]string{append(head, "PRIORITY")}
	for i, r := range x.Order {
		uses := r.UsedText
		if !r.Known {
			uses = unknown
		}
		row := []string{fmt.Sprint(i + 1), r.Namespace, r.Name, uses}
		if x.Requestable {
			exceeds := "no"
			if r.ExceedsRequest {
				exceeds = "yes"
			}
			row = append(row, r.RequestedText, exceeds)
		}
		rows = append(rows, append(row, fmt.Sprint(r.Priority)))
	}
	return rows
}
