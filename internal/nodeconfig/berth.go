package nodeconfig

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What berth's own document says it is.
const (
	BerthAPIVersion = "berth.dev/v1alpha1"
	BerthKind       = "BerthConfiguration"
)

// BerthConfiguration is the second document of the file: what upstream's has no
// field for. Every field has a default.
type BerthConfiguration struct {
	metav1.TypeMeta `json:",inline"`

	// NodeName is the node's name. Default: the host's name, in lower case.
	NodeName string `json:"nodeName,omitempty"`
	// NodeIPs are the node's addresses, at most one per family.
	NodeIPs []string `json:"nodeIPs,omitempty"`
	// NodeLabels are the node's labels.
	NodeLabels map[string]string `json:"nodeLabels,omitempty"`
	// RootDir has the pods' volumes. Default: /var/lib/kubelet.
	RootDir string `json:"rootDir,omitempty"`
	// Kubeconfig says how to reach the control server. Default: none, the node
	// runs pods of files alone. It is written when it is not there and
	// BootstrapKubeconfig is.
	Kubeconfig string `json:"kubeconfig,omitempty"`
	// BootstrapKubeconfig is what to ask for a client certificate with, when there
	// is none that is good.
	BootstrapKubeconfig string `json:"bootstrapKubeconfig,omitempty"`
	// CertDir has the certificates that the agent asked for. Default:
	// /var/lib/kubelet/pki.
	CertDir string `json:"certDir,omitempty"`
	// StateDir has berth's own store. Default: /var/lib/berth.
	StateDir string `json:"stateDir,omitempty"`
	// Socket is the local socket of the node's own commands. Default: /run/berth/berth.sock.
	Socket string `json:"socket,omitempty"`
	// CNIConfDir has the network configuration. Default: /etc/cni/net.d.
	CNIConfDir string `json:"cniConfDir,omitempty"`
	// CNIBinDirs have the network plugins. Default: /opt/cni/bin and /usr/lib/cni.
	CNIBinDirs []string `json:"cniBinDirs,omitempty"`
	// CNIPodCIDRs are the pod ranges to write a default network configuration
	// for, at most one per family; or the one word node: those that the server
	// gives the node, or podCIDR on a standalone one. Default: none is written.
	CNIPodCIDRs []string `json:"cniPodCIDRs,omitempty"`
	// PodRouting is how pods reach those of other nodes where the server gives the
	// nodes their ranges (cniPodCIDRs: [node]): hostGateway, by routes to the nodes
	// that berth makes, with masquerading only of what leaves all pod ranges; or
	// none. Default: hostGateway.
	PodRouting string `json:"podRouting,omitempty"`
	// MaxParallelStarts is how many pods are started at once. Default: 10.
	MaxParallelStarts *int32 `json:"maxParallelStarts,omitempty"`
	// StartPressurePercent is in how much of the last 10 s something must have waited
	// for a CPU (PSI) that fewer pods are started at once, at 100% one more than the
	// host has CPUs. 100: never fewer. Default: 90.
	StartPressurePercent *int32 `json:"startPressurePercent,omitempty"`
	// MemoryPressureSources says who must find memory short before it counts as
	// pressure: both, the working set and the kernel's own estimate or its stalls;
	// or workingSet alone, as upstream. Default: both.
	MemoryPressureSources string `json:"memoryPressureSources,omitempty"`
	// DeadContainersKept is how many ended instances of a container are kept
	// beside its newest, for their logs; upstream's
	// --maximum-dead-containers-per-container. Default: 1.
	DeadContainersKept *int32 `json:"deadContainersKept,omitempty"`
	// DeadContainerMinAge is how long ago an instance must have ended before it
	// is removed; upstream's --minimum-container-ttl-duration. Default: 0s.
	DeadContainerMinAge metav1.Duration `json:"deadContainerMinAge"`
	// ImageGCPeriod is how often it is looked whether images must go. Default: 5m,
	// which upstream's cannot be told to change.
	ImageGCPeriod metav1.Duration `json:"imageGCPeriod"`
	// ImagesDir has archives of images (docker save, OCI), which are imported and
	// kept. Default: images in stateDir.
	ImagesDir string `json:"imagesDir,omitempty"`
	// ContainerLogMaxBytesPerMinute is how much of one minute of a container's log
	// is kept once the log has been rotated: a quantity from 4Ki on. Default: all.
	ContainerLogMaxBytesPerMinute string `json:"containerLogMaxBytesPerMinute,omitempty"`
}

