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

// purgeCommand is run when the package is purged. The program, units and configuration are already
// removed then, and the package has kept copies of the program and the configuration.
func purgeCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: "purge-for-package", Hidden: true, Args: cobra.NoArgs,
		Short: "Terminate all pods and remove their state when the package is purged",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return purge(cmd.Context(), cmd.OutOrStdout(), file)
		},
	}
	cmd.Flags().StringVar(&file, "config", configFile, "configuration file of the agent")
	return cmd
}

func purge(ctx context.Context, out io.Writer, file string) error {
	w := serviceSpec("")
	if unit := install.LocalLayout.Units + "/" + w.Name + ".service"; install.Exists(unit) {
		_, err := fmt.Fprintf(out, "berth is also installed without the package (%s): pods and state are kept\n", unit)
		return err
	}
	config, err := configIn(file)
	if err != nil {
		return fmt.Errorf("cannot determine the pods of this host: %w; fix the configuration first", err)
	}
	w.Layout = install.DebianLayout
	u := uninstaller{out: out}
	l := u.removal(w, config)
	executor := &install.Executor{Context: ctx, Out: out}
	if err := checkRuntime(ctx, config); err != nil {
		// Without this, a purge could never succeed after the runtime was removed.
		l.BeforeRemove = nil
		executor.Skipped = append(
			executor.Skipped,
			fmt.Sprintf("containers, if any are running: the runtime is unavailable (%v)", err),
		)
	}
	if err := executor.Run(
		install.PlanRemoval(l, install.HostState{ExtraUnits: make([]install.UnitState, len(w.ExtraUnits))},
			install.Exists),
	); err != nil {
		return err
	}
	return u.report(executor, config)
}

// checkRuntime returns an error if nothing listens on the runtime endpoint.
func checkRuntime(ctx context.Context, c *nodeconfig.Config) error {
	conn, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(
		ctx,
		"unix",
		strings.TrimPrefix(c.RuntimeEndpoint, "unix://"),
	)
	if err != nil {
		return err
	}
	return conn.Close()
}
