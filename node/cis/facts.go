package cis

import (
	"errors"
	"io/fs"
	"os"
	"strings"

	"berth/internal/cis"
	"berth/internal/nodeconfig"
)

// Facts are what the checks depend on.
type Facts struct {
	// Config is the effective configuration of the agent.
	Config *nodeconfig.Config
	// HostName is the name of the host, in lower case.
	HostName string
	// Units are the existing unit files of the agent. ConfigFile, Kubeconfigs and ClientCA have no path if they are not
	// configured.
	Units                []cis.File
	ConfigFile, ClientCA cis.File
	Kubeconfigs          []cis.File
	// CNI has the files of the Container Network Interface, without directories.
	CNI    []cis.File
	CNIErr error
}

// addressDir is where the plugin host-local keeps the addresses of pods.
const addressDir = "/var/lib/cni/networks"

// Read reads the facts of a node. units are the paths where the unit file can be.
func Read(config *nodeconfig.Config, units []string) *Facts {
	f := &Facts{Config: config}
	host, _ := os.Hostname() // an empty name differs from all names of nodes
	f.HostName = strings.ToLower(host)
	for _, path := range units {
		if unit := cis.Stat(path); unit.Err == nil {
			f.Units = append(f.Units, unit)
		}
	}
	stat := func(path string) (out cis.File) {
		if path != "" {
			out = cis.Stat(path)
		}
		return out
	}
	f.ConfigFile, f.ClientCA = stat(config.ConfigFile), stat(config.Server.ClientCAFile)
	for _, path := range []string{config.Kubeconfig, config.BootstrapKubeconfig} {
		if path != "" {
			f.Kubeconfigs = append(f.Kubeconfigs, stat(path))
		}
	}
	for _, dir := range []string{config.Network.CNIConfDir, addressDir} {
		files, err := cis.Tree(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			f.CNIErr = errors.Join(f.CNIErr, err)
		}
		for _, file := range files {
			if !file.Dir {
				f.CNI = append(f.CNI, file)
			}
		}
	}
	return f
}
