package main

import (
	"cmp"
	"context"
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
	"berth/nodeapi/server"
	"berth/systemd"
	"berth/systemd/install"
)

const (
	configFile = "/etc/berth/config.yaml"
	configDir  = "/etc/berth"
	manifests  = "/etc/berth/pods"
)

// freshConfig is what an installation writes where there is no configuration.
const freshConfig = `# The configuration of berth, the node agent. Each field, and what it does here,
# is in the user guide (docs/reference/configuration.md). Afterwards: systemctl reload berth
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
# The folder of manifest files: Pods, and the ConfigMaps and Secrets that they name.
staticPodPath: ` + manifests + `
# maxPods: 110
# evictionHard: {memory.available: 100Mi, nodefs.available: "10%"}
---
apiVersion: ` + nodeconfig.BerthAPIVersion + `
kind: ` + nodeconfig.BerthKind + `
# A network of berth's own for the pods, where containerd has none configured.
# cniPodCIDRs: [10.88.0.0/16]
# nodeLabels: {example.com/rack: "7"}
`

// wanted is this program as a service of the host.
func wanted(from string) install.Spec {
	return install.Spec{
		Name: "berth", Source: from, Unit: systemd.Unit, Config: freshConfig, ConfigFile: configFile, Layout: install.LocalLayout,
		Dirs:       []install.Dir{{Path: configDir, Mode: 0o755}, {Path: manifests, Mode: 0o700}}, // Secrets may lie there
		ExtraUnits: []install.Unit{{Name: systemd.DrainUnitName, Content: systemd.DrainUnit}},
	}
}

func installCommand() *cobra.Command {
	var dryRun, noStart bool
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Install or upgrade berth on this host",
		Long: `Install this program as a systemd service: copy it to /usr/local/bin, write the units, write /etc/berth/config.yaml if there
is none, make the folder of manifests /etc/berth/pods, and start the service now and at every boot.

What is as it should be is left alone, so that it may be called again at any time. Called with a newer program it upgrades: the
program is swapped and the agent restarted; pods go on, and no container is restarted.

Where a package has installed berth it does nothing: apt upgrades it there.`,
		Example: `  ./berth install --dry-run
  ./berth install
  systemctl status berth`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			from, err := os.Executable()
			if err != nil {
				return err
			}
			w := wanted(from)
			if err := install.CheckNotPackaged(w.Name); err != nil {
				return err
			}
			w.NoStart = noStart
			return installIt(cmd.Context(), cmd.OutOrStdout(), w, dryRun)
		},
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "say what would be done, and do nothing")
	cmd.Flags().BoolVar(&noStart, "no-start", false, "put the files there, but neither enable nor start the service")
	return cmd
}

func installIt(ctx context.Context, out io.Writer, w install.Spec, dryRun bool) error {
	seen, err := install.Inspect(ctx, w)
	if err != nil {
		return err
	}
	steps := install.Plan(w, seen)
	if len(steps) == 0 {
		_, err := fmt.Fprintln(out, "everything is in place: nothing to do")
		return err
	}
	if dryRun {
		return install.PrintSteps(out, steps)
	}
	if err := (&install.Executor{Context: ctx, Out: out}).Run(steps); err != nil || w.NoStart {
		return err
	}
	if does := install.Status(ctx, w); does == waitsForRuntime { // its start may be over without
		_, err = fmt.Fprintf(out, "%s runs, and is %s: berth check says more\n", w.Name, does)
	}
	return err
}

func uninstallCommand() *cobra.Command {
	var dryRun, yes, keepConfig bool
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "End all pods and remove berth from this host",
		Long: `End all pods of this host, each with its grace, and remove what berth has put there: the service, its configuration with the
folder of manifests, its state, the pods' volumes, cgroups and logs, and this program. containerd, its images and network plugins
stay. What is not removed is named at the end. Where a package has installed berth it does nothing: apt purge does the same there.`,
		Example: `  berth uninstall --dry-run
  berth uninstall --yes`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			u := uninstalling{in: cmd.InOrStdin(), out: cmd.OutOrStdout(), dryRun: dryRun, yes: yes, keepConfig: keepConfig}
			return u.do(cmd.Context())
		},
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "say what would be done, and do nothing")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	cmd.Flags().BoolVar(&keepConfig, "keep-config", false, "leave "+configDir+" with the manifests as it is")
	return cmd
}

// uninstalling is what berth uninstall is told.
type uninstalling struct {
	in                      io.Reader
	out                     io.Writer
	dryRun, yes, keepConfig bool
}

func (u uninstalling) do(ctx context.Context) error {
	w := wanted("")
	if err := install.CheckNotPackaged(w.Name); err != nil {
		return err
	}
	config, err := configIn(configFile)
	if err != nil {
		return fmt.Errorf("what pods this host has is not known: %w; mend the configuration first", err)
	}
	var seen install.HostState
	if seen, err = install.Inspect(ctx, w); err != nil {
		return err
	}
	steps := install.PlanRemoval(u.leaving(w, config), seen, install.Exists)
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
	doing := &install.Executor{Context: ctx, Out: u.out}
	if err := doing.Run(steps); err != nil {
		return err
	}
	return u.report(doing, config)
}

