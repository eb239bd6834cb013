package plan

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Input is everything Decide may look at.
type Input struct {
	Now             time.Time
	Pod             *corev1.Pod           // desired; shared with others, so read-only
	Verdict         Verdict               // answer of stage admit; zero: not asked
	Reserved        Resources             // what the room holds for the pod; nil: as Memory has it
	Resize          ResizeStatus          // why the room does not give what is desired
	Termination     *Termination          // nil: keep it running; else why and how it must end
	Observed        Observed              // what stage prepare saw
	Refs            map[Ref]Version       // the objects that the pod names: their version or why there is none
	Health          map[string]Health     // probe results by container ID, thresholds already applied; none: as in Memory
	InProgress      map[ActionKey]Action  // actions begun by earlier passes and not yet finished
	Failures        map[ActionKey]Failure // last failure of an action, until it succeeds
	Memory          Memory                // Plan.Memory of the previous pass
	ImagesCheckedAt time.Time             // when the node was last asked for images that it did not have; zero: never
	Limits          Limits                // constants of this node
}

// VerdictState is what stage admit answered.
type VerdictState int

const (
	NotRequested VerdictState = iota
	Admitted                  // may run; its resources are reserved
	Wait                      // not now, for a local and recoverable cause; asked again when that changes
	Rejected                  // never on this node: the pod fails
)

// Verdict is the answer of stage admit. Reason is CamelCase (OutOfcpu,
// NodeAffinity, …), Message has the numbers.
type Verdict struct {
	State           VerdictState `json:"state"`
	Reason, Message string       `json:",omitempty"`
	Preempts        string       `json:"-"` // of Wait: who has to go for the pod, by name
}

// Termination says that the pod must stop and why. Once set it never becomes nil again
// and its grace only shrinks.
type Termination struct {
	Reason      string        `json:"Reason"`           // Deleted, Evicted, Preempting, DeadlineExceeded, Terminated (node shutdown), Orphaned
	Message     string        `json:"Message"`          // for the user
	EventDetail string        `json:"Detail,omitempty"` // more for the event alone
	Grace       time.Duration `json:"Grace"`            // from At; whoever asks fills it in (podspec.Grace)
	RequestedAt time.Time     `json:"At"`               // when it was first asked
	RemovePod   bool          `json:"Forget"`           // the object is gone: leave nothing of the pod behind
	NodeCaused  bool          `json:"Node,omitempty"`   // it goes for what the node lacks, not for what it did
}

// Eviction says that a pod takes more of the node than its own limits let it, or
// than the node has.
type Eviction struct {
	Signal      string        // of the limit, as the kubelet's metrics name it
	Message     string        // for the user
	EventDetail string        // more for the event alone; may be empty
	Grace       time.Duration // zero: 1 s
	NodeCaused  bool          // it is the node that is short
}

// Observed is the pod as the runtime and the host show it. It is the worker's
// own cache: see After for how the outcome of an action advances it.
type Observed struct {
	Sandboxes         []Sandbox                     // newest first (by Attempt, then CreatedAt)
	Containers        []Container                   // newest first; several instances per name
	Volumes           map[string]VolumeStatus       // by volume name: those that are set up on the host, wanted or not
	Images            map[string]Image              // by image name as in the spec; absent: not on this node
	ImageErrors       map[string]string             // by image name as in the spec: why it cannot be told whether it is here
	PulledImages      map[string]PulledImage        // by container name: the last pull made for it
	HasDirs           bool                          // the pod's directories and log directory exist
	HasCgroup         bool                          // the pod's cgroup exists
	Network           NetworkStatus                 // of the node
	HeldPulls         map[string]string             // by image name as in the spec: why its pull, which was asked for, waits for room on the disk
	DiskPressure      bool                          // the node is short of disk: what has ended is not kept for its logs
	CgroupResources   Resources                     // what the pod's cgroup was last made for or resized to; nil: it was not, in this agent's life
	CgroupUncertain   bool                          // that failed since: what the pod's cgroup has is not known
	ResizedContainers map[string]ContainerResources // by container ID: likewise
	Devices           map[string]DeviceStatus       // by container name: those that want devices
	Hooks             map[ActionKey]HookResult      // hooks that have ended, by the key of their action. Known to this agent's life only

	RecursiveReadOnly bool // the pod's runtime handler can mount read-only with all that is mounted below
}

