package criconfig

import (
	"math"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
)

// maskedPaths and readonlyPaths are hidden or read-only with procMount Default, as in all common
// runtimes.
func maskedPaths() []string {
	return []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats",
		"/sys/devices/virtual/powercap", "/sys/firmware",
	}
}

func readonlyPaths() []string {
	return []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
}

// effectiveSecurityContext returns the container's security context with defaults from the pod's.
func effectiveSecurityContext(pod *corev1.Pod, c *corev1.Container) *corev1.SecurityContext {
	out := &corev1.SecurityContext{}
	if c.SecurityContext != nil {
		*out = *c.SecurityContext
	}
	p := pod.Spec.SecurityContext
	if p == nil {
		return out
	}
	if out.RunAsUser == nil {
		out.RunAsUser = p.RunAsUser
	}
	if out.RunAsGroup == nil {
		out.RunAsGroup = p.RunAsGroup
	}
	if out.RunAsNonRoot == nil {
		out.RunAsNonRoot = p.RunAsNonRoot
	}
	if out.SELinuxOptions == nil {
		out.SELinuxOptions = p.SELinuxOptions
	}
	return out
}

// containerSecurity returns the security context of a container.
func containerSecurity(node Node, pod *corev1.Pod, c *corev1.Container,
	image plan.Image) (*runtimeapi.LinuxContainerSecurityContext, error) {
	sc := effectiveSecurityContext(pod, c)
	if err := verifyRunAsNonRoot(sc, image); err != nil {
		return nil, err
	}
	options, err := namespaces(node, pod, reasonContainer)
	if err != nil {
		return nil, err
	}
	out := &runtimeapi.LinuxContainerSecurityContext{
		NamespaceOptions: options,
		Capabilities:     capabilities(sc.Capabilities),
		Privileged:       isTrue(sc.Privileged),
		ReadonlyRootfs:   isTrue(sc.ReadOnlyRootFilesystem),
		SelinuxOptions:   selinux(sc.SELinuxOptions),
		NoNewPrivs:       sc.AllowPrivilegeEscalation != nil && !*sc.AllowPrivilegeEscalation,
	}
	if err := setMaskedPaths(out, sc); err != nil {
		return nil, err
	}
	setUser(out, sc, image)
	if out.SupplementalGroups, out.SupplementalGroupsPolicy, err = supplementalGroups(node, pod,
		reasonContainer); err != nil {
		return nil, err
	}
	if out.Seccomp, err = seccomp(node, pod, c); err != nil {
		return nil, err
	}
	if out.Apparmor, err = appArmor(pod, c); err != nil {
		return nil, err
	}
	return out, nil
}

// setUser sets the user: that of the spec, of the image, or root. One of them is always set,
// because the runtime rejects a group without a user.
func setUser(out *runtimeapi.LinuxContainerSecurityContext, sc *corev1.SecurityContext, image plan.Image) {
	switch {
	case sc.RunAsUser != nil:
		out.RunAsUser = int64Value(*sc.RunAsUser)
	case image.UID != nil:
		out.RunAsUser = int64Value(*image.UID)
	case image.User != "":
		out.RunAsUsername = image.User
	default:
		out.RunAsUser = int64Value(0)
	}
	if sc.RunAsGroup != nil {
		out.RunAsGroup = int64Value(*sc.RunAsGroup)
	}
}

// verifyRunAsNonRoot checks runAsNonRoot against the user that would run.
func verifyRunAsNonRoot(sc *corev1.SecurityContext, image plan.Image) error {
	if !isTrue(sc.RunAsNonRoot) {
		return nil
	}
	switch {
	case sc.RunAsUser != nil && *sc.RunAsUser == 0:
		return invalid(reasonContainer, "container's runAsUser breaks non-root policy")
	case sc.RunAsUser != nil:
		return nil
	case image.UID == nil && image.User != "":
		return invalid(reasonContainer,
			"container has runAsNonRoot and image has non-numeric user (%s), cannot verify user is non-root",
			image.User)
	case image.UID == nil || *image.UID == 0:
		return invalid(reasonContainer, "container has runAsNonRoot and image will run as root")
	case *image.UID < 0 || *image.UID > math.MaxInt32:
		return invalid(reasonContainer, "container has runAsNonRoot and image has an invalid user id (%d)", *image.UID)
	}
	return nil
}

// setMaskedPaths sets the masked and read-only paths. A privileged container has none.
func setMaskedPaths(out *runtimeapi.LinuxContainerSecurityContext, sc *corev1.SecurityContext) error {
	mount := corev1.DefaultProcMount
	if sc.ProcMount != nil {
		mount = *sc.ProcMount
	}
	switch {
	case mount == corev1.UnmaskedProcMount || out.Privileged:
	case mount == corev1.DefaultProcMount || mount == "":
		out.MaskedPaths, out.ReadonlyPaths = maskedPaths(), readonlyPaths()
	default:
		return invalid(reasonContainer, "securityContext.procMount: %q is unknown, want Default or Unmasked", mount)
	}
	return nil
}

// supplementalGroups returns the supplemental groups of all processes of the pod.
func supplementalGroups(node Node, pod *corev1.Pod,
	reason string) ([]int64, runtimeapi.SupplementalGroupsPolicy, error) {
	merge := runtimeapi.SupplementalGroupsPolicy_Merge
	sc := pod.Spec.SecurityContext
	if sc == nil {
		return nil, merge, nil
	}
	var out []int64
	if sc.FSGroup != nil {
		out = append(out, *sc.FSGroup)
	}
	out = unique(append(out, sc.SupplementalGroups...))
	if sc.SupplementalGroupsPolicy == nil {
		return out, merge, nil
	}
	switch p := *sc.SupplementalGroupsPolicy; p {
	case corev1.SupplementalGroupsPolicyMerge, "":
		return out, merge, nil
	case corev1.SupplementalGroupsPolicyStrict:
		if !node.SupplementalGroupsPolicy {
			return nil, merge, unsupported(reason,
				"spec.securityContext.supplementalGroupsPolicy: the runtime does not support Strict")
		}
		return out, runtimeapi.SupplementalGroupsPolicy_Strict, nil
	default:
		return nil, merge, invalid(reason,
			"spec.securityContext.supplementalGroupsPolicy: %q is unknown, want Merge or Strict", p)
	}
}

func capabilities(c *corev1.Capabilities) *runtimeapi.Capability {
	if c == nil {
		return nil
	}
	out := &runtimeapi.Capability{}
	for _, a := range c.Add {
		out.AddCapabilities = append(out.AddCapabilities, string(a))
	}
	for _, d := range c.Drop {
		out.DropCapabilities = append(out.DropCapabilities, string(d))
	}
	return out
}

func isTrue(b *bool) bool { return b != nil && *b }

func int64Value(n int64) *runtimeapi.Int64Value { return &runtimeapi.Int64Value{Value: n} }
