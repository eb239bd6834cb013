package hostfake

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"berth/admission"
	"berth/agent/plan"
)

// PodOf returns a pod with containers of these names, each with a separate image.
func PodOf(name string, containers ...string) *corev1.Pod {
	pod := &corev1.Pod{}
	pod.Name, pod.Namespace, pod.UID = name, "default", types.UID("uid-"+name)
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	for _, c := range containers {
		pod.Spec.Containers = append(
			pod.Spec.Containers,
			corev1.Container{Name: c, Image: name + "-" + c, ImagePullPolicy: corev1.PullIfNotPresent},
		)
	}
	return pod
}

// PodRequesting returns a pod with one container that requests CPU.
func PodRequesting(name, cpu string) *corev1.Pod {
	pod := PodOf(name, "a")
	pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
	return pod
}

// WithConfigMap mounts a ConfigMap into every container of the pod.
func WithConfigMap(pod *corev1.Pod, name string) *corev1.Pod {
	vol := corev1.Volume{Name: "conf"}
	vol.ConfigMap = &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}
	pod.Spec.Volumes = append(pod.Spec.Volumes, vol)
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "conf", MountPath: "/conf"})
	}
	return pod
}

// HasPrefix reports whether a call has one of the prefixes.
func HasPrefix(call string, prefixes ...string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return len(call) >= len(p) && call[:len(p)] == p })
}

// WithHooks adds lifecycle hooks to a container of the pod.
func WithHooks(pod *corev1.Pod, container int, start, stop bool) *corev1.Pod {
	hook := &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"x"}}}
	l := &corev1.Lifecycle{}
	if start {
		l.PostStart = hook
	}
	if stop {
		l.PreStop = hook
	}
	pod.Spec.Containers[container].Lifecycle = l
	return pod
}

// LargeNode returns a node with more resources than any test requests.
func LargeNode() admission.Node {
	return NodeOf("1000", "1000")
}

// NodeOf returns a node with the given allocatable CPUs and pods.
func NodeOf(cpu, pods string) admission.Node {
	return admission.Node{Name: "n", Allocatable: corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("1Ti"),
		corev1.ResourcePods: resource.MustParse(pods),
	}}
}

// LatencyByCall returns a Host.Latency that gives calls a duration by their prefix.
func LatencyByCall(slow map[string]time.Duration) func(string, int) time.Duration {
	return func(call string, _ int) time.Duration {
		for prefix, d := range slow {
			if strings.HasPrefix(call, prefix) {
				return d
			}
		}
		return time.Millisecond
	}
}

// FullGracePeriod is a Host.Latency with which StopContainer takes the whole grace period.
func FullGracePeriod(call string, _ int) time.Duration {
	if f := strings.Fields(call); f[0] == "stop" {
		d, _ := time.ParseDuration(f[2])
		return d
	}
	return time.Millisecond
}

// StaticPod marks the pod as a static pod.
func StaticPod(pod *corev1.Pod) *corev1.Pod {
	pod.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
	return pod
}

// FilePod marks the pod as a static pod with the first version of its manifest.
func FilePod(pod *corev1.Pod) *corev1.Pod {
	StaticPod(pod).Annotations["berth.dev/config.content"] = "0"
	return pod
}

// EditedPod returns a copy of a FilePod with an edited manifest.
func EditedPod(pod *corev1.Pod, change func(*corev1.Container)) *corev1.Pod {
	p := pod.DeepCopy()
	p.Generation++
	p.Annotations["berth.dev/config.content"] = fmt.Sprint(p.Generation)
	change(&p.Spec.Containers[0])
	return p
}

// Limits are the limits of the nodes in tests.
var Limits = plan.Limits{
	CrashBase: 10 * time.Second, CrashMax: 5 * time.Minute, CrashReset: 10 * time.Minute,
	PullBase: 10 * time.Second, PullMax: 5 * time.Minute, RetryBase: time.Second, RetryMax: time.Minute,
	MinStopGrace: 2 * time.Second,
}
