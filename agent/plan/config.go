package plan

import corev1 "k8s.io/api/core/v1"

// SandboxConfig is what RunSandbox needs beside the pod itself.
type SandboxConfig struct {
	Attempt      uint32
	CgroupParent string // as the runtime wants it: a path (cgroupfs) or a slice (systemd); empty: the runtime's default
	LogDir       string // absolute
}

// ContainerConfig is what StartContainer needs beside the pod and the container.
type ContainerConfig struct {
	Kind         ContainerKind
	Attempt      uint32
	Sandbox      Sandbox
	CgroupParent string // CgroupParent of the sandbox: the runtime wants the same config again
	LogDir       string // absolute log directory of the pod
	Image        Image
	HostIPs      []string
	Objects      Objects             // for env and envFrom
	Files        EnvFiles            // for env
	Mounts       []Mount             // volumes, /etc/hosts, termination log
	Allocatable  corev1.ResourceList // of the node: what resourceFieldRef falls back to
	Devices      Devices             // that it was given
}

// Devices is what device plugins give a container.
type Devices struct {
	IDs         map[corev1.ResourceName][]string `json:",omitempty"` // which, by resource
	Envs        map[string]string                `json:",omitempty"` // the spec's win
	Mounts      []Mount                          `json:",omitempty"`
	Nodes       []DeviceNode                     `json:",omitempty"`
	Annotations map[string]string                `json:",omitempty"` // on the container in the runtime
	CDI         []string                         `json:",omitempty"` // fully qualified names: vendor.com/gpu=0
}

// DeviceNode is a device node of the host in a container.
type DeviceNode struct {
	HostPath, ContainerPath string
	Permissions             string // of the cgroup: r, w, m
}

// Mount is one mount handed to a container.
type Mount struct {
	HostPath, ContainerPath string
	ReadOnly                bool
	RecursiveReadOnly       bool
	SELinuxRelabel          bool
	Propagation             corev1.MountPropagationMode // empty: None
	Image                   string                      // image volume: image ID instead of HostPath
	ImageSubPath            string
}
