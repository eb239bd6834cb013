package plan

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Input is everything that Decide depends on.
type Input struct {
	Now             time.Time
	Pod             *corev1.Pod           // the desired pod, shared and read-only
	Verdict         Verdict               // result of stage admit, zero: not requested
	Reserved        Resources             // resources reserved by the allocator, nil: as in Memory
	Resize          ResizeStatus          // why the allocator does not grant the desired resources
	Termination     *Termination          // nil: keep the pod running
	Observed        Observed              // result of stage prepare
	Refs            map[Ref]Version       // versions of the referenced objects
	Health          map[string]Health     // probe results by container ID with thresholds applied, default as in Memory
	InProgress      map[ActionKey]Action  // actions in progress
	Failures        map[ActionKey]Failure // last failure of an action, until it succeeds
	Memory          Memory                // Plan.Memory of the previous call
	ImagesCheckedAt time.Time             // last check for missing images, zero: never
	Limits          Limits                // configuration of the node
}

// VerdictState is the result of admission.
type VerdictState int

const (
	NotRequested VerdictState = iota
	Admitted                  // may run, its resources are reserved
	Wait                      // not now, the cause is local and recoverable: admission is repeated when it changes
	Rejected                  // the pod fails
)

// Verdict is the result of stage admit. Reason is CamelCase (OutOfcpu, NodeAffinity, …). Message
// contains the amounts.
type Verdict struct {
	State           VerdictState `json:"state"`
	Reason, Message string       `json:",omitempty"`
	Preempts        string       `json:"-"` // with Wait: names of the pods preempted for this one
}

// Termination requests that the pod stops. It is never withdrawn, and its grace period only becomes
// shorter.
type Termination struct {
	// Deleted, Evicted, Preempting, DeadlineExceeded, Terminated (node shutdown), Orphaned
	Reason      string `json:"Reason"`
	Message     string `json:"Message"`          // for the user
	EventDetail string `json:"Detail,omitempty"` // appended to the message of the event
	// counted from RequestedAt, set by the requester (see podspec.GracePeriod)
	Grace       time.Duration `json:"Grace"`
	RequestedAt time.Time     `json:"At"` // time of the first request
	// the desired pod is deleted: remove everything, including containers and logs
	RemovePod bool `json:"Forget"`
	// because of a resource shortage of the node, not because of the pod's own behavior
	NodeCaused bool `json:"Node,omitempty"`
}

// Eviction is the reason to evict a pod that exceeds its limits or runs on a node under pressure.
type Eviction struct {
	Signal      string        // eviction signal, as in the kubelet's metrics
	Message     string        // for the user
	EventDetail string        // appended to the message of the event, optional
	Grace       time.Duration // default 1 s
	NodeCaused  bool          // the node is under pressure, the pod did not exceed its own limits
}

// Observed is the state of the pod in the runtime and on the host. The worker caches it and updates
// it with the outcome of actions, see After.
type Observed struct {
	Sandboxes    []Sandbox               // newest first (by Attempt, then CreatedAt)
	Containers   []Container             // newest first, several instances per name
	Volumes      map[string]VolumeStatus // by volume name: volumes set up on the host, including unwanted ones
	Images       map[string]Image        // by image name as in the spec: images present on the node
	ImageErrors  map[string]string       // by image name as in the spec: why its presence is unknown
	PulledImages map[string]PulledImage  // by container name: the last pull for it
	HasDirs      bool                    // pod directories and log directory exist
	HasCgroup    bool                    // the pod cgroup exists
	Network      NetworkStatus           // of the node
	HeldPulls    map[string]string       // by image name as in the spec: why its pull waits for disk space
	// the node is under disk pressure: dead containers are not kept for their logs
	DiskPressure      bool
	CgroupResources   Resources                     // last applied to the pod cgroup by this agent process, nil: none
	CgroupUncertain   bool                          // a later change failed, so the resources of the cgroup are unknown
	ResizedContainers map[string]ContainerResources // last applied by this agent process, by container ID
	Devices           map[string]DeviceStatus       // by container name: containers that request devices
	Hooks             map[ActionKey]HookResult      // results of hooks run by this agent process

	// RecursiveReadOnly is set if the runtime handler of the pod supports recursive read-only
	// mounts.
	RecursiveReadOnly bool
}

