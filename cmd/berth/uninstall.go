package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"berth/internal/nodeconfig"
	"berth/node/uninstall"
	"berth/systemd/install"
)

// uninstallOptions contains the flags of berth uninstall.
type uninstallOptions struct{ dryRun, yes, keepConfig bool }

func uninstallCommand() *cobra.Command {
	var u uninstallOptions
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Terminate all pods and remove berth from this host",
		Long: `Terminate all pods on this host with their grace periods and remove everything that berth created: the
service, its configuration with the manifest directory, its state, the pods' volumes, cgroups and logs, and
this program. containerd, its images and the network plugins are kept. The command prints what is left.

If berth was installed from a package, the command does nothing: use apt purge instead.`,
		Example: `  berth uninstall --dry-run
  berth uninstall --yes`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return u.do(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	cmd.Flags().BoolVar(&u.dryRun, "dry-run", false, "only print the steps that would be executed")
	cmd.Flags().BoolVarP(&u.yes, "yes", "y", false, "skip the confirmation prompt")
	cmd.Flags().BoolVar(&u.keepConfig, "keep-config", false, "keep "+configDir+" with the manifests")
	return cmd
}

func (u uninstallOptions) do(ctx context.Context, in io.Reader, out io.Writer) error {
	w := serviceSpec("")
	if err := install.CheckNotPackaged(w.Name); err != nil {
		return err
	}
	// The pods and certificates belong to the kubelet again after a handback.
	if err := uninstall.CheckNoTakeover(nodeconfig.DefaultStateDir, "berth"); err != nil {
		return err
	}
	o, err := removalOptions(configFile, w)
	if err != nil {
		return err
	}
	o.KeepConfig = u.keepConfig
	state, err := install.Inspect(ctx, w)
	if err != nil {
		return err
	}
	steps := install.PlanRemoval(o.Removal(), state, install.Exists)
	if len(steps) == 0 {
		_, err := fmt.Fprintln(out, "berth is not installed: nothing to do")
		return err
	}
	if u.dryRun {
		return install.PrintSteps(out, steps)
	}
	if !u.yes {
		if err := install.Confirm(in, out, steps); err != nil {
			return err
		}
	}
	executor := &install.Executor{Context: ctx, Out: out}
	if err := executor.Run(steps); err != nil {
		return err
	}
	return printRemaining(out, o.Remaining(executor.Skipped))
}

// removalOptions returns the options of a removal with the configuration of the agent, or with the defaults if
// there is no configuration file.
func removalOptions(file string, w install.Spec) (o uninstall.Options, err error) {
	flags := &nodeconfig.Flags{}
	if install.Exists(file) {
		flags.Config = file
	}
	config, _, err := nodeconfig.Load(flags)
	if err != nil {
		return o, fmt.Errorf("cannot determine the pods of this host: %w; fix the configuration first", err)
	}
	return uninstall.Options{Config: config, Service: w, TerminatePods: removeAllPods}, nil
}

func printRemaining(out io.Writer, remaining []string) error {
	_, err := fmt.Fprintf(out, "berth was removed. Not removed:\n  %s\n", strings.Join(remaining, "\n  "))
	return err
}

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
	if err := uninstall.CheckNoTakeover(stateDir, filepath.Join(stateDir, "package", "berth")); err != nil {
		return err
	}
	w := serviceSpec("")
	if unit := install.LocalLayout.Units + "/" + w.Name + ".service"; install.Exists(unit) {
		_, err := fmt.Fprintf(out, "berth is also installed without the package (%s): pods and state are kept\n", unit)
		return err
	}
	w.Layout = install.DebianLayout
	o, err := removalOptions(file, w)
	if err != nil {
		return err
	}
	executor := &install.Executor{Context: ctx, Out: out}
	if err := o.Purge(ctx, executor); err != nil {
		return err
	}
	return printRemaining(out, o.Remaining(executor.Skipped))
}
