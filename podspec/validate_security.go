package podspec

import (
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	maxSysctlName      = 253
	maxAppArmorProfile = 4095
)

// podSecurity validates the security context of the pod.
func (k *validator) podSecurity(at *field.Path) {
	sc := k.spec.SecurityContext
	if sc == nil {
		return
	}
	k.userID(at.Child("runAsUser"), sc.RunAsUser)
	k.groupID(at.Child("runAsGroup"), sc.RunAsGroup)
	k.groupID(at.Child("fsGroup"), sc.FSGroup)
	for i := range sc.SupplementalGroups {
		k.groupID(at.Child("supplementalGroups").Index(i), &sc.SupplementalGroups[i])
	}
	oneOfIfSet(k, at.Child("supplementalGroupsPolicy"), sc.SupplementalGroupsPolicy,
		corev1.SupplementalGroupsPolicyMerge, corev1.SupplementalGroupsPolicyStrict)
	oneOfIfSet(k, at.Child("fsGroupChangePolicy"), sc.FSGroupChangePolicy,
		corev1.FSGroupChangeAlways, corev1.FSGroupChangeOnRootMismatch)
	oneOfIfSet(k, at.Child("seLinuxChangePolicy"), sc.SELinuxChangePolicy,
		corev1.SELinuxChangePolicyMountOption, corev1.SELinuxChangePolicyRecursive)
	k.seccomp(at.Child("seccompProfile"), sc.SeccompProfile)
	k.appArmor(at.Child("appArmorProfile"), sc.AppArmorProfile)
	k.sysctls(at.Child("sysctls"), sc.Sysctls)
}

// containerSecurity validates the security context of a container.
func (k *validator) containerSecurity(at *field.Path, c *corev1.Container) {
	sc := c.SecurityContext
	if sc == nil {
		return
	}
	k.userID(at.Child("runAsUser"), sc.RunAsUser)
	k.groupID(at.Child("runAsGroup"), sc.RunAsGroup)
	k.seccomp(at.Child("seccompProfile"), sc.SeccompProfile)
	k.appArmor(at.Child("appArmorProfile"), sc.AppArmorProfile)
	if sc.ProcMount != nil {
		oneOf(k, at.Child("procMount"), *sc.ProcMount, corev1.DefaultProcMount, corev1.UnmaskedProcMount)
		if *sc.ProcMount == corev1.UnmaskedProcMount && (k.spec.HostUsers == nil || *k.spec.HostUsers) {
			k.invalid(at.Child("procMount"), *sc.ProcMount, "`hostUsers` must be false to use `Unmasked`")
		}
	}
	k.capabilities(at.Child("capabilities"), sc.Capabilities)
	if sc.AllowPrivilegeEscalation == nil || *sc.AllowPrivilegeEscalation {
		return
	}
	if isTrue(sc.Privileged) {
		k.invalid(at, "", "cannot set `allowPrivilegeEscalation` to false and `privileged` to true")
	}
	if sc.Capabilities == nil {
		return
	}
	for _, added := range sc.Capabilities.Add {
		if added == "CAP_SYS_ADMIN" {
			k.invalid(at, "", "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN")
		}
	}
}

func (k *validator) userID(at *field.Path, id *int64) {
	if id != nil {
		k.each(at, *id, validation.IsValidUserID(*id))
	}
}

func (k *validator) groupID(at *field.Path, id *int64) {
	if id != nil {
		k.each(at, *id, validation.IsValidGroupID(*id))
	}
}

func (k *validator) capabilities(at *field.Path, caps *corev1.Capabilities) {
	if caps == nil {
		return
	}
	if i := slices.Index(caps.Add, ""); i >= 0 {
		k.required(at.Child("add").Index(i), "")
	}
	if i := slices.Index(caps.Drop, ""); i >= 0 {
		k.required(at.Child("drop").Index(i), "")
	}
}

func (k *validator) seccomp(at *field.Path, p *corev1.SeccompProfile) {
	if p == nil {
		return
	}
	oneOf(k, at.Child("type"), p.Type, corev1.SeccompProfileTypeLocalhost,
		corev1.SeccompProfileTypeRuntimeDefault, corev1.SeccompProfileTypeUnconfined)
	file := at.Child("localhostProfile")
	name, named := k.localProfile(file, p.Type == corev1.SeccompProfileTypeLocalhost, p.LocalhostProfile, "seccomp")
	if named && (path.IsAbs(name) || hasBacksteps(name)) {
		k.invalid(file, name, "must be a relative path that descends and does not contain '..'")
	}
}

// localProfile returns the name of a profile on the node, if there is one to validate.
func (k *validator) localProfile(at *field.Path, local bool, name *string, of string) (string, bool) {
	switch {
	case !local && name != nil:
		k.invalid(at, *name, "can only be set when `type` is Localhost")
	case local && (name == nil || strings.TrimSpace(*name) == ""):
		k.required(at, "must be set when "+of+" type is Localhost")
	case local:
		return *name, true
	}
	return "", false
}

func (k *validator) appArmor(at *field.Path, p *corev1.AppArmorProfile) {
	if p == nil {
		return
	}
	oneOf(k, at.Child("type"), p.Type, corev1.AppArmorProfileTypeLocalhost,
		corev1.AppArmorProfileTypeRuntimeDefault, corev1.AppArmorProfileTypeUnconfined)
	profile := at.Child("localhostProfile")
	name, named := k.localProfile(
		profile,
		p.Type == corev1.AppArmorProfileTypeLocalhost,
		p.LocalhostProfile,
		"AppArmor",
	)
	switch {
	case !named:
	case strings.TrimSpace(name) != name:
		k.invalid(profile, name, "must not be padded with whitespace")
	case len(name) > maxAppArmorProfile:
		k.add(field.TooLong(profile, name, maxAppArmorProfile))
	}
}

// sysctls validates the sysctls of the pod. Whether a node allows them is checked at admission.
// Sysctls of a namespace shared with the host are never allowed.
func (k *validator) sysctls(at *field.Path, list []corev1.Sysctl) {
	names := map[string]bool{}
	for i, s := range list {
		where := at.Index(i).Child("name")
		name := SysctlName(s.Name)
		switch {
		case s.Name == "":
			k.required(where, "")
		case !isSysctlName(s.Name):
			k.invalid(
				where,
				s.Name,
				"must have at most %d characters and consist of parts of lower case letters, digits, '-' and '_', "+
					"which begin and end with a letter or digit, separated by '.' or '/'",
				maxSysctlName,
			)
		case names[name]:
			k.duplicate(where, s.Name)
		}
		names[name] = true
		space := SysctlNamespace(name)
		if space == NetworkNamespace && k.spec.HostNetwork {
			k.invalid(where, s.Name, "may not be specified when 'hostNetwork' is true")
		}
		if space == IPCNamespace && k.spec.HostIPC {
			k.invalid(where, s.Name, "may not be specified when 'hostIPC' is true")
		}
	}
}

// isSysctlName validates the syntax of the name of a sysctl.
func isSysctlName(name string) bool {
	if name == "" || len(name) > maxSysctlName {
		return false
	}
	for part := range strings.SplitSeq(strings.ReplaceAll(name, "/", "."), ".") {
		for i, c := range []byte(part) {
			letter := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
			if !letter && (c != '-' && c != '_' || i == 0 || i == len(part)-1) {
				return false
			}
		}
		if part == "" {
			return false
		}
	}
	return true
}