// NetworkStatus reports whether the pod network of the node is ready for new sandboxes.
type NetworkStatus struct {
	Ready   bool
	Message string // why it is not ready
}

// DeviceStatus is the state of the devices of a container.
type DeviceStatus struct {
	Pending   string                  // why a start has to wait, empty: ready
	Allocated []corev1.ResourceStatus // allocated devices and their health
}

// Sandbox is one pod sandbox in the runtime.
type Sandbox struct {
	ID        string
	Ready     bool
	Attempt   uint32
	CreatedAt time.Time
	IPs       []string // primary first, empty with hostNetwork or while unknown
	Stopped   bool     // StopPodSandbox has succeeded, so the network is released; known to this agent process only
}

// ContainerState is the state of a container in the runtime.
type ContainerState int

const (
	Created ContainerState = iota + 1
	Running
	Exited
	Unknown // treated as live
)

// Container is one container instance in the runtime.
type Container struct {
	ID        string         `json:"ID"`
	Name      string         `json:"Name"`
	SandboxID string         `json:"SandboxID"`
	State     ContainerState `json:"State"`
	Attempt   uint32         `json:"Attempt"`  // number of earlier instances
	SpecHash  string         `json:"SpecHash"` // hash of the container spec it was created from
	Image     string         `json:"Image"`    // image name in the spec it was created from
	// image name in the runtime (docker.io/library/busybox:1.36), empty: unknown
	ImageName  string    `json:"ImageName,omitempty"`
	ImageID    string    `json:"ImageID"` // image reference in the runtime, repo@sha256:… where known
	CreatedAt  time.Time `json:"CreatedAt"`
	StartedAt  time.Time `json:"StartedAt"`  // zero: never started
	FinishedAt time.Time `json:"FinishedAt"` // zero: not finished
	ExitCode   int32     `json:"ExitCode"`
	Reason     string    `json:"Reason"`  // of the exit, from the runtime: Completed, Error, OOMKilled, …
	Message    string    `json:"Message"` // termination message, at most 4096 bytes
	// exited without a start because the runtime's start call was interrupted
	Interrupted bool   `json:"CutOff,omitempty"`
	LogPath     string `json:"LogPath"` // CRI log file, absolute

	// user of its first process, nil: not reported
	User *corev1.LinuxContainerUser `json:"User,omitempty"`
	// paths of its recursive read-only mounts
	RecursiveReadOnly []string      `json:"RecursiveReadOnly,omitempty"`
	StopSignal        corev1.Signal `json:"StopSignal,omitempty"` // empty: unknown

	Kind    ContainerKind                    `json:"-"` // from its labels, set by a full listing only
	Devices map[corev1.ResourceName][]string `json:"-"` // from its annotations, set by a full listing only
}

// Live reports whether the container may have processes or may still be started.
func (c Container) Live() bool { return c.State == Created || c.State == Running || c.State == Unknown }

// VolumeStatus is a volume that is set up on the host.
type VolumeStatus struct {
	Version string // version of its content, empty: unknown or without content
	// Incomplete is set if its setup was started and has not succeeded: containers cannot use it, and it
	// is unmounted like others.
	Incomplete bool
}

// Image is an image that is present on the node.
type Image struct {
	ID          string    // image ID in the runtime (sha256:…), used to create containers
	Ref         string    // repo digest for imageID in the status, default ID
	Size        uint64    // bytes on disk
	UID         *int64    // numeric user of the image, nil: none
	User        string    // user name of the image, if not numeric
	InspectedAt time.Time // time of the lookup: the name may refer to another image since
}

// ImageStatuses is the result of a check for images, by name as in the spec.
type ImageStatuses map[string]ImageStatus

// ImageStatus is the result of a check for one image.
type ImageStatus struct {
	Image
	Present bool
	Err     string // why its presence is unknown
}

// PulledImage is the result of a pull for one container.
type PulledImage struct {
	Attempt uint32 // of the container
	Name    string // image name as in the spec
	Image   Image
}

