package status

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/podspec"
)

// Event is one event of Watch. Exactly one field is set.
type Event struct {
	Added, Modified, Deleted *Snapshot
	Synced                   bool // all pods present at the start have been sent
}

// Watch sends every pod, then every change of the objects (see Snapshot.Object), until ctx is done
// or handle fails with an error, which it returns. Several changes of a pod may be combined.
func (c *Cache) Watch(ctx context.Context, handle func(Event) error) error {
	changed, stop := c.Subscribe()
	defer stop()
	sent := map[types.UID]*Snapshot{}
	for first := true; ; first = false {
		for _, n := range c.changesSince(sent) {
			if err := handle(n); err != nil {
				return err
			}
		}
		if first {
			if err := handle(Event{Synced: true}); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// changesSince returns the changes since the last call and updates sent. It must be cheap for
// unchanged pods because it runs on every notification.
func (c *Cache) changesSince(sent map[types.UID]*Snapshot) (out []Event) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for uid, s := range c.pods {
		was, known := sent[uid]
		sent[uid] = s
		switch {
		case !known:
			out = append(out, Event{Added: s})
		case was != s && !was.sameObject(s):
			out = append(out, Event{Modified: s})
		}
	}
	slices.SortFunc(out, func(x, y Event) int {
		return cmp.Or(x.Added, x.Modified).compare(cmp.Or(y.Added, y.Modified))
	})
	if len(sent) > len(c.pods) {
		for uid, s := range sent {
			if c.pods[uid] == nil {
				delete(sent, uid)
				out = append(out, Event{Deleted: s})
			}
		}
	}
	return out
}

// Instance returns an instance of a container: the newest one or, with previous, the one before it.
// If the runtime keeps no older instance, an exited container that was restarted before is its own
// previous instance. The error is meant for the user.
func (s *Snapshot) Instance(name string, previous bool) (plan.Container, error) {
	var ks []plan.Container
	for _, k := range s.Observed.Containers {
		if k.Name == name {
			ks = append(ks, k)
		}
	}
	pod := s.Pod.Name
	switch {
	case len(ks) == 0 && !previous:
		return plan.Container{}, fmt.Errorf("container %q in pod %q is waiting to start%s", name, pod, s.waiting(name))
	case !previous:
		return ks[0], nil
	case len(ks) > 1:
		return ks[1], nil
	case len(ks) == 1 && !ks[0].Live() && ks[0].Attempt > 0:
		return ks[0], nil
	}
	return plan.Container{}, fmt.Errorf("previous terminated container %q in pod %q not found", name, pod)
}

// RunningInstance returns the newest instance of a container. The error is meant for the user: there
// is none, or it does not run.
func (s *Snapshot) RunningInstance(name string) (plan.Container, error) {
	k, err := s.Instance(name, false)
	if err == nil && k.State != plan.Running {
		err = fmt.Errorf("container %q is %s, not running", name, k.State)
	}
	return k, err
}

// waiting describes in the words of kubectl logs what a container that has never run waits for.
func (s *Snapshot) waiting(name string) string {
	for _, c := range slices.Concat(s.Status.InitContainerStatuses, s.Status.ContainerStatuses,
		s.Status.EphemeralContainerStatuses) {
		if c.Name != name || c.State.Waiting == nil {
			continue
		}
		switch reason := c.State.Waiting.Reason; reason {
		case "":
		case "ErrImagePull":
			return ": image can't be pulled"
		case "ImagePullBackOff":
			return ": trying and failing to pull image"
		default:
			return ": " + reason
		}
	}
	return " - no logs yet"
}

// IsLive reports whether the container instance exists and has not exited.
func (c *Cache) IsLive(uid types.UID, id string) bool {
	s, known := c.Get(uid)
	return known && slices.ContainsFunc(s.Observed.Containers,
		func(k plan.Container) bool { return k.ID == id && k.Live() })
}

// WaitForNextRun waits for the instance of a container that follows an exited one. It returns false
// if the container will not run again or ctx is done.
func (c *Cache) WaitForNextRun(ctx context.Context, uid types.UID, after plan.Container) (plan.Container, bool) {
	changed, stop := c.Subscribe()
	defer stop()
	for {
		s, known := c.Get(uid)
		if !known {
			return plan.Container{}, false
		}
		for _, k := range slices.Backward(s.Observed.Containers) { // oldest first, so that no run is skipped
			if k.Name == after.Name && k.ID != after.ID && k.Attempt > after.Attempt && k.State != plan.Created {
				return k, true
			}
		}
		if !plan.WillRestart(plan.Input{Pod: s.Pod, Verdict: s.Verdict, Observed: s.Observed, Memory: s.Memory},
			after.Name) {
			return plan.Container{}, false
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return plan.Container{}, false
		}
	}
}

// Terminal reports whether a container has stdin and tty set.
func (s *Snapshot) Terminal(name string) (stdin, tty bool) {
	if c := podspec.FindContainer(s.Pod, name); c != nil {
		return c.Stdin, c.TTY
	}
	return false, false
}

// NetworkSandbox returns the ID of the sandbox with the network of the pod, or "" for a pod in the
// host network. The error is meant for the user.
func (s *Snapshot) NetworkSandbox() (sandbox string, err error) {
	if !s.sandboxReady() {
		return "", fmt.Errorf("pod %q has no network: its phase is %s", s.Pod.Namespace+"/"+s.Pod.Name, s.Status.Phase)
	}
	if s.Pod.Spec.HostNetwork {
		return "", nil
	}
	return s.Observed.Sandboxes[0].ID, nil
}
