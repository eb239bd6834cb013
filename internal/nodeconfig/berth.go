package nodeconfig

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// API version and kind of berth's document.
const (
	BerthAPIVersion = "berth.dev/v1alpha1"
	BerthKind       = "BerthConfiguration"
)

// BerthConfiguration is the second document of the file: settings without a field in
// KubeletConfiguration. Every field has a default.
type BerthConfiguration struct {
	metav1.TypeMeta `json:",inline"`

	// NodeName is the name of the node. Default: the host name, in lower case.
	NodeName string `json:"nodeName,omitempty"`
	// NodeIPs are the addresses of the node, at most one per family.
	NodeIPs []string `json:"nodeIPs,omitempty"`
	// NodeLabels are the labels of the node.
	NodeLabels map[string]string `json:"nodeLabels,omitempty"`
	// RootDir contains the volumes of pods. Default: /var/lib/kubelet.
	RootDir string `json:"rootDir,omitempty"`
	// Kubeconfig is the kubeconfig of the API server. Default: none, pods come from files only. It
	// is written if it does not exist and BootstrapKubeconfig is set.
	Kubeconfig string `json:"kubeconfig,omitempty"`
	// BootstrapKubeconfig is the kubeconfig to request a client certificate with, if there is no
	// valid one.
	BootstrapKubeconfig string `json:"bootstrapKubeconfig,omitempty"`
	// CertDir contains the certificates that the agent requests. Default: /var/lib/kubelet/pki.
	CertDir string `json:"certDir,omitempty"`
	// ImageCredentialProviderConfig is a file with a CredentialProviderConfig of
	// kubelet.config.k8s.io/v1, or a directory with such files. Default: none.
	ImageCredentialProviderConfig string `json:"imageCredentialProviderConfig,omitempty"`
	// ImageCredentialProviderBinDir contains the credential provider plugins.
	ImageCredentialProviderBinDir string `json:"imageCredentialProviderBinDir,omitempty"`
	// StateDir contains berth's local store. Default: /var/lib/berth.
	StateDir string `json:"stateDir,omitempty"`
	// Socket is the local API socket. Default: /run/berth/berth.sock.
	Socket string `json:"socket,omitempty"`
	// CNIConfDir contains the CNI configuration. Default: /etc/cni/net.d.
	CNIConfDir string `json:"cniConfDir,omitempty"`
	// CNIBinDirs contain the CNI plugins. Default: /opt/cni/bin and /usr/lib/cni.
	CNIBinDirs []string `json:"cniBinDirs,omitempty"`
	// CNIPodCIDRs are the pod CIDRs of a default CNI configuration that the agent writes, at most
	// one per family. The single value node stands for the pod CIDRs that the API server assigns
	// to the node, or podCIDR on a standalone node. Default: no configuration is written.
	CNIPodCIDRs []string `json:"cniPodCIDRs,omitempty"`
	// PodRouting is how pods reach pods on other nodes if the API server assigns pod CIDRs
	// (cniPodCIDRs: [node]): hostGateway creates routes to the other nodes and masquerades only
	// traffic that leaves all pod CIDRs; none does nothing. Default: hostGateway.
	PodRouting string `json:"podRouting,omitempty"`
	// ServiceProxy is on, off or auto: whether the agent routes the traffic of Services. auto means
	// on for a standalone node and with berth-control, and off with other control planes, which
	// have a proxy of their own. Default: auto.
	ServiceProxy string `json:"serviceProxy,omitempty"`
	// ServiceCIDR is the range of cluster IPs for the Services of manifest files on a standalone
	// node. Default: 10.43.0.0/16.
	ServiceCIDR string `json:"serviceCIDR,omitempty"`
	// ClusterDNSServer is on, off or auto: whether the agent answers the DNS queries of pods on the
	// addresses of clusterDNS. auto is as for ServiceProxy. Default: auto.
	ClusterDNSServer string `json:"clusterDNSServer,omitempty"`
	// NetworkPolicy is on, off or auto: whether the agent enforces NetworkPolicies on the pods of a node
	// that has joined a server. auto is on with berth-control. With another control plane, the node needs
	// permission to list and watch networkpolicies, pods and namespaces. Default: auto.
	NetworkPolicy string `json:"networkPolicy,omitempty"`
	// MaxParallelStarts is the maximum number of pods that start concurrently. Default: 10.
	MaxParallelStarts *int32 `json:"maxParallelStarts,omitempty"`
	// StartPressurePercent is the CPU pressure (PSI, some avg10) above which fewer pods start
	// concurrently, down to the number of CPUs plus one at 100%. 100: disabled. Default: 90.
	StartPressurePercent *int32 `json:"startPressurePercent,omitempty"`
	// MemoryPressureSources selects the sources that must agree on memory pressure: both requires
	// the working set and either the kernel's estimate (MemAvailable) or its stall information
	// (PSI); workingSet is upstream's behavior. Default: both.
	MemoryPressureSources string `json:"memoryPressureSources,omitempty"`
	// DeadContainersKept is the number of exited instances of a container that are kept in
	// addition to the newest one, for their logs; upstream's
	// --maximum-dead-containers-per-container. Default: 1.
	DeadContainersKept *int32 `json:"deadContainersKept,omitempty"`
	// DeadContainerMinAge is the minimum time since the exit of an instance before it is removed;
	// upstream's --minimum-container-ttl-duration. Default: 0s.
	DeadContainerMinAge metav1.Duration `json:"deadContainerMinAge"`
	// ImageGCPeriod is the interval of image garbage collection. Default: 5m, which is fixed
	// upstream.
	ImageGCPeriod metav1.Duration `json:"imageGCPeriod"`
	// ImagesDir contains image archives (docker save, OCI), which are imported and kept.
	// Default: images in stateDir.
	ImagesDir string `json:"imagesDir,omitempty"`
	// ContainerLogMaxBytesPerMinute is ignored.
	//
	// Deprecated: the limit was removed. The field is accepted with a warning for one release.
	ContainerLogMaxBytesPerMinute string `json:"containerLogMaxBytesPerMinute,omitempty"`
}

