package criconfig

import (
	"encoding/json"
	"maps"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/podspec"
)

// OwnerLabel marks what berth made in a runtime that others may share. Its value
// is the version of all the labels and annotations beside it.
const (
	OwnerLabel   = "berth.dev/owner"
	OwnerVersion = "v1"
)

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

	// annotationSource is one of the pod's own: it is passed through.
	annotationSource = "kubernetes.io/config.source"
)

// Annotations that berth alone reads. All begin with ownPrefix, which no
// annotation of a pod may.
const (
	ownPrefix             = "berth.dev/"
	annotationAttempt     = "berth.dev/attempt"
	annotationHostNetwork = "berth.dev/host-network"
	annotationNetworks    = "berth.dev/networks"
	annotationPodMeta     = "berth.dev/pod"
	annotationKind        = "berth.dev/kind"
	annotationPosition    = "berth.dev/position"
	annotationImage       = "berth.dev/image"
	annotationStopSignal  = "berth.dev/stop-signal"
	annotationDevices     = "berth.dev/devices"
)

// SandboxLabels is what a sandbox says of itself.
type SandboxLabels struct {
	UID             types.UID
	Namespace, Name string
	Attempt         uint32
	Source          string // where the pod came from: file, api; empty: not said
	HostNetwork     bool
	Networks        bool   // it is to have more than the runtime gives it
	GraceSeconds    *int64 // spec.terminationGracePeriodSeconds
}

// ContainerLabels is what a container says of itself.
type ContainerLabels struct {
	UID                      types.UID
	Namespace, PodName       string
	Name                     string
	Kind                     plan.ContainerKind
	Position                 int // among the pod's containers of its list (init, main, ephemeral)
	Attempt                  uint32
	SpecHash                 string
	Image                    string // as in the spec
	TerminationMessagePath   string // inside the container; empty: none
	TerminationMessagePolicy corev1.TerminationMessagePolicy
	GraceSeconds             *int64 // spec.terminationGracePeriodSeconds of the pod
	PreStop                  *corev1.LifecycleHandler
	StopSignal               *corev1.Signal
	Ports                    []corev1.ContainerPort
	Devices                  map[corev1.ResourceName][]string // that it was given, by resource
}

// ParseSandbox reads what Sandbox wrote. It is not ok for a sandbox that berth
// did not make or whose identity is damaged: such a one must be left alone.
func ParseSandbox(labels, annotations map[string]string) (SandboxLabels, bool) {
	s := SandboxLabels{
		UID:          types.UID(labels[labelPodUID]),
		Namespace:    labels[labelPodNamespace],
		Name:         labels[labelPodName],
		Attempt:      number(annotations[annotationAttempt]),
		Source:       annotations[annotationSource],
		HostNetwork:  annotations[annotationHostNetwork] == "true",
		Networks:     annotations[annotationNetworks] == "true",
		GraceSeconds: seconds(annotations, annotationGrace),
	}
	return s, ours(labels) && s.UID != "" && s.Namespace != "" && s.Name != ""
}

// ParseContainer reads what Container wrote. It is not ok for a container that
// berth did not make or whose identity is damaged: such a one must be left
// alone. Other damage leaves single fields empty.
func ParseContainer(labels, annotations map[string]string) (ContainerLabels, bool) {
	kind, known := kindOf(annotations[annotationKind])
	c := ContainerLabels{
		UID:                      types.UID(labels[labelPodUID]),
		Namespace:                labels[labelPodNamespace],
		PodName:                  labels[labelPodName],
		Name:                     labels[labelContainerName],
		Kind:                     kind,
		Position:                 int(number(annotations[annotationPosition])),
		Attempt:                  number(annotations[annotationRestarts]),
		SpecHash:                 annotations[annotationHash],
		Image:                    annotations[annotationImage],
		TerminationMessagePath:   annotations[annotationMessagePath],
		TerminationMessagePolicy: corev1.TerminationMessagePolicy(annotations[annotationMessagePolicy]),
		GraceSeconds:             seconds(annotations, annotationGrace),
	}
	c.PreStop = decoded[*corev1.LifecycleHandler](annotations[annotationPreStop])
	c.Ports = decoded[[]corev1.ContainerPort](annotations[annotationPorts])
	c.Devices = decoded[map[corev1.ResourceName][]string](annotations[annotationDevices])
	if s := annotations[annotationStopSignal]; s != "" {
		signal := corev1.Signal(s)
		c.StopSignal = &signal
	}
	return c, ours(labels) && known && c.UID != "" && c.Namespace != "" && c.PodName != "" && c.Name != ""
}

func ours(labels map[string]string) bool { return labels[OwnerLabel] == OwnerVersion }

// podLabels are the labels by which sandbox and containers are found.
func podLabels(pod *corev1.Pod) map[string]string {
	return map[string]string{
		labelPodName:      pod.Name,
		labelPodNamespace: pod.Namespace,
		labelPodUID:       string(pod.UID),
		OwnerLabel:        OwnerVersion,
	}
}

