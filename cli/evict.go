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
		Short: "Show who would have to go if the node ran short, and in which order",
		Long: `Show the order in which pods would be evicted if the node ran short of memory, disk
or processes, with the figures that the order goes by, measured now. Nobody is
evicted: berth does that by itself when a threshold is met, one pod at a time.

First go pods of which nothing is known, then those that use more than they
request, then the lower priority, then those that use most beyond their request
(processes and inodes cannot be requested). Critical pods never go. What has so
many files that they could not all be counted in time says "at least".`,
		Example: `  berth evict --explain
  berth evict --explain --signal nodefs.available -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !explain {
				return errors.New("nobody is evicted by hand: --explain shows who would go")
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
	f.BoolVar(&explain, "explain", false, "show the order of going")
	f.StringVar(&signal, "signal", "", "what the node would run short of, as in evictionHard (what is short now, or else memory, disk and processes)")
	f.StringVarP(&format, "output", "o", "", "json or yaml")
	fixed(cmd, "signal", "memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available", "imagefs.inodesFree",
		"containerfs.available", "containerfs.inodesFree", "pid.available", "allocatableMemory.available")
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
		colour := ""
		if x.UnderPressure {
			colour = bad
		}
		if _, err := fmt.Fprintln(w, s.paint(colour, clean(x.Message))); err != nil {
			return err
		}
		if len(x.Order) == 0 {
			if _, err := fmt.Fprintln(w, "  no pod is there that may go"); err != nil {
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
	b.WriteString("\nnever evicted:\n")
	for _, p := range e.Exempt {
		fmt.Fprintf(&b, "  %s/%s: %s\n", clean(p.Namespace), clean(p.Name), clean(p.Reason))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// rankRows are the lines of one order. Where pods cannot request anything, that is
// left out.
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
