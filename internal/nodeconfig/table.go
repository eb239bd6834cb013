package nodeconfig

import "slices"

// Class is what becomes of a field of KubeletConfiguration.
type Class int

const (
	// Supported fields do what upstream documents.
	Supported Class = iota + 1
	// Ignored fields have no meaning here, and leaving them out changes nothing
	// that a user gets. Setting one is a warning.
	Ignored
	// Rejected fields stop the start: ignoring them would change what the user
	// gets. Values in Neutral ask for what berth does anyway and are accepted.
	Rejected
)

func (c Class) String() string {
	return [...]string{"", "honoured", "inert", "refused"}[c]
}

// Field is one row of the table.
type Field struct {
	Path     string   // as in the file: authentication.x509.clientCAFile
	Class    Class    // what becomes of it
	Note     string   // for users: the default where it is not upstream's, or why, and what to do instead
	Accepted []string // JSON values of a refused field that are accepted
}

// Fields returns the table, in the order of the upstream type.
func Fields() []Field { return slices.Clone(table) }

const (
	noStatics   = "berth gives no exclusive CPUs, memory or NUMA nodes"
	joined      = "on a node that has joined a server"
	notProfiled = "the agent has no profiling endpoint"
)

// table is never written to.
var table = []Field{
	{Path: "enableServer", Class: Supported, Note: "without a control server the port is opened only where authentication.x509.clientCAFile says who may ask"},
	{Path: "staticPodPath", Class: Supported, Note: "a folder or a file; in a folder, files whose names end in `.yaml`, `.yml`, `.json` or `.manifest` are read, and the log tells of others; ConfigMaps and Secrets may lie beside the pods"},
	{Path: "podLogsDir", Class: Supported},
	{Path: "syncFrequency", Class: Ignored, Note: "a pod is looked at when something changes"},
	{Path: "fileCheckFrequency", Class: Supported, Note: "changes are seen at once by inotify; this is the rescan beside it"},
	{Path: "httpCheckFrequency", Class: Ignored, Note: "there is no HTTP source"},
	{Path: "staticPodURL", Class: Rejected, Note: "pods come from files or a control server"},
	{Path: "staticPodURLHeader", Class: Rejected, Note: "pods come from files or a control server"},
	{Path: "address", Class: Supported},
	{Path: "port", Class: Supported},
	{Path: "readOnlyPort", Class: Rejected, Note: "the port without authentication is not served", Accepted: []string{"0"}},
	{Path: "tlsCertFile", Class: Supported, Note: "read again when it changes; default: kubelet.crt in --cert-dir, signed by the node itself"},
	{Path: "tlsPrivateKeyFile", Class: Supported, Note: "read again when it changes"},
	{Path: "tlsCipherSuites", Class: Supported, Note: "without TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 and TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, which HTTP/2 wants, HTTP/1.1 alone is spoken; the suites of TLS 1.3 are always there"},
	{Path: "tlsCurvePreferences", Class: Supported},
	{Path: "tlsMinVersion", Class: Supported},
	{Path: "rotateCertificates", Class: Supported, Note: joined + "; default: true"},
	{Path: "serverTLSBootstrap", Class: Supported, Note: joined},
	{Path: "authentication.x509.clientCAFile", Class: Supported, Note: "read again when it changes"},
	{Path: "authentication.webhook.enabled", Class: Supported},
	{Path: "authentication.webhook.cacheTTL", Class: Supported},
	{Path: "authentication.anonymous.enabled", Class: Rejected, Note: "nobody is served who has not shown who they are", Accepted: []string{"false"}},
	{Path: "authorization.mode", Class: Supported, Note: "without a control server Webhook lets in the group system:masters alone"},
	{Path: "authorization.webhook.cacheAuthorizedTTL", Class: Supported},
	{Path: "authorization.webhook.cacheUnauthorizedTTL", Class: Supported},
	{Path: "registryPullQPS", Class: Supported},
	{Path: "registryBurst", Class: Supported},
	{Path: "imagePullCredentialsVerificationPolicy", Class: Supported, Note: "default: NeverVerifyPreloadedImages; what was pulled with whose credentials is kept in image_manager below the root directory, as the kubelet keeps it"},
	{Path: "preloadedImagesVerificationAllowlist", Class: Supported, Note: "with NeverVerifyAllowlistedImages"},
	{Path: "eventRecordQPS", Class: Supported, Note: joined + "; what cannot be sent at once waits"},
	{Path: "eventBurst", Class: Supported, Note: joined + "; what cannot be sent at once waits"},
	{Path: "enableDebuggingHandlers", Class: Supported, Note: "logs, exec, attach, port-forward, run, the host's logs, /runningpods and /configz"},
	{Path: "enableContentionProfiling", Class: Ignored, Note: notProfiled},
	{Path: "healthzPort", Class: Supported},
	{Path: "healthzBindAddress", Class: Supported},
	{Path: "oomScoreAdj", Class: Supported},
	{Path: "clusterDomain", Class: Supported},
	{Path: "clusterDNS", Class: Supported, Note: "a resolver asks three; what is beyond is left out, with a warning"},
	{Path: "streamingConnectionIdleTimeout", Class: Supported, Note: "default: 4h; upstream does not honour it any more"},
	{Path: "nodeStatusUpdateFrequency", Class: Supported, Note: joined},
	{Path: "nodeStatusReportFrequency", Class: Supported, Note: joined},
	{Path: "nodeLeaseDurationSeconds", Class: Supported, Note: joined},
	{Path: "imageMinimumGCAge", Class: Supported},
	{Path: "imageMaximumGCAge", Class: Supported},
	{Path: "imageGCHighThresholdPercent", Class: Supported, Note: "images that this node has not pulled itself are kept, whatever the threshold"},
	{Path: "imageGCLowThresholdPercent", Class: Supported},
	{Path: "volumeStatsAggPeriod", Class: Ignored, Note: "volume statistics are made when asked for"},
	{Path: "kubeletCgroups", Class: Ignored, Note: "the unit file says where the agent runs (Slice=)"},
	{Path: "systemCgroups", Class: Rejected, Note: "berth moves no process that it did not start; use systemd slices"},
	{Path: "cgroupRoot", Class: Supported},
	{Path: "cgroupsPerQOS", Class: Rejected, Note: "pods always live in cgroups by QoS class", Accepted: []string{"true"}},
	{Path: "cgroupDriver", Class: Supported, Note: "default: what the runtime says, or its configuration; cgroupfs where neither tells"},
	{Path: "cpuManagerPolicy", Class: Rejected, Note: noStatics, Accepted: []string{`"none"`, `"None"`}},
	{Path: "singleProcessOOMKill", Class: Supported, Note: "of cgroup v2; on v1 the kernel always ends one process alone"},
	{Path: "cpuManagerPolicyOptions", Class: Rejected, Note: noStatics},
	{Path: "cpuManagerReconcilePeriod", Class: Ignored, Note: noStatics},
	{Path: "memoryManagerPolicy", Class: Rejected, Note: noStatics, Accepted: []string{`"None"`, `"none"`}},
	{Path: "topologyManagerPolicy", Class: Rejected, Note: noStatics, Accepted: []string{`"none"`}},
	{Path: "topologyManagerScope", Class: Ignored, Note: noStatics + ", so there is nothing to align"},
	{Path: "topologyManagerPolicyOptions", Class: Ignored, Note: noStatics + ", so there is nothing to align"},
	{Path: "qosReserved", Class: Rejected, Note: "memory is not reserved by QoS class"},
	{Path: "runtimeRequestTimeout", Class: Ignored, Note: "each call to the runtime has a deadline of its own"},
	{Path: "hairpinMode", Class: Ignored, Note: "the CNI configuration says it (hairpinMode of the bridge plugin)"},
	{Path: "maxPods", Class: Supported},
	{Path: "podCIDR", Class: Supported, Note: "the range of a standalone node with `cniPodCIDRs: [node]`, or one of each family with a comma between; setting it does nothing otherwise, and is a warning"},
	{Path: "podPidsLimit", Class: Supported},
	{Path: "resolvConf", Class: Supported, Note: "pods have what it says when they start, and with `\"\"` their own loopback alone; unless it is set, `/run/systemd/resolve/resolv.conf` counts while `/etc/resolv.conf` names servers on the host's loopback alone and that one others"},
	{Path: "runOnce", Class: Rejected, Note: "the agent runs until it is stopped", Accepted: []string{"false"}},
	{Path: "cpuCFSQuota", Class: Supported},
	{Path: "cpuCFSQuotaPeriod", Class: Supported},
	{Path: "nodeStatusMaxImages", Class: Supported, Note: joined},
	{Path: "maxOpenFiles", Class: Ignored, Note: "the unit file says it (LimitNOFILE=)"},
	{Path: "contentType", Class: Ignored, Note: "protobuf is spoken where the server can"},
	{Path: "kubeAPIQPS", Class: Supported, Note: joined},
	{Path: "kubeAPIBurst", Class: Supported, Note: joined},
	{Path: "serializeImagePulls", Class: Supported, Note: "default: false"},
	{Path: "maxParallelImagePulls", Class: Supported, Note: "default: 5; 1 with serializeImagePulls: true"},
	{Path: "evictionHard", Class: Supported, Note: "see also memoryPressureSources"},
	{Path: "evictionSoft", Class: Supported},
	{Path: "evictionSoftGracePeriod", Class: Supported},
	{Path: "evictionPressureTransitionPeriod", Class: Supported},
	{Path: "evictionMaxPodGracePeriod", Class: Supported, Note: "of pods that go for a soft threshold; one second at least"},
	{Path: "evictionMinimumReclaim", Class: Supported},
	{Path: "mergeDefaultEvictionSettings", Class: Supported},
	{Path: "podsPerCore", Class: Supported, Note: "times the CPUs of the host, and maxPods at most; 0: maxPods alone"},
	{Path: "enableControllerAttachDetach", Class: Ignored, Note: "the agent attaches no volumes"},
	{Path: "protectKernelDefaults", Class: Rejected, Note: "kernel settings are not guarded; `berth check` reports them", Accepted: []string{"false"}},
	{Path: "makeIPTablesUtilChains", Class: Ignored, Note: "the agent makes no iptables rules; kube-proxy and CNI plugins make theirs"},
	{Path: "iptablesMasqueradeBit", Class: Ignored, Note: "as upstream"},
	{Path: "iptablesDropBit", Class: Ignored, Note: "as upstream"},
	{Path: "featureGates", Class: Supported, Note: "of MemoryQoS alone, where false turns memoryThrottlingFactor and memoryReservationPolicy off; berth has no other, and setting one is a warning"},
	{Path: "failSwapOn", Class: Supported, Note: "default: false, a host with swap is as good; pods get none of it unless memorySwap.swapBehavior says so"},
	{Path: "memorySwap.swapBehavior", Class: Supported, Note: "LimitedSwap needs cgroup v2; on v1 pods get no swap, with a warning"},
	{Path: "containerLogMaxSize", Class: Supported},
	{Path: "containerLogMaxFiles", Class: Supported},
	{Path: "containerLogMaxWorkers", Class: Supported},
	{Path: "containerLogMonitorInterval", Class: Supported},
	{Path: "configMapAndSecretChangeDetectionStrategy", Class: Ignored, Note: "changes are always watched"},
	{Path: "systemReserved", Class: Supported, Note: "also pid, which bounds the processes of all pods together; more than the host has stops the start"},
	{Path: "kubeReserved", Class: Supported, Note: "as systemReserved"},
	{Path: "reservedSystemCPUs", Class: Rejected, Note: noStatics + "; reserve an amount with systemReserved"},
	{Path: "showHiddenMetricsForVersion", Class: Ignored, Note: "no metric is hidden"},
	{Path: "systemReservedCgroup", Class: Rejected, Note: "only the pods' cgroup is limited; use systemd slices for the rest"},
	{Path: "kubeReservedCgroup", Class: Rejected, Note: "only the pods' cgroup is limited; use systemd slices for the rest"},
	{Path: "enforceNodeAllocatable", Class: Supported, Note: "pods or none; the other values need the refused cgroup fields"},
	{Path: "allowedUnsafeSysctls", Class: Supported},
	{Path: "defaultPodSysctls", Class: Rejected, Note: "give pods their sysctls in spec.securityContext"},
	{Path: "volumePluginDir", Class: Ignored, Note: "there are no flexvolume plugins"},
	{Path: "providerID", Class: Supported, Note: joined},
	{Path: "kernelMemcgNotification", Class: Ignored, Note: "as upstream's default"},
	{Path: "logging.format", Class: Supported, Note: "text or json"},
	{Path: "logging.flushFrequency", Class: Ignored, Note: "each line is written at once"},
	{Path: "logging.verbosity", Class: Supported},
	{Path: "logging.vmodule", Class: Ignored, Note: "verbosity is one for all"},
	{Path: "logging.options.text.splitStream", Class: Ignored, Note: "everything goes to stderr"},
	{Path: "logging.options.text.infoBufferSize", Class: Ignored, Note: "each line is written at once"},
	{Path: "logging.options.json.splitStream", Class: Ignored, Note: "everything goes to stderr"},
	{Path: "logging.options.json.infoBufferSize", Class: Ignored, Note: "each line is written at once"},
	{Path: "enableSystemLogHandler", Class: Supported, Note: "the files below /var/log; links that lead out of it are not followed"},
	{Path: "enableSystemLogQuery", Class: Ignored, Note: "the journal is not served; use journalctl"},
	{Path: "shutdownGracePeriod", Class: Supported, Note: "by logind's inhibitor, whose InhibitDelayMaxSec is raised by a drop-in; without logind by berth-drain.service"},
	{Path: "shutdownGracePeriodCriticalPods", Class: Supported},
	{Path: "shutdownGracePeriodByPodPriority", Class: Supported},
	{Path: "crashLoopBackOff.maxContainerRestartPeriod", Class: Supported},
	{Path: "reservedMemory", Class: Rejected, Note: noStatics},
	{Path: "enableProfilingHandler", Class: Ignored, Note: notProfiled},
	{Path: "enableDebugFlagsHandler", Class: Ignored, Note: notProfiled},
	{Path: "seccompDefault", Class: Supported},
	{Path: "memoryThrottlingFactor", Class: Supported, Note: "default: none, as upstream; needs cgroup v2, else a warning"},
	{Path: "memoryReservationPolicy", Class: Supported, Note: "TieredReservation needs cgroup v2, else a warning"},
	{Path: "registerWithTaints", Class: Supported, Note: joined + "; with registerNode: false nothing is registered"},
	{Path: "registerNode", Class: Supported, Note: joined},
	{Path: "tracing.endpoint", Class: Ignored, Note: "set OTEL_EXPORTER_OTLP_ENDPOINT"},
	{Path: "tracing.samplingRatePerMillion", Class: Ignored, Note: "set OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG"},
	{Path: "localStorageCapacityIsolation", Class: Ignored, Note: "local storage is always counted and its limits are kept"},
	{Path: "containerRuntimeEndpoint", Class: Supported, Note: "default: unix:///run/containerd/containerd.sock"},
	{Path: "imageServiceEndpoint", Class: Supported, Note: "default: containerRuntimeEndpoint"},
	{Path: "failCgroupV1", Class: Supported, Note: "default: false, cgroup v1 still works here"},
	{Path: "userNamespaces.idsPerPod", Class: Rejected, Note: "a pod with its own user namespace has 65536 IDs", Accepted: []string{"65536"}},
}
