package plan

import (
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// RefKind is the kind of an object that a pod names.
type RefKind string

const (
	ConfigMap RefKind = "ConfigMap"
	Secret    RefKind = "Secret"
	// Of pods that a server assigns, as package podspec names them.
	ServiceAccountToken RefKind = "ServiceAccountToken"
	Services            RefKind = "Services"
	RuntimeClass        RefKind = "RuntimeClass"
)

// Ref names an object that a pod uses, in the pod's own namespace.
type Ref struct {
	Kind RefKind
	Name string
}

func (r Ref) String() string { return string(r.Kind) + " " + r.Name }

// Version is what is known of the object behind a Ref.
type Version struct {
	Version string // changes whenever the content does; empty with Missing or Err
	Missing bool   // there is no such object
	Err     string // it could not be read
	Pending bool   // it has been asked for and will be known in a moment: what needs it waits, without a word
}

// Object is the object behind a Ref: the field of its kind is set unless
// Version.Missing, Version.Err or Version.Late says why not. Shared, read-only.
type Object struct {
	Version
	ConfigMap *corev1.ConfigMap
	Secret    *corev1.Secret
	Token     string          // of a service account, for this pod alone
	Env       []corev1.EnvVar // that the cluster's services make, by name
	Handler   string          // of a RuntimeClass, as the runtime knows it
}

// Objects holds the objects that a pod names, taken at one moment.
type Objects map[Ref]Object

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

// EnvFile names a file of an emptyDir that holds variables of containers.
type EnvFile struct {
	Volume string
	Path   string // relative, as in the spec
}

// EnvFileContent is what such a file held when it was read, just before a start.
type EnvFileContent struct {
	Content string
	Missing bool   // there is no such file
	Err     string // it could not be read
}

// EnvFiles holds the files that a container's environment names.
type EnvFiles map[EnvFile]EnvFileContent

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

// ErrorKind is what policy may ask of an error. Adapters map their errors to kinds
// once; nobody looks at texts.
type ErrorKind int

const (
	Other         ErrorKind = iota // may succeed when tried again
	NotFound                       // the object of the call does not exist (any more)
	ImageNotFound                  // the image is not on the node
	Unavailable                    // the runtime or its socket does not answer: nothing was done
	Timeout                        // the deadline passed: it may or may not have been done
	Canceled                       // called off by us
	Invalid                        // will never succeed with this pod: configuration
	NoSpace                        // a disk is full
	Network                        // the pod network could not be set up
	Denied                         // the registry refused the credentials
	Unsupported                    // the runtime cannot do this
)

// Error is an error with what policy and users need to know of it. Reason is
// the CamelCase word shown as a waiting or event reason (ErrImagePull,
// CreateContainerConfigError, FailedMount, …); empty: derived from the action.
type Error struct {
	Kind   ErrorKind
	Reason string
	Err    error
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// KindOf returns the kind of the first Error in err's chain.
func KindOf(err error) ErrorKind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return Other
}

// Failure is an error as data: retry and back-off are decided here.
type Failure struct {
	At      time.Time
	Count   int // in a row
	Kind    ErrorKind
	Reason  string
	Message string
	Action  Action // what failed: a failed pull of another image holds nothing back
}

// Outcome is the end of an action, good or bad.
type Outcome struct {
	Action        Action
	StartedAt     time.Time
	FinishedAt    time.Time
	Err           error
	Sandbox       *Sandbox   // after RunSandbox
	Container     *Container // after StartContainer (also a failed one, if it was created) and StopContainer
	Image         *Image     // after PullImage
	MissingImages []string   // names of images, any of which is not here: after a StartContainer that has failed for it
}

func reasonOf(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Reason
	}
	return ""
}
