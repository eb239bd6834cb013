package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/pflag"

	"berth/internal/nodeconfig"
	"berth/node/handover"
	"berth/node/handover/executor"
)

// planOptions contains the flags of berth takeover and berth handback about the plan.
type planOptions struct {
	out    io.Writer
	dryRun bool
	format string
}

func (o *planOptions) addFlags(f *pflag.FlagSet) {
	f.BoolVar(&o.dryRun, "dry-run", false, "only print the plan")
	f.StringVarP(&o.format, "output", "o", "", "format of the plan: json")
}

// executor returns the executor of hand-overs on this host.
func (o *planOptions) executor() (*executor.Executor, error) {
	if o.format != "" && o.format != "json" {
		return nil, fmt.Errorf("unable to match an output format for %q, allowed formats are: json", o.format)
	}
	return &executor.Executor{
		Out: o.out, StateDir: nodeconfig.DefaultStateDir, ConfigFile: configFile, Socket: nodeconfig.DefaultSocket,
		Service: serviceSpec,
	}, nil
}

// print prints a plan.
func (o *planOptions) print(p handover.Plan) error {
	if o.format == "json" {
		e := json.NewEncoder(o.out)
		e.SetIndent("", "    ")
		return e.Encode(p)
	}
	return printTable(o.out, []string{"VERDICT", "SETTING", "POD", "VALUE", "NOTE"}, p.Rows,
		func(r handover.Row) []string {
			return []string{string(r.Verdict), r.Subject, r.Pod, shorten(r.Value), r.Note}
		})
}

// printNextStep prints the next step of an interrupted hand-over.
func (o *planOptions) printNextStep(r *handover.Record, state handover.Host) error {
	_, err := fmt.Fprintf(o.out, "next step: %s\n", cmp.Or(handover.NextStep(r, state, nil), "none"))
	return err
}

// printTable prints one line per row.
func printTable[T any](out io.Writer, header []string, rows []T, line func(T) []string) error {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	lines := [][]string{header}
	for _, r := range rows {
		lines = append(lines, line(r))
	}
	for _, l := range lines {
		if _, err := fmt.Fprintln(w, strings.Join(l, "\t")); err != nil {
			return err
		}
	}
	return w.Flush()
}

// shorten limits the width of a column.
func shorten(s string) string {
	const limit = 50
	if r := []rune(s); len(r) > limit {
		return string(r[:limit-1]) + "…"
	}
	return s
}
