package criconfig

import (
	"cmp"
	"encoding/json"
	"maps"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/podspec"
)

// OwnerLabel marks objects that berth created in a runtime that may be shared. Its value is the
// version of the other labels and annotations.
const (
	OwnerLabel   = "berth.dev/owner"
	OwnerVersion = "v1"
)

// InstanceLabel is the label with the instance of berth that created an object, as several can share
// a runtime. Objects of releases before this label do not have it.
const InstanceLabel = "berth.dev/instance"

// Labels and annotations that other tools read under the kubelet's names.
const (
	labelPodName       = "io.kubernetes.pod.name"
	labelPodNamespace  = "io.kubernetes.pod.namespace"
	labelPodUID        = "io.kubernetes.pod.uid"
	labelContainerName = "io.kubernetes.container.name"

	annotationRestarts      = "io.kubernetes.container.restartCount"
	annotationHash          = "io.kubernetes.container.hash"
	annotationMessagePath   = "io.kubernetes.container.terminationMessagePath"
	annotationMessagePolicy = "io.kubernetes.container.terminationMessagePolicy"
	annotationPreStop       = "io.kubernetes.container.preStopHandler"
	annotationPorts         = "io.kubernetes.container.ports"
	annotationGrace         = "io.kubernetes.pod.terminationGracePeriod"
	annotationDeletionGrace = "io.kubernetes.pod.deletionGracePeriod"

	// annotationSource is an annotation of the pod that is passed through.
	annotationSource = "kubernetes.io/config.source"
)

// Annotations that only berth reads. All begin with ownPrefix, which the annotations of a pod must
// not.
const (
	ownPrefix             = "berth.dev/"
	annotationAttempt     = "berth.dev/attempt"
	annotationHostNetwork = "berth.dev/host-network"
	annotationNetworks    = "berth.dev/networks"
	annotationPodMeta     = "berth.dev/pod"
	annotationKind        = "berth.dev/kind"
	annotationSpecHash    = "berth.dev/hash"
	annotationPosition    = "berth.dev/position"
	annotationImage       = "berth.dev/image"
	annotationStopSignal  = "berth.dev/stop-signal"
	annotationDevices     = "berth.dev/devices"
)

// SandboxLabels are the parsed labels and annotations of a sandbox.
type SandboxLabels struct {
	UID             types.UID
	Namespace, Name string
	Attempt         uint32
	Source          string // where the pod came from: file, api; empty: unknown
	HostNetwork     bool
	Networks        bool   // it needs networks beyond the runtime's own
	GraceSeconds    *int64 // spec.terminationGracePeriodSeconds
}

// ContainerLabels are the parsed labels and annotations of a container.
type ContainerLabels struct {
	UID                      types.UID
	Namespace, PodName       string
	Name                     string
	Kind                     plan.ContainerKind
	Position                 int // index in its list of the pod's containers (init, main, ephemeral)
	Attempt                  uint32
	SpecHash                 string
	Image                    string // as in the spec
	TerminationMessagePath   string // inside the container; empty: none
	TerminationMessagePolicy corev1.TerminationMessagePolicy
	GraceSeconds             *int64 // spec.terminationGracePeriodSeconds of the pod
	PreStop                  *corev1.LifecycleHandler
	StopSignal               *corev1.Signal
	Ports                    []corev1.ContainerPort
	Devices                  map[corev1.ResourceName][]string // allocated device IDs by resource
}

// ParseSandbox parses what Sandbox wrote. ok is false for a sandbox that berth did not create or
// whose identity is damaged. The caller must not touch it.
func ParseSandbox(labels, annotations map[string]string) (SandboxLabels, bool) {
	s := SandboxLabels{
		UID:          types.UID(labels[labelPodUID]),
		Namespace:    labels[labelPodNamespace],
		Name:         labels[labelPodName],
		Attempt:      parseUint32(annotations[annotationAttempt]),
		Source:       annotations[annotationSource],
		HostNetwork:  annotations[annotationHostNetwork] == "true",
		Networks:     annotations[annotationNetworks] == "true",
		GraceSeconds: parseSeconds(annotations, annotationGrace),
	}
	return s, isOwned(labels) && s.UID != "" && s.Namespace != "" && s.Name != ""
}

