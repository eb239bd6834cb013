package plan

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Plan is the result of Decide.
type Plan struct {
	Configure   []ConfigureAction // stage 3: prepare the host
	Cleanup     []CleanupAction   // stage 4: remove what must not exist
	BuildRun    []BuildRunAction  // stage 5: create what is missing
	Cancel      []ActionKey       // actions in progress to cancel
	CheckImages []string          // images that cannot be pulled and may be imported: check for them
	Probes      map[string]Probes // wanted probes by container ID
	Status      corev1.PodStatus
	Memory      Memory
	Wake        time.Time // when time alone may change the plan, zero: never
	Done        bool      // nothing of the pod is left, so its worker may exit
	Recreate    bool      // the pod has terminated and is to be recreated once the node has no pressure
	Reasons     []Reason  // one per decision, for the log, `berth why` and tests

	// The durability contract, see durability.go.
	Requirements       map[ActionKey]Requirement // what must be on disk before the action of that key may start
	MemoryBeforeStatus bool                      // Memory must be on disk before Status is published
}

// Probes is the set of probes of a running container to run now.
type Probes struct{ Startup, Readiness, Liveness bool }

// Reason describes one decision. Two reasons with equal Code, Target and Message are the same
// decision, which is reported once.
type Reason struct {
	// CamelCase, the event reason where Kubernetes has one: BackOff, Killing, SandboxChanged, …
	Code      string    `json:"Code"`
	Target    string    `json:"On"`     // container, volume or image, empty: the pod
	Message   string    `json:"Detail"` // one sentence for the user, without secrets
	Until     time.Time `json:"Until"`  // when it ends without a change, zero: unknown
	EventType string    `json:"Event"`  // corev1.EventTypeNormal or EventTypeWarning, empty: no Kubernetes event
}

// Actions returns all actions of the plan.
func (p *Plan) Actions() []Action {
	as := make([]Action, 0, len(p.Configure)+len(p.Cleanup)+len(p.BuildRun))
	for _, a := range p.Configure {
		as = append(as, a)
	}
	for _, a := range p.Cleanup {
		as = append(as, a)
	}
	for _, a := range p.BuildRun {
		as = append(as, a)
	}
	return as
}

// Empty reports whether the plan contains no actions and cancels none.
func (p *Plan) Empty() bool {
	return len(p.Configure)+len(p.Cleanup)+len(p.BuildRun)+len(p.Cancel) == 0
}

// ActionKey identifies an action. At most one action per key is in progress.
type ActionKey struct{ Verb, Target string }

func (key ActionKey) String() string { return key.Verb + "/" + key.Target }

// Action is one operation on a pod. The types below, grouped by stage, are the only ones.
type Action interface{ Key() ActionKey }

type (
	// ConfigureAction is an action of stage 3.
	ConfigureAction interface {
		Action
		configure()
	}
	// CleanupAction is an action of stage 4.
	CleanupAction interface {
		Action
		cleanup()
	}
	// BuildRunAction is an action of stage 5.
	BuildRunAction interface {
		Action
		buildRun()
	}
)

// Actions of stage configure.
type (
	// CreateDirs creates the pod directories and its log directory.
	CreateDirs struct{}
	// EnsureCgroup creates the pod cgroup and sets its limits for the resources.
	EnsureCgroup struct{ Resources Resources }
	// ResizeCgroup sets the limits of the pod cgroup for the resources.
	ResizeCgroup struct{ Resources Resources }
	// MountVolume sets up a volume on the host with the given content version.
	MountVolume struct{ Volume, Version string }
	// ProjectVolume replaces the content of a mounted volume.
	ProjectVolume struct{ Volume, Version string }
)

// Actions of stage cleanup.
type (
	// StopContainer stops a container: stop signal, Grace, then SIGKILL.
	StopContainer struct {
		ID, Name string
		Reason   string // Code of the Reason
		Grace    time.Duration
		Deadline time.Time // latest stop time: a stop in progress with a later deadline is canceled for an earlier one
	}
	// PreStop runs the preStop hook of a container before it is stopped.
	PreStop struct{ ID, Name string }
	// RemoveContainer removes a container that has exited or never started.
	RemoveContainer struct {
		ID, Name string
		Garbage  bool // an old instance of a pod that remains, not part of the pod's removal
	}
	// StopSandbox stops the sandbox and releases its network.
	StopSandbox struct{ ID string }
	// RemoveSandbox removes a stopped sandbox and its remaining containers.
	RemoveSandbox struct {
		ID      string
		Garbage bool // a replaced sandbox of a pod that remains
	}
	// UnmountVolume removes a volume from the host.
	UnmountVolume struct{ Volume string }
	// RemoveCgroup removes the pod cgroup.
	RemoveCgroup struct{}
	// RemoveDirs removes the pod directories and logs.
	RemoveDirs struct{}
)

