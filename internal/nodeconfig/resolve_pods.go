package nodeconfig

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	logsapi "k8s.io/component-base/logs/api/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"berth/podspec"
)

func logVerbosity(n int) logsapi.VerbosityLevel { return logsapi.VerbosityLevel(n) }

const maxInt32 = 1<<31 - 1

func (l *loader) pods(c *Config) {
	k := &l.kubelet
	c.Pods = Pods{
		Max:                  l.number("maxPods", int64(k.MaxPods), 0, maxInt32),
		PerCore:              l.number("podsPerCore", int64(k.PodsPerCore), 0, maxInt32),
		PidsLimit:            *k.PodPidsLimit,
		CrashLoopMax:         k.CrashLoopBackOff.MaxContainerRestartPeriod.Duration,
		AllowedUnsafeSysctls: k.AllowedUnsafeSysctls,
		SeccompDefault:       *k.SeccompDefault,
		OOMScoreAdj:          l.number("oomScoreAdj", int64(*k.OOMScoreAdj), -1000, 1000),
	}
	if *k.PodPidsLimit < -1 {
		l.complain("podPidsLimit", "%d must be positive, or -1 for no limit", *k.PodPidsLimit)
	}
	if *k.PodPidsLimit == 0 {
		c.Pods.PidsLimit = -1 // as upstream: no limit
	}
	if d := c.Pods.CrashLoopMax; d < time.Second || d > 5*time.Minute {
		l.complain("crashLoopBackOff.maxContainerRestartPeriod", "%s must be from 1s to 5m", d)
	}
	for _, s := range k.AllowedUnsafeSysctls {
		l.sysctl(s)
	}
}

var sysctlName = regexp.MustCompile(`^[a-z0-9]([-_a-z0-9]*[a-z0-9])?([./][a-z0-9*]([-_a-z0-9*]*[a-z0-9*])?)*$`)

// sysctl validates a pattern: the name of a namespaced sysctl, or a prefix followed by an asterisk.
func (l *loader) sysctl(s string) {
	const field = "allowedUnsafeSysctls"
	name := strings.ReplaceAll(s, "/", ".")
	stem := strings.TrimSuffix(name, "*")
	switch {
	case !sysctlName.MatchString(name) || strings.Contains(stem, "*"):
		l.complain(field, "%q is neither the name of a sysctl nor a prefix that ends with *", s)
	case !namespaced(stem):
		l.complain(field, "%q is not a namespaced sysctl and would affect the whole node", s)
	}
}

func namespaced(stem string) bool {
	for _, prefix := range []string{"kernel.shm", "kernel.msg", "fs.mqueue.", "net."} {
		if strings.HasPrefix(stem, prefix) {
			return true
		}
	}
	return stem == "kernel.sem" || stem == "kernel.shm_rmid_forced"
}

func (l *loader) images(c *Config) {
	k := &l.kubelet
	c.Images = Images{
		PullQPS:              l.number("registryPullQPS", int64(*k.RegistryPullQPS), 0, maxInt32),
		PullBurst:            l.number("registryBurst", int64(k.RegistryBurst), 0, maxInt32),
		MaxParallel:          l.number("maxParallelImagePulls", int64(*k.MaxParallelImagePulls), 1, maxInt32),
		MinimumGCAge:         l.duration("imageMinimumGCAge", k.ImageMinimumGCAge, 0),
		MaximumGCAge:         l.duration("imageMaximumGCAge", k.ImageMaximumGCAge, 0),
		HighThresholdPercent: l.number("imageGCHighThresholdPercent", int64(*k.ImageGCHighThresholdPercent), 0, 100),
		LowThresholdPercent:  l.number("imageGCLowThresholdPercent", int64(*k.ImageGCLowThresholdPercent), 0, 100),
		ArchiveDir:           l.path("imagesDir", l.berth.ImagesDir),

		CredentialProviderConfig: l.path("imageCredentialProviderConfig", l.berth.ImageCredentialProviderConfig),
		CredentialProviderBinDir: l.path("imageCredentialProviderBinDir", l.berth.ImageCredentialProviderBinDir),

		GCPeriod: l.duration("imageGCPeriod", l.berth.ImageGCPeriod, time.Second),
	}
	c.Images.VerificationPolicy = kubeletv1beta1.ImagePullCredentialsVerificationPolicy(
		l.oneOf(
			"imagePullCredentialsVerificationPolicy",
			string(k.ImagePullCredentialsVerificationPolicy),
			string(
				kubeletv1beta1.NeverVerify,
			),
			string(kubeletv1beta1.NeverVerifyPreloadedImages),
			string(kubeletv1beta1.NeverVerifyAllowlistedImages),
			string(kubeletv1beta1.AlwaysVerify),
		),
	)
	c.Images.VerificationAllowlist = l.imagePatterns(c.Images.VerificationPolicy)
	if *k.SerializeImagePulls && *k.MaxParallelImagePulls > 1 {
		l.complain("maxParallelImagePulls", "%d conflicts with serializeImagePulls: true", *k.MaxParallelImagePulls)
	}
	if *k.ImageGCLowThresholdPercent >= *k.ImageGCHighThresholdPercent {
		l.complain("imageGCLowThresholdPercent", "%d must be less than imageGCHighThresholdPercent, %d",
			*k.ImageGCLowThresholdPercent, *k.ImageGCHighThresholdPercent)
	}
	if d := k.ImageMaximumGCAge.Duration; d != 0 && d <= k.ImageMinimumGCAge.Duration {
		l.complain("imageMaximumGCAge", "%s must be more than imageMinimumGCAge, %s", d, k.ImageMinimumGCAge.Duration)
	}
}

