package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"berth/node/handover"
	"berth/node/handover/executor"
)

func takeoverCommand() *cobra.Command {
	var o planOptions
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
			return takeOver(cmd.Context(), o)
		},
	}
	o.addFlags(cmd.Flags())
	return cmd
}

func takeOver(ctx context.Context, o planOptions) error {
	x, err := o.executor()
	if err != nil {
		return err
	}
	record, err := handover.ReadRecord(x.StateDir)
	if err != nil {
		return err
	}
	state, err := x.Observe(ctx, record)
	if err != nil {
		return err
	}
	if executor.NeedsPlan(record, state) {
		plan, pods, err := executor.PlanTakeover(ctx, state.Kubelet)
		if err == nil {
			err = o.print(plan)
		}
		if err != nil || o.dryRun {
			return err
		}
		if err := plan.Check(); err != nil {
			return err
		}
		if record, err = x.NewRecord(record, plan, pods, state); err != nil {
			return err
		}
	}
	if o.dryRun {
		return o.printNextStep(record, state)
	}
	outcomes, err := x.TakeOver(ctx, record)
	if err != nil {
		return err
	}
	if err := printTable(o.out, []string{"POD", "RESULT", "CONTAINER"}, outcomes, func(o handover.Outcome) []string {
		return []string{o.Pod, o.Result, o.Container}
	}); err != nil {
		return err
	}
	if failed := handover.Failures(outcomes); failed > 0 {
		return fmt.Errorf("%d of %d pods were not adopted unchanged; run berth why POD, or berth handback to undo "+
			"the takeover", failed, len(outcomes))
	}
	return nil
}