// BerthField describes one field of BerthConfiguration in docs/reference/configuration.md.
type BerthField struct{ Name, Type, Default, Description, Flag string }

// BerthFields returns the fields of BerthConfiguration for docs/reference/configuration.md.
func BerthFields() []BerthField {
	return slices.Concat(nodeFields(), networkFields(), podFields(), imageFields())
}

// nodeFields are the fields about the node, its API server and its paths.
func nodeFields() []BerthField {
	return []BerthField{
		{"nodeName", "string", "host name", "name of the node", "--hostname-override"},
		{
			"nodeIPs",
			"list of addresses",
			"detected",
			"addresses of the node, at most one per family; if they are detected, the agent restarts itself, as on a " +
				"reload, when the host has lost one of them and has others",
			"--node-ip",
		},
		{"nodeLabels", "map", "none", "labels of the node", "--node-labels"},
		{"rootDir", "path", DefaultRootDir, "directory of the volumes of pods", "--root-dir"},
		{
			"kubeconfig",
			"path",
			"none",
			"kubeconfig of the API server; none: pods come from files only",
			"--kubeconfig",
		},
		{
			"bootstrapKubeconfig",
			"path",
			"none",
			"kubeconfig to request a client certificate with, if there is no valid one; `berth join` writes it",
			"--bootstrap-kubeconfig",
		},
		{"certDir", "path", DefaultCertDir, "directory of the certificates that the agent requests", "--cert-dir"},
		{
			"imageCredentialProviderConfig",
			"path",
			"none",
			"file with a `CredentialProviderConfig`, or directory with such files",
			"--image-credential-provider-config",
		},
		{
			"imageCredentialProviderBinDir",
			"path",
			"none",
			"directory of the credential provider plugins",
			"--image-credential-provider-bin-dir",
		},
		{"stateDir", "path", DefaultStateDir, "directory of berth's local store", "--state-dir"},
		{"socket", "path", DefaultSocket, "local API socket, used by the commands on the node", "--socket"},
	}
}