// imagePatterns parses the allowlist of image verification.
func (l *loader) imagePatterns(
	policy kubeletv1beta1.ImagePullCredentialsVerificationPolicy,
) (exempt []podspec.ImagePattern) {
	const field = "preloadedImagesVerificationAllowlist"
	list := l.kubelet.PreloadedImagesVerificationAllowlist
	if len(list) > 0 && policy != kubeletv1beta1.NeverVerifyAllowlistedImages {
		l.complain(
			field,
			"requires imagePullCredentialsVerificationPolicy: %s",
			kubeletv1beta1.NeverVerifyAllowlistedImages,
		)
	}
	for i, s := range list {
		p, err := podspec.ParseImagePattern(s)
		if err != nil {
			l.complain(fmt.Sprintf("%s[%d]", field, i), "%s", err)
		}
		exempt = append(exempt, p)
	}
	return exempt
}

func (l *loader) logs(c *Config) {
	k := &l.kubelet
	c.Logs = Logs{
		MaxFiles:        l.number("containerLogMaxFiles", int64(*k.ContainerLogMaxFiles), 2, maxInt32),
		MaxWorkers:      l.number("containerLogMaxWorkers", int64(*k.ContainerLogMaxWorkers), 1, maxInt32),
		MonitorInterval: l.duration("containerLogMonitorInterval", *k.ContainerLogMonitorInterval, 3*time.Second),
	}
	q, err := resource.ParseQuantity(k.ContainerLogMaxSize)
	if err != nil {
		l.complain("containerLogMaxSize", "%q is not a quantity such as 10Mi", k.ContainerLogMaxSize)
		return
	}
	c.Logs.MaxSize = q.Value()
	l.deprecatedLogLimit()
}

// deprecatedLogLimit warns about the removed limit of log bytes per minute.
func (l *loader) deprecatedLogLimit() {
	const field = "containerLogMaxBytesPerMinute"
	if l.berth.ContainerLogMaxBytesPerMinute != "" {
		l.warn(
			Field{Path: field},
			"is deprecated and ignored: the limit was removed, and the field will be rejected by a later release",
		)
	}
}

func (l *loader) cgroups(c *Config) {
	k := &l.kubelet
	c.Cgroups = Cgroups{
		Root:                 l.path("cgroupRoot", k.CgroupRoot),
		Driver:               k.CgroupDriver,
		FailV1:               *k.FailCgroupV1,
		FailSwapOn:           *k.FailSwapOn,
		CPUCFSQuota:          *k.CPUCFSQuota,
		CPUCFSPeriod:         k.CPUCFSQuotaPeriod.Duration,
		SingleProcessOOMKill: *k.SingleProcessOOMKill,
	}
	if k.CgroupDriver != "" {
		l.oneOf("cgroupDriver", k.CgroupDriver, "cgroupfs", "systemd")
	}
	if d := c.Cgroups.CPUCFSPeriod; d < time.Millisecond || d > time.Second {
		l.complain("cpuCFSQuotaPeriod", "%s must be from 1ms to 1s", d)
	}
	l.memory(&c.Cgroups)
	for _, v := range k.EnforceNodeAllocatable {
		switch v {
		case "pods":
			c.Cgroups.EnforcePods = true
		case "none":
		case "system-reserved", "kube-reserved", "system-reserved-compressible", "kube-reserved-compressible":
			l.complain("enforceNodeAllocatable", "%s is not supported: only the cgroup of pods is limited", v)
		default:
			l.complain("enforceNodeAllocatable", "%q must be pods or none", v)
		}
	}
	if slices.Contains(k.EnforceNodeAllocatable, "none") && len(k.EnforceNodeAllocatable) > 1 {
		l.complain("enforceNodeAllocatable", "none must be the only value")
	}
}

