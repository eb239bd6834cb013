package plan

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Plan is everything Decide wants.
type Plan struct {
	Configure   []ConfigureAction // stage 3: give the pod what it needs on this host
	Cleanup     []CleanupAction   // stage 4: take away what must not be there
	BuildRun    []BuildRunAction  // stage 5: make what is missing
	Cancel      []ActionKey       // busy actions no longer wanted
	CheckImages []string          // images that only a hand can bring: ask the node for them again
	Probes      map[string]Probes // which probes should run, by container ID
	Status      corev1.PodStatus
	Memory      Memory
	Wake        time.Time // when time alone may change the answer; zero: never
	Done        bool      // nothing of the pod is left; the worker may leave
	Recreate    bool      // it is over, and is to be made anew as soon as the node is short of nothing
	Reasons     []Reason  // one per decision, for the log, `berth why` and the tests

	// The durability contract, see durability.go.
	Requirements       map[ActionKey]Requirement // what must be on disk before the action of that key may start
	MemoryBeforeStatus bool                      // Memory must be on disk before Status is published
}

// Probes says which probes of a running container are wanted now.
type Probes struct{ Startup, Readiness, Liveness bool }

// Reason is one decision in words. Two Reasons with equal Code, On and Detail
// are the same decision: it is told once, however many passes repeat it.
type Reason struct {
	Code      string    `json:"Code"`   // CamelCase, as an event reason where Kubernetes has one: BackOff, Killing, SandboxChanged, …
	Target    string    `json:"On"`     // container, volume or image it is about; empty: the pod
	Message   string    `json:"Detail"` // for the user, one sentence, no secrets
	Until     time.Time `json:"Until"`  // when it ends by itself; zero: when something changes
	EventType string    `json:"Event"`  // corev1.EventTypeNormal or Warning if it is to be told as a Kubernetes event; empty: not
}

// Actions returns all actions of the plan.
func (p Plan) Actions() []Action {
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

// Empty reports whether there is nothing to do now.
func (p Plan) Empty() bool {
	return len(p.Configure)+len(p.Cleanup)+len(p.BuildRun)+len(p.Cancel) == 0
}

// ActionKey names an action. At most one action per key is under way at a time.
type ActionKey struct{ Verb, Target string }

func (k ActionKey) String() string { return k.Verb + "/" + k.Target }

// Action is one thing to do for a pod. The set is closed: see the three stages.
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

// Stage configure.
type (
	// CreateDirs makes the pod's directories and its log directory.
	CreateDirs struct{}
	// EnsureCgroup makes the pod's cgroup and sets its limits as for these resources.
	EnsureCgroup struct{ Resources Resources }
	// ResizeCgroup sets the limits of the pod's cgroup as for these resources.
	ResizeCgroup struct{ Resources Resources }
	// MountVolume sets a volume up on the host with content of that version.
	MountVolume struct{ Volume, Version string }
	// ProjectVolume replaces the content of a volume that is set up.
	ProjectVolume struct{ Volume, Version string }
)

// Stage cleanup.
type (
	// StopContainer ends a container: stop signal, Grace, then SIGKILL.
	StopContainer struct {
		ID, Name string
		Reason   string // Reason.Code of the decision
		Grace    time.Duration
		Deadline time.Time // when it must have ended; a busy stop with a later By is called off for an earlier one
	}
	// PreStop runs the preStop hook of a container that is to be ended.
	PreStop struct{ ID, Name string }
	// RemoveContainer removes an exited or never started container.
	RemoveContainer struct {
		ID, Name string
		Garbage  bool // it is one too many of a pod that goes on or is kept; else the pod ends, or it never ran
	}
	// StopSandbox ends the sandbox and takes its network away.
	StopSandbox struct{ ID string }
	// RemoveSandbox removes a stopped sandbox and its remaining containers.
	RemoveSandbox struct {
		ID      string
		Garbage bool // likewise: another has taken its place
	}
	// UnmountVolume takes a volume off the host.
	UnmountVolume struct{ Volume string }
	// RemoveCgroup removes the pod's cgroup.
	RemoveCgroup struct{}
	// RemoveDirs removes the pod's directories and its logs.
	RemoveDirs struct{}
)

// Stage build-run.
type (
	// RunSandbox makes the pod's sandbox with its network.
	RunSandbox struct{ Attempt uint32 }
	// PullImage brings an image onto the node. Secret versions are not part
	// of it: they are read when the pull begins.
	PullImage struct {
		Container, Image string
		Policy           corev1.PullPolicy
		Attempt          uint32 // of the container it is for
	}
	// PostStart runs the postStart hook of a container that was just started.
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
		Image        Image // whole: who runs by it is known, though another has taken its name since
		Attempt      uint32
		ResolveImage bool // its image, unless it was pulled for it, and those of its volumes are looked up again: tags move
	}
)

// ContainerKind tells the four kinds of containers of a pod apart.
type ContainerKind int

const (
	Main ContainerKind = iota
	Init
	Sidecar // an init container with restartPolicy Always
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