// NetworkStatus tells whether the node's pod network can take a new sandbox.
type NetworkStatus struct {
	Ready   bool
	Message string // why it is not ready
}

// DeviceStatus is what a container has of devices.
type DeviceStatus struct {
	Pending   string                  // what a start has to wait for; empty: nothing
	Allocated []corev1.ResourceStatus // that it holds, and how they are
}

// Sandbox is one pod sandbox in the runtime.
type Sandbox struct {
	ID        string
	Ready     bool
	Attempt   uint32
	CreatedAt time.Time
	IPs       []string // primary first; empty with hostNetwork or while unknown
	Stopped   bool     // StopSandbox has succeeded: its network is released. Known to this agent's life only
}

// ContainerState is the runtime's view of a container.
type ContainerState int

const (
	Created ContainerState = iota + 1
	Running
	Exited
	Unknown // the runtime cannot say: treated as live
)

// Container is one container instance in the runtime.
type Container struct {
	ID          string         `json:"ID"`
	Name        string         `json:"Name"`
	SandboxID   string         `json:"SandboxID"`
	State       ContainerState `json:"State"`
	Attempt     uint32         `json:"Attempt"`             // restarts before this instance
	SpecHash    string         `json:"SpecHash"`            // SpecHash of the container spec it was made from
	Image       string         `json:"Image"`               // image name as in the spec it was made from
	ImageName   string         `json:"ImageName,omitempty"` // image name as the runtime writes it: docker.io/library/busybox:1.36; empty: unknown
	ImageID     string         `json:"ImageID"`             // reference of the image the runtime resolved (repo@sha256:… where known)
	CreatedAt   time.Time      `json:"CreatedAt"`
	StartedAt   time.Time      `json:"StartedAt"`  // zero: never started
	FinishedAt  time.Time      `json:"FinishedAt"` // zero: not finished
	ExitCode    int32          `json:"ExitCode"`
	Reason      string         `json:"Reason"`           // of the exit as the runtime says: Completed, Error, OOMKilled, …
	Message     string         `json:"Message"`          // termination message, at most 4096 bytes
	Interrupted bool           `json:"CutOff,omitempty"` // it has exited without a start: the runtime gave that up because nobody waited for it any more
	LogPath     string         `json:"LogPath"`          // absolute path of its CRI log file

	User              *corev1.LinuxContainerUser `json:"User,omitempty"`              // that its first process began with; nil: the runtime does not say
	RecursiveReadOnly []string                   `json:"RecursiveReadOnly,omitempty"` // paths in it that are mounted read-only with all that is mounted below
	StopSignal        corev1.Signal              `json:"StopSignal,omitempty"`        // that the runtime will send; empty: unknown

	Kind    ContainerKind                    `json:"-"` // as it says itself; only from a full look
	Devices map[corev1.ResourceName][]string `json:"-"` // that it was given, as it says itself; only from a full look
}

// Live reports whether the container may still have processes or be started.
func (c Container) Live() bool { return c.State == Created || c.State == Running || c.State == Unknown }

// VolumeStatus is a volume that is set up on the host.
type VolumeStatus struct {
	Version string // the content version it was last projected with; empty: unknown or without content
}

// Image is an image that is present on the node.
type Image struct {
	ID          string    // the runtime's image ID (sha256:…), what a container is created from
	Ref         string    // repo digest for the status' imageID; ID where there is none
	Size        uint64    // bytes on disk
	UID         *int64    // user the image declares, if numeric
	User        string    // user name the image declares, if not numeric
	InspectedAt time.Time // when the runtime was asked: its name may stand for another since
}

// ImageStatuses is what a look for images has found, by name as in the spec.
type ImageStatuses map[string]ImageStatus

// ImageStatus is what a look for one image has found.
type ImageStatus struct {
	Image
	Present bool
	Err     string // why it cannot be told
}

