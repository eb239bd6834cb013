package podspec

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// SetDefaults sets every v1 default of a pod, as the API server does. The pod is changed in place.
func SetDefaults(pod *corev1.Pod) {
	spec := &pod.Spec
	setSpecDefaults(spec)
	setIfNil(&spec.EnableServiceLinks, corev1.DefaultEnableServiceLinks)
	if priority, ok := systemPriority(spec.PriorityClassName); ok {
		setIfNil(&spec.Priority, priority)
	}
	for i := range spec.InitContainers {
		requestLimits(&spec.InitContainers[i].Resources)
	}
	for i := range spec.Containers {
		requestLimits(&spec.Containers[i].Resources)
	}
	defaultPodResources(pod)
	if spec.HostNetwork {
		defaultHostPorts(spec.InitContainers)
		defaultHostPorts(spec.Containers)
	}
	appArmorFromAnnotations(pod)
}

// SetTemplateDefaults sets the defaults of a pod template, as the API server does. Defaults that a
// pod only gets when it is created (requests, host ports) are left out, because a later server may
// choose others. The template is changed in place.
func SetTemplateDefaults(t *corev1.PodTemplateSpec) { setSpecDefaults(&t.Spec) }

// setSpecDefaults sets the defaults that pods and templates share.
func setSpecDefaults(spec *corev1.PodSpec) {
	setIfZero(&spec.RestartPolicy, corev1.RestartPolicyAlways)
	setIfZero(&spec.DNSPolicy, corev1.DNSClusterFirst)
	setIfZero(&spec.SchedulerName, corev1.DefaultSchedulerName)
	setIfNil(&spec.TerminationGracePeriodSeconds, corev1.DefaultTerminationGracePeriodSeconds)
	setIfNil(&spec.SecurityContext, corev1.PodSecurityContext{})
	// serviceAccount is the deprecated alias of serviceAccountName. Both always have the same value.
	setIfZero(&spec.ServiceAccountName, spec.DeprecatedServiceAccount)
	spec.DeprecatedServiceAccount = spec.ServiceAccountName
	for i := range spec.Volumes {
		defaultVolume(&spec.Volumes[i].VolumeSource)
	}
	for i := range spec.InitContainers {
		defaultContainer(&spec.InitContainers[i])
	}
	for i := range spec.Containers {
		defaultContainer(&spec.Containers[i])
	}
	for i := range spec.EphemeralContainers {
		defaultContainer((*corev1.Container)(&spec.EphemeralContainers[i].EphemeralContainerCommon))
	}
	roundUp(spec.Overhead)
	if spec.Resources != nil {
		roundUp(spec.Resources.Limits)
		roundUp(spec.Resources.Requests)
	}
}

// SetConfigMapDefaults sets the defaults of a ConfigMap.
func SetConfigMapDefaults(cm *corev1.ConfigMap) {
	if cm.Data == nil {
		cm.Data = map[string]string{}
	}
}

// SetSecretDefaults sets the defaults of a Secret and merges stringData into data, where it takes
// precedence.
func SetSecretDefaults(s *corev1.Secret) {
	setIfZero(&s.Type, corev1.SecretTypeOpaque)
	if len(s.StringData) > 0 && s.Data == nil {
		s.Data = make(map[string][]byte, len(s.StringData))
	}
	for k, v := range s.StringData {
		s.Data[k] = []byte(v)
	}
	s.StringData = nil
}

func setIfZero[T comparable](to *T, value T) {
	var zero T
	if *to == zero {
		*to = value
	}
}

func setIfNil[T any](to **T, value T) {
	if *to == nil {
		*to = &value
	}
}

// defaultContainer sets the defaults shared by containers of every kind.
func defaultContainer(c *corev1.Container) {
	setIfZero(&c.ImagePullPolicy, pullPolicy(c.Image))
	setIfZero(&c.TerminationMessagePath, corev1.TerminationMessagePathDefault)
	setIfZero(&c.TerminationMessagePolicy, corev1.TerminationMessageReadFile)
	for i := range c.Ports {
		setIfZero(&c.Ports[i].Protocol, corev1.ProtocolTCP)
	}
	for i := range c.Env {
		defaultEnv(c.Env[i].ValueFrom)
	}
	for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		defaultProbe(p)
	}
	if c.Lifecycle != nil {
		for _, h := range []*corev1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
			if h != nil {
				defaultHTTPGet(h.HTTPGet)
			}
		}
	}
	roundUp(c.Resources.Limits)
	roundUp(c.Resources.Requests)
}

// pullPolicy is Always for an image with the tag latest or with neither tag nor digest,
// IfNotPresent for any other.
func pullPolicy(image string) corev1.PullPolicy {
	name, _, digested := strings.Cut(image, "@")
	tag := ""
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		tag = name[i+1:]
	}
	if tag == "latest" || tag == "" && !digested && name != "" {
		return corev1.PullAlways
	}
	return corev1.PullIfNotPresent
}

func defaultEnv(from *corev1.EnvVarSource) {
	if from == nil {
		return
	}
	defaultFieldRef(from.FieldRef)
	if from.FileKeyRef != nil {
		setIfNil(&from.FileKeyRef.Optional, false)
	}
}

func defaultFieldRef(ref *corev1.ObjectFieldSelector) {
	if ref != nil {
		setIfZero(&ref.APIVersion, "v1")
	}
}

func defaultProbe(p *corev1.Probe) {
	if p == nil {
		return
	}
	setIfZero(&p.TimeoutSeconds, 1)
	setIfZero(&p.PeriodSeconds, 10)
	setIfZero(&p.SuccessThreshold, 1)
	setIfZero(&p.FailureThreshold, 3)
	defaultHTTPGet(p.HTTPGet)
	if p.GRPC != nil {
		setIfNil(&p.GRPC.Service, "")
	}
}

func defaultHTTPGet(h *corev1.HTTPGetAction) {
	if h != nil {
		setIfZero(&h.Path, "/")
		setIfZero(&h.Scheme, corev1.URISchemeHTTP)
	}
}

// defaultHostPorts sets the host ports of a pod in the host network to its container ports.
func defaultHostPorts(containers []corev1.Container) {
	for _, c := range containers {
		for i := range c.Ports {
			setIfZero(&c.Ports[i].HostPort, c.Ports[i].ContainerPort)
		}
	}
}

// appArmorFromAnnotations copies AppArmor profiles from the annotations used before v1.30 to the
// fields, which alone are used. A pod must not run unconfined because its manifest is old.
func appArmorFromAnnotations(pod *corev1.Pod) {
	if len(pod.Annotations) == 0 {
		return
	}
	for c := range containersOf(&pod.Spec) {
		value, ok := pod.Annotations[corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix+c.Name]
		if !ok || c.SecurityContext != nil && c.SecurityContext.AppArmorProfile != nil {
			continue
		}
		if profile := appArmorProfile(value); profile != nil {
			setIfNil(&c.SecurityContext, corev1.SecurityContext{})
			c.SecurityContext.AppArmorProfile = profile
		}
	}
}

// appArmorProfile parses the value of an annotation. It returns nil if the value is invalid.
func appArmorProfile(value string) *corev1.AppArmorProfile {
	switch value {
	case corev1.DeprecatedAppArmorBetaProfileRuntimeDefault:
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeRuntimeDefault}
	case corev1.DeprecatedAppArmorBetaProfileNameUnconfined:
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}
	}
	if name, ok := strings.CutPrefix(value, corev1.DeprecatedAppArmorBetaProfileNamePrefix); ok && name != "" {
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeLocalhost, LocalhostProfile: &name}
	}
	return nil
}
