package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth/internal/nodeconfig"
	"berth/systemd/install"
)

// purgeCommand is what the package runs when it is purged: its program, units and
// configuration are gone by then, and it has kept copies of the first and the last.
func purgeCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: "purge-for-package", Hidden: true, Args: cobra.NoArgs,
		Short: "End all pods and remove their state, when a package is purged",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return purge(cmd.Context(), cmd.OutOrStdout(), file)
		},
	}
	cmd.Flags().StringVar(&file, "config", configFile, "the configuration that the agent had")
	return cmd
}

func purge(ctx context.Context, out io.Writer, file string) error {
	w := wanted("")
	if unit := install.LocalLayout.Units + "/" + w.Name + ".service"; install.Exists(unit) {
		_, err := fmt.Fprintf(out, "berth is installed beside the package (%s): its pods and state stay\n", unit)
		return err
	}
	config, err := configIn(file)
	if err != nil {
		return fmt.Errorf("what pods this host has is not known: %w; mend the configuration first", err)
	}
	w.Layout = install.DebianLayout
	u := uninstalling{out: out}
	l := u.leaving(w, config)
	doing := &install.Executor{Context: ctx, Out: out}
	if err := answers(ctx, config); err != nil {
		// A purge that fails for it would fail for ever where the runtime has been removed too.
		l.BeforeRemove = nil
		doing.Skipped = append(doing.Skipped, fmt.Sprintf("containers, if any run: the runtime does not answer (%v)", err))
	}
	if err := doing.Run(install.PlanRemoval(l, install.HostState{ExtraUnits: make([]install.UnitState, len(w.ExtraUnits))}, install.Exists)); err != nil {
		return err
	}
	return u.report(doing, config)
}

// answers is an error if nobody listens where the runtime should.
func answers(ctx context.Context, c *nodeconfig.Config) error {
	conn, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, "unix", strings.TrimPrefix(c.RuntimeEndpoint, "unix://"))
	if err != nil {
		return err
	}
	return conn.Close()
}
