package podspec

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Limits of restart rules per container, and of exit codes per rule.
const (
	maxRestartRules = 20
	maxExitCodes    = 255
)

// containers validates the containers of every kind. Names are unique among all of them.
func (k *validator) containers(at *field.Path) {
	if len(k.spec.Containers) == 0 {
		k.required(at.Child("containers"), "")
	}
	names := map[string]bool{}
	for c, where := range containersOf(k.spec) {
		path := where.path
		k.name(path.Child("name"), c.Name, validation.IsDNS1123Label)
		if c.Name != "" && names[c.Name] {
			k.duplicate(path.Child("name"), c.Name)
		}
		names[c.Name] = true
		k.container(path, c)
		switch where.kind {
		case main:
			k.probesAndHooks(path, c)
		case initial:
			k.initContainer(path, c)
		case sidecar:
			k.probesAndHooks(path, c)
		case ephemeral:
			k.ephemeralContainer(path, c)
		}
	}
	for i, e := range k.spec.EphemeralContainers {
		if e.TargetContainerName != "" && !k.hasContainer(e.TargetContainerName) {
			k.notFound(at.Child("ephemeralContainers").Index(i).Child("targetContainerName"), e.TargetContainerName)
		}
	}
	k.hostPortConflicts()
}

// hasContainer reports whether there is a main or init container of that name.
func (k *validator) hasContainer(name string) bool {
	for c, where := range containersOf(k.spec) {
		if c.Name == name && where.kind != ephemeral {
			return true
		}
	}
	return false
}

// container validates the fields shared by containers of every kind.
func (k *validator) container(at *field.Path, c *corev1.Container) {
	switch {
	case c.Image == "":
		k.required(at.Child("image"), "")
	case strings.TrimSpace(c.Image) != c.Image:
		k.invalid(at.Child("image"), c.Image, "must not have leading or trailing whitespace")
	}
	oneOf(
		k,
		at.Child("imagePullPolicy"),
		c.ImagePullPolicy,
		corev1.PullAlways,
		corev1.PullIfNotPresent,
		corev1.PullNever,
	)
	oneOf(k, at.Child("terminationMessagePolicy"), c.TerminationMessagePolicy,
		corev1.TerminationMessageReadFile, corev1.TerminationMessageFallbackToLogsOnError)
	k.ports(at.Child("ports"), c.Ports)
	k.env(at, c)
	k.volumeMounts(at, c)
	k.volumeDevices(at, c)
	k.containerSecurity(at.Child("securityContext"), c)
	k.containerResources(at, c)
	k.restartPolicy(at, c)
}

// initContainer validates an init container that is not a sidecar: probes and hooks are not
// allowed.
func (k *validator) initContainer(at *field.Path, c *corev1.Container) {
	const why = "may not be set for init containers without restartPolicy=Always"
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"lifecycle", c.Lifecycle != nil}, {"livenessProbe", c.LivenessProbe != nil},
		{"readinessProbe", c.ReadinessProbe != nil}, {"startupProbe", c.StartupProbe != nil},
	} {
		if f.set {
			k.forbidden(at.Child(f.name), why)
		}
	}
}

// ephemeralContainer validates an ephemeral container: it cannot have fields that affect admission
// or resources.
func (k *validator) ephemeralContainer(at *field.Path, c *corev1.Container) {
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"ports", len(c.Ports) > 0}, {"lifecycle", c.Lifecycle != nil},
		{"livenessProbe", c.LivenessProbe != nil}, {"readinessProbe", c.ReadinessProbe != nil},
		{"startupProbe", c.StartupProbe != nil}, {"resizePolicy", len(c.ResizePolicy) > 0},
		{"resources", len(c.Resources.Limits)+len(c.Resources.Requests)+len(c.Resources.Claims) > 0},
		{"restartPolicy", c.RestartPolicy != nil}, {"restartPolicyRules", len(c.RestartPolicyRules) > 0},
	} {
		if f.set {
			k.forbidden(at.Child(f.name), "cannot be set for an Ephemeral Container")
		}
	}
	for i, m := range c.VolumeMounts {
		path := at.Child("volumeMounts").Index(i)
		if m.SubPath != "" {
			k.forbidden(path.Child("subPath"), "cannot be set for an Ephemeral Container")
		}
		if m.SubPathExpr != "" {
			k.forbidden(path.Child("subPathExpr"), "cannot be set for an Ephemeral Container")
		}
	}
}

// restartPolicy validates the restart policy and rules of a container.
func (k *validator) restartPolicy(at *field.Path, c *corev1.Container) {
	oneOfIfSet(k, at.Child("restartPolicy"), c.RestartPolicy, corev1.ContainerRestartPolicyAlways,
		corev1.ContainerRestartPolicyOnFailure, corev1.ContainerRestartPolicyNever)
	rules := at.Child("restartPolicyRules")
	if len(c.RestartPolicyRules) > 0 && c.RestartPolicy == nil {
		k.required(at.Child("restartPolicy"), "must specify restartPolicy when restartPolicyRules are used")
	}
	if n := len(c.RestartPolicyRules); n > maxRestartRules {
		k.add(field.TooMany(rules, n, maxRestartRules))
	}
	for i, r := range c.RestartPolicyRules {
		path := rules.Index(i)
		oneOf(k, path.Child("action"), r.Action,
			corev1.ContainerRestartRuleActionRestart, corev1.ContainerRestartRuleActionRestartAllContainers)
		if r.ExitCodes == nil {
			k.required(path.Child("exitCodes"), "must be specified")
			continue
		}
		codes := path.Child("exitCodes")
		oneOf(k, codes.Child("operator"), r.ExitCodes.Operator,
			corev1.ContainerRestartRuleOnExitCodesOpIn, corev1.ContainerRestartRuleOnExitCodesOpNotIn)
		if n := len(r.ExitCodes.Values); n > maxExitCodes {
			k.add(field.TooMany(codes.Child("values"), n, maxExitCodes))
		}
		seen := map[int32]bool{}
		for j, v := range r.ExitCodes.Values {
			if seen[v] {
				k.duplicate(codes.Child("values").Index(j), v)
			}
			seen[v] = true
		}
	}
}
