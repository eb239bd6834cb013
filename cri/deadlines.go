package cri

import "time"

// Deadlines bounds each verb, so that a runtime that hangs on one pod never blocks anything
// forever. A zero field takes its default.
type Deadlines struct {
	RunSandbox      time.Duration // 4 min: includes pulling the sandbox image and running CNI plugins
	StopSandbox     time.Duration // 2 min: includes running CNI plugins
	RemoveSandbox   time.Duration // 2 min
	CreateContainer time.Duration // 2 min
	StartContainer  time.Duration // 2 min
	StopSlack       time.Duration // 1 min, in addition to the grace period
	RemoveContainer time.Duration // 2 min
	Query           time.Duration // 30 s: one list or status of pods and containers
	Status          time.Duration // 10 s: status of the runtime itself
	ExecSlack       time.Duration // 10 s, in addition to the timeout of the command
	Stream          time.Duration // 30 s: preparing an exec, attach or port-forward
	Update          time.Duration // 30 s: resources and log files
	Checkpoint      time.Duration // 2 min: a checkpoint without a timeout of its own
	NameReservation time.Duration // 10 s: how long a name may stay reserved by an interrupted call
	CancelGrace     time.Duration // 20 s: for a canceled create or start call to complete by itself
	Interrupted     time.Duration // 2 s: for finding what exists of an interrupted call
}

func (d Deadlines) withDefaults() Deadlines {
	for _, f := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&d.RunSandbox, 4 * time.Minute},
		{&d.StopSandbox, 2 * time.Minute},
		{&d.RemoveSandbox, 2 * time.Minute},
		{&d.CreateContainer, 2 * time.Minute},
		{&d.StartContainer, 2 * time.Minute},
		{&d.StopSlack, time.Minute},
		{&d.RemoveContainer, 2 * time.Minute},
		{&d.Query, 30 * time.Second},
		{&d.Status, 10 * time.Second},
		{&d.ExecSlack, 10 * time.Second},
		{&d.Stream, 30 * time.Second},
		{&d.Update, 30 * time.Second},
		{&d.Checkpoint, 2 * time.Minute},
		{&d.NameReservation, 10 * time.Second},
		{&d.CancelGrace, 20 * time.Second},
		{&d.Interrupted, 2 * time.Second},
	} {
		if *f.field == 0 {
			*f.field = f.value
		}
	}
	return d
}
