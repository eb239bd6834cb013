package nodeconfig

import "slices"

// Class is what becomes of a field of KubeletConfiguration.
type Class int

const (
	// Honoured fields do what upstream documents.
	Honoured Class = iota + 1
	// Inert fields have no meaning here, and leaving them out changes nothing
	// that a user gets. Setting one is a warning.
	Inert
	// Refused fields stop the start: ignoring them would change what the user
	// gets. Values in Neutral ask for what berth does anyway and are accepted.
	Refused
)

func (c Class) String() string {
	return [...]string{"", "honoured", "inert", "refused"}[c]
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
	joined      = "on a node that has joined a server"
	notProfiled = "the agent has no profiling endpoint"
)

// table is never written to.
var table = []Field{
	{Path: "enableServer", Class: Honoured, Note: "without a control server the port is opened only where authentication.x509.clientCAFile says who may ask"},
	{Path: "staticPodPath", Class: Honoured, Note: "a folder or a file; in a folder, files whose names end in `.yaml`, `.yml`, `.json` or `.manifest` are read, and the log tells of others; ConfigMaps and Secrets may lie beside the pods"},
	{Path: "podLogsDir", Class: Honoured},
	{Path: "syncFrequency", Class: Inert, Note: "a pod is looked at when something changes"},
	{Path: "fileCheckFrequency", Class: Honoured, Note: "changes are seen at once by inotify; this is the rescan beside it"},
	{Path: "httpCheckFrequency", Class: Inert, Note: "there is no HTTP source"},
	{Path: "staticPodURL", Class: Refused, Note: "pods come from files or a control server"},
	{Path: "staticPodURLHeader", Class: Refused, Note: "pods come from files or a control server"},
	{Path: "address", Class: Honoured},
	{Path: "port", Class: Honoured},
	{Path: "readOnlyPort", Class: Refused, Note: "the port without authentication is not served", Neutral: []string{"0"}},
	{Path: "tlsCertFile", Class: Honoured, Note: "read again when it changes; default: kubelet.crt in --cert-dir, signed by the node itself"},
	{Path: "tlsPrivateKeyFile", Class: Honoured, Note: "read again when it changes"},
	{Path: "tlsCipherSuites", Class: Honoured, Note: "without TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 and TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, which HTTP/2 wants, HTTP/1.1 alone is spoken; the suites of TLS 1.3 are always there"},
	{Path: "tlsCurvePreferences", Class: Honoured},
	{Path: "tlsMinVersion", Class: Honoured},
	{Path: "rotateCertificates", Class: Honoured, Note: joined + "; default: true"},
	{Path: "serverTLSBootstrap", Class: Honoured, Note: joined},
	{Path: "authentication.x509.clientCAFile", Class: Honoured, Note: "read again when it changes"},
	{Path: "authentication.webhook.enabled", Class: Honoured},
	{Path: "authentication.webhook.cacheTTL", Class: Honoured},
	{Path: "authentication.anonymous.enabled", Class: Refused, Note: "nobody is served who has not shown who they are", Neutral: []string{"false"}},
	{Path: "authorization.mode", Class: Honoured, Note: "without a control server Webhook lets in the group system:masters alone"},
	{Path: "authorization.webhook.cacheAuthorizedTTL", Class: Honoured},
	{Path: "authorization.webhook.cacheUnauthorizedTTL", Class: Honoured},
	{Path: "registryPullQPS", Class: Honoured},
	{Path: "registryBurst", Class: Honoured},
	{Path: "imagePullCredentialsVerificationPolicy", Class: Honoured, Note: "default: NeverVerifyPreloadedImages; what was pulled with whose credentials is kept in image_manager below the root directory, as the kubelet keeps it"},
	{Path: "preloadedImagesVerificationAllowlist", Class: Honoured, Note: "with NeverVerifyAllowlistedImages"},
	{Path: "eventRecordQPS", Class: Honoured, Note: joined + "; what cannot be sent at once waits"},
	{Path: "eventBurst", Class: Honoured, Note: joined + "; what cannot be sent at once waits"},
	{Path: "enableDebuggingHandlers", Class: Honoured, Note: "logs, exec, attach, port-forward, run, the host's logs, /runningpods and /configz"},
	{Path: "enableContentionProfiling", Class: Inert, Note: notProfiled},
	{Path: "healthzPort", Class: Honoured},
	{Path: "healthzBindAddress", Class: Honoured},
	{Path: "oomScoreAdj", Class: Honoured},
	{Path: "clusterDomain", Class: Honoured},
	{Path: "clusterDNS", Class: Honoured, Note: "a resolver asks three; what is beyond is left out, with a warning"},
	{Path: "streamingConnectionIdleTimeout", Class: Honoured, Note: "default: 4h; upstream does not honour it any more"},
	{Path: "nodeStatusUpdateFrequency", Class: Honoured, Note: joined},
	{Path: "nodeStatusReportFrequency", Class: Honoured, Note: joined},
	{Path: "nodeLeaseDurationSeconds", Class: Honoured, Note: joined},
	{Path: "imageMinimumGCAge", Class: Honoured},
	{Path: "imageMaximumGCAge", Class: Honoured},
	{Path: "imageGCHighThresholdPercent", Class: Honoured, Note: "images that this node has not pulled itself are kept, whatever the threshold"},
	{Path: "imageGCLowThresholdPercent", Class: Honoured},
	{Path: "volumeStatsAggPeriod", Class: Inert, Note: "volume statistics are made when asked for"},
	{Path: "kubeletCgroups", Class: Inert, Note: "the unit file says where the agent runs (Slice=)"},
	{Path: "systemCgroups", Class: Refused, Note: "berth moves no process that it did not start; use systemd slices"},
	{Path: "cgroupRoot", Class: Honoured},
	{Path: "cgroupsPerQOS", Class: Refused, Note: "pods always live in cgroups by QoS class", Neutral: []string{"true"}},
	{Path: "cgroupDriver", Class: Honoured, Note: "default: what the runtime says, or its configuration; cgroupfs where neither tells"},
	{Path: "cpuManagerPolicy", Class: Refused, Note: noStatics, Neutral: []string{`"none"`, `"None"`}},
	{Path: "singleProcessOOMKill", Class: Honoured, Note: "of cgroup v2; on v1 the kernel always ends one process alone"},
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
	{Path: "podCIDR", Class: Honoured, Note: "the range of a standalone node with `cniPodCIDRs: [node]`, or one of each family with a comma between; setting it does nothing otherwise, and is a warning"},
	{Path: "podPidsLimit", Class: Honoured},
	{Path: "resolvConf", Class: Honoured, Note: "pods have what it says when they start, and with `\"\"` their own loopback alone; unless it is set, `/run/systemd/resolve/resolv.conf` counts while `/etc/resolv.conf` names servers on the host's loopback alone and that one others"},
	{Path: "runOnce", Class: Refused, Note: "the agent runs until it is stopped", Neutral: []string{"false"}},
	{Path: "cpuCFSQuota", Class: Honoured},
	{Path: "cpuCFSQuotaPeriod", Class: Honoured},
	{Path: "nodeStatusMaxImages", Class: Honoured, Note: joined},
	{Path: "maxOpenFiles", Class: Inert, Note: "the unit file says it (LimitNOFILE=)"},
	{Path: "contentType", Class: Inert, Note: "protobuf is spoken where the server can"},
	{Path: "kubeAPIQPS", Class: Honoured, Note: joined},
	{Path: "kubeAPIBurst", Class: Honoured, Note: joined},
	{Path: "serializeImagePulls", Class: Honoured, Note: "default: false"},
	{Path: "maxParallelImagePulls", Class: Honoured, Note: "default: 5; 1 with serializeImagePulls: true"},
	{Path: "evictionHard", Class: Honoured, Note: "see also memoryPressureSources"},
	{Path: "evictionSoft", Class: Honoured},
	{Path: "evictionSoftGracePeriod", Class: Honoured},
	{Path: "evictionPressureTransitionPeriod", Class: Honoured},
	{Path: "evictionMaxPodGracePeriod", Class: Honoured, Note: "of pods that go for a soft threshold; one second at least"},
	{Path: "evictionMinimumReclaim", Class: Honoured},
	{Path: "mergeDefaultEvictionSettings", Class: Honoured},
	{Path: "podsPerCore", Class: Honoured, Note: "times the CPUs of the host, and maxPods at most; 0: maxPods alone"},
	{Path: "enableControllerAttachDetach", Class: Inert, Note: "the agent attaches no volumes"},
	{Path: "protectKernelDefaults", Class: Refused, Note: "kernel settings are not guarded; `berth check` reports them", Neutral: []string{"false"}},
	{Path: "makeIPTablesUtilChains", Class: Inert, Note: "the agent makes no iptables rules; kube-proxy and CNI plugins make theirs"},
	{Path: "iptablesMasqueradeBit", Class: Inert, Note: "as upstream"},
	{Path: "iptablesDropBit", Class: Inert, Note: "as upstream"},
	{Path: "featureGates", Class: Honoured, Note: "of MemoryQoS alone, where false turns memoryThrottlingFactor and memoryReservationPolicy off; berth has no other, and setting one is a warning"},
	{Path: "failSwapOn", Class: Honoured, Note: "default: false, a host with swap is as good; pods get none of it unless memorySwap.swapBehavior says so"},
	{Path: "memorySwap.swapBehavior", Class: Honoured, Note: "LimitedSwap needs cgroup v2; on v1 pods get no swap, with a warning"},
	{Path: "containerLogMaxSize", Class: Honoured},
	{Path: "containerLogMaxFiles", Class: Honoured},
	{Path: "containerLogMaxWorkers", Class: Honoured},
	{Path: "containerLogMonitorInterval", Class: Honoured},
	{Path: "configMapAndSecretChangeDetectionStrategy", Class: Inert, Note: "changes are always watched"},
	{Path: "systemReserved", Class: Honoured, Note: "also pid, which bounds the processes of all pods together; more than the host has stops the start"},
	{Path: "kubeReserved", Class: Honoured, Note: "as systemReserved"},
	{Path: "reservedSystemCPUs", Class: Refused, Note: noStatics + "; reserve an amount with systemReserved"},
	{Path: "showHiddenMetricsForVersion", Class: Inert, Note: "no metric is hidden"},
	{Path: "systemReservedCgroup", Class: Refused, Note: "only the pods' cgroup is limited; use systemd slices for the rest"},
	{Path: "kubeReservedCgroup", Class: Refused, Note: "only the pods' cgroup is limited; use systemd slices for the rest"},
	{Path: "enforceNodeAllocatable", Class: Honoured, Note: "pods or none; the other values need the refused cgroup fields"},
	{Path: "allowedUnsafeSysctls", Class: Honoured},
	{Path: "defaultPodSysctls", Class: Refused, Note: "give pods their sysctls in spec.securityContext"},
	{Path: "volumePluginDir", Class: Inert, Note: "there are no flexvolume plugins"},
	{Path: "providerID", Class: Honoured, Note: joined},
	{Path: "kernelMemcgNotification", Class: Inert, Note: "as upstream's default"},
	{Path: "logging.format", Class: Honoured, Note: "text or json"},
	{Path: "logging.flushFrequency", Class: Inert, Note: "each line is written at once"},
	{Path: "logging.verbosity", Class: Honoured},
	{Path: "logging.vmodule", Class: Inert, Note: "verbosity is one for all"},
	{Path: "logging.options.text.splitStream", Class: Inert, Note: "everything goes to stderr"},
	{Path: "logging.options.text.infoBufferSize", Class: Inert, Note: "each line is written at once"},
	{Path: "logging.options.json.splitStream", Class: Inert, Note: "everything goes to stderr"},
	{Path: "logging.options.json.infoBufferSize", Class: Inert, Note: "each line is written at once"},
	{Path: "enableSystemLogHandler", Class: Honoured, Note: "the files below /var/log; links that lead out of it are not followed"},
	{Path: "enableSystemLogQuery", Class: Inert, Note: "the journal is not served; use journalctl"},
	{Path: "shutdownGracePeriod", Class: Honoured, Note: "by logind's inhibitor, whose InhibitDelayMaxSec is raised by a drop-in; without logind by berth-drain.service"},
	{Path: "shutdownGracePeriodCriticalPods", Class: Honoured},
	{Path: "shutdownGracePeriodByPodPriority", Class: Honoured},
	{Path: "crashLoopBackOff.maxContainerRestartPeriod", Class: Honoured},
	{Path: "reservedMemory", Class: Refused, Note: noStatics},
	{Path: "enableProfilingHandler", Class: Inert, Note: notProfiled},
	{Path: "enableDebugFlagsHandler", Class: Inert, Note: notProfiled},
	{Path: "seccompDefault", Class: Honoured},
	{Path: "memoryThrottlingFactor", Class: Honoured, Note: "default: none, as upstream; needs cgroup v2, else a warning"},
	{Path: "memoryReservationPolicy", Class: Honoured, Note: "TieredReservation needs cgroup v2, else a warning"},
	{Path: "registerWithTaints", Class: Honoured, Note: joined + "; with registerNode: false nothing is registered"},
	{Path: "registerNode", Class: Honoured, Note: joined},
	{Path: "tracing.endpoint", Class: Inert, Note: "set OTEL_EXPORTER_OTLP_ENDPOINT"},
	{Path: "tracing.samplingRatePerMillion", Class: Inert, Note: "set OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG"},
	{Path: "localStorageCapacityIsolation", Class: Inert, Note: "local storage is always counted and its limits are kept"},
	{Path: "containerRuntimeEndpoint", Class: Honoured, Note: "default: unix:///run/containerd/containerd.sock"},
	{Path: "imageServiceEndpoint", Class: Honoured, Note: "default: containerRuntimeEndpoint"},
	{Path: "failCgroupV1", Class: Honoured, Note: "default: false, cgroup v1 still works here"},
	{Path: "userNamespaces.idsPerPod", Class: Refused, Note: "a pod with its own user namespace has 65536 IDs", Neutral: []string{"65536"}},
}