// Health is the result of all probes of one container instance.
type Health struct {
	Started     bool   `json:"Started"` // the startup probe has succeeded
	Ready       bool   `json:"Ready"`   // the readiness probe succeeds
	Failed      bool   `json:"Dead"`    // the liveness or startup probe has failed
	FailedProbe string `json:"Probe"`   // the probe that failed: liveness or startup
	Message     string `json:"Message"` // output of the decisive probe

	Probes []ProbeState `json:"Probed,omitempty"` // per probe, immutable
}

// Memory is the state that the next call of Decide receives back. Its loss only costs time.
type Memory struct {
	Termination *Termination            `json:"End,omitempty"`
	Restarts    map[string]RestartState `json:"Restarts,omitempty"` // by container name
	Phase       corev1.PodPhase         `json:"Phase,omitempty"`    // never changes after Succeeded or Failed
	Reason      string                  `json:"Reason,omitempty"`   // of a Failed pod
	Message     string                  `json:"Message,omitempty"`
	// status.startTime: when the agent first observed the pod
	StartTime  time.Time             `json:"Started"`
	Conditions []corev1.PodCondition `json:"Conditions,omitempty"` // for their transition times
	// by container name: last known exit, in case the runtime loses it
	Exits  map[string]Container `json:"Exits,omitempty"`
	IPs    []string             `json:"IPs,omitempty"`    // last known pod IPs
	Health map[string]Health    `json:"Health,omitempty"` // of live containers, by container ID
	// when the pod completed, after which nothing starts again
	FinishedAt time.Time             `json:"Finished,omitzero"`
	Hooks      map[string]HookStatus `json:"Hooks,omitempty"`  // by container name: instances with hooks to run
	RestartAll RestartAll            `json:"Renewal,omitzero"` // current round of RestartAllContainers
	// CPU and memory, where they may differ from the spec
	Resources ResourceState `json:"Sizes,omitzero"`
	// consecutive recreations, see Limits.RecreateCount
	RecreateCount int `json:"Returned,omitempty"`
}

// RestartState is the crash back-off of one container name.
type RestartState struct {
	Count       int       `json:"Count"`  // exits counted since the last reset
	NextAttempt uint32    `json:"Next"`   // attempt of the next instance: status.restartCount is at least NextAttempt-1
	SpecHash    string    `json:"Hash"`   // hash of the container spec that Count applies to
	CountedID   string    `json:"SeenID"` // ID of the last exited instance that was counted
	NotBefore   time.Time `json:"Until"`  // earliest next start

	RequestedFor string `json:"Asked,omitempty"` // ID of the instance that a user has requested to restart
	// ID of the instance stopped for replacement: a start follows regardless of the policy
	Replacing string `json:"Replaces,omitempty"`
}

// Limits is the configuration of the node.
type Limits struct {
	CrashBase, CrashMax, CrashReset time.Duration // 10 s, 300 s, 600 s
	PullBase, PullMax               time.Duration // 10 s, 300 s
	RetryBase, RetryMax             time.Duration // for all other failures
	// 60 s, 600 s: delay before a static pod is recreated after an eviction, zero: never
	RecreateBase, RecreateMax time.Duration
	MaxDeadContainers         int           // dead instances kept per container besides the newest, default 1
	DeadContainerMinAge       time.Duration // minimum age of a dead instance before it is removed
	// shortest grace period passed to the runtime: 2 s, unless the grace period is 0
	MinStopGrace time.Duration
	HostIPs      []string
	RuntimeName  string // scheme of status.containerStatuses[].containerID, default containerd
	Probing      bool   // false: probes are disabled, running containers count as started and ready
}

func (s ContainerState) String() string {
	switch s {
	case Created:
		return "created"
	case Running:
		return "running"
	case Exited:
		return "exited"
	default:
		return "unknown"
	}
}

// HasFinished reports whether the outcome of a pod is final: it is terminating, its
// phase is terminal, its work is complete, or it was rejected.
func HasFinished(m Memory, v Verdict) bool {
	terminal := m.Phase == corev1.PodSucceeded || m.Phase == corev1.PodFailed
	return m.Termination != nil || terminal || !m.FinishedAt.IsZero() || v.State == Rejected
}

// Versions returns the part of the objects that Decide depends on.
func (o Objects) Versions() map[Ref]Version {
	out := make(map[Ref]Version, len(o))
	for r, x := range o {
		out[r] = x.Version
	}
	return out
}
