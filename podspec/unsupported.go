package podspec

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// UnsupportedFields returns the fields of a pod from a file that berth does not support: as warnings
// ("path: reason") if the pod can run without them, as errors if it cannot, because it would be
// less secure or behave differently than specified. For pods from an API server, see FeatureUses.
func UnsupportedFields(pod *corev1.Pod) (warnings []string, rejected field.ErrorList) {
	for _, row := range unsupported {
		row.find(pod, func(at *field.Path, detail string) {
			if why := row.message(detail); row.reject {
				rejected = append(rejected, field.Forbidden(at, why))
			} else {
				warnings = append(warnings, at.String()+": "+why)
			}
		})
	}
	return warnings, rejected
}

// unsupportedField is one row of the table.
type unsupportedField struct {
	reject bool
	find   finder
	why    string // with %s for the detail that find reports, if any

	// feature is set if the field is not supported for pods from an API server either.
	feature Feature
}

// finder reports every place in a pod where a field is used.
type finder func(pod *corev1.Pod, found func(at *field.Path, detail string))

const (
	warn   = false
	reject = true
)

// unsupported lists the unsupported fields. A row is removed when the field is supported.
var unsupported = []unsupportedField{
	// Hooks.
	{warn, inHooks("tcpSocket", func(h *corev1.LifecycleHandler) bool { return h.TCPSocket != nil }), noTCPHook, ""},
	{warn, inHooks("httpGet.protocol", func(h *corev1.LifecycleHandler) bool {
		return h.HTTPGet != nil && h.HTTPGet.Protocol != nil && *h.HTTPGet.Protocol != corev1.HTTPProtocolHTTP1
	}), "hooks use HTTP/1.1", ""},

	// Volumes.
	{reject, volumesOf(storageVolumes...), "volumes of type %s require an API server", ""},
	{reject, otherVolumes, noVolumeType, FeatureInTreeVolumes},
	{reject, projections("serviceAccountToken", hasToken), "service account tokens are not supported yet", ""},
	{
		reject, projections("clusterTrustBundle", hasTrustBundle), "cluster trust bundles require an API server", "",
	},
	{
		reject, projections("podCertificate", hasPodCertificate), "pod certificates require an API server", "",
	},
	{reject, inContainers("volumeDevices", hasDevices), "raw block volumes require an API server", ""},
	{reject, bindOptions, "bind mount options are not supported yet", FeatureBindMountOptions},

	// Resources.
	{
		reject,
		inPod("resourceClaims", func(s *corev1.PodSpec) bool { return len(s.ResourceClaims) > 0 }),
		noResourceClaims, FeatureResourceClaims,
	},
	{
		reject,
		inPod(
			"resources.claims",
			func(s *corev1.PodSpec) bool { return s.Resources != nil && len(s.Resources.Claims) > 0 },
		),
		noResourceClaims, FeatureResourceClaims,
	},
	{reject, inContainers("resources.claims", hasClaims), noResourceClaims, FeatureResourceClaims},

	// Tasks of an API server, the scheduler and controllers.
	{warn, unknownPriority, "PriorityClass %s requires an API server: the priority is 0", ""},
	{warn, otherScheduler, schedulingIgnored, ""},
	{warn, podTerms, schedulingIgnored, ""},
	{
		warn,
		inPod(
			"topologySpreadConstraints",
			func(s *corev1.PodSpec) bool { return len(s.TopologySpreadConstraints) > 0 },
		),
		schedulingIgnored, "",
	},
	{
		warn,
		inPod("schedulingGates", func(s *corev1.PodSpec) bool { return len(s.SchedulingGates) > 0 }),
		"scheduling gates have no effect on a standalone node: the pod starts immediately", "",
	},
	{
		warn,
		inPod("readinessGates", func(s *corev1.PodSpec) bool { return len(s.ReadinessGates) > 0 }),
		"the conditions of readiness gates are not set on a standalone node: the pod is never ready", "",
	},
	{
		warn,
		inPod("schedulingGroup", func(s *corev1.PodSpec) bool { return s.SchedulingGroup != nil }),
		schedulingIgnored, "",
	},
	{
		warn,
		inPod("evictionResponders", func(s *corev1.PodSpec) bool { return len(s.EvictionResponders) > 0 }),
		"eviction responders have no effect on a standalone node: evictions do not wait", "",
	},
	{
		warn,
		inPod("ephemeralContainers", func(s *corev1.PodSpec) bool { return len(s.EphemeralContainers) > 0 }),
		"ephemeral containers start like others, but an API server rejects them in a new pod", "",
	},

	// Identity and platform.
	{
		warn,
		inPod("serviceAccountName", func(s *corev1.PodSpec) bool { return s.ServiceAccountName != "" }),
		"service account tokens are not supported yet", "",
	},
	{
		warn,
		inPod(
			"automountServiceAccountToken",
			func(s *corev1.PodSpec) bool { return isTrue(s.AutomountServiceAccountToken) },
		),
		"service account tokens are not supported yet", "",
	},
	{
		warn,
		inPod("securityContext.seLinuxChangePolicy", hasSELinuxChange),
		"the policy is not supported yet: the runtime relabels volumes", "",
	},
	{
		reject,
		inPod("os.name", func(s *corev1.PodSpec) bool { return s.OS != nil && s.OS.Name == corev1.Windows }),
		"Windows pods are not supported", "",
	},
	{reject, inPod("securityContext.windowsOptions", hasWindowsOptions), noWindowsOptions, ""},
	{reject, inContainers("securityContext.windowsOptions", ownWindowsOptions), noWindowsOptions, ""},
}

