package nodeconfig

import (
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"berth/podspec"
)

// Config is the resolved configuration of a node: defaults are set, values are parsed and
// validated.
type Config struct {
	ConfigFile string // as in --config; empty: none

	NodeName   string
	NodeIPs    []netip.Addr // empty: detected by the agent
	NodeLabels map[string]string

	Kubeconfig          string // empty: standalone
	BootstrapKubeconfig string
	CertDir             string

	RootDir    string // contains pods/<uid>/… as in the kubelet
	StateDir   string // of the local store
	Socket     string // local API socket
	PodLogsDir string

	StaticPodPath      string // empty: no files
	FileCheckFrequency time.Duration

	RuntimeEndpoint string // unix:///…
	ImageEndpoint   string // unix:///…, default RuntimeEndpoint

	LogFormat string // text or json
	Verbosity int

	MaxParallelStarts int     // maximum number of concurrent pod starts
	StartPressure     float64 // CPU pressure in percent above which there are fewer; 100: disabled
	DeadContainers    DeadContainers
	Pods              Pods
	Images            Images
	Logs              Logs
	Cgroups           Cgroups
	Network           Network
	Healthz           ListenAddress
	Server            Server
	Node              Node
	Reserved          Reserved
	Eviction          Eviction
	Shutdown          Shutdown

	// Kubelet is upstream's document with flags and defaults applied, for /configz. It must not be
	// changed.
	Kubelet *kubeletv1beta1.KubeletConfiguration
}

// Standalone reports whether the node runs without an API server.
func (c *Config) Standalone() bool { return c.Kubeconfig == "" && c.BootstrapKubeconfig == "" }

// Pods are the limits of pods.
type Pods struct {
	Max                  int
	PerCore              int   // 0: no limit
	PidsLimit            int64 // -1: none
	CrashLoopMax         time.Duration
	AllowedUnsafeSysctls []string // names, or prefixes that end in *
	SeccompDefault       bool
	OOMScoreAdj          int // of the agent process
}

// Images are the settings of image pulls and image garbage collection.
type Images struct {
	PullQPS              int // 0: no limit
	PullBurst            int
	MaxParallel          int // at least 1
	MinimumGCAge         time.Duration
	MaximumGCAge         time.Duration // 0: none
	HighThresholdPercent int           // 100: disabled
	LowThresholdPercent  int
	ArchiveDir           string        // of image archives to import
	GCPeriod             time.Duration // interval of garbage collection

	CredentialProviderConfig string // file or directory; empty: none
	CredentialProviderBinDir string

	VerificationPolicy    kubeletv1beta1.ImagePullCredentialsVerificationPolicy // never empty
	VerificationAllowlist []podspec.ImagePattern                                // with NeverVerifyAllowlistedImages
}

// DeadContainers are the settings of container garbage collection.
type DeadContainers struct {
	MaxPerContainer int           // exited instances in addition to the newest one
	MinAge          time.Duration // since the exit
}

// Logs are the settings of container log rotation.
type Logs struct {
	MaxSize         int64 // bytes; negative: no rotation
	MaxFiles        int   // including the current one
	MaxWorkers      int   // concurrent rotations
	MonitorInterval time.Duration
}

// Cgroups are the cgroup settings of pods.
type Cgroups struct {
	Root                 string // empty: root of the hierarchy
	Driver               string // cgroupfs or systemd; empty: that of the runtime
	FailV1               bool
	FailSwapOn           bool
	CPUCFSQuota          bool
	CPUCFSPeriod         time.Duration
	SingleProcessOOMKill bool // an OOM kills one process instead of the container (v2)
	EnforcePods          bool // limit the cgroup of all pods to the allocatable resources

	LimitedSwap             bool    // LimitedSwap for Burstable pods (v2)
	MemoryThrottlingFactor  float64 // memoryThrottlingFactor (v2); 0: none
	TieredMemoryReservation bool    // memoryReservationPolicy TieredReservation (v2)
}

// V2Fields returns the configured fields that have an effect only with cgroup v2.
func (c Cgroups) V2Fields() (fields []string) {
	if c.MemoryThrottlingFactor > 0 {
		fields = append(fields, "memoryThrottlingFactor")
	}
	if c.TieredMemoryReservation {
		fields = append(fields, "memoryReservationPolicy")
	}
	if c.LimitedSwap {
		fields = append(fields, "memorySwap.swapBehavior")
	}
	return fields
}