func (l *loader) network(c *Config) {
	k, b := &l.kubelet, &l.berth
	c.Network = Network{
		ClusterDNS:    l.addresses("clusterDNS", k.ClusterDNS),
		ClusterDomain: strings.TrimSuffix(k.ClusterDomain, "."),
		ResolvConf:    l.path("resolvConf", *k.ResolverConfig),
		CNIConfDir:    l.path("cniConfDir", b.CNIConfDir),
	}
	if !l.written("resolvConf") {
		c.Network.FallbackResolvConf = SystemdResolvConf
	}
	l.podRanges(c)
	c.Network.ServiceProxy = l.toggle("serviceProxy", l.berth.ServiceProxy)
	serviceCIDR := []string{cmp.Or(l.berth.ServiceCIDR, DefaultServiceCIDR)}
	if ranges := l.prefixes("serviceCIDR", serviceCIDR); len(ranges) == 1 {
		c.Network.ServiceCIDR = ranges[0]
	}
	if l.berth.ServiceCIDR != "" && !c.Standalone() {
		l.warn(Field{Path: "serviceCIDR"}, "has no effect on a node that has joined a server: the server assigns "+
			"the addresses of Services")
	}
	c.Network.ClusterDNSServer = l.toggle("clusterDNSServer", l.berth.ClusterDNSServer)
	c.Network.NetworkPolicy = l.toggle("networkPolicy", l.berth.NetworkPolicy)
	switch {
	case c.Network.NetworkPolicy == On && c.Standalone():
		l.complain("networkPolicy", "on requires a node that has joined a server, which has the policies")
	case c.Standalone():
		c.Network.NetworkPolicy = Off
	}
	if most := 3; len(c.Network.ClusterDNS) > most {
		l.warn(
			Field{Path: "clusterDNS"},
			fmt.Sprintf(
				"has %d addresses, and resolvers use at most %d: the others are ignored",
				len(k.ClusterDNS),
				most,
			),
		)
		c.Network.ClusterDNS = c.Network.ClusterDNS[:most]
	}
	if c.Network.ClusterDomain != "" {
		for _, m := range validation.IsDNS1123Subdomain(c.Network.ClusterDomain) {
			l.complain("clusterDomain", "%q: %s", k.ClusterDomain, m)
		}
	}
	for _, dir := range b.CNIBinDirs {
		c.Network.CNIBinDirs = append(c.Network.CNIBinDirs, l.path("cniBinDirs", dir))
	}
	if len(b.CNIBinDirs) == 0 {
		l.complain("cniBinDirs", "must not be empty")
	}
}

// toggle resolves a Switch.
func (l *loader) toggle(field, value string) Switch {
	return Switch(l.oneOf(field, cmp.Or(value, string(Auto)), string(Auto), string(On), string(Off)))
}

// podRanges resolves the pod CIDRs of the default CNI configuration: those of cniPodCIDRs or, with
// the value node, those assigned by the API server, or podCIDR on a standalone node.
func (l *loader) podRanges(c *Config) {
	given := l.berth.CNIPodCIDRs
	ofNode := len(given) == 1 && given[0] == "node"
	var own []netip.Prefix
	if text := l.kubelet.PodCIDR; text != "" {
		own = l.prefixes("podCIDR", strings.Split(text, ","))
		switch {
		case !c.Standalone():
			l.warn(
				Field{Path: "podCIDR"},
				"has no effect on a node that has joined a server: the server assigns the pod CIDR",
			)
		case !ofNode:
			l.warn(Field{Path: "podCIDR"}, "has no effect without cniPodCIDRs: [node]")
		}
	}
	switch {
	case !ofNode:
		c.Network.CNIPodCIDRs = l.prefixes("cniPodCIDRs", given)
	case !c.Standalone():
		c.Network.PodCIDRsFromNode = true
	case l.kubelet.PodCIDR == "":
		l.complain("cniPodCIDRs", "node: a standalone node has no assigned pod CIDR; set podCIDR")
	default:
		c.Network.CNIPodCIDRs = own
	}
	const field, by = "podRouting", "hostGateway"
	hostGateway := l.oneOf(field, cmp.Or(l.berth.PodRouting, by), by, "none") == by
	c.Network.HostGateway = hostGateway && c.Network.PodCIDRsFromNode
	if l.berth.PodRouting == by && !c.Network.PodCIDRsFromNode {
		l.complain(
			field,
			"%s requires cniPodCIDRs: [node] on a node that has joined a server: the pod CIDRs of other nodes are "+
				"unknown otherwise",
			by,
		)
	}
}

func (l *loader) reserved(c *Config) {
	c.Reserved = Reserved{
		System: l.resources("systemReserved", l.kubelet.SystemReserved),
		Kube:   l.resources("kubeReserved", l.kubelet.KubeReserved),
	}
}

func (l *loader) resources(field string, in map[string]string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for _, name := range slices.Sorted(maps.Keys(in)) {
		path := field + "." + name
		switch name {
		case "cpu", "memory", "ephemeral-storage", "pid":
		default:
			if !strings.HasPrefix(name, corev1.ResourceHugePagesPrefix) {
				l.complain(path, "must be one of cpu, memory, ephemeral-storage, pid")
				continue
			}
		}
		q, err := resource.ParseQuantity(in[name])
		switch {
		case err != nil:
			l.complain(path, "%q is not a quantity such as 500m or 1Gi", in[name])
		case q.Sign() < 0:
			l.complain(path, "%s must not be negative", in[name])
		default:
			out[corev1.ResourceName(name)] = q
		}
	}
	return out
}