// unsupportedEarlier lists the fields with a feature that nodes of earlier versions do not support. Pods
// with such a field are not taken over from the kubelet either.
var unsupportedEarlier = []unsupportedField{
	{reject, volumesOf("csi"), "volumes of type %s are not supported here", FeatureCSIVolumes},
	{reject, inContainers("volumeDevices", hasDevices), "raw block volumes are not supported here", FeatureBlockVolumes},
}

const schedulingIgnored = "has no effect on a standalone node: the pod always runs on this node"

const (
	noVolumeType     = "volumes of type %s are not supported yet"
	noWindowsOptions = "Windows options are not supported"
	noResourceClaims = "dynamic resources are not supported yet"
)

const noTCPHook = "the hook was removed from the API: it always fails"

// supportedVolumes are the volume types that berth supports.
var supportedVolumes = []string{"hostPath", "emptyDir", "configMap", "secret", "downwardAPI", "projected", "image"}

// storageVolumes are the volume types that require an API server.
var storageVolumes = []string{"persistentVolumeClaim", "ephemeral", "csi"}

func hasDevices(c *corev1.Container) bool { return len(c.VolumeDevices) > 0 }
func hasClaims(c *corev1.Container) bool  { return len(c.Resources.Claims) > 0 }

func ownWindowsOptions(c *corev1.Container) bool {
	return c.SecurityContext != nil && c.SecurityContext.WindowsOptions != nil
}

func hasWindowsOptions(s *corev1.PodSpec) bool {
	return s.SecurityContext != nil && s.SecurityContext.WindowsOptions != nil
}

func hasSELinuxChange(s *corev1.PodSpec) bool {
	return s.SecurityContext != nil && s.SecurityContext.SELinuxChangePolicy != nil
}

func hasToken(p *corev1.VolumeProjection) bool          { return p.ServiceAccountToken != nil }
func hasTrustBundle(p *corev1.VolumeProjection) bool    { return p.ClusterTrustBundle != nil }
func hasPodCertificate(p *corev1.VolumeProjection) bool { return p.PodCertificate != nil }

// inPod finds a field of the pod spec.
func inPod(name string, used func(*corev1.PodSpec) bool) finder {
	return func(pod *corev1.Pod, found func(*field.Path, string)) {
		if used(&pod.Spec) {
			found(field.NewPath("spec").Child(name), "")
		}
	}
}