// configIn is the configuration of a service, or berth's defaults where there is
// none.
func configIn(file string) (*nodeconfig.Config, error) {
	flags := &nodeconfig.Flags{}
	if install.Exists(file) {
		flags.Config = file
	}
	config, _, err := nodeconfig.Load(flags)
	return config, err
}

// leaving is all that an agent with this configuration makes on a host.
func (u uninstalling) leaving(w install.Spec, c *nodeconfig.Config) install.RemovalSpec {
	below := func(names ...string) (out []string) {
		for _, n := range names {
			out = append(out, filepath.Join(c.RootDir, n))
		}
		return out
	}
	l := install.RemovalSpec{
		Spec: w,
		BeforeRemove: []install.Step{{Kind: install.Custom, Description: "end all pods, each with its grace", Run: func(d *install.Executor) error {
			return endAllPods(d.Context, c, d.Out)
		}}},
		Trees:     below("pods", "device-plugins", "image_manager"),
		EmptyDirs: []string{c.RootDir, c.PodLogsDir, logLinks},
	}
	folders(&l, c)
	if file := systemd.InhibitDelayFile(systemd.LogindDropInDir); install.Exists(file) {
		l.AfterRemove = append(l.AfterRemove, install.Step{Kind: install.Custom, Description: "remove " + file + ", and have logind read its configuration", Run: func(d *install.Executor) error {
			_, err := systemd.RemoveInhibitDelay(d.Context, systemd.LogindDropInDir)
			return err
		}})
	}
	if !u.keepConfig {
		l.Trees = append(l.Trees, configDir)
	}
	if !install.Exists(w.ConfigFile) && !install.Exists(c.StateDir) && !install.Exists(c.RootDir) {
		l.BeforeRemove = nil // no agent has ever run here
	}
	return l
}

// folders adds the directories that are berth's, and its files in those that may have more
// in them: in each that somebody has chosen.
func folders(l *install.RemovalSpec, c *nodeconfig.Config) {
	some := func(dir string, files ...string) {
		l.Files = append(l.Files, inside(dir, files...)...)
		l.EmptyDirs = append(l.EmptyDirs, dir)
	}
	// The usual one is berth's, and was in use before another was chosen.
	whole := func(dir, usual string, files ...string) {
		l.Trees = append(l.Trees, usual)
		if dir != usual {
			some(dir, files...)
		}
	}
	if dir := c.StateDir; dir != nodeconfig.DefaultStateDir {
		l.Trees = append(l.Trees, filepath.Join(dir, commandsDir))
		// In images lie what users have brought, in networks what could not be taken from a pod.
		at := filepath.Join(dir, networksDir)
		l.EmptyDirs = append(l.EmptyDirs, filepath.Join(at, "results"), at, filepath.Join(dir, "images"))
	}
	whole(c.StateDir, nodeconfig.DefaultStateDir, storeFile, storeFile+".*", node.InstallationFile, importRecords, ".images-*", gateway.FileName, gateway.FileName+".new")
	whole(filepath.Dir(c.Socket), filepath.Dir(nodeconfig.DefaultSocket), filepath.Base(c.Socket))
	keys := append(apiclient.CertificateFilePatterns(), server.SelfSignedFiles()...)
	switch { // the usual one is the kubelet's too, if there is one
	case c.CertDir == nodeconfig.DefaultCertDir:
		l.Trees = append(l.Trees, c.CertDir)
	case c.RootDir == nodeconfig.DefaultRootDir:
		some(nodeconfig.DefaultCertDir, keys...)
		fallthrough
	default:
		some(c.CertDir, keys...)
	}
	// What lies in another one goes before it.
	slices.SortStableFunc(l.EmptyDirs, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
}

// inside is what a directory has by these names or patterns.
func inside(dir string, patterns ...string) (out []string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil // it is not there, or its removal says what is wrong
	}
	for _, e := range entries {
		if slices.ContainsFunc(patterns, func(p string) bool { ok, _ := filepath.Match(p, e.Name()); return ok }) {
			out = append(out, filepath.Join(dir, e.Name()))
		}
	}
	return out
}

// report names what stays.
func (u uninstalling) report(d *install.Executor, c *nodeconfig.Config) error {
	kept := append(d.Skipped, "containerd with its images and network plugins")
	if u.keepConfig {
		kept = append(kept, configDir)
	}
	if p := c.StaticPodPath; p != "" && install.Exists(p) && (u.keepConfig || !strings.HasPrefix(p, configDir+"/")) {
		kept = append(kept, p+", the manifests")
	}
	_, err := fmt.Fprintf(u.out, "berth is gone. What stays:\n  %s\n", strings.Join(kept, "\n  "))
	return err
}
