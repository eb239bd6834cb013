package criconfig

import (
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// seccomp returns the container's profile: its own, the pod's, or the node's default.
func seccomp(node Node, pod *corev1.Pod, c *corev1.Container) (*runtimeapi.SecurityProfile, error) {
	var p *corev1.SeccompProfile
	if sc := pod.Spec.SecurityContext; sc != nil {
		p = sc.SeccompProfile
	}
	if c.SecurityContext != nil && c.SecurityContext.SeccompProfile != nil {
		p = c.SecurityContext.SeccompProfile
	}
	if p == nil {
		if node.SeccompDefault {
			return profile(runtimeapi.SecurityProfile_RuntimeDefault, ""), nil
		}
		return profile(runtimeapi.SecurityProfile_Unconfined, ""), nil
	}
	switch p.Type {
	case corev1.SeccompProfileTypeRuntimeDefault:
		return profile(runtimeapi.SecurityProfile_RuntimeDefault, ""), nil
	case corev1.SeccompProfileTypeUnconfined:
		return profile(runtimeapi.SecurityProfile_Unconfined, ""), nil
	case corev1.SeccompProfileTypeLocalhost:
		return localSeccomp(node.SeccompProfileRoot, p.LocalhostProfile)
	}
	return nil, invalid(reasonContainer,
		"seccompProfile.type: %q is unknown, want RuntimeDefault, Unconfined or Localhost", p.Type)
}

// localSeccomp returns the file of a profile below root. Files outside root are refused.
func localSeccomp(root string, file *string) (*runtimeapi.SecurityProfile, error) {
	if file == nil || *file == "" {
		return nil, invalid(reasonContainer, "seccompProfile.localhostProfile: must be set when type is Localhost")
	}
	if root == "" || !filepath.IsLocal(*file) {
		return nil, invalid(reasonContainer,
			"seccompProfile.localhostProfile: %q is not inside the node's seccomp profile directory", *file)
	}
	return profile(runtimeapi.SecurityProfile_Localhost, filepath.Join(root, *file)), nil
}

// appArmor returns the container's profile: its own, the pod's, or that of the deprecated
// annotation. Nil: the runtime decides.
func appArmor(pod *corev1.Pod, c *corev1.Container) (*runtimeapi.SecurityProfile, error) {
	var p *corev1.AppArmorProfile
	if sc := pod.Spec.SecurityContext; sc != nil {
		p = sc.AppArmorProfile
	}
	if c.SecurityContext != nil && c.SecurityContext.AppArmorProfile != nil {
		p = c.SecurityContext.AppArmorProfile
	}
	if p == nil {
		return annotatedAppArmor(pod.Annotations[corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix+c.Name])
	}
	switch p.Type {
	case corev1.AppArmorProfileTypeRuntimeDefault:
		return profile(runtimeapi.SecurityProfile_RuntimeDefault, ""), nil
	case corev1.AppArmorProfileTypeUnconfined:
		return profile(runtimeapi.SecurityProfile_Unconfined, ""), nil
	case corev1.AppArmorProfileTypeLocalhost:
		if p.LocalhostProfile == nil || *p.LocalhostProfile == "" {
			return nil, invalid(reasonContainer, "appArmorProfile.localhostProfile: must be set when type is Localhost")
		}
		return profile(runtimeapi.SecurityProfile_Localhost, *p.LocalhostProfile), nil
	}
	return nil, invalid(reasonContainer,
		"appArmorProfile.type: %q is unknown, want RuntimeDefault, Unconfined or Localhost", p.Type)
}

func annotatedAppArmor(value string) (*runtimeapi.SecurityProfile, error) {
	if name, ok := strings.CutPrefix(value, corev1.DeprecatedAppArmorBetaProfileNamePrefix); ok && name != "" {
		return profile(runtimeapi.SecurityProfile_Localhost, name), nil
	}
	switch value {
	case "":
		return nil, nil
	case corev1.DeprecatedAppArmorBetaProfileRuntimeDefault:
		return profile(runtimeapi.SecurityProfile_RuntimeDefault, ""), nil
	case corev1.DeprecatedAppArmorBetaProfileNameUnconfined:
		return profile(runtimeapi.SecurityProfile_Unconfined, ""), nil
	}
	return nil, invalid(reasonContainer,
		"AppArmor annotation: %q is not a profile, want runtime/default, unconfined or localhost/NAME", value)
}

func profile(t runtimeapi.SecurityProfile_ProfileType, ref string) *runtimeapi.SecurityProfile {
	return &runtimeapi.SecurityProfile{ProfileType: t, LocalhostRef: ref}
}

func selinux(o *corev1.SELinuxOptions) *runtimeapi.SELinuxOption {
	if o == nil {
		return nil
	}
	return &runtimeapi.SELinuxOption{User: o.User, Role: o.Role, Type: o.Type, Level: o.Level}
}
