// Package podresources serves the PodResources API (k8s.io/kubelet/pkg/apis/podresources/v1) for device monitoring
// agents: the devices that are allocated to the containers of pods, and those that can be allocated. Containers have no
// exclusive CPUs or memory.
package podresources