// ParseContainer parses what Container wrote. ok is false for a container that berth did not create
// or whose identity is damaged. The caller must not touch it. Other damage leaves single fields
// empty.
func ParseContainer(labels, annotations map[string]string) (ContainerLabels, bool) {
	kind, known := parseKind(annotations[annotationKind])
	c := ContainerLabels{
		UID:                      types.UID(labels[labelPodUID]),
		Namespace:                labels[labelPodNamespace],
		PodName:                  labels[labelPodName],
		Name:                     labels[labelContainerName],
		Kind:                     kind,
		Position:                 int(parseUint32(annotations[annotationPosition])),
		Attempt:                  parseUint32(annotations[annotationRestarts]),
		SpecHash:                 cmp.Or(annotations[annotationSpecHash], annotations[annotationHash]),
		Image:                    annotations[annotationImage],
		TerminationMessagePath:   annotations[annotationMessagePath],
		TerminationMessagePolicy: corev1.TerminationMessagePolicy(annotations[annotationMessagePolicy]),
		GraceSeconds:             parseSeconds(annotations, annotationGrace),
	}
	c.PreStop = decodeJSON[*corev1.LifecycleHandler](annotations[annotationPreStop])
	c.Ports = decodeJSON[[]corev1.ContainerPort](annotations[annotationPorts])
	c.Devices = decodeJSON[map[corev1.ResourceName][]string](annotations[annotationDevices])
	if s := annotations[annotationStopSignal]; s != "" {
		signal := corev1.Signal(s)
		c.StopSignal = &signal
	}
	return c, isOwned(labels) && known && c.UID != "" && c.Namespace != "" && c.PodName != "" && c.Name != ""
}

func isOwned(labels map[string]string) bool { return labels[OwnerLabel] == OwnerVersion }

// podLabels are the labels that select the sandbox and the containers of the pod.
func podLabels(n Node, pod *corev1.Pod) map[string]string {
	labels := map[string]string{
		labelPodName:      pod.Name,
		labelPodNamespace: pod.Namespace,
		labelPodUID:       string(pod.UID),
		OwnerLabel:        OwnerVersion,
	}
	if n.Instance != "" {
		labels[InstanceLabel] = n.Instance
	}
	return labels
}

// reserved reports whether the pod must not set a label or annotation key. Other keys below
// io.kubernetes. are the pod's annotations for its runtime, for example io.kubernetes.cri-o.*.
func reserved(key string) bool {
	switch key {
	case labelPodName, labelPodNamespace, labelPodUID, labelContainerName,
		annotationRestarts, annotationHash, annotationMessagePath, annotationMessagePolicy,
		annotationPreStop, annotationPorts, annotationGrace, annotationDeletionGrace:
		return true
	}
	return strings.HasPrefix(key, ownPrefix)
}

// unreserved copies the labels or annotations that a pod may set on its sandbox, or a device plugin
// on a container.
func unreserved(of map[string]string) map[string]string {
	out := make(map[string]string, len(of)+8)
	for k, v := range of {
		if !reserved(k) {
			out[k] = v
		}
	}
	return out
}

func sandboxLabels(n Node, pod *corev1.Pod) map[string]string {
	out := unreserved(pod.Labels)
	maps.Copy(out, podLabels(n, pod))
	return out
}

func sandboxAnnotations(pod *corev1.Pod, attempt uint32) map[string]string {
	out := unreserved(pod.Annotations)
	out[annotationAttempt] = strconv.FormatUint(uint64(attempt), 10)
	out[annotationHostNetwork] = strconv.FormatBool(pod.Spec.HostNetwork)
	out[annotationPodMeta] = encodeJSON(podMetaOf(pod))
	if podspec.Networks(pod) != "" {
		out[annotationNetworks] = "true"
	}
	setGracePeriod(out, pod)
	return out
}

