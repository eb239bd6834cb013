package plan

import corev1 "k8s.io/api/core/v1"

// SandboxConfig is the input of RunSandbox in addition to the pod.
type SandboxConfig struct {
	Attempt uint32
	// in the runtime's format: a path (cgroupfs) or a slice (systemd), default chosen by the runtime
	CgroupParent string
	LogDir       string // absolute
}

// ContainerConfig is the input of StartContainer in addition to the pod and the container.
type ContainerConfig struct {
	Kind         ContainerKind
	Attempt      uint32
	Sandbox      Sandbox
	CgroupParent string // as in SandboxConfig, which the runtime expects unchanged
	LogDir       string // log directory of the pod, absolute
	Image        Image
	HostIPs      []string
	Objects      Objects             // for env and envFrom
	Files        EnvFiles            // for env
	Mounts       []Mount             // volumes, /etc/hosts, termination log
	Allocatable  corev1.ResourceList // of the node, for resourceFieldRef without a limit
	Devices      Devices
}

// Devices is the allocation of device plugins for a container.
type Devices struct {
	IDs         map[corev1.ResourceName][]string `json:",omitempty"` // device IDs by resource
	Envs        map[string]string                `json:",omitempty"` // overridden by env of the spec
	Mounts      []Mount                          `json:",omitempty"`
	Nodes       []DeviceNode                     `json:",omitempty"`
	Annotations map[string]string                `json:",omitempty"` // of the container in the runtime
	CDI         []string                         `json:",omitempty"` // fully qualified names: vendor.com/gpu=0
}

// DeviceNode is a device node of the host in a container.
type DeviceNode struct {
	HostPath, ContainerPath string
	Permissions             string // for the device cgroup: r, w, m
}

// Mount is one mount of a container.
type Mount struct {
	HostPath, ContainerPath string
	ReadOnly                bool
	RecursiveReadOnly       bool
	SELinuxRelabel          bool
	Propagation             corev1.MountPropagationMode // default None
	Image                   string                      // image ID of an image volume, instead of HostPath
	ImageSubPath            string
}
