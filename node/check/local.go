package check

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/ownership"
	"berth/cni"
	"berth/cri"
	"berth/internal/nodeconfig"
	"berth/node"
	"berth/node/cgroups"
	"berth/nodeapi"
)

// LocalOptions configures Local.
type LocalOptions struct {
	Flags   *nodeconfig.Flags
	Version string // of berth
}

// Local runs the checks without an agent, with the configuration that `berth run` would use
// with the same flags. It takes no lock, and does not mount, write or start anything. An error
// means that the configuration is invalid.
func Local(ctx context.Context, o LocalOptions) (r nodeapi.CheckReport, err error) {
	config, _, err := nodeconfig.Load(o.Flags)
	if err != nil {
		return r, err
	}
	client, err := cri.Dial(
		ctx,
		cri.Options{
			RuntimeEndpoint: config.RuntimeEndpoint, ImageEndpoint: config.ImageEndpoint,
			Instance: ownership.Instance(config.RootDir), OwnsUnlabeled: hasDir(config.RootDir),
		},
	)
	if err != nil {
		return r, err
	}
	defer func() { _ = client.Close() }() // read-only client
	c := Node{Config: config, Runtime: client}
	if c.Network, err = cni.New(
		cni.Options{ConfDir: config.Network.CNIConfDir, BinDirs: config.Network.CNIBinDirs},
	); err != nil {
		return r, err
	}
	driver := config.Cgroups.Driver
	if driver == "" {
		driver, _ = client.CgroupDriver(ctx) // the report contains the error
	}
	if c.Cgroups, err = cgroups.New(
		cgroups.Options{Root: config.Cgroups.Root, Driver: driver, CPUPeriod: config.Cgroups.CPUCFSPeriod},
	); err != nil {
		return r, fmt.Errorf("cgroups: %w", err)
	}
	r = c.Report(ctx)
	for i := range r.Items {
		if it := &r.Items[i]; it.Name == "cni configuration" && !it.OK && len(config.Network.CNIPodCIDRs) > 0 {
			it.OK, it.Remedy, it.Detail = true, "", "berth run creates one from cniPodCIDRs"
		}
	}
	add := Adder(&r)
	add("swap", true, node.CheckSwap(config.Cgroups), "disabled or allowed", "swapoff -a, or set failSwapOn: false")
	add("local store", false, storePlace(config.StateDir, nodeconfig.StoreFile), config.StateDir, StoreRemedy)
	if s, err := newServer(config, o.Version); err != nil {
		add("server", false, err, "", rejoin)
	} else if s != nil {
		s.Check(ctx, add)
	}
	return r, nil
}

// hasDir returns a function that reports whether a pod has a directory below a root directory.
func hasDir(rootDir string) func(types.UID) bool {
	return func(uid types.UID) bool {
		_, err := os.Lstat(filepath.Join(rootDir, "pods", string(uid)))
		return err == nil
	}
}

// storePlace returns an error if the local store cannot be created in a directory, or would be
// replaced.
func storePlace(dir, storeFile string) error {
	at := existingParent(dir)
	if st, err := os.Stat(at); err == nil && !st.IsDir() {
		return fmt.Errorf("%s is not a directory", at)
	}
	if st, err := os.Lstat(filepath.Join(dir, storeFile)); err == nil && !st.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file: berth run replaces it", filepath.Join(dir, storeFile))
	}
	if err := unix.Access(at, unix.W_OK); err != nil {
		return fmt.Errorf("write to %s: %w", at, err)
	}
	return nil
}

// CheckNameServers checks the name servers that pods inherit from the host. Pods cannot reach a
// name server on the loopback interface of the host.
func (c Node) CheckNameServers(add AddFunc) {
	var n node.PodResolvConf
	if n.SetPaths(c.Config.Network.ResolvConf, c.Config.Network.FallbackResolvConf); n.File.Path == "" {
		return // pods inherit no name servers
	}
	r, file, err := n.Read()
	servers := strings.Join(r.Nameservers, ", ")
	switch {
	case err != nil:
	case servers == "":
		err = fmt.Errorf("no name servers in %s", file)
	case !r.ReachableFromPod():
		err = fmt.Errorf("%s in %s: a loopback address of the host, which pods cannot reach", servers, file)
	}
	detail := fmt.Sprintf("%s in %s", servers, file)
	if err == nil && file != n.File.Path {
		detail += ": " + n.File.Path + " contains only loopback addresses"
	}
	add(
		"name servers",
		false,
		err,
		detail,
		"set resolvConf to a file with name servers that pods can reach: otherwise pods with dnsPolicy Default, and "+
			"without clusterDNS all pods, cannot resolve names",
	)
}