// PulledImage says that a pull made for one container has succeeded.
type PulledImage struct {
	Attempt uint32 // attempt of the container it was made for
	Name    string // of the image, as in the spec
	Image   Image
}

// Health is what the probes of one container instance add up to.
type Health struct {
	Started     bool   `json:"Started"` // the startup probe has succeeded
	Ready       bool   `json:"Ready"`   // the readiness probe says so
	Failed      bool   `json:"Dead"`    // the liveness or startup probe has failed for good
	FailedProbe string `json:"Probe"`   // which probe killed it: liveness or startup
	Message     string `json:"Message"` // last output of the probe that decided

	Probes []ProbeState `json:"Probed,omitempty"` // per probe; never changed in place
}

// Memory is what Decide asks to be given back next time. Losing it must only
// cost time.
type Memory struct {
	Termination   *Termination            `json:"End,omitempty"`
	Restarts      map[string]RestartState `json:"Restarts,omitempty"` // by container name
	Phase         corev1.PodPhase         `json:"Phase,omitempty"`    // never goes back from Succeeded or Failed
	Reason        string                  `json:"Reason,omitempty"`   // of a Failed pod
	Message       string                  `json:"Message,omitempty"`
	StartTime     time.Time               `json:"Started"`              // first time the agent saw the pod: status.startTime
	Conditions    []corev1.PodCondition   `json:"Conditions,omitempty"` // for their transition times
	Exits         map[string]Container    `json:"Exits,omitempty"`      // by container name: last known exit, for when the runtime forgets
	IPs           []string                `json:"IPs,omitempty"`        // last known pod addresses
	Health        map[string]Health       `json:"Health,omitempty"`     // by container ID, of live containers
	FinishedAt    time.Time               `json:"Finished,omitzero"`    // when its own work was over: nothing of it will start again
	Hooks         map[string]HookStatus   `json:"Hooks,omitempty"`      // by container name: of instances that have hooks to run
	RestartAll    RestartAll              `json:"Renewal,omitzero"`     // of all containers in place
	Resources     ResourceState           `json:"Sizes,omitzero"`       // CPU and memory, as far as they may differ from the spec
	RecreateCount int                     `json:"Returned,omitempty"`   // how often in a row it was made anew after it had to go
}

// RestartState is the crash back-off of one container name.
type RestartState struct {
	Count       int       `json:"Count"`  // exits counted since the last reset
	NextAttempt uint32    `json:"Next"`   // attempt number of the next instance; status.restartCount is never lower than Next-1
	SpecHash    string    `json:"Hash"`   // of the container spec that it counts for
	CountedID   string    `json:"SeenID"` // the last exited instance that was counted
	NotBefore   time.Time `json:"Until"`  // no start before

	RequestedFor string `json:"Asked,omitempty"`    // the instance that a user wants another in place of
	Replacing    string `json:"Replaces,omitempty"` // the instance that is stopped to be replaced: its exit is followed by a start whatever the policy
}

// Limits are constants of this node.
type Limits struct {
	CrashBase, CrashMax, CrashReset time.Duration // 10 s, 300 s, 600 s
	PullBase, PullMax               time.Duration // 10 s, 300 s
	RetryBase, RetryMax             time.Duration // for everything else that fails
	RecreateBase, RecreateMax       time.Duration // 60 s, 600 s: of a file's pod that had to go, before it is made anew; zero: never
	MaxDeadContainers               int           // ended instances of a container kept beside its newest; 0 is 1
	DeadContainerMinAge             time.Duration // since such an instance ended, before it is removed
	MinStopGrace                    time.Duration // smallest grace handed to the runtime: 2 s (0 when grace is 0)
	HostIPs                         []string
	RuntimeName                     string // scheme of status.containerStatuses[].containerID: containerd
	Probing                         bool   // false: nobody runs probes, so a running container counts as started and ready
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

// Versions is what Decide may know about objects.
func (o Objects) Versions() map[Ref]Version {
	out := make(map[Ref]Version, len(o))
	for r, x := range o {
		out[r] = x.Version
	}
	return out
}