// inContainers finds a field of containers of every kind.
func inContainers(name string, used func(*corev1.Container) bool) finder {
	return func(pod *corev1.Pod, found func(*field.Path, string)) {
		for c, where := range containersOf(&pod.Spec) {
			if used(c) {
				found(where.path.Child(name), "")
			}
		}
	}
}

// inHooks finds a field of the lifecycle hooks of containers of every kind.
func inHooks(name string, used func(*corev1.LifecycleHandler) bool) finder {
	return func(pod *corev1.Pod, found func(*field.Path, string)) {
		for c, where := range containersOf(&pod.Spec) {
			if c.Lifecycle == nil {
				continue
			}
			if h := c.Lifecycle.PostStart; h != nil && used(h) {
				found(where.path.Child("lifecycle", "postStart", name), "")
			}
			if h := c.Lifecycle.PreStop; h != nil && used(h) {
				found(where.path.Child("lifecycle", "preStop", name), "")
			}
		}
	}
}

// projections finds a source type of projected volumes.
func projections(name string, used func(*corev1.VolumeProjection) bool) finder {
	return eachVolume(func(v *corev1.Volume, at *field.Path, found func(*field.Path, string)) {
		if v.Projected == nil {
			return
		}
		for i := range v.Projected.Sources {
			if used(&v.Projected.Sources[i]) {
				found(at.Child("projected", "sources").Index(i).Child(name), "")
			}
		}
	})
}

func eachVolume(visit func(*corev1.Volume, *field.Path, func(*field.Path, string))) finder {
	return func(pod *corev1.Pod, found func(*field.Path, string)) {
		for i := range pod.Spec.Volumes {
			visit(&pod.Spec.Volumes[i], field.NewPath("spec", "volumes").Index(i), found)
		}
	}
}

// volumesOf finds volumes of the given types.
func volumesOf(types ...string) finder {
	return eachVolume(func(v *corev1.Volume, at *field.Path, found func(*field.Path, string)) {
		for _, kind := range volumeKinds(&v.VolumeSource) {
			if slices.Contains(types, kind) {
				found(at.Child(kind), kind)
			}
		}
	})
}

// otherVolumes finds volumes of types that are neither supported nor in another row.
var otherVolumes = eachVolume(func(v *corev1.Volume, at *field.Path, found func(*field.Path, string)) {
	for _, kind := range volumeKinds(&v.VolumeSource) {
		if !slices.Contains(supportedVolumes, kind) && !slices.Contains(storageVolumes, kind) {
			found(at.Child(kind), kind)
		}
	}
})

func unknownPriority(pod *corev1.Pod, found func(*field.Path, string)) {
	class := pod.Spec.PriorityClassName
	if _, known := systemPriority(class); class != "" && !known && pod.Spec.Priority == nil {
		found(field.NewPath("spec", "priorityClassName"), class)
	}
}

func otherScheduler(pod *corev1.Pod, found func(*field.Path, string)) {
	if s := pod.Spec.SchedulerName; s != "" && s != corev1.DefaultSchedulerName {
		found(field.NewPath("spec", "schedulerName"), "")
	}
}

// podTerms finds required pod affinity and anti-affinity. Preferences may be ignored.
func podTerms(pod *corev1.Pod, found func(*field.Path, string)) {
	a := pod.Spec.Affinity
	if a == nil {
		return
	}
	at := field.NewPath("spec", "affinity")
	const required = "requiredDuringSchedulingIgnoredDuringExecution"
	if a.PodAffinity != nil && len(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0 {
		found(at.Child("podAffinity", required), "")
	}
	if a.PodAntiAffinity != nil && len(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0 {
		found(at.Child("podAntiAffinity", required), "")
	}
}

func bindOptions(pod *corev1.Pod, found func(*field.Path, string)) {
	for c, where := range containersOf(&pod.Spec) {
		for i, m := range c.VolumeMounts {
			if len(m.BindMountOptions) > 0 {
				found(where.path.Child("volumeMounts").Index(i).Child("bindMountOptions"), "")
			}
		}
	}
}