// networkFields are the fields about the pod network.
func networkFields() []BerthField {
	return []BerthField{
		{"cniConfDir", "path", DefaultCNIConfDir, "directory of the CNI configuration", ""},
		{"cniBinDirs", "list of paths", "/opt/cni/bin, /usr/lib/cni", "directories of the CNI plugins", ""},
		{
			"cniPodCIDRs",
			"list of ranges",
			"none",
			"pod CIDRs of a default CNI configuration that the agent writes; `[node]`: those that the API " +
				"server assigns " +
				"to the node, or `podCIDR` on a standalone node",
			"--cni-pod-cidr",
		},
		{
			"podRouting",
			"hostGateway or none",
			"hostGateway",
			"with `cniPodCIDRs: [node]` on a node that has joined a server: `hostGateway` creates routes to " +
				"the pods of " +
				"other nodes and masquerades only traffic to other destinations, `none` leaves routing to another " +
				"component; see networking.md",
			"",
		},
		{
			"serviceProxy",
			"auto, on or off",
			"auto",
			"route the traffic of Services with nftables; auto: on for a standalone node and with berth-control, off " +
				"with other control planes; see services.md",
			"",
		},
		{
			"serviceCIDR",
			"range",
			DefaultServiceCIDR,
			"range of cluster IPs for the Services of manifest files on a standalone node; the tenth address is that " +
				"of the DNS server, unless `clusterDNS` is set",
			"",
		},
		{
			"clusterDNSServer",
			"auto, on or off",
			"auto",
			"answer the DNS queries of pods on the addresses of `clusterDNS`; auto: as for `serviceProxy`; see dns.md",
			"",
		},
		{
			"networkPolicy",
			"auto, on or off",
			"auto",
			"enforce NetworkPolicies on the pods of a node that has joined a server; auto: on with berth-control, " +
				"off with another control plane, which needs a ClusterRole; see network-policy.md",
			"",
		},
	}
}

// podFields are the fields about starts, evictions and dead containers of pods.
func podFields() []BerthField {
	return []BerthField{
		{"maxParallelStarts", "number", "10", "maximum number of pods that start concurrently", ""},
		{
			"startPressurePercent",
			"number",
			"90",
			"CPU pressure (PSI, `some avg10`, in percent) above which fewer pods start concurrently, down to " +
				"the number " +
				"of CPUs plus one at 100%; 100: disabled",
			"",
		},
		{
			"memoryPressureSources",
			"both or workingSet",
			"both",
			"sources that must agree on memory pressure: the working set and either the kernel's estimate " +
				"(MemAvailable) " +
				"or its stall information (PSI), or the working set alone, as upstream",
			"",
		},
		{
			"deadContainersKept",
			"number",
			"1",
			"number of exited instances of a container that are kept in addition to the newest one (upstream's flag " +
				"--maximum-dead-containers-per-container)",
			"",
		},
		{
			"deadContainerMinAge",
			"duration",
			"0s",
			"minimum time since the exit of such an instance before it is removed (upstream's flag " +
				"--minimum-container-ttl-duration)",
			"",
		},
	}
}

// imageFields are the fields about images, and deprecated fields.
func imageFields() []BerthField {
	return []BerthField{
		{
			"imageGCPeriod",
			"duration",
			"5m",
			"interval of image garbage collection by imageGCHighThresholdPercent and imageMaximumGCAge; at least 1s",
			"",
		},
		{
			"imagesDir",
			"path",
			"`images` in stateDir",
			"directory of image archives (`docker save` or OCI, optionally gzipped): `.tar`, `.tar.gz` and " +
				"`.tgz` files " +
				"are imported, each content once, and their images are kept as long as the file exists",
			"",
		},
		{"containerLogMaxBytesPerMinute", "quantity", "none", "deprecated and ignored: the limit was removed", ""},
	}
}

// Default paths.
const (
	DefaultRootDir         = "/var/lib/kubelet"
	DefaultStateDir        = "/var/lib/berth"
	DefaultSocket          = "/run/berth/berth.sock"
	DefaultCNIConfDir      = "/etc/cni/net.d"
	DefaultServiceCIDR     = "10.43.0.0/16"
	DefaultCertDir         = "/var/lib/kubelet/pki"
	DefaultRuntimeEndpoint = "unix:///run/containerd/containerd.sock"
)

// Names of files and directories in the state directory.
const (
	StoreFile         = "berth.db"    // local store
	ExecsDir          = "commands"    // running commands
	NetworksDir       = "networks"    // attached networks of pods
	ImportRecordsFile = "images.json" // imported archives
)

// LogLinksDir is the directory of the links to container logs.
const LogLinksDir = "/var/log/containers"

// SystemdResolvConf is the file in which systemd-resolved lists the upstream servers.
// /etc/resolv.conf contains its local stub.
const SystemdResolvConf = "/run/systemd/resolve/resolv.conf"
