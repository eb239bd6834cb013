package nodeconfig

import "slices"

// Class is what becomes of a field of KubeletConfiguration.
type Class int

const (
	// Honoured fields do what upstream documents.
	Honoured Class = iota + 1
	// Later fields are read and validated, and do what upstream documents from
	// a later release on. Setting one is a warning.
	Later
	// Inert fields have no meaning here, and leaving them out changes nothing
	// that a user gets. Setting one is a warning.
	Inert
	// Refused fields stop the start: ignoring them would change what the user
	// gets. Values in Neutral ask for what berth does anyway and are accepted.
	Refused
)

func (c Class) String() string {
	return [...]string{"", "honoured", "honoured from a later release", "inert", "refused"}[c]
}

// Field is one row of the table.
type Field struct {
	Path    string   // as in the file: authentication.x509.clientCAFile
	Class   Class    // what becomes of it
	Note    string   // for users: the default where it is not upstream's, or why, and what to do instead
	Neutral []string // JSON values of a refused field that are accepted
}

// Fields returns the table, in the order of the upstream type.
func Fields() []Field { return slices.Clone(table) }

const (
	noStatics   = "berth gives no exclusive CPUs, memory or NUMA nodes"
	byServer    = "with the node's server on port 10250"
	byNode      = "with the node object and its lease"
	byEviction  = "with eviction"
	byShutdown  = "with graceful node shutdown"
	notProfiled = "the agent has no profiling endpoint"
)

