package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"berth/cni/gateway"
	"berth/internal/apiclient"
	"berth/internal/nodeconfig"
	"berth/node"
	"berth/node/handover"
	"berth/nodeapi/server"
	"berth/services/localaddress"
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

func uninstallCommand() *cobra.Command {
	var dryRun, yes, keepConfig bool
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
			u := uninstaller{
				in:         cmd.InOrStdin(),
				out:        cmd.OutOrStdout(),
				dryRun:     dryRun,
				yes:        yes,
				keepConfig: keepConfig,
			}
			return u.do(cmd.Context())
		},
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only print the steps that would be executed")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "skip the confirmation prompt")
	cmd.Flags().BoolVar(&keepConfig, "keep-config", false, "keep "+configDir+" with the manifests")
	return cmd
}

// uninstaller contains the options of berth uninstall.
type uninstaller struct {
	in                      io.Reader
	out                     io.Writer
	dryRun, yes, keepConfig bool
	host                    string // root of the file system; empty: /
}

func (u uninstaller) do(ctx context.Context) error {
	w := serviceSpec("")
	if err := install.CheckNotPackaged(w.Name); err != nil {
		return err
	}
	// The pods and certificates belong to the kubelet again after a handback.
	if err := checkNoTakeover(nodeconfig.DefaultStateDir, "berth"); err != nil {
		return err
	}
	config, err := configIn(configFile)
	if err != nil {
		return fmt.Errorf("cannot determine the pods of this host: %w; fix the configuration first", err)
	}
	var state install.HostState
	if state, err = install.Inspect(ctx, w); err != nil {
		return err
	}
	steps := install.PlanRemoval(u.removal(w, config), state, install.Exists)
	if len(steps) == 0 {
		_, err := fmt.Fprintln(u.out, "berth is not installed: nothing to do")
		return err
	}
	if u.dryRun {
		return install.PrintSteps(u.out, steps)
	}
	if !u.yes {
		if err := install.Confirm(u.in, u.out, steps); err != nil {
			return err
		}
	}
	executor := &install.Executor{Context: ctx, Out: u.out}
	if err := executor.Run(steps); err != nil {
		return err
	}
	return u.report(executor, config)
}

// checkNoTakeover returns an error while berth runs the pods of the kubelet of this host.
func checkNoTakeover(stateDir, program string) error {
	record, err := handover.ReadRecord(stateDir)
	if err == nil && record == nil {
		return nil
	}
	return errors.Join(err, fmt.Errorf("berth has taken over this node from the kubelet: run %s handback first",
		program))
}

// configIn returns the configuration of the service, or the defaults if there is no configuration
// file.
func configIn(file string) (*nodeconfig.Config, error) {
	flags := &nodeconfig.Flags{}
	if install.Exists(file) {
		flags.Config = file
	}
	config, _, err := nodeconfig.Load(flags)
	return config, err
}

// removal describes everything that an agent with this configuration creates on a host.
func (u uninstaller) removal(w install.Spec, c *nodeconfig.Config) install.RemovalSpec {
	kubelet := len(kubeletFiles(u.host, c.RootDir)) > 0
	l := install.RemovalSpec{
		Spec: w,
		BeforeRemove: []install.Step{
			{
				Kind:        install.Custom,
				Description: "terminate all pods with their grace periods",
				Run: func(d *install.Executor) error {
					return removeAllPods(d.Context, c, d.Out, kubelet)
				},
			},
		},
		EmptyDirs: []string{c.RootDir, c.PodLogsDir, logLinks},
	}
	addDirs(&l, c, addRootDir(&l, c, kubelet), kubelet)
	if file := systemd.InhibitDelayFile(systemd.LogindDropInDir); install.Exists(file) {
		l.AfterRemove = append(
			l.AfterRemove,
			install.Step{
				Kind:        install.Custom,
				Description: "remove " + file + " and reload the configuration of logind",
				Run: func(d *install.Executor) error {
					_, err := systemd.RemoveInhibitDelay(d.Context, systemd.LogindDropInDir)
					return err
				},
			},
		)
	}
	if !u.keepConfig {
		l.Trees = append(l.Trees, configDir)
	}
	if !install.Exists(w.ConfigFile) && !install.Exists(c.StateDir) && !install.Exists(c.RootDir) {
		l.BeforeRemove = nil // no agent has run on this host
	}
	return l
}