// BerthField is one row of the second table of the user guide.
type BerthField struct{ Name, Type, Default, Description, Flag string }

// BerthFields returns what BerthConfiguration has, for the user guide.
func BerthFields() []BerthField {
	return []BerthField{
		{"nodeName", "string", "the host's name", "the node's name", "--hostname-override"},
		{"nodeIPs", "list of addresses", "found by the agent", "the node's addresses, at most one per family; where the agent finds them it begins anew, as on a reload, when the host has lost one of them and has others", "--node-ip"},
		{"nodeLabels", "map", "none", "the node's labels", "--node-labels"},
		{"rootDir", "path", DefaultRootDir, "the pods' volumes", "--root-dir"},
		{"kubeconfig", "path", "none", "how to reach the control server; none: pods come from files alone", "--kubeconfig"},
		{"bootstrapKubeconfig", "path", "none", "what to ask for a client certificate with when there is none that is good; `berth join` writes it", "--bootstrap-kubeconfig"},
		{"certDir", "path", DefaultCertDir, "the certificates that the agent asked for", "--cert-dir"},
		{"stateDir", "path", DefaultStateDir, "berth's own store", "--state-dir"},
		{"socket", "path", DefaultSocket, "the local socket of the node's own commands", "--socket"},
		{"cniConfDir", "path", DefaultCNIConfDir, "the network configuration", ""},
		{"cniBinDirs", "list of paths", "/opt/cni/bin, /usr/lib/cni", "the network plugins", ""},
		{"cniPodCIDRs", "list of ranges", "none", "write a default network configuration for these ranges, or with `[node]` for those that the server gives the node, on a standalone node `podCIDR`", "--cni-pod-cidr"},
		{"podRouting", "hostGateway or none", "hostGateway", "with `cniPodCIDRs: [node]` on a node that has joined a server, how pods reach those of other nodes: by routes to the nodes that berth makes, with masquerading only towards the outside, or not by berth's doing; see networking.md", ""},
		{"maxParallelStarts", "number", "10", "how many pods are started at once", ""},
		{"startPressurePercent", "number", "90", "in how much of the last 10 s, in percent, something must have waited for a CPU (PSI) that fewer pods are started at once: ever fewer up to 100%, where there are one more than the host has CPUs; 100: never fewer", ""},
		{"memoryPressureSources", "both or workingSet", "both", "who must find memory short before it is pressure: the working set and the kernel's own estimate (MemAvailable) or its stalls, or the working set alone, as upstream", ""},
		{"deadContainersKept", "number", "1", "how many ended instances of a container are kept beside its newest (upstream's flag --maximum-dead-containers-per-container)", ""},
		{"deadContainerMinAge", "duration", "0s", "how long ago such an instance must have ended before it is removed (upstream's flag --minimum-container-ttl-duration)", ""},
		{"imageGCPeriod", "duration", "5m", "how often it is looked whether images must go, by imageGCHighThresholdPercent and imageMaximumGCAge; 1s at least", ""},
		{"imagesDir", "path", "`images` in stateDir", "archives of images (`docker save` or OCI, also gzip'd): `.tar`, `.tar.gz` and `.tgz` files are imported, each content once, and their images kept for as long as the file is there", ""},
		{"containerLogMaxBytesPerMinute", "quantity", "none", "how much of one minute of a container's log is kept in rotated files, from 4Ki on; the current and the newest rotated file are always whole", ""},
	}
}

// Defaults of paths.
const (
	DefaultRootDir         = "/var/lib/kubelet"
	DefaultStateDir        = "/var/lib/berth"
	DefaultSocket          = "/run/berth/berth.sock"
	DefaultCNIConfDir      = "/etc/cni/net.d"
	DefaultCertDir         = "/var/lib/kubelet/pki"
	DefaultRuntimeEndpoint = "unix:///run/containerd/containerd.sock"
)

// SystemdResolvConf is where systemd-resolved tells of the servers that it asks
// itself, beside /etc/resolv.conf, which names its own stub.
const SystemdResolvConf = "/run/systemd/resolve/resolv.conf"
