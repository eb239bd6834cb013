package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"berth/internal/nodeconfig"
	"berth/systemd"
	"berth/systemd/install"
)

const (
	configFile = "/etc/berth/config.yaml"
	configDir  = "/etc/berth"
	manifests  = "/etc/berth/pods"
)

// defaultConfig is the configuration file that an installation creates if there is none.
const defaultConfig = `# Configuration of berth, the node agent. docs/reference/configuration.md describes all fields.
# After a change: systemctl reload berth
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
# Directory of manifest files: Pods, workloads, Services, ConfigMaps and Secrets.
staticPodPath: ` + manifests + `
# maxPods: 110
# evictionHard: {memory.available: 100Mi, nodefs.available: "10%"}
---
apiVersion: ` + nodeconfig.BerthAPIVersion + `
kind: ` + nodeconfig.BerthKind + `
# A pod network created by berth, if containerd has no network configuration.
# cniPodCIDRs: [10.88.0.0/16]
# nodeLabels: {example.com/rack: "7"}
`

// serviceSpec describes this program as a systemd service.
func serviceSpec(from string) install.Spec {
	return install.Spec{
		Name: "berth", Source: from, Unit: systemd.Unit, Config: defaultConfig, ConfigFile: configFile,
		Layout: install.LocalLayout,
		Dirs: []install.Dir{
			{Path: configDir, Mode: 0o755},
			{Path: manifests, Mode: 0o700},
		}, // can contain Secrets
		ExtraUnits: []install.Unit{{Name: systemd.DrainUnitName, Content: systemd.DrainUnit}},
	}
}

func installCommand() *cobra.Command {
	var dryRun, noStart, printClusterRole bool
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Install or upgrade berth on this host",
		Long: `Install this program as a systemd service: copy it to /usr/local/bin, write the systemd units, create
/etc/berth/config.yaml if it does not exist, create the manifest directory /etc/berth/pods, and enable and
start the service.

The command is idempotent. A newer program upgrades the installation: it replaces the program and restarts
the agent. Pods keep running and no container is restarted.

If berth was installed from a package, the command does nothing: upgrade the package instead.`,
		Example: `  ./berth install --dry-run
  ./berth install
  systemctl status berth`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if printClusterRole {
				_, err := fmt.Fprint(cmd.OutOrStdout(), clusterRole)
				return err
			}
			from, err := os.Executable()
			if err != nil {
				return err
			}
			w := serviceSpec(from)
			if err := install.CheckNotPackaged(w.Name); err != nil {
				return err
			}
			w.NoStart = noStart
			return installService(cmd.Context(), cmd.OutOrStdout(), w, dryRun)
		},
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only print the steps that would be executed")
	cmd.Flags().BoolVar(&noStart, "no-start", false, "install the files, but do not enable or start the service")
	cmd.Flags().BoolVar(&printClusterRole, "print-cluster-role", false, "only print the ClusterRole for Services, DNS "+
		"and network policies that nodes need with a control plane other than berth-control")
	return cmd
}

func installService(ctx context.Context, out io.Writer, w install.Spec, dryRun bool) error {
	state, err := install.Inspect(ctx, w)
	if err != nil {
		return err
	}
	steps := install.Plan(w, state)
	if len(steps) == 0 {
		_, err := fmt.Fprintln(out, "berth is up to date: nothing to do")
		return err
	}
	if dryRun {
		return install.PrintSteps(out, steps)
	}
	if err := (&install.Executor{Context: ctx, Out: out}).Run(steps); err != nil || w.NoStart {
		return err
	}
	// the service can be active before the runtime is available
	if status := install.Status(ctx, w); status == statusWaitingForRuntime {
		_, err = fmt.Fprintf(out, "%s is running, status: %s. For details run: berth check\n", w.Name, status)
	}
	return err
}
