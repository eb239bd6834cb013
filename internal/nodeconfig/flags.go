package nodeconfig

import (
	"github.com/spf13/pflag"
)

// Flags are the flags of `berth run`. Flags that were set take precedence over the file.
type Flags struct {
	Config              string
	Kubeconfig          string
	BootstrapKubeconfig string
	CertDir             string
	HostnameOverride    string
	NodeIP              string // one, or two of different families separated by a comma
	RootDir             string
	RuntimeEndpoint     string
	PodManifestPath     string
	NodeLabels          map[string]string
	RegisterWithTaints  []string // key=value:Effect, key:Effect
	Verbosity           int
	StateDir            string
	Socket              string
	CNIPodCIDR          []string

	ImageCredentialProviderConfig, ImageCredentialProviderBinDir string

	set *pflag.FlagSet // reports which flags were set; nil: flags that are not empty
}

// AddTo defines the flags.
func (f *Flags) AddTo(fs *pflag.FlagSet) {
	f.set = fs
	fs.StringVar(
		&f.Config,
		"config",
		"",
		"file with a KubeletConfiguration and, as a second document, a BerthConfiguration",
	)
	fs.StringVar(&f.Kubeconfig, "kubeconfig", "", "kubeconfig of the API server; none: standalone")
	fs.StringVar(
		&f.BootstrapKubeconfig,
		"bootstrap-kubeconfig",
		"",
		"kubeconfig to request a client certificate with, if --kubeconfig does not exist yet",
	)
	fs.StringVar(&f.CertDir, "cert-dir", DefaultCertDir, "directory of the certificates that the agent requests")
	fs.StringVar(&f.HostnameOverride, "hostname-override", "", "name of the node instead of the host name")
	fs.StringVar(&f.NodeIP, "node-ip", "", "address of the node, or an IPv4 and an IPv6 address separated by a comma")
	fs.StringVar(&f.RootDir, "root-dir", DefaultRootDir, "directory of the volumes of pods")
	fs.StringVar(
		&f.RuntimeEndpoint,
		"container-runtime-endpoint",
		DefaultRuntimeEndpoint,
		"socket of the container runtime",
	)
	fs.StringVar(
		&f.PodManifestPath,
		"pod-manifest-path",
		"",
		"directory or file with manifests of Pods, workloads, Services, ConfigMaps and Secrets",
	)
	fs.StringToStringVar(&f.NodeLabels, "node-labels", nil, "labels of the node, key=value separated by commas")
	fs.StringSliceVar(
		&f.RegisterWithTaints,
		"register-with-taints",
		nil,
		"taints to register the node with, key=value:Effect separated by commas",
	)
	fs.StringVar(
		&f.ImageCredentialProviderConfig,
		"image-credential-provider-config",
		"",
		"file with a CredentialProviderConfig, or directory with such files",
	)
	fs.StringVar(
		&f.ImageCredentialProviderBinDir,
		"image-credential-provider-bin-dir",
		"",
		"directory of the credential provider plugins",
	)
	fs.IntVarP(&f.Verbosity, "v", "v", 0, "log verbosity: 0 to 2 state changes, 4 debug, 6 every call")
	fs.StringVar(&f.StateDir, "state-dir", DefaultStateDir, "directory of berth's local store")
	fs.StringVar(&f.Socket, "socket", DefaultSocket, "local API socket")
	fs.StringSliceVar(
		&f.CNIPodCIDR,
		"cni-pod-cidr",
		nil,
		"write a default CNI configuration for this pod CIDR (at most one per family; node: the CIDRs that the API "+
			"server assigns, or podCIDR on a standalone node)",
	)
}

// given reports whether a flag was set on the command line. value reports whether the field is not
// empty, for Flags without a flag set.
func (f *Flags) given(name string, value bool) bool {
	if f.set == nil {
		return value
	}
	flag := f.set.Lookup(name)
	return flag != nil && flag.Changed
}
