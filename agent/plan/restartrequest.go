package plan

import (
	"fmt"
	"slices"

	"berth/podspec"
)

// RequestRestart returns the memory after which the named containers are restarted regardless of
// their restart policy and back-off. Running ones are stopped with the pod's grace period. Without
// names it restarts the app containers, the sidecars and an init container that keeps failing. The
// error names a container that cannot be restarted and is meant for the user. It uses only Pod,
// Observed and Memory of the input.
func RequestRestart(in Input, names []string) (Memory, error) {
	d := newDecider(in)
	if d.mem.Termination != nil || in.Termination != nil {
		return in.Memory, fmt.Errorf("pod %s is terminating", in.Pod.Name)
	}
	if d.terminal() || !d.mem.FinishedAt.IsZero() {
		return in.Memory, fmt.Errorf("pod %s has completed", in.Pod.Name)
	}
	for _, name := range names {
		if err := d.restartError(name); err != nil {
			return in.Memory, err
		}
	}
	for _, c := range d.specs {
		if len(names) == 0 && d.restartError(c.Name) != nil || len(names) > 0 && !slices.Contains(names, c.Name) {
			continue
		}
		k, exists := d.newest(c.Name)
		if !exists {
			continue // about to run for the first time
		}
		r := d.mem.Restarts[c.Name]
		r.RequestedFor, r.Replacing, r.Count = k.ID, k.ID, 0
		if k.State == Exited { // its exit is already counted, and the back-off is skipped
			r.CountedID, r.SpecHash = k.ID, podspec.ContainerHash(c.Container)
		}
		r.NotBefore = d.Now
		d.mem.Restarts[c.Name] = r
	}
	return d.out.Memory, nil
}

// KeepMemory returns the memory unchanged. It is used for requests that change only the pod.
func KeepMemory(in Input, _ []string) (Memory, error) { return in.Memory, nil }

// DelaysStartOf reports whether the back-off after the failure delays the start of one of the named
// containers, or of any container if there are no names.
func (f Failure) DelaysStartOf(names []string) bool {
	switch a := f.Action.(type) {
	case PullImage:
		return len(names) == 0 || slices.Contains(names, a.Container)
	case StartContainer:
		return len(names) == 0 || slices.Contains(names, a.Name)
	}
	return false
}

// restartError returns why a container cannot be restarted on request, or nil.
func (d *decider) restartError(name string) error {
	for _, c := range d.specs {
		if c.Name != name {
			continue
		}
		k, exists := d.newest(name)
		switch {
		case c.kind == Ephemeral:
			return fmt.Errorf("ephemeral container %s cannot be restarted", name)
		case c.kind == Init && (d.initsDone() || exists && k.State == Exited && k.ExitCode == 0):
			return fmt.Errorf("init container %s has completed", name)
		case c.kind == Init && exists && k.Live():
			return fmt.Errorf("init container %s is running: only a failed one can be restarted", name)
		}
		return nil
	}
	return fmt.Errorf("pod %s has no container %s", d.Pod.Name, name)
}
