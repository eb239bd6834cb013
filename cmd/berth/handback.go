package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"berth/node/handover"
)

func handbackCommand() *cobra.Command {
	var o planOptions
	var force bool
	cmd := &cobra.Command{
		Use:   "handback",
		Short: "Undo a takeover: replace berth on this host with the kubelet",
		Long: `Undo berth takeover, also an interrupted one: stop and disable berth.service, release the pods, restore
the previous configuration of berth, and enable and start kubelet.service as it was before the takeover.

After a complete takeover, the command first prints a plan. If the kubelet would restart a pod, run it twice or
give away its devices, the row of the pod is rejected, and nothing is changed.

The kubelet finds its certificates, image pull records and checkpoints in the same files. The pods belong to
the kubelet then: a later start of berth does not change them unless it adopts them, and berth uninstall keeps
them.`,
		Example: `  berth handback --dry-run
  berth handback
  systemctl status kubelet`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.out = cmd.OutOrStdout()
			return handBack(cmd.Context(), o, force)
		},
	}
	o.addFlags(cmd.Flags())
	cmd.Flags().BoolVar(&force, "force", false, "hand back even if rows are rejected: the kubelet restarts these pods")
	return cmd
}

func handBack(ctx context.Context, o planOptions, force bool) error {
	x, err := o.executor()
	if err != nil {
		return err
	}
	r, err := handover.ReadRecord(x.StateDir)
	if err != nil {
		return err
	}
	if r == nil {
		return errors.New("this host has no takeover to undo")
	}
	var plan *handover.Plan // nil: continues an interrupted hand-over
	if r.AdoptedPods() {
		made := x.PlanHandback(ctx, r)
		plan = &made
		if err := o.print(made); err != nil || o.dryRun {
			return err
		}
		if err := made.Check(); err != nil && !force {
			return err
		}
	}
	if o.dryRun {
		state, err := x.Observe(ctx, r)
		if err != nil {
			return err
		}
		r.Turn(handover.Handback)
		return o.printNextStep(r, state)
	}
	if err := x.HandBack(ctx, r, plan); err != nil || r.Unit.Active {
		return err
	}
	_, err = fmt.Fprintf(o.out, "%s was not active before the takeover and is not started: run systemctl start %s\n",
		handover.KubeletService, handover.KubeletService)
	return err
}