func containerLabels(n Node, pod *corev1.Pod, c *corev1.Container) map[string]string {
	out := podLabels(n, pod)
	out[labelContainerName] = c.Name
	return out
}

func containerAnnotations(pod *corev1.Pod, c *corev1.Container, setup plan.ContainerConfig) map[string]string {
	out := unreserved(setup.Devices.Annotations)
	maps.Copy(out, map[string]string{
		annotationHash:          podspec.KubeletContainerHash(c), // the kubelet restarts a container with another one
		annotationSpecHash:      podspec.ContainerHash(c),
		annotationRestarts:      strconv.FormatUint(uint64(setup.Attempt), 10),
		annotationMessagePath:   c.TerminationMessagePath,
		annotationMessagePolicy: string(c.TerminationMessagePolicy),
		annotationKind:          setup.Kind.String(),
		annotationPosition:      strconv.Itoa(position(pod, c.Name, setup.Kind)),
		annotationImage:         c.Image,
	})
	if len(setup.Devices.IDs) > 0 {
		out[annotationDevices] = encodeJSON(setup.Devices.IDs)
	}
	setGracePeriod(out, pod)
	if len(c.Ports) > 0 {
		out[annotationPorts] = encodeJSON(c.Ports)
	}
	if c.Lifecycle != nil && c.Lifecycle.PreStop != nil {
		out[annotationPreStop] = encodeJSON(c.Lifecycle.PreStop)
	}
	if c.Lifecycle != nil && c.Lifecycle.StopSignal != nil {
		out[annotationStopSignal] = string(*c.Lifecycle.StopSignal)
	}
	return out
}

func setGracePeriod(out map[string]string, pod *corev1.Pod) {
	if g := pod.Spec.TerminationGracePeriodSeconds; g != nil {
		out[annotationGrace] = strconv.FormatInt(*g, 10)
	}
	if g := pod.DeletionGracePeriodSeconds; g != nil {
		out[annotationDeletionGrace] = strconv.FormatInt(*g, 10)
	}
}

// position returns the index of the container in its list. Sidecars are terminated in reverse
// order.
func position(pod *corev1.Pod, name string, kind plan.ContainerKind) int {
	switch kind {
	case plan.Main:
		return indexOf(pod.Spec.Containers, name)
	case plan.Init, plan.Sidecar:
		return indexOf(pod.Spec.InitContainers, name)
	case plan.Ephemeral:
		for i := range pod.Spec.EphemeralContainers {
			if pod.Spec.EphemeralContainers[i].Name == name {
				return i
			}
		}
		return 0
	}
	return indexOf(pod.Spec.Containers, name)
}

func indexOf(list []corev1.Container, name string) int {
	for i := range list {
		if list[i].Name == name {
			return i
		}
	}
	return 0
}

func parseKind(s string) (plan.ContainerKind, bool) {
	for _, k := range []plan.ContainerKind{plan.Main, plan.Init, plan.Sidecar, plan.Ephemeral} {
		if k.String() == s {
			return k, true
		}
	}
	return plan.Main, false
}

// parseUint32 parses a counter. A missing or damaged one is zero.
func parseUint32(s string) uint32 {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return 0
	}
	return uint32(n)
}

func parseSeconds(annotations map[string]string, key string) *int64 {
	n, err := strconv.ParseInt(annotations[key], 10, 64)
	if err != nil || n < 0 {
		return nil
	}
	return &n
}

// encodeJSON encodes an API value as JSON. Encoding these types cannot fail.
func encodeJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return ""
	}
	return string(b)
}

// decodeJSON decodes the result of encodeJSON. Damaged input gives the zero value.
func decodeJSON[T any](s string) T {
	var v T
	if s == "" || json.Unmarshal([]byte(s), &v) != nil {
		var none T
		return none
	}
	return v
}
