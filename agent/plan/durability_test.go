package plan

import (
	"testing"
	"time"
)

func TestDurabilityContract(t *testing.T) {
	t.Parallel()
	end := &Termination{Reason: "Deleted"}
	pending := Memory{Hooks: map[string]HookStatus{"a": {PostStart: HookPending}}}
	for _, c := range []struct {
		name   string
		action Action
		memory Memory
		want   Requirement
	}{
		{
			"the stop of a container of a running pod requires nothing", StopContainer{ID: "1", Reason: "Unhealthy"},
			Memory{}, Nothing,
		},
		{
			"the stop of a container of a terminating pod requires the termination",
			StopContainer{ID: "1", Reason: "Deleted"}, Memory{Termination: end}, TerminationOnDisk,
		},
		{
			"the stop of a container to change it requires the memory",
			StopContainer{ID: "1", Reason: stopReasonSpecChanged}, Memory{}, MemoryOnDisk,
		},
		{
			"the stop of a container to resize it requires the memory",
			StopContainer{ID: "1", Reason: stopReasonResized}, Memory{}, MemoryOnDisk,
		},
		{
			"the stop of a container for a new round requires the memory",
			StopContainer{ID: "1", Reason: StopReasonRestartAll}, Memory{}, MemoryOnDisk,
		},
		{"a preStop hook requires the memory", PreStop{ID: "1"}, Memory{Termination: end}, MemoryOnDisk},
		{
			"the removal of the directories of a terminating pod requires the termination", RemoveDirs{},
			Memory{Termination: end}, TerminationOnDisk,
		},
		{"the removal of a dead container of a running pod requires nothing", RemoveContainer{ID: "1"}, Memory{},
			Nothing},
		{
			"the start of a container with a postStart hook requires the memory", StartContainer{Name: "a"}, pending,
			MemoryOnDisk,
		},
		{"the start of another container requires nothing", StartContainer{Name: "b"}, pending, Nothing},
		{"a resize requires the memory", ResizeContainer{ID: "1"}, Memory{}, MemoryOnDisk},
		{"a pull requires nothing", PullImage{Container: "a"}, pending, Nothing},
		{"a sandbox requires nothing", RunSandbox{}, pending, Nothing},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := Plan{Memory: c.memory}
			switch a := c.action.(type) {
			case CleanupAction:
				p.Cleanup = []CleanupAction{a}
			case BuildRunAction:
				p.BuildRun = []BuildRunAction{a}
			}
			p.setDurability(c.memory)
			if got := p.Requires(c.action); got != c.want {
				t.Errorf("got requirement %d, want %d", got, c.want)
			}
		})
	}
}

func TestDecideSetsDurability(t *testing.T) {
	t.Parallel()
	p := up().deleted(time.Second).decide()
	if len(p.Cleanup) == 0 {
		t.Fatal("a terminating pod has no cleanup actions")
	}
	for _, a := range p.Cleanup {
		if p.Requires(a) == Nothing {
			t.Errorf("%s of a terminating pod requires nothing", a.Key())
		}
	}
}

func TestChangedReadinessIsOnDiskBeforeItIsPublished(t *testing.T) {
	t.Parallel()
	memory := Memory{Health: map[string]Health{"1": {Started: true, Ready: true}}}
	for _, c := range []struct {
		name   string
		before Memory
		want   bool
	}{
		{"the same readiness", memory, false},
		{"another readiness", Memory{Health: map[string]Health{"1": {Started: true}}}, true},
	} {
		p := Plan{Memory: memory}
		if p.setDurability(c.before); p.MemoryBeforeStatus != c.want {
			t.Errorf("%s: %v, want %v", c.name, p.MemoryBeforeStatus, c.want)
		}
	}
}
