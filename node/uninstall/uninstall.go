// Package uninstall decides what berth uninstall and the purge of berth's package remove from a host: what
// berth has created, and nothing that belongs to a kubelet or another program.
package uninstall

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"berth/agent/checkpoint"
	"berth/cni/gateway"
	"berth/internal/apiclient"
	"berth/internal/nodeconfig"
	"berth/node"
	"berth/node/handover"
	"berth/nodeapi/server"
	"berth/services/localaddress"
	"berth/services/nodeservices"
	"berth/services/proxy"
	"berth/systemd"
	"berth/systemd/install"
)

// Options are the options of a removal.
type Options struct {
	Config     *nodeconfig.Config // of the installed agent
	Service    install.Spec
	KeepConfig bool   // keep the directory of the configuration file with the manifests
	Host       string // root of the file system; empty: /
	// TerminatePods terminates all pods. kubelet means that the host has a kubelet.
	TerminatePods func(ctx context.Context, c *nodeconfig.Config, out io.Writer, kubelet bool) error
}

func (o Options) configDir() string { return filepath.Dir(o.Service.ConfigFile) }

// CheckNoTakeover returns an error while berth runs the pods of the kubelet of this host.
func CheckNoTakeover(stateDir, program string) error {
	record, err := handover.ReadRecord(stateDir)
	if err == nil && record == nil {
		return nil
	}
	return errors.Join(err, fmt.Errorf("berth has taken over this node from the kubelet: run %s handback first",
		program))
}

// Removal describes everything that an agent with this configuration creates on a host.
func (o Options) Removal() install.RemovalSpec {
	w, c := o.Service, o.Config
	kubelet := len(KubeletFiles(o.Host, c.RootDir)) > 0
	l := install.RemovalSpec{
		Spec: w,
		BeforeRemove: []install.Step{
			{
				Kind:        install.Custom,
				Description: "terminate all pods with their grace periods",
				Run: func(d *install.Executor) error {
					return o.TerminatePods(d.Context, c, d.Out, kubelet)
				},
			},
		},
		EmptyDirs: []string{c.RootDir, c.PodLogsDir, nodeconfig.LogLinksDir},
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
	if !o.KeepConfig {
		l.Trees = append(l.Trees, o.configDir())
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
		l.Trees = append(l.Trees, filepath.Join(dir, nodeconfig.ExecsDir))
		// images contains archives added by users, networks contains networks that could
		// not be detached.
		at := filepath.Join(dir, nodeconfig.NetworksDir)
		l.EmptyDirs = append(l.EmptyDirs, filepath.Join(at, "results"), at, filepath.Join(dir, "images"))
	}
	addTree(
		c.StateDir,
		nodeconfig.DefaultStateDir,
		nodeconfig.StoreFile,
		nodeconfig.StoreFile+".*",
		node.InstallationFile,
		nodeconfig.ImportRecordsFile,
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

// Remaining lists what is left on the host after a removal.
func (o Options) Remaining(skipped []string) []string {
	c := o.Config
	remaining := append(skipped, "containerd with its images and network plugins")
	if found := KubeletFiles(o.Host, c.RootDir); len(found) > 0 {
		remaining = append(remaining, fmt.Sprintf("certificates in %s, directories in %s and the cgroups of pods, "+
			"because this host has a kubelet (%s)", nodeconfig.DefaultCertDir, c.RootDir, found[0]))
	}
	if o.KeepConfig {
		remaining = append(remaining, o.configDir())
	}
	if p := c.StaticPodPath; p != "" && install.Exists(p) &&
		(o.KeepConfig || !strings.HasPrefix(p, o.configDir()+"/")) {
		remaining = append(remaining, p+" (manifests)")
	}
	return remaining
}

// Purge removes everything after the package was removed. Without a runtime it keeps the containers.
func (o Options) Purge(ctx context.Context, executor *install.Executor) error {
	l := o.Removal()
	if err := checkRuntime(ctx, o.Config); err != nil {
		// Without this, a purge could never succeed after the runtime was removed.
		if len(l.BeforeRemove) > 0 {
			l.BeforeRemove = []install.Step{removeServicesStep(o.Config)}
		}
		executor.Skipped = append(
			executor.Skipped,
			fmt.Sprintf("containers, if any are running: the runtime is unavailable (%v)", err),
		)
	}
	return executor.Run(install.PlanRemoval(
		l, install.HostState{ExtraUnits: make([]install.UnitState, len(o.Service.ExtraUnits))}, install.Exists,
	))
}

// removeServicesStep removes rules and addresses without an agent.
func removeServicesStep(c *nodeconfig.Config) install.Step {
	return install.Step{
		Kind: install.Custom, Description: "remove the rules of Services and network policies",
		Run: func(*install.Executor) error {
			store, _, err := checkpoint.Open(checkpoint.Options{Path: filepath.Join(c.StateDir, nodeconfig.StoreFile)})
			if err != nil {
				return err
			}
			return errors.Join(RemoveServices(store, c.StateDir), store.Close())
		},
	}
}

// RemoveServices removes the rules of Services and network policies and the addresses of the DNS server,
// which stay when the agent stops. A kubelet and a kube-proxy find a clean host.
func RemoveServices(store *checkpoint.Store, stateDir string) error {
	stored, err := store.NodeValues(nodeservices.Prefix)
	if err != nil {
		return err
	}
	return nodeservices.Remove(nodeservices.RemoveOptions{
		Stored: stored, Put: store.PutNodeValue, RemoveProxy: func() error { return proxy.Remove(0) },
		Addresses: localaddress.Addresses{File: filepath.Join(stateDir, localaddress.FileName)},
		Log:       slog.New(slog.DiscardHandler),
	})
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
