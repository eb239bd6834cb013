package nodeconfig

import (
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"berth/podspec"
)

// Config is the resolved configuration of a node: every default filled in,
// every value parsed and validated.
type Config struct {
	NodeName   string
	NodeIPs    []netip.Addr // empty: the agent finds them
	NodeLabels map[string]string

	Kubeconfig          string // empty: standalone
	BootstrapKubeconfig string
	CertDir             string

	RootDir    string // pods/<uid>/… as the kubelet's
	StateDir   string // berth's own store
	Socket     string // local socket of the node's own commands
	PodLogsDir string

	StaticPodPath      string // empty: no files
	FileCheckFrequency time.Duration

	RuntimeEndpoint string // unix:///…
	ImageEndpoint   string // unix:///…, RuntimeEndpoint if not given

	LogFormat string // text or json
	Verbosity int

	MaxParallelStarts int     // pods in the making at once
	StartPressure     float64 // percent of time waited for a CPU from which on there are fewer; 100: never
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

	// Kubelet is upstream's document with the flags and defaults in it, for those
	// who ask what is in force; shared, read-only.
	Kubelet *kubeletv1beta1.KubeletConfiguration
}

// Standalone reports whether the node runs without a control server.
func (c *Config) Standalone() bool { return c.Kubeconfig == "" && c.BootstrapKubeconfig == "" }

// Pods are the limits of pods.
type Pods struct {
	Max                  int
	PerCore              int   // 0: no limit beside Max
	PidsLimit            int64 // -1: none
	CrashLoopMax         time.Duration
	AllowedUnsafeSysctls []string // names, or prefixes that end in *
	SeccompDefault       bool
	OOMScoreAdj          int // of the agent itself
}

// Images are the limits of pulls and of what is kept on the node.
type Images struct {
	PullQPS              int // 0: no limit
	PullBurst            int
	MaxParallel          int // at least 1
	MinimumGCAge         time.Duration
	MaximumGCAge         time.Duration // 0: none
	HighThresholdPercent int           // 100: never collected for space
	LowThresholdPercent  int
	ArchiveDir           string        // of archives to import
	GCPeriod             time.Duration // between two looks for images that must go

	VerificationPolicy    kubeletv1beta1.ImagePullCredentialsVerificationPolicy // never empty
	VerificationAllowlist []podspec.ImagePattern                                // from it, with NeverVerifyAllowlistedImages
}

// DeadContainers says which ended containers are kept for their logs.
type DeadContainers struct {
	MaxPerContainer int           // of one container, beside its newest instance
	MinAge          time.Duration // since it ended
}

// Logs are the limits of container logs.
type Logs struct {
	MaxSize         int64 // bytes; negative: no rotation
	MaxFiles        int   // with the current one
	MaxWorkers      int   // logs rotated at once
	MaxPerMinute    int64 // bytes of one minute that rotated files keep; 0: all
	MonitorInterval time.Duration
}

// Cgroups is where pods live.
type Cgroups struct {
	Root                 string // empty: the hierarchy's root
	Driver               string // cgroupfs, systemd; empty: ask the runtime
	FailV1               bool
	FailSwapOn           bool
	CPUCFSQuota          bool
	CPUCFSPeriod         time.Duration
	SingleProcessOOMKill bool // the kernel kills one process, not the whole container (v2)
	EnforcePods          bool // limit the pods' cgroup to what is allocatable

	LimitedSwap             bool    // Burstable pods have their part of the host's swap (v2)
	MemoryThrottlingFactor  float64 // memoryThrottlingFactor (v2); 0: none
	TieredMemoryReservation bool    // memoryReservationPolicy TieredReservation (v2)
}

// Network is how pods find and reach others.
type Network struct {
	ClusterDNS         []netip.Addr
	ClusterDomain      string
	ResolvConf         string // empty: pods without another DNS ask their own loopback alone
	FallbackResolvConf string // counts while ResolvConf names servers on the host's loopback alone; empty: none does
	CNIConfDir         string
	CNIBinDirs         []string
	CNIPodCIDRs        []netip.Prefix // not empty: write a default conflist for these ranges
	PodCIDRsFromNode   bool           // likewise, for those that the server gives the node: never standalone
	HostGateway        bool           // with CNIFromNode: berth makes the ways to other nodes' pods
}

// ListenAddress is where something is served; Port 0: nowhere.
type ListenAddress struct {
	Address netip.Addr
	Port    int
}

// Server is the server on port 10250.
type Server struct {
	ListenAddress
	Enabled            bool
	DebuggingHandlers  bool
	CertFile, KeyFile  string
	MinVersion         uint16   // as crypto/tls has it; 0: Go's default
	CipherSuites       []uint16 // empty: Go's default
	CurvePreferences   []int32  // empty: Go's default
	ClientCAFile       string
	Webhook            bool
	WebhookTTL         time.Duration
	AlwaysAllow        bool // authorization
	AuthorizedTTL      time.Duration
	UnauthorizedTTL    time.Duration
	ServerTLSBootstrap bool
	StreamIdleTimeout  time.Duration // of exec, attach and forwarded ports; 0: no bound
	SystemLogHandler   bool          // the files below /var/log are shown
}

// Node is what the node tells a control server of itself.
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

// Reserved is what pods do not get.
type Reserved struct{ System, Kube corev1.ResourceList }

// Eviction says when pods must go.
type Eviction struct {
	Thresholds               []Threshold // hard ones first, then by signal
	PressureTransitionPeriod time.Duration
	MaxPodGracePeriod        time.Duration // of soft thresholds
	WorkingSetOnly           bool          // memory is judged by the working set alone
	LocalStorageIsolation    bool          // limits of ephemeral storage are enforced
}

// Threshold is met when there is less than it says of a signal. One of Quantity
// and Percent is set.
type Threshold struct {
	Signal            string
	Hard              bool
	Quantity          *resource.Quantity
	Percent           float64       // of the capacity, 0 to 100
	Grace             time.Duration // of a soft one
	MinReclaim        *resource.Quantity
	MinReclaimPercent float64
}

// Shutdown is how long pods may take when the node goes down.
type Shutdown struct {
	GracePeriod         time.Duration // all; 0: not handled
	CriticalGracePeriod time.Duration // the part of it for critical pods
	ByPriority          []PriorityGrace
}

// PriorityGrace is the grace of pods from a priority on.
type PriorityGrace struct {
	Priority int32
	Grace    time.Duration
}
