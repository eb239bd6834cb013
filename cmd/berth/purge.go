package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth/agent/checkpoint"
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
			return purge(cmd.Context(), cmd.OutOrStdout(), file, nodeconfig.DefaultStateDir)
		},
	}
	cmd.Flags().StringVar(&file, "config", configFile, "configuration file of the agent")
	return cmd
}

func purge(ctx context.Context, out io.Writer, file, stateDir string) error {
	// The removal of the package fails before that, but can be forced.
	if err := checkNoTakeover(stateDir, filepath.Join(stateDir, "package", "berth")); err != nil {
		return err
	}
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
		if len(l.BeforeRemove) > 0 {
			l.BeforeRemove = []install.Step{removeServicesStep(config)}
		}
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

// removeServicesStep removes rules and addresses without an agent.
func removeServicesStep(c *nodeconfig.Config) install.Step {
	return install.Step{
		Kind: install.Custom, Description: "remove the rules of Services and network policies",
		Run: func(*install.Executor) error {
			store, _, err := checkpoint.Open(checkpoint.Options{Path: filepath.Join(c.StateDir, storeFile)})
			if err != nil {
				return err
			}
			return errors.Join(removeServices(store, c.StateDir), store.Close())
		},
	}
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
