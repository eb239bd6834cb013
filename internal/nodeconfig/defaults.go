package nodeconfig

import (
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// defaultEvictionHard are upstream's thresholds on Linux.
func defaultEvictionHard() map[string]string {
	return map[string]string{
		"memory.available":   "100Mi",
		"nodefs.available":   "10%",
		"nodefs.inodesFree":  "5%",
		"imagefs.available":  "15%",
		"imagefs.inodesFree": "5%",
	}
}

// or sets a default for a zero value.
func or[T comparable](p *T, value T) {
	var zero T
	if *p == zero {
		*p = value
	}
}

func orPtr[T any](p **T, value T) {
	if *p == nil {
		*p = &value
	}
}

func orDuration(p *metav1.Duration, d time.Duration) {
	if p.Duration == 0 {
		p.Duration = d
	}
}

// setDefaults sets upstream's defaults, except where the table documents another one, for all
// supported fields.
func setDefaults(k *kubeletv1beta1.KubeletConfiguration) {
	setServerDefaults(k)
	orDuration(&k.FileCheckFrequency, 20*time.Second)
	or(&k.PodLogsDir, "/var/log/pods")
	orPtr(&k.RegistryPullQPS, 5)
	or(&k.RegistryBurst, 10)
	orPtr(&k.HealthzPort, 10248)
	or(&k.HealthzBindAddress, "127.0.0.1")
	orPtr(&k.OOMScoreAdj, -999)
	orDuration(&k.NodeStatusUpdateFrequency, 10*time.Second)
	orDuration(&k.NodeStatusReportFrequency, 5*time.Minute)
	or(&k.NodeLeaseDurationSeconds, 40)
	orDuration(&k.ImageMinimumGCAge, 2*time.Minute)
	orPtr(&k.ImageGCHighThresholdPercent, 85)
	orPtr(&k.ImageGCLowThresholdPercent, 80)
	or(&k.MaxPods, 110)
	orPtr(&k.PodPidsLimit, -1)
	orPtr(&k.ResolverConfig, "/etc/resolv.conf")
	orPtr(&k.CPUCFSQuota, true)
	orPtr(&k.CPUCFSQuotaPeriod, metav1.Duration{Duration: 100 * time.Millisecond})
	orPtr(&k.SingleProcessOOMKill, false)
	orPtr(&k.NodeStatusMaxImages, 50)
	orPtr(&k.EventRecordQPS, 50)
	or(&k.EventBurst, 100)
	orPtr(&k.KubeAPIQPS, 50)
	or(&k.KubeAPIBurst, 100)
	orDuration(&k.EvictionPressureTransitionPeriod, 5*time.Minute)
	orPtr(&k.FailSwapOn, false)
	or(&k.ContainerLogMaxSize, "10Mi")
	orPtr(&k.ContainerLogMaxFiles, 5)
	orPtr(&k.ContainerLogMaxWorkers, 1)
	orPtr(&k.ContainerLogMonitorInterval, metav1.Duration{Duration: 10 * time.Second})
	orPtr(&k.SeccompDefault, false)
	orPtr(&k.RegisterNode, true)
	orPtr(&k.LocalStorageCapacityIsolation, true)
	or(&k.ContainerRuntimeEndpoint, DefaultRuntimeEndpoint)
	or(&k.ImageServiceEndpoint, k.ContainerRuntimeEndpoint)
	orPtr(&k.FailCgroupV1, false)
	orPtr(&k.CrashLoopBackOff.MaxContainerRestartPeriod, metav1.Duration{Duration: 5 * time.Minute})
	or(&k.Logging.Format, "text")
	if k.EnforceNodeAllocatable == nil {
		k.EnforceNodeAllocatable = []string{"pods"}
	}
	or(&k.ImagePullCredentialsVerificationPolicy, kubeletv1beta1.NeverVerifyPreloadedImages)
	setPullDefaults(k)
	setEvictionDefaults(k)
}

func setServerDefaults(k *kubeletv1beta1.KubeletConfiguration) {
	orPtr(&k.EnableServer, true)
	or(&k.Address, "0.0.0.0")
	or(&k.Port, 10250)
	orPtr(&k.EnableDebuggingHandlers, true)
	orPtr(&k.Authentication.Anonymous.Enabled, false)
	orPtr(&k.Authentication.Webhook.Enabled, true)
	orDuration(&k.Authentication.Webhook.CacheTTL, 2*time.Minute)
	or(&k.Authorization.Mode, kubeletv1beta1.KubeletAuthorizationModeWebhook)
	orDuration(&k.Authorization.Webhook.CacheAuthorizedTTL, 5*time.Minute)
	orDuration(&k.Authorization.Webhook.CacheUnauthorizedTTL, 30*time.Second)
	orDuration(&k.StreamingConnectionIdleTimeout, 4*time.Hour)
	orPtr(&k.EnableSystemLogHandler, true)
	orPtr(&k.EnableSystemLogQuery, false)
	orPtr(&k.EnableProfilingHandler, true)
	orPtr(&k.EnableDebugFlagsHandler, true)
}

// setPullDefaults makes pulls parallel unless they are configured to be serial.
func setPullDefaults(k *kubeletv1beta1.KubeletConfiguration) {
	orPtr(&k.SerializeImagePulls, false)
	if *k.SerializeImagePulls {
		orPtr(&k.MaxParallelImagePulls, 1)
	}
	orPtr(&k.MaxParallelImagePulls, 5)
}

// setEvictionDefaults sets the hard thresholds. As upstream, setting one threshold drops the
// defaults of the others, unless they are merged.
func setEvictionDefaults(k *kubeletv1beta1.KubeletConfiguration) {
	if k.EvictionHard == nil {
		k.EvictionHard = defaultEvictionHard()
		return
	}
	if k.MergeDefaultEvictionSettings != nil && *k.MergeDefaultEvictionSettings {
		for signal, value := range defaultEvictionHard() {
			if _, ok := k.EvictionHard[signal]; !ok {
				k.EvictionHard[signal] = value
			}
		}
	}
}

func setBerthDefaults(b *BerthConfiguration) {
	or(&b.RootDir, DefaultRootDir)
	or(&b.CertDir, DefaultCertDir)
	or(&b.StateDir, DefaultStateDir)
	or(&b.ImagesDir, filepath.Join(b.StateDir, "images"))
	or(&b.Socket, DefaultSocket)
	or(&b.CNIConfDir, DefaultCNIConfDir)
	if b.CNIBinDirs == nil {
		b.CNIBinDirs = []string{"/opt/cni/bin", "/usr/lib/cni"}
	}
	orPtr(&b.MaxParallelStarts, 10)
	orPtr(&b.StartPressurePercent, 90)
	orPtr(&b.DeadContainersKept, 1)
	orDuration(&b.ImageGCPeriod, 5*time.Minute)
}
