package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"berth/internal/nodeconfig"
	"berth/node/handover"
	"berth/systemd/install"
)

// takeoverOptions contains the flags of berth takeover.
type takeoverOptions struct {
	out    io.Writer
	dryRun bool
	format string
}

func takeoverCommand() *cobra.Command {
	var o takeoverOptions
	cmd := &cobra.Command{
		Use:   "takeover",
		Short: "Replace the kubelet on this host with berth",
		Long: `Replace the kubelet on this host with berth, without restarting containers. The command reads the unit
kubelet.service with its drop-ins, the kubelet's flags, configuration files and checkpoints, and prints what
berth supports, ignores and rejects. If anything is rejected, nothing is changed.

Otherwise the command writes /etc/berth/config.yaml, installs berth.service, stops and disables
kubelet.service, starts berth.service, and prints what became of each pod. berth uses the kubelet's root
directory, certificates and kubeconfig. If berth does not start, the kubelet is started again.

An interrupted takeover is completed by running the command again, or undone by berth handback.`,
		Example: `  berth takeover --dry-run
  berth takeover
  berth handback`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.out = cmd.OutOrStdout()
			return o.do(cmd.Context())
		},
	}
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "only print the plan")
	cmd.Flags().StringVarP(&o.format, "output", "o", "", "format of the plan: json")
	return cmd
}

func (o takeoverOptions) do(ctx context.Context) error {
	if err := checkPlanFormat(o.format); err != nil {
		return err
	}
	record, err := handover.ReadRecord(nodeconfig.DefaultStateDir)
	if err != nil {
		return err
	}
	h := &handoverHost{out: o.out, stateDir: nodeconfig.DefaultStateDir}
	state, err := h.observe(ctx, record)
	if err != nil {
		return err
	}
	if record == nil || state.Kubelet.Active { // an interrupted takeover has already stopped the kubelet otherwise
		plan, pods, err := makePlan(ctx, state.Kubelet)
		if err == nil {
			err = printPlan(o.out, o.format, plan)
		}
		if err != nil || o.dryRun {
			return err
		}
		if n := len(plan.Rejected()); n > 0 {
			return fmt.Errorf("%d rows of the plan are rejected, nothing was changed", n)
		}
		if record, err = h.newRecord(record, plan, pods, state); err != nil {
			return err
		}
	}
	if o.dryRun {
		_, err := fmt.Fprintf(o.out, "next step: %s\n", cmp.Or(handover.NextStep(record, state, nil), "none"))
		return err
	}
	record.Turn(handover.Takeover)
	return h.takeOver(ctx, record)
}

func checkPlanFormat(format string) error {
	if format != "" && format != "json" {
		return fmt.Errorf("unable to match an output format for %q, allowed formats are: json", format)
	}
	return nil
}

func printPlan(out io.Writer, format string, p handover.Plan) error {
	if format == "json" {
		e := json.NewEncoder(out)
		e.SetIndent("", "    ")
		return e.Encode(p)
	}
	return printTable(out, []string{"VERDICT", "SETTING", "POD", "VALUE", "NOTE"}, p.Rows,
		func(r handover.Row) []string {
			return []string{string(r.Verdict), r.Subject, r.Pod, shorten(r.Value), r.Note}
		})
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

// newRecord writes the record of a new takeover. The state of the kubelet before an interrupted one
// is kept.
func (h *handoverHost) newRecord(before *handover.Record, p handover.Plan, pods []*corev1.Pod,
	state handover.Host) (*handover.Record, error) {
	r := before
	if r == nil {
		if state.BerthActive || state.BerthEnabled {
			return nil, errors.New("berth.service is already in use on this host: stop and disable it first")
		}
		previous, err := previousConfiguration()
		if err != nil {
			return nil, err
		}
		r = &handover.Record{Unit: state.Kubelet, Previous: previous}
	}
	r.Direction, r.Completed, r.Released, r.Restored = handover.Takeover, false, false, false
	r.NodeCleaned = false
	r.Configuration, r.RootDir = p.Configuration, p.RootDir
	r.Pods, r.Mirrors = handover.RunningPods(pods), handover.MirrorStatuses(pods)
	return r, r.Write(h.stateDir)
}

// takeOver runs the steps of a takeover, and those of a handback after an error.
func (h *handoverHost) takeOver(ctx context.Context, r *handover.Record) error {
	err := h.run(ctx, r)
	if err == nil {
		return h.report(ctx, r)
	}
	if _, e := fmt.Fprintf(h.out, "takeover failed: %v\nrolling back\n", err); e != nil {
		return errors.Join(err, e)
	}
	r.Turn(handover.Handback)
	if e := h.run(context.WithoutCancel(ctx), r); e != nil {
		return errors.Join(err, fmt.Errorf("roll back: %w; remove the cause and run berth handback", e))
	}
	return fmt.Errorf("%w; %s is as before", err, handover.KubeletService)
}

// report prints what became of each pod.
func (h *handoverHost) report(ctx context.Context, r *handover.Record) error {
	outcomes, err := h.awaitPods(ctx, r.Pods)
	if err != nil {
		return err
	}
	failed := 0
	for _, o := range outcomes {
		if o.Failed() {
			failed++
		}
	}
	if err := printTable(h.out, []string{"POD", "RESULT", "CONTAINER"}, outcomes, func(o handover.Outcome) []string {
		return []string{o.Pod, o.Result, o.Container}
	}); err != nil {
		return err
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d pods were not adopted unchanged; run berth why POD, or berth handback to undo "+
			"the takeover", failed, len(outcomes))
	}
	return nil
}

// unitStateOf returns the state of a unit from its properties.
func unitStateOf(properties map[string]string) handover.UnitState {
	active := properties["ActiveState"]
	return handover.UnitState{
		Loaded:  properties["LoadState"] != "not-found",
		Enabled: properties["UnitFileState"],
		Active:  active != "inactive" && active != "failed",
	}
}

// kubeletState returns the state of kubelet.service.
func kubeletState(ctx context.Context) (handover.UnitState, error) {
	p, err := install.Properties(ctx, handover.KubeletService, "LoadState", "ActiveState", "UnitFileState")
	return unitStateOf(p), err
}