// table is never written to.
var table = []Field{
	{Path: "enableServer", Class: Later, Note: byServer},
	{Path: "staticPodPath", Class: Honoured, Note: "a folder or a file; ConfigMaps and Secrets may lie beside the pods"},
	{Path: "podLogsDir", Class: Honoured},
	{Path: "syncFrequency", Class: Inert, Note: "a pod is looked at when something changes"},
	{Path: "fileCheckFrequency", Class: Honoured, Note: "changes are seen at once by inotify; this is the rescan beside it"},
	{Path: "httpCheckFrequency", Class: Inert, Note: "there is no HTTP source"},
	{Path: "staticPodURL", Class: Refused, Note: "pods come from files or a control server"},
	{Path: "staticPodURLHeader", Class: Refused, Note: "pods come from files or a control server"},
	{Path: "address", Class: Later, Note: byServer},
	{Path: "port", Class: Later, Note: byServer},
	{Path: "readOnlyPort", Class: Refused, Note: "the port without authentication is not served", Neutral: []string{"0"}},
	{Path: "tlsCertFile", Class: Later, Note: byServer},
	{Path: "tlsPrivateKeyFile", Class: Later, Note: byServer},
	{Path: "tlsCipherSuites", Class: Later, Note: byServer},
	{Path: "tlsCurvePreferences", Class: Later, Note: byServer},
	{Path: "tlsMinVersion", Class: Later, Note: byServer},
	{Path: "rotateCertificates", Class: Later, Note: byNode},
	{Path: "serverTLSBootstrap", Class: Later, Note: byServer},
	{Path: "authentication.x509.clientCAFile", Class: Later, Note: byServer},
	{Path: "authentication.webhook.enabled", Class: Later, Note: byServer},
	{Path: "authentication.webhook.cacheTTL", Class: Later, Note: byServer},
	{Path: "authentication.anonymous.enabled", Class: Later, Note: byServer},
	{Path: "authorization.mode", Class: Later, Note: byServer},
	{Path: "authorization.webhook.cacheAuthorizedTTL", Class: Later, Note: byServer},
	{Path: "authorization.webhook.cacheUnauthorizedTTL", Class: Later, Note: byServer},
	{Path: "registryPullQPS", Class: Honoured},
	{Path: "registryBurst", Class: Honoured},
	{Path: "imagePullCredentialsVerificationPolicy", Class: Honoured, Note: "default: NeverVerifyPreloadedImages; what was pulled with whose credentials is kept in image_manager below the root directory, as the kubelet keeps it"},
	{Path: "preloadedImagesVerificationAllowlist", Class: Honoured, Note: "with NeverVerifyAllowlistedImages"},
	{Path: "eventRecordQPS", Class: Inert, Note: "events are counted up on the node, not dropped"},
	{Path: "eventBurst", Class: Inert, Note: "events are counted up on the node, not dropped"},
	{Path: "enableDebuggingHandlers", Class: Later, Note: byServer},
	{Path: "enableContentionProfiling", Class: Inert, Note: notProfiled},
	{Path: "healthzPort", Class: Honoured},
	{Path: "healthzBindAddress", Class: Honoured},
	{Path: "oomScoreAdj", Class: Honoured},
	{Path: "clusterDomain", Class: Honoured},
	{Path: "clusterDNS", Class: Honoured},
	{Path: "streamingConnectionIdleTimeout", Class: Inert, Note: "as upstream"},
	{Path: "nodeStatusUpdateFrequency", Class: Later, Note: byNode},
	{Path: "nodeStatusReportFrequency", Class: Later, Note: byNode},
	{Path: "nodeLeaseDurationSeconds", Class: Later, Note: byNode},
	{Path: "imageMinimumGCAge", Class: Honoured},
	{Path: "imageMaximumGCAge", Class: Honoured},
	{Path: "imageGCHighThresholdPercent", Class: Honoured},
	{Path: "imageGCLowThresholdPercent", Class: Honoured},
	{Path: "volumeStatsAggPeriod", Class: Inert, Note: "volume statistics are made when asked for"},
	{Path: "kubeletCgroups", Class: Inert, Note: "the unit file says where the agent runs (Slice=)"},
	{Path: "systemCgroups", Class: Refused, Note: "berth moves no process that it did not start; use systemd slices"},
	{Path: "cgroupRoot", Class: Honoured},
	{Path: "cgroupsPerQOS", Class: Refused, Note: "pods always live in cgroups by QoS class", Neutral: []string{"true"}},
	{Path: "cgroupDriver", Class: Honoured, Note: "default: what the runtime says, or its configuration; cgroupfs where neither tells"},
	{Path: "cpuManagerPolicy", Class: Refused, Note: noStatics, Neutral: []string{`"none"`, `"None"`}},
	{Path: "singleProcessOOMKill", Class: Honoured},
	{Path: "cpuManagerPolicyOptions", Class: Refused, Note: noStatics},
	{Path: "cpuManagerReconcilePeriod", Class: Inert, Note: noStatics},
	{Path: "memoryManagerPolicy", Class: Refused, Note: noStatics, Neutral: []string{`"None"`, `"none"`}},
	{Path: "topologyManagerPolicy", Class: Refused, Note: noStatics, Neutral: []string{`"none"`}},
	{Path: "topologyManagerScope", Class: Inert, Note: noStatics + ", so there is nothing to align"},
	{Path: "topologyManagerPolicyOptions", Class: Inert, Note: noStatics + ", so there is nothing to align"},
	{Path: "qosReserved", Class: Refused, Note: "memory is not reserved by QoS class"},
	{Path: "runtimeRequestTimeout", Class: Inert, Note: "each call to the runtime has a deadline of its own"},
	{Path: "hairpinMode", Class: Inert, Note: "the CNI configuration says it (hairpinMode of the bridge plugin)"},
	{Path: "maxPods", Class: Honoured},
	{Path: "podCIDR", Class: Honoured, Note: "standalone; see also cniPodCIDR"},
	{Path: "podPidsLimit", Class: Honoured},
	{Path: "resolvConf", Class: Honoured},
	{Path: "runOnce", Class: Refused, Note: "the agent runs until it is stopped", Neutral: []string{"false"}},
	{Path: "cpuCFSQuota", Class: Honoured},
	{Path: "cpuCFSQuotaPeriod", Class: Honoured},
	{Path: "nodeStatusMaxImages", Class: Later, Note: byNode},
	{Path: "maxOpenFiles", Class: Inert, Note: "the unit file says it (LimitNOFILE=)"},
	{Path: "contentType", Class: Inert, Note: "protobuf is spoken where the server can"},
	{Path: "kubeAPIQPS", Class: Later, Note: byNode},
	{Path: "kubeAPIBurst", Class: Later, Note: byNode},
	{Path: "serializeImagePulls", Class: Honoured, Note: "default: false"},
	{Path: "maxParallelImagePulls", Class: Honoured, Note: "default: 5; 1 with serializeImagePulls: true"},
	{Path: "evictionHard", Class: Later, Note: byEviction},
	{Path: "evictionSoft", Class: Later, Note: byEviction},
	{Path: "evictionSoftGracePeriod", Class: Later, Note: byEviction},
	{Path: "evictionPressureTransitionPeriod", Class: Later, Note: byEviction},
	{Path: "evictionMaxPodGracePeriod", Class: Later, Note: byEviction},
	{Path: "evictionMinimumReclaim", Class: Later, Note: byEviction},
	{Path: "mergeDefaultEvictionSettings", Class: Later, Note: byEviction},
	{Path: "podsPerCore", Class: Honoured},
	{Path: "enableControllerAttachDetach", Class: Inert, Note: "the agent attaches no volumes"},
	{Path: "protectKernelDefaults", Class: Refused, Note: "kernel settings are not guarded; `berth check` reports them", Neutral: []string{"false"}},
	{Path: "makeIPTablesUtilChains", Class: Inert, Note: "the agent makes no iptables rules; kube-proxy and CNI plugins make theirs"},
	{Path: "iptablesMasqueradeBit", Class: Inert, Note: "as upstream"},
	{Path: "iptablesDropBit", Class: Inert, Note: "as upstream"},
	{Path: "featureGates", Class: Inert, Note: "berth has no feature gates"},
	{Path: "failSwapOn", Class: Honoured, Note: "default: false, a host with swap is as good; pods get none of it"},
	{Path: "memorySwap.swapBehavior", Class: Refused, Note: "containers get no swap", Neutral: []string{`""`, `"NoSwap"`}},
	{Path: "containerLogMaxSize", Class: Honoured},
	{Path: "containerLogMaxFiles", Class: Honoured},
	{Path: "containerLogMaxWorkers", Class: Honoured},
	{Path: "containerLogMonitorInterval", Class: Honoured},
	{Path: "configMapAndSecretChangeDetectionStrategy", Class: Inert, Note: "changes are always watched"},
	{Path: "systemReserved", Class: Honoured},
	{Path: "kubeReserved", Class: Honoured},
	{Path: "reservedSystemCPUs", Class: Refused, Note: noStatics + "; reserve an amount with systemReserved"},
	{Path: "showHiddenMetricsForVersion", Class: Inert, Note: "no metric is hidden"},
	{Path: "systemReservedCgroup", Class: Refused, Note: "only the pods' cgroup is limited; use systemd slices for the rest"},
	{Path: "kubeReservedCgroup", Class: Refused, Note: "only the pods' cgroup is limited; use systemd slices for the rest"},
	{Path: "enforceNodeAllocatable", Class: Honoured, Note: "pods or none; the other values need the refused cgroup fields"},
	{Path: "allowedUnsafeSysctls", Class: Honoured},
	{Path: "defaultPodSysctls", Class: Refused, Note: "give pods their sysctls in spec.securityContext"},
	{Path: "volumePluginDir", Class: Inert, Note: "there are no flexvolume plugins"},
	{Path: "providerID", Class: Later, Note: byNode},
	{Path: "kernelMemcgNotification", Class: Inert, Note: "as upstream's default"},
	{Path: "logging.format", Class: Honoured, Note: "text or json"},
	{Path: "logging.flushFrequency", Class: Inert, Note: "each line is written at once"},
	{Path: "logging.verbosity", Class: Honoured},
	{Path: "logging.vmodule", Class: Inert, Note: "verbosity is one for all"},
	{Path: "logging.options.text.splitStream", Class: Inert, Note: "everything goes to stderr"},
	{Path: "logging.options.text.infoBufferSize", Class: Inert, Note: "each line is written at once"},
	{Path: "logging.options.json.splitStream", Class: Inert, Note: "everything goes to stderr"},
	{Path: "logging.options.json.infoBufferSize", Class: Inert, Note: "each line is written at once"},
	{Path: "enableSystemLogHandler", Class: Inert, Note: "the host's logs are not served; use journalctl"},
	{Path: "enableSystemLogQuery", Class: Inert, Note: "the host's logs are not served; use journalctl"},
	{Path: "shutdownGracePeriod", Class: Later, Note: byShutdown},
	{Path: "shutdownGracePeriodCriticalPods", Class: Later, Note: byShutdown},
	{Path: "shutdownGracePeriodByPodPriority", Class: Later, Note: byShutdown},
	{Path: "crashLoopBackOff.maxContainerRestartPeriod", Class: Honoured},
	{Path: "reservedMemory", Class: Refused, Note: noStatics},
	{Path: "enableProfilingHandler", Class: Inert, Note: notProfiled},
	{Path: "enableDebugFlagsHandler", Class: Inert, Note: notProfiled},
	{Path: "seccompDefault", Class: Honoured},
	{Path: "memoryThrottlingFactor", Class: Inert, Note: "memory is limited, not throttled"},
	{Path: "memoryReservationPolicy", Class: Refused, Note: "memory requests are not reserved in cgroups", Neutral: []string{`""`, `"None"`}},
	{Path: "registerWithTaints", Class: Later, Note: byNode},
	{Path: "registerNode", Class: Later, Note: byNode},
	{Path: "tracing.endpoint", Class: Inert, Note: "set OTEL_EXPORTER_OTLP_ENDPOINT"},
	{Path: "tracing.samplingRatePerMillion", Class: Inert, Note: "set OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG"},
	{Path: "localStorageCapacityIsolation", Class: Later, Note: byEviction},
	{Path: "containerRuntimeEndpoint", Class: Honoured, Note: "default: unix:///run/containerd/containerd.sock"},
	{Path: "imageServiceEndpoint", Class: Honoured, Note: "default: containerRuntimeEndpoint"},
	{Path: "failCgroupV1", Class: Honoured, Note: "default: false, cgroup v1 still works here"},
	{Path: "userNamespaces.idsPerPod", Class: Refused, Note: "a pod with its own user namespace has 65536 IDs", Neutral: []string{"65536"}},
}