// reserved reports whether a label or annotation key is not the pod's to set. Others
// below io.kubernetes. are the pod's words to its runtime, such as io.kubernetes.cri-o.*.
func reserved(key string) bool {
	switch key {
	case labelPodName, labelPodNamespace, labelPodUID, labelContainerName,
		annotationRestarts, annotationHash, annotationMessagePath, annotationMessagePolicy,
		annotationPreStop, annotationPorts, annotationGrace, annotationDeletionGrace:
		return true
	}
	return strings.HasPrefix(key, ownPrefix)
}

// passed copies what the pod may say on its sandbox, or device plugins on a
// container.
func passed(of map[string]string) map[string]string {
	out := make(map[string]string, len(of)+8)
	for k, v := range of {
		if !reserved(k) {
			out[k] = v
		}
	}
	return out
}

func sandboxLabels(pod *corev1.Pod) map[string]string {
	out := passed(pod.Labels)
	maps.Copy(out, podLabels(pod))
	return out
}

func sandboxAnnotations(pod *corev1.Pod, attempt uint32) map[string]string {
	out := passed(pod.Annotations)
	out[annotationAttempt] = strconv.FormatUint(uint64(attempt), 10)
	out[annotationHostNetwork] = strconv.FormatBool(pod.Spec.HostNetwork)
	out[annotationPodMeta] = encoded(metaOf(pod))
	if podspec.Networks(pod) != "" {
		out[annotationNetworks] = "true"
	}
	putGrace(out, pod)
	return out
}

func containerLabels(pod *corev1.Pod, c *corev1.Container) map[string]string {
	out := podLabels(pod)
	out[labelContainerName] = c.Name
	return out
}

func containerAnnotations(pod *corev1.Pod, c *corev1.Container, setup plan.ContainerSetup) map[string]string {
	out := passed(setup.Devices.Annotations)
	maps.Copy(out, map[string]string{
		annotationHash:          podspec.ContainerHash(c),
		annotationRestarts:      strconv.FormatUint(uint64(setup.Attempt), 10),
		annotationMessagePath:   c.TerminationMessagePath,
		annotationMessagePolicy: string(c.TerminationMessagePolicy),
		annotationKind:          setup.Kind.String(),
		annotationPosition:      strconv.Itoa(position(pod, c.Name, setup.Kind)),
		annotationImage:         c.Image,
	})
	if len(setup.Devices.IDs) > 0 {
		out[annotationDevices] = encoded(setup.Devices.IDs)
	}
	putGrace(out, pod)
	if len(c.Ports) > 0 {
		out[annotationPorts] = encoded(c.Ports)
	}
	if c.Lifecycle != nil && c.Lifecycle.PreStop != nil {
		out[annotationPreStop] = encoded(c.Lifecycle.PreStop)
	}
	if c.Lifecycle != nil && c.Lifecycle.StopSignal != nil {
		out[annotationStopSignal] = string(*c.Lifecycle.StopSignal)
	}
	return out
}

func putGrace(out map[string]string, pod *corev1.Pod) {
	if g := pod.Spec.TerminationGracePeriodSeconds; g != nil {
		out[annotationGrace] = strconv.FormatInt(*g, 10)
	}
	if g := pod.DeletionGracePeriodSeconds; g != nil {
		out[annotationDeletionGrace] = strconv.FormatInt(*g, 10)
	}
}

// position is the container's place in its list; the order in which sidecars
// end is the reverse of it.
func position(pod *corev1.Pod, name string, kind plan.ContainerKind) int {
	switch kind {
	case plan.Main:
		return placeOf(pod.Spec.Containers, name)
	case plan.Init, plan.Sidecar:
		return placeOf(pod.Spec.InitContainers, name)
	case plan.Ephemeral:
		for i := range pod.Spec.EphemeralContainers {
			if pod.Spec.EphemeralContainers[i].Name == name {
				return i
			}
		}
		return 0
	}
	return placeOf(pod.Spec.Containers, name)
}

func placeOf(list []corev1.Container, name string) int {
	for i := range list {
		if list[i].Name == name {
			return i
		}
	}
	return 0
}

func kindOf(s string) (plan.ContainerKind, bool) {
	for _, k := range []plan.ContainerKind{plan.Main, plan.Init, plan.Sidecar, plan.Ephemeral} {
		if k.String() == s {
			return k, true
		}
	}
	return plan.Main, false
}

// number reads a count that is zero when it is absent or damaged.
func number(s string) uint32 {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return 0
	}
	return uint32(n)
}

func seconds(annotations map[string]string, key string) *int64 {
	n, err := strconv.ParseInt(annotations[key], 10, 64)
	if err != nil || n < 0 {
		return nil
	}
	return &n
}

// encoded writes a value of the API as JSON. Such types cannot fail to encode.
func encoded(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return ""
	}
	return string(b)
}

// decoded reads what encoded wrote; damage gives the zero value.
func decoded[T any](s string) T {
	var v T
	if s == "" || json.Unmarshal([]byte(s), &v) != nil {
		var none T
		return none
	}
	return v
}