// Network are the network settings of pods.
type Network struct {
	ClusterDNS         []netip.Addr
	ClusterDomain      string
	ResolvConf         string // empty: pods without another DNS use their own loopback
	FallbackResolvConf string // used while ResolvConf names only loopback servers; may be empty
	CNIConfDir         string
	CNIBinDirs         []string
	CNIPodCIDRs        []netip.Prefix // pod CIDRs of the default CNI configuration; empty: none
	PodCIDRsFromNode   bool           // use the pod CIDRs assigned by the API server
	HostGateway        bool           // with PodCIDRsFromNode: create routes to pods of other nodes
	ServiceProxy       Switch         // route Services
	ServiceCIDR        netip.Prefix   // of the Services of files, on a standalone node
	ClusterDNSServer   Switch         // answer the DNS queries of pods
	NetworkPolicy      Switch         // enforce NetworkPolicies: Auto, On or Off; Off on a standalone node
}

// Switch turns a feature on or off, or on depending on the control plane.
type Switch string

// Values of a Switch. Auto means on for a standalone node and with berth-control, otherwise off.
const (
	Auto Switch = "auto"
	On   Switch = "on"
	Off  Switch = "off"
)

// ListenAddress is an address to listen on. Port 0 disables it.
type ListenAddress struct {
	Address netip.Addr
	Port    int
}

// Server are the settings of the kubelet API on port 10250.
type Server struct {
	ListenAddress
	Enabled            bool
	DebuggingHandlers  bool
	CertFile, KeyFile  string
	MinVersion         uint16   // as in crypto/tls; 0: Go's default
	CipherSuites       []uint16 // of TLS 1.2; empty: those with forward secrecy and authenticated encryption
	CurvePreferences   []int32  // empty: Go's default
	ClientCAFile       string
	Webhook            bool
	WebhookTTL         time.Duration
	AlwaysAllow        bool // authorization
	AuthorizedTTL      time.Duration
	UnauthorizedTTL    time.Duration
	ServerTLSBootstrap bool
	StreamIdleTimeout  time.Duration // of exec, attach and port-forward; 0: no timeout
	SystemLogHandler   bool          // serve the files in /var/log
	SystemLogQuery     bool          // serve queries of the journal
	Profiling          bool          // serve /debug/pprof/
	ContentionProfiles bool          // record block profiles
	DebugFlags         bool          // serve /debug/flags/v
}

// Node are the settings of the Node object and the API client.
type Node struct {
	Register              bool
	Taints                []corev1.Taint
	ProviderID            string
	StatusUpdateFrequency time.Duration
	StatusReportFrequency time.Duration
	StatusMaxImages       int // -1: no limit
	LeaseDuration         time.Duration
	RotateCertificates    bool
	APIQPS                int
	APIBurst              int
	EventQPS              int // 0: no limit
	EventBurst            int
}

// Reserved are the resources not available to pods.
type Reserved struct{ System, Kube corev1.ResourceList }

// Eviction are the settings of node-pressure eviction.
type Eviction struct {
	Thresholds               []Threshold // hard ones first, then by signal
	PressureTransitionPeriod time.Duration
	MaxPodGracePeriod        time.Duration // of soft thresholds
	WorkingSetOnly           bool          // memory pressure depends on the working set only
	LocalStorageIsolation    bool          // enforce ephemeral storage limits
}

// Threshold is met when less than its value is available of a signal. Either Quantity or Percent is
// set.
type Threshold struct {
	Signal            string
	Hard              bool
	Quantity          *resource.Quantity
	Percent           float64       // of the capacity, 0 to 100
	Grace             time.Duration // of a soft threshold
	MinReclaim        *resource.Quantity
	MinReclaimPercent float64
}

// Shutdown are the settings of graceful node shutdown.
type Shutdown struct {
	GracePeriod         time.Duration // total; 0: disabled
	CriticalGracePeriod time.Duration // part of it for critical pods
	ByPriority          []PriorityGrace
}

// PriorityGrace is the grace period of pods with at least a priority.
type PriorityGrace struct {
	Priority int32
	Grace    time.Duration
}
