package nodeconfig

import "slices"

// Class classifies the fields of KubeletConfiguration.
type Class int

const (
	// Supported fields work as documented upstream.
	Supported Class = iota + 1
	// Ignored fields have no effect. Setting one causes a warning.
	Ignored
	// Rejected fields prevent the start, because ignoring them would change the behavior of the
	// node. Values in Field.Accepted match what berth does anyway.
	Rejected
)

func (c Class) String() string {
	return [...]string{"", "supported", "ignored", "rejected"}[c]
}

// Field is one row of the table.
type Field struct {
	Path     string   // such as authentication.x509.clientCAFile
	Class    Class    // how the field is handled
	Note     string   // for users: a default other than upstream's, the reason, or an alternative
	Accepted []string // accepted JSON values of a rejected field
}

// Fields returns the table, in the order of the upstream type.
func Fields() []Field { return slices.Clone(table) }

const (
	noStatics = "berth does not assign exclusive CPUs, memory or NUMA nodes"
	joined    = "on a node that has joined a server"
)

// table must not be modified.
var table = []Field{
	{
		Path:  "enableServer",
		Class: Supported,
		Note:  "on a standalone node the port is opened only if authentication.x509.clientCAFile is set",
	},
	{
		Path:  "staticPodPath",
		Class: Supported,
		Note: "a directory or a file; in a directory, files with the suffixes `.yaml`, `.yml`, `.json` and " +
			"`.manifest` are read, and others are logged; they may define Pods, workloads, Services, ConfigMaps and " +
			"Secrets",
	},
	{Path: "podLogsDir", Class: Supported},
	{Path: "syncFrequency", Class: Ignored, Note: "pods are synced when something changes"},
	{
		Path:  "fileCheckFrequency",
		Class: Supported,
		Note:  "changes are detected immediately by inotify; this is the interval of additional rescans",
	},
	{Path: "httpCheckFrequency", Class: Ignored, Note: "there is no HTTP source"},
	{Path: "staticPodURL", Class: Rejected, Note: "pods come from files or an API server"},
	{Path: "staticPodURLHeader", Class: Rejected, Note: "pods come from files or an API server"},
	{Path: "address", Class: Supported},
	{Path: "port", Class: Supported},
	{
		Path:     "readOnlyPort",
		Class:    Rejected,
		Note:     "the port without authentication is not supported",
		Accepted: []string{"0"},
	},
	{
		Path:  "tlsCertFile",
		Class: Supported,
		Note:  "reloaded on change; default: a self-signed kubelet.crt in --cert-dir",
	},
	{Path: "tlsPrivateKeyFile", Class: Supported, Note: "reloaded on change"},
	{
		Path:  "tlsCipherSuites",
		Class: Supported,
		Note: "without TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 and TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, which " +
			"HTTP/2 requires, only HTTP/1.1 is available; the suites of TLS 1.3 are always enabled; default: the suites " +
			"of TLS 1.2 with forward secrecy and authenticated encryption",
	},
	{Path: "tlsCurvePreferences", Class: Supported},
	{Path: "tlsMinVersion", Class: Supported},
	{Path: "rotateCertificates", Class: Supported, Note: joined + "; default: true"},
	{Path: "serverTLSBootstrap", Class: Supported, Note: joined},
	{Path: "authentication.x509.clientCAFile", Class: Supported, Note: "reloaded on change"},
	{Path: "authentication.webhook.enabled", Class: Supported},
	{Path: "authentication.webhook.cacheTTL", Class: Supported},
	{
		Path:     "authentication.anonymous.enabled",
		Class:    Rejected,
		Note:     "anonymous requests are not supported",
		Accepted: []string{"false"},
	},
	{
		Path:  "authorization.mode",
		Class: Supported,
		Note:  "on a standalone node, Webhook authorizes only the group system:masters",
	},
	{Path: "authorization.webhook.cacheAuthorizedTTL", Class: Supported},
	{Path: "authorization.webhook.cacheUnauthorizedTTL", Class: Supported},
	{Path: "registryPullQPS", Class: Supported},
	{Path: "registryBurst", Class: Supported},
	{
		Path:  "imagePullCredentialsVerificationPolicy",
		Class: Supported,
		Note: "default: NeverVerifyPreloadedImages; pull records are stored in image_manager in the root directory, " +
			"in the kubelet's format",
	},
	{Path: "preloadedImagesVerificationAllowlist", Class: Supported, Note: "with NeverVerifyAllowlistedImages"},
	{Path: "eventRecordQPS", Class: Supported, Note: joined + "; events beyond the limit are delayed"},
	{Path: "eventBurst", Class: Supported, Note: joined + "; events beyond the limit are delayed"},
	{
		Path:  "enableDebuggingHandlers",
		Class: Supported,
		Note:  "logs, exec, attach, port-forward, run, host logs, /runningpods and /configz",
	},
	{Path: "enableContentionProfiling", Class: Supported, Note: "blocking of goroutines, at /debug/pprof/block"},
	{Path: "healthzPort", Class: Supported},
	{Path: "healthzBindAddress", Class: Supported},
	{Path: "oomScoreAdj", Class: Supported},
	{Path: "clusterDomain", Class: Supported},
	{Path: "clusterDNS", Class: Supported, Note: "resolvers use three addresses; others are ignored with a warning"},
	{
		Path:  "streamingConnectionIdleTimeout",
		Class: Supported,
		Note:  "default: 4h; ignored by recent upstream releases",
	},
	{Path: "nodeStatusUpdateFrequency", Class: Supported, Note: joined},
	{Path: "nodeStatusReportFrequency", Class: Supported, Note: joined},
	{Path: "nodeLeaseDurationSeconds", Class: Supported, Note: joined},
	{Path: "imageMinimumGCAge", Class: Supported},
	{Path: "imageMaximumGCAge", Class: Supported},
	{Path: "imageGCHighThresholdPercent", Class: Supported, Note: "only images pulled by this node are deleted"},
	{Path: "imageGCLowThresholdPercent", Class: Supported},
	{Path: "volumeStatsAggPeriod", Class: Ignored, Note: "volume statistics are computed on request"},
	{Path: "kubeletCgroups", Class: Ignored, Note: "set Slice= in the unit file"},
	{
		Path:  "systemCgroups",
		Class: Rejected,
		Note:  "berth does not move processes that it did not start; use systemd slices",
	},
	{Path: "cgroupRoot", Class: Supported},
	{
		Path:     "cgroupsPerQOS",
		Class:    Rejected,
		Note:     "pods are always in cgroups by QoS class",
		Accepted: []string{"true"},
	},
	{
		Path:  "cgroupDriver",
		Class: Supported,
		Note:  "default: reported by the runtime, or read from its configuration, else cgroupfs",
	},
	{Path: "cpuManagerPolicy", Class: Rejected, Note: noStatics, Accepted: []string{`"none"`, `"None"`}},
	{
		Path:  "singleProcessOOMKill",
		Class: Supported,
		Note:  "with cgroup v2; on v1 the kernel always kills a single process",
	},
	{Path: "cpuManagerPolicyOptions", Class: Rejected, Note: noStatics},
	{Path: "cpuManagerReconcilePeriod", Class: Ignored, Note: noStatics},
	{Path: "memoryManagerPolicy", Class: Rejected, Note: noStatics, Accepted: []string{`"None"`, `"none"`}},
	{Path: "topologyManagerPolicy", Class: Rejected, Note: noStatics, Accepted: []string{`"none"`}},
	{Path: "topologyManagerScope", Class: Ignored, Note: noStatics + " that could be aligned"},
	{Path: "topologyManagerPolicyOptions", Class: Ignored, Note: noStatics + " that could be aligned"},
	{Path: "qosReserved", Class: Rejected, Note: "memory is not reserved by QoS class"},
	{Path: "runtimeRequestTimeout", Class: Ignored, Note: "each runtime call has its own deadline"},
	{Path: "hairpinMode", Class: Ignored, Note: "set hairpinMode of the bridge plugin in the CNI configuration"},
	{Path: "maxPods", Class: Supported},
	{
		Path:  "podCIDR",
		Class: Supported,
		Note: "the pod CIDR of a standalone node with `cniPodCIDRs: [node]`, or one per family separated by a comma; " +
			"otherwise it has no effect and causes a warning",
	},
	{Path: "podPidsLimit", Class: Supported},
	{
		Path:  "resolvConf",
		Class: Supported,
		Note: "read when a pod starts; with `\"\"` pods use their own loopback; unless set, " +
			"`/run/systemd/resolve/resolv.conf` is used while `/etc/resolv.conf` names only loopback servers",
	},
	{Path: "runOnce", Class: Rejected, Note: "the agent runs until it is stopped", Accepted: []string{"false"}},
	{Path: "cpuCFSQuota", Class: Supported},
	{Path: "cpuCFSQuotaPeriod", Class: Supported},
	{Path: "nodeStatusMaxImages", Class: Supported, Note: joined},
	{Path: "maxOpenFiles", Class: Ignored, Note: "set LimitNOFILE= in the unit file"},
	{Path: "contentType", Class: Ignored, Note: "protobuf is used if the server supports it"},
	{Path: "kubeAPIQPS", Class: Supported, Note: joined},
	{Path: "kubeAPIBurst", Class: Supported, Note: joined},
	{Path: "serializeImagePulls", Class: Supported, Note: "default: false"},
	{Path: "maxParallelImagePulls", Class: Supported, Note: "default: 5; 1 with serializeImagePulls: true"},
	{Path: "evictionHard", Class: Supported, Note: "see also memoryPressureSources"},
	{Path: "evictionSoft", Class: Supported},
	{Path: "evictionSoftGracePeriod", Class: Supported},
	{Path: "evictionPressureTransitionPeriod", Class: Supported},
	{Path: "evictionMaxPodGracePeriod", Class: Supported, Note: "for soft thresholds; at least one second"},
	{Path: "evictionMinimumReclaim", Class: Supported},
	{Path: "mergeDefaultEvictionSettings", Class: Supported},
	{
		Path:  "podsPerCore",
		Class: Supported,
		Note:  "multiplied by the number of CPUs, limited by maxPods; 0: maxPods only",
	},
	{Path: "enableControllerAttachDetach", Class: Ignored, Note: "the agent does not attach volumes"},
	{
		Path:     "protectKernelDefaults",
		Class:    Rejected,
		Note:     "kernel settings are not enforced; `berth check` reports them",
		Accepted: []string{"false"},
	},
	{
		Path:  "makeIPTablesUtilChains",
		Class: Ignored,
		Note:  "the agent does not create iptables rules; kube-proxy and CNI plugins create their own",
	},
	{Path: "iptablesMasqueradeBit", Class: Ignored, Note: "as upstream"},
	{Path: "iptablesDropBit", Class: Ignored, Note: "as upstream"},
	{
		Path:  "featureGates",
		Class: Supported,
		Note: "only MemoryQoS: false disables memoryThrottlingFactor and memoryReservationPolicy; other feature " +
			"gates are ignored with a warning",
	},
	{
		Path:  "failSwapOn",
		Class: Supported,
		Note:  "default: false; pods do not use swap unless memorySwap.swapBehavior allows it",
	},
	{
		Path:  "memorySwap.swapBehavior",
		Class: Supported,
		Note:  "LimitedSwap requires cgroup v2; on v1 pods do not use swap, with a warning",
	},
	{Path: "containerLogMaxSize", Class: Supported},
	{Path: "containerLogMaxFiles", Class: Supported},
	{Path: "containerLogMaxWorkers", Class: Supported},
	{Path: "containerLogMonitorInterval", Class: Supported},
	{Path: "configMapAndSecretChangeDetectionStrategy", Class: Ignored, Note: "changes are always watched"},
	{
		Path:  "systemReserved",
		Class: Supported,
		Note: "also pid, which limits the number of processes of all pods; more than the capacity of the host " +
			"prevents the start",
	},
	{Path: "kubeReserved", Class: Supported, Note: "like systemReserved"},
	{Path: "reservedSystemCPUs", Class: Rejected, Note: noStatics + "; reserve CPU with systemReserved"},
	{Path: "showHiddenMetricsForVersion", Class: Ignored, Note: "there are no hidden metrics"},
	{
		Path:  "systemReservedCgroup",
		Class: Rejected,
		Note:  "only the cgroup of pods is limited; use systemd slices for other processes",
	},
	{
		Path:  "kubeReservedCgroup",
		Class: Rejected,
		Note:  "only the cgroup of pods is limited; use systemd slices for other processes",
	},
	{
		Path:  "enforceNodeAllocatable",
		Class: Supported,
		Note:  "pods or none; other values require rejected cgroup fields",
	},
	{Path: "allowedUnsafeSysctls", Class: Supported},
	{Path: "defaultPodSysctls", Class: Rejected, Note: "set sysctls in spec.securityContext of pods"},
	{Path: "volumePluginDir", Class: Ignored, Note: "FlexVolume plugins are not supported"},
	{Path: "providerID", Class: Supported, Note: joined},
	{Path: "kernelMemcgNotification", Class: Ignored, Note: "as upstream's default"},
	{Path: "logging.format", Class: Supported, Note: "text or json"},
	{Path: "logging.flushFrequency", Class: Ignored, Note: "each line is written immediately"},
	{Path: "logging.verbosity", Class: Supported},
	{Path: "logging.vmodule", Class: Ignored, Note: "verbosity cannot be set per module"},
	{Path: "logging.options.text.splitStream", Class: Ignored, Note: "all output goes to stderr"},
	{Path: "logging.options.text.infoBufferSize", Class: Ignored, Note: "each line is written immediately"},
	{Path: "logging.options.json.splitStream", Class: Ignored, Note: "all output goes to stderr"},
	{Path: "logging.options.json.infoBufferSize", Class: Ignored, Note: "each line is written immediately"},
	{
		Path:  "enableSystemLogHandler",
		Class: Supported,
		Note:  "the files in /var/log; links to other directories are not followed",
	},
	{Path: "enableSystemLogQuery", Class: Supported, Note: "at /logs/?query=SERVICE, by journalctl or from /var/log"},
	{
		Path:  "shutdownGracePeriod",
		Class: Supported,
		Note: "with a logind inhibitor, whose InhibitDelayMaxSec is raised by a drop-in; without logind by " +
			"berth-drain.service",
	},
	{Path: "shutdownGracePeriodCriticalPods", Class: Supported},
	{Path: "shutdownGracePeriodByPodPriority", Class: Supported},
	{Path: "crashLoopBackOff.maxContainerRestartPeriod", Class: Supported},
	{Path: "reservedMemory", Class: Rejected, Note: noStatics},
	{
		Path:  "enableProfilingHandler",
		Class: Supported,
		Note:  "at /debug/pprof/; heap profiles require GODEBUG=memprofilerate=524288",
	},
	{Path: "enableDebugFlagsHandler", Class: Supported, Note: "log verbosity, at /debug/flags/v"},
	{Path: "seccompDefault", Class: Supported},
	{
		Path:  "memoryThrottlingFactor",
		Class: Supported,
		Note:  "default: none, as upstream; requires cgroup v2, otherwise a warning",
	},
	{
		Path:  "memoryReservationPolicy",
		Class: Supported,
		Note:  "TieredReservation requires cgroup v2, otherwise a warning",
	},
	{Path: "registerWithTaints", Class: Supported, Note: joined + "; no effect with registerNode: false"},
	{Path: "registerNode", Class: Supported, Note: joined},
	{Path: "tracing.endpoint", Class: Ignored, Note: "set OTEL_EXPORTER_OTLP_ENDPOINT"},
	{
		Path:  "tracing.samplingRatePerMillion",
		Class: Ignored,
		Note:  "set OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG",
	},
	{
		Path:  "localStorageCapacityIsolation",
		Class: Ignored,
		Note:  "local storage is always measured and its limits are enforced",
	},
	{Path: "containerRuntimeEndpoint", Class: Supported, Note: "default: unix:///run/containerd/containerd.sock"},
	{Path: "imageServiceEndpoint", Class: Supported, Note: "default: containerRuntimeEndpoint"},
	{Path: "failCgroupV1", Class: Supported, Note: "default: false; cgroup v1 is still supported"},
	{
		Path:     "userNamespaces.idsPerPod",
		Class:    Rejected,
		Note:     "a pod with a user namespace has 65536 IDs",
		Accepted: []string{"65536"},
	},
}