// Actions of stage build-run.
type (
	// RunSandbox creates the pod sandbox with its network.
	RunSandbox struct{ Attempt uint32 }
	// PullImage pulls an image. The pull secrets are read when the pull starts.
	PullImage struct {
		Container, Image string
		Policy           corev1.PullPolicy
		Attempt          uint32 // of the container
	}
	// PostStart runs the postStart hook of a container that has just started.
	PostStart struct{ ID, Name string }
	// ResizeContainer changes the CPU and memory of a running container.
	ResizeContainer struct {
		ID, Name string
		ContainerResources
	}
	// StartContainer creates and starts a container.
	StartContainer struct {
		Name         string
		Kind         ContainerKind
		SandboxID    string
		Image        Image // the complete image, because its name may refer to another image by now
		Attempt      uint32
		ResolveImage bool // look up its image (unless pulled for this start) and volume images again, because tags move
	}
)

// ContainerKind is the kind of a container in the pod spec.
type ContainerKind int

const (
	Main ContainerKind = iota
	Init
	Sidecar // init container with restartPolicy Always
	Ephemeral
)

func (k ContainerKind) String() string {
	return [...]string{"main", "init", "sidecar", "ephemeral"}[k]
}

func (CreateDirs) Key() ActionKey        { return ActionKey{"make", "dirs"} }
func (EnsureCgroup) Key() ActionKey      { return ActionKey{"make", "cgroup"} }
func (ResizeCgroup) Key() ActionKey      { return ActionKey{"resize", "cgroup"} }
func (a ResizeContainer) Key() ActionKey { return ActionKey{"resize", a.ID} }
func (a MountVolume) Key() ActionKey     { return ActionKey{"mount", a.Volume} }
func (a ProjectVolume) Key() ActionKey   { return ActionKey{"project", a.Volume} }
func (a StopContainer) Key() ActionKey   { return ActionKey{"stop", a.ID} }
func (a RemoveContainer) Key() ActionKey { return ActionKey{"remove", a.ID} }
func (a PreStop) Key() ActionKey         { return ActionKey{"preStop", a.ID} }
func (a PostStart) Key() ActionKey       { return ActionKey{"postStart", a.ID} }
func (a StopSandbox) Key() ActionKey     { return ActionKey{"stop", a.ID} }
func (a RemoveSandbox) Key() ActionKey   { return ActionKey{"remove", a.ID} }
func (a UnmountVolume) Key() ActionKey   { return ActionKey{"unmount", a.Volume} }
func (RemoveCgroup) Key() ActionKey      { return ActionKey{"remove", "cgroup"} }
func (RemoveDirs) Key() ActionKey        { return ActionKey{"remove", "dirs"} }
func (RunSandbox) Key() ActionKey        { return ActionKey{"run", "sandbox"} }
func (a PullImage) Key() ActionKey       { return ActionKey{"pull", a.Container} }
func (a StartContainer) Key() ActionKey  { return ActionKey{"start", a.Name} }

func (CreateDirs) configure()     {}
func (EnsureCgroup) configure()   {}
func (ResizeCgroup) configure()   {}
func (MountVolume) configure()    {}
func (ProjectVolume) configure()  {}
func (StopContainer) cleanup()    {}
func (PreStop) cleanup()          {}
func (RemoveContainer) cleanup()  {}
func (StopSandbox) cleanup()      {}
func (RemoveSandbox) cleanup()    {}
func (UnmountVolume) cleanup()    {}
func (RemoveCgroup) cleanup()     {}
func (RemoveDirs) cleanup()       {}
func (RunSandbox) buildRun()      {}
func (PullImage) buildRun()       {}
func (PostStart) buildRun()       {}
func (ResizeContainer) buildRun() {}
func (StartContainer) buildRun()  {}