// addDirs adds the directories that belong to berth, and the files of berth in directories that can
// contain other files because an administrator has configured them. Certificates in the default
// directory are kept if the host has a kubelet, or if the root directory is the default and shared.
func addDirs(l *install.RemovalSpec, c *nodeconfig.Config, shared, kubelet bool) {
	addFiles := func(dir string, files ...string) {
		l.Files = append(l.Files, matchingEntries(dir, files...)...)
		l.EmptyDirs = append(l.EmptyDirs, dir)
	}
	// The default directory belongs to berth, and may have been used before another one was
	// configured.
	addTree := func(dir, defaultDir string, files ...string) {
		l.Trees = append(l.Trees, defaultDir)
		if dir != defaultDir {
			addFiles(dir, files...)
		}
	}
	if dir := c.StateDir; dir != nodeconfig.DefaultStateDir {
		l.Trees = append(l.Trees, filepath.Join(dir, execsDir))
		// images contains archives added by users, networks contains networks that could
		// not be detached.
		at := filepath.Join(dir, networksDir)
		l.EmptyDirs = append(l.EmptyDirs, filepath.Join(at, "results"), at, filepath.Join(dir, "images"))
	}
	addTree(
		c.StateDir,
		nodeconfig.DefaultStateDir,
		storeFile,
		storeFile+".*",
		node.InstallationFile,
		importRecords,
		".images-*",
		gateway.FileName,
		gateway.FileName+".new",
		localaddress.FileName,
		localaddress.FileName+".new",
	)
	addTree(filepath.Dir(c.Socket), filepath.Dir(nodeconfig.DefaultSocket), filepath.Base(c.Socket))
	keys := append(apiclient.CertificateFilePatterns(), server.SelfSignedFiles()...)
	switch { // the default directory is also that of a kubelet
	case kubelet && c.CertDir != nodeconfig.DefaultCertDir:
		addFiles(c.CertDir, keys...)
	case kubelet, shared && c.RootDir == nodeconfig.DefaultRootDir:
	case c.CertDir == nodeconfig.DefaultCertDir:
		l.Trees = append(l.Trees, c.CertDir)
	case c.RootDir == nodeconfig.DefaultRootDir:
		addFiles(nodeconfig.DefaultCertDir, keys...)
		fallthrough
	default:
		addFiles(c.CertDir, keys...)
	}
	// Nested directories first.
	slices.SortStableFunc(l.EmptyDirs, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
}

// matchingEntries returns the entries of a directory that match the patterns.
func matchingEntries(dir string, patterns ...string) (out []string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil // missing, or the removal reports the error
	}
	for _, e := range entries {
		if slices.ContainsFunc(patterns, func(p string) bool { ok, _ := filepath.Match(p, e.Name()); return ok }) {
			out = append(out, filepath.Join(dir, e.Name()))
		}
	}
	return out
}

// report prints what is left.
func (u uninstaller) report(d *install.Executor, c *nodeconfig.Config) error {
	remaining := append(d.Skipped, "containerd with its images and network plugins")
	if found := kubeletFiles(u.host, c.RootDir); len(found) > 0 {
		remaining = append(remaining, fmt.Sprintf("certificates in %s, directories in %s and the cgroups of pods, "+
			"because this host has a kubelet (%s)", nodeconfig.DefaultCertDir, c.RootDir, found[0]))
	}
	if u.keepConfig {
		remaining = append(remaining, configDir)
	}
	if p := c.StaticPodPath; p != "" && install.Exists(p) && (u.keepConfig || !strings.HasPrefix(p, configDir+"/")) {
		remaining = append(remaining, p+" (manifests)")
	}
	_, err := fmt.Fprintf(u.out, "berth was removed. Not removed:\n  %s\n", strings.Join(remaining, "\n  "))
	return err
}
