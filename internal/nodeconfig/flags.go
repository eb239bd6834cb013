package nodeconfig

import (
	"github.com/spf13/pflag"
)

// Flags are the flags of `berth run`. They win over the file; a flag that was
// not given says nothing.
type Flags struct {
	Config              string
	Kubeconfig          string
	BootstrapKubeconfig string
	CertDir             string
	HostnameOverride    string
	NodeIP              string // one, or two of different families with a comma
	RootDir             string
	RuntimeEndpoint     string
	PodManifestPath     string
	NodeLabels          map[string]string
	RegisterWithTaints  []string // key=value:Effect, key:Effect
	Verbosity           int
	StateDir            string
	Socket              string
	CNIPodCIDR          []string

	set *pflag.FlagSet // knows which were given; nil: those that are not empty
}

// AddTo defines the flags.
func (f *Flags) AddTo(fs *pflag.FlagSet) {
	f.set = fs
	fs.StringVar(&f.Config, "config", "", "file with a KubeletConfiguration and, as a second document, a BerthConfiguration")
	fs.StringVar(&f.Kubeconfig, "kubeconfig", "", "file that says how to reach the control server; none: standalone")
	fs.StringVar(&f.BootstrapKubeconfig, "bootstrap-kubeconfig", "", "file to ask for a client certificate with, when --kubeconfig is not there yet")
	fs.StringVar(&f.CertDir, "cert-dir", DefaultCertDir, "directory of certificates that the agent asked for")
	fs.StringVar(&f.HostnameOverride, "hostname-override", "", "the node's name instead of the host's")
	fs.StringVar(&f.NodeIP, "node-ip", "", "the node's address, or an IPv4 and an IPv6 address with a comma")
	fs.StringVar(&f.RootDir, "root-dir", DefaultRootDir, "directory of the pods' volumes")
	fs.StringVar(&f.RuntimeEndpoint, "container-runtime-endpoint", DefaultRuntimeEndpoint, "socket of the container runtime")
	fs.StringVar(&f.PodManifestPath, "pod-manifest-path", "", "folder or file with manifests of Pods, ConfigMaps and Secrets")
	fs.StringToStringVar(&f.NodeLabels, "node-labels", nil, "labels of the node, key=value with commas")
	fs.StringSliceVar(&f.RegisterWithTaints, "register-with-taints", nil, "taints to register the node with, key=value:Effect with commas")
	fs.IntVarP(&f.Verbosity, "v", "v", 0, "how much is logged: 0 to 2 changes of state, 4 details, 6 every call")
	fs.StringVar(&f.StateDir, "state-dir", DefaultStateDir, "directory of berth's own store")
	fs.StringVar(&f.Socket, "socket", DefaultSocket, "local socket of the node's own commands")
	fs.StringSliceVar(&f.CNIPodCIDR, "cni-pod-cidr", nil, "write a default CNI configuration for this pod range (two: one per family; node: what the server gives the node, standalone what podCIDR says)")
}

// given reports whether a flag was set on the command line. value tells, for
// Flags made without a flag set, whether the field is not empty.
func (f *Flags) given(name string, value bool) bool {
	if f.set == nil {
		return value
	}
	flag := f.set.Lookup(name)
	return flag != nil && flag.Changed
}
