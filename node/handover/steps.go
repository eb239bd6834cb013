package handover

import "strings"

// Step is one step of a hand-over. Each step can be repeated.
type Step string

// Steps of a takeover, then of a handback, in order.
const (
	WriteConfiguration Step = "write the configuration of berth"
	InstallBerth       Step = "install berth.service"
	BlockKubelet       Step = "add a drop-in to kubelet.service, which does not start while berth.service is enabled"
	EnableBerth        Step = "enable berth.service"
	StopKubelet        Step = "stop and disable kubelet.service"
	StartBerth         Step = "start berth.service"
	AwaitBerth         Step = "wait until berth is ready"

	StopBerth            Step = "stop berth.service"
	EnableKubelet        Step = "enable kubelet.service"
	DisableBerth         Step = "disable berth.service"
	ReleasePods          Step = "release the pods"
	ConvertCheckpoints   Step = "write the resources of resized pods to the checkpoints of the kubelet"
	RestoreConfiguration Step = "restore the configuration of berth"
	UnblockKubelet       Step = "remove the drop-in from kubelet.service"
	StartKubelet         Step = "start kubelet.service"
	CleanNode            Step = "remove labels and annotations of berth from the Node"
	Forget               Step = "remove the record of the hand-over"

	// Done means that nothing is left to do.
	Done Step = ""
)

// Host is the observed state of the host.
type Host struct {
	Kubelet UnitState
	// Configured means that the configuration file of berth has the content of the record.
	Configured     bool
	BerthInstalled bool // program and units are up to date
	// KubeletBlocked means that the drop-in exists: kubelet.service does not start while berth.service
	// is enabled. Enabling or disabling berth.service changes at once which agent starts at boot.
	KubeletBlocked bool
	BerthEnabled   bool
	BerthActive    bool
}

// enabled reports whether a unit starts at boot.
func (u UnitState) enabled() bool { return strings.HasPrefix(u.Enabled, "enabled") }

// Failed are the steps that have failed in this run of the command.
type Failed map[Step]bool

// Continues reports whether the next steps follow after a failed one. A handback must start the kubelet
// even if berth's own files cannot be written, for example because the disk is full: a node without an
// agent is worse than a mark of berth on a pod directory. The record remains then, and the handback can
// be repeated.
func (r *Record) Continues() bool { return r.Direction == Handback }

// NextStep returns the next step of a hand-over. It depends only on the record and on what is
// observed, so that a hand-over continues after a crash at any point. failed are the steps that are not
// repeated. r is nil after Forget.
func NextStep(r *Record, h Host, failed Failed) Step {
	switch {
	case r == nil:
		return Done
	case r.Direction == Takeover:
		return nextOfTakeover(r, h)
	default:
		return nextOfHandback(r, h, failed)
	}
}

func nextOfTakeover(r *Record, h Host) Step {
	switch {
	case !h.Configured && !r.Completed:
		return WriteConfiguration
	case !h.BerthInstalled && !r.Completed:
		return InstallBerth
	case !h.KubeletBlocked:
		return BlockKubelet
	case !h.BerthEnabled:
		return EnableBerth
	case h.Kubelet.Active || h.Kubelet.enabled():
		return StopKubelet
	case !h.BerthActive:
		return StartBerth
	case !r.Completed:
		return AwaitBerth
	}
	return Done
}

func nextOfHandback(r *Record, h Host, failed Failed) Step {
	switch {
	case failed[StopBerth] && h.BerthActive:
		return Done // the kubelet must not run beside berth
	case h.BerthActive:
		return StopBerth
	case r.Unit.enabled() && !h.Kubelet.enabled() && !failed[EnableKubelet]:
		return EnableKubelet
	case h.BerthEnabled && !failed[DisableBerth] && !failed[EnableKubelet]: // one of both starts at boot
		return DisableBerth
	case !r.Released && !failed[ReleasePods]:
		return ReleasePods
	case len(r.Resized) > 0 && !h.Kubelet.Active && !failed[ConvertCheckpoints]: // a running kubelet overwrites them
		return ConvertCheckpoints
	case !r.Restored && !failed[RestoreConfiguration]:
		return RestoreConfiguration
	case h.KubeletBlocked && !failed[UnblockKubelet]:
		return UnblockKubelet
	case r.Unit.Active && !h.Kubelet.Active && !failed[StartKubelet]:
		return StartKubelet
	case !r.NodeCleaned && !failed[CleanNode]:
		return CleanNode
	case len(failed) > 0:
		return Done
	}
	return Forget
}
