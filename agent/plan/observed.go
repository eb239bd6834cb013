package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"berth/podspec"
)

// After returns the state after an action has finished. It does not modify the receiver, which may
// be shared with snapshots.
//
// A failed action leaves the state uncertain and the worker observes the pod again, see
// NeedsObservation.
func (o Observed) After(r Outcome) Observed {
	switch a := r.Action.(type) {
	case StartContainer:
		return o.afterStart(r)
	case StopContainer:
		if r.Container != nil {
			return o.WithContainer(*r.Container)
		}
		return o
	case PullImage:
		return o.afterPull(a, r)
	case PostStart, PreStop:
		return o.afterHook(r)
	case EnsureCgroup:
		o.HasCgroup = o.HasCgroup || r.Err == nil
		return o.afterCgroup(a.Resources, r)
	case ResizeCgroup:
		return o.afterCgroup(a.Resources, r)
	case ResizeContainer:
		return o.afterResize(a, r)
	}
	if r.Err != nil {
		return o
	}
	return o.afterSuccess(r)
}

// afterSuccess is After for actions that either succeed completely or change nothing.
func (o Observed) afterSuccess(r Outcome) Observed {
	switch a := r.Action.(type) {
	case CreateDirs:
		o.HasDirs = true
	case MountVolume:
		o.Volumes = withKey(o.Volumes, a.Volume, VolumeStatus{Version: a.Version})
	case ProjectVolume:
		o.Volumes = withKey(o.Volumes, a.Volume, VolumeStatus{Version: a.Version})
	case RemoveContainer:
		o.Containers = filter(o.Containers, func(k Container) bool { return k.ID == a.ID })
	case RunSandbox:
		if r.Sandbox != nil {
			return o.WithSandbox(*r.Sandbox)
		}
	case StopSandbox:
		o.Sandboxes = slices.Clone(o.Sandboxes)
		for i := range o.Sandboxes {
			if s := &o.Sandboxes[i]; s.ID == a.ID {
				s.Ready, s.Stopped = false, true
			}
		}
	case RemoveSandbox:
		o.Sandboxes = filter(o.Sandboxes, func(s Sandbox) bool { return s.ID == a.ID })
	case UnmountVolume:
		o.Volumes = maps.Clone(o.Volumes)
		delete(o.Volumes, a.Volume)
	case RemoveCgroup:
		o.HasCgroup = false
	case RemoveDirs:
		o.HasDirs = false
	}
	return o
}

func (o Observed) afterStart(r Outcome) Observed {
	if r.Container != nil {
		o = o.WithContainer(*r.Container)
	}
	if len(r.MissingImages) > 0 {
		o.Images, o.PulledImages = maps.Clone(o.Images), maps.Clone(o.PulledImages)
		maps.DeleteFunc(o.Images, func(name string, _ Image) bool { return slices.Contains(r.MissingImages, name) })
		maps.DeleteFunc(o.PulledImages,
			func(_ string, p PulledImage) bool { return slices.Contains(r.MissingImages, p.Name) })
	}
	return o
}

// afterCgroup records the resources applied to the pod cgroup by the action. The allocation may
// have changed since. After a failure they are unknown.
func (o Observed) afterCgroup(to Resources, r Outcome) Observed {
	if o.CgroupUncertain = r.Err != nil; !o.CgroupUncertain {
		o.CgroupResources = to
	}
	return o
}

// afterResize records the resources applied to a container. After a failure they are unknown.
func (o Observed) afterResize(a ResizeContainer, r Outcome) Observed {
	o.ResizedContainers = withKey(o.ResizedContainers, a.ID, a.ContainerResources)
	maps.DeleteFunc(o.ResizedContainers, func(id string, _ ContainerResources) bool {
		removed := !slices.ContainsFunc(o.Containers, func(k Container) bool { return k.ID == id })
		return removed || id == a.ID && r.Err != nil
	})
	return o
}

// afterHook records the result of a hook. A hook that was canceled or did not reach the runtime has
// no result and runs again.
func (o Observed) afterHook(r Outcome) Observed {
	end := HookResult{State: HookDone}
	switch kind := KindOf(r.Err); {
	case r.Err != nil && (kind == Canceled || kind == Unavailable):
		return o
	case r.Err != nil:
		end = HookResult{HookFailed, r.Err.Error()}
	}
	o.Hooks = withKey(o.Hooks, r.Action.Key(), end)
	maps.DeleteFunc(o.Hooks, func(key ActionKey, _ HookResult) bool { // removed containers
		return !slices.ContainsFunc(o.Containers, func(k Container) bool { return k.ID == key.Target })
	})
	return o
}

func (o Observed) afterPull(a PullImage, r Outcome) Observed {
	if r.Err != nil || r.Image == nil {
		return o
	}
	o.Images = withKey(o.Images, a.Image, *r.Image)
	o.PulledImages = withKey(o.PulledImages, a.Container, PulledImage{Attempt: a.Attempt, Name: a.Image,
		Image: *r.Image})
	return o
}

// WithImages returns the state after a check for images.
func (o Observed) WithImages(statuses ImageStatuses) Observed {
	was, wasErrors := o.Images, o.ImageErrors
	o.Images, o.ImageErrors = make(map[string]Image, len(was)+len(statuses)), map[string]string{}
	maps.Copy(o.Images, was)
	maps.Copy(o.ImageErrors, wasErrors)
	for name, s := range statuses {
		delete(o.ImageErrors, name)
		switch {
		case s.Err != "": // the last known state remains
			o.ImageErrors[name] = s.Err
		case s.Present:
			o.Images[name] = s.Image
		default:
			delete(o.Images, name)
		}
	}
	return o
}

// MissingImages returns the images of the pod that were not present at the last check.
func (o Observed) MissingImages(pod *corev1.Pod) []string {
	if pod == nil {
		return nil
	}
	return slices.DeleteFunc(podspec.Images(pod), func(name string) bool {
		_, present := o.Images[name]
		return present
	})
}

// NeedsObservation reports whether the runtime or the host must be observed again after an action.
// A call that failed or was canceled may have taken effect.
func NeedsObservation(r Outcome) (runtime, host bool) {
	if r.Err == nil {
		return false, false
	}
	switch r.Action.(type) {
	case RunSandbox, StartContainer, StopContainer, RemoveContainer, StopSandbox, RemoveSandbox, PostStart, PreStop,
		ResizeContainer:
		return true, false // after a hook the container has usually exited
	case ResizeCgroup: // is repeated
		return false, false
	case PullImage: // a completed pull is detected by the next pull
		return false, false
	default:
		return false, true
	}
}

// WithContainer returns the state with a newer observation of one container. An outdated
// observation, for example from a late event, changes nothing.
func (o Observed) WithContainer(k Container) Observed {
	o.Containers = slices.Clone(o.Containers)
	i := slices.IndexFunc(o.Containers, func(x Container) bool { return x.ID == k.ID })
	switch {
	case i < 0:
		o.Containers = append(o.Containers, k)
	case o.Containers[i].State == Exited && k.State != Exited, o.Containers[i].State == Running && k.State == Created:
		return o
	default:
		if k.User == nil { // the response to StartContainer lacks what an earlier event reported
			k.User = o.Containers[i].User
		}
		k.ImageName = cmp.Or(k.ImageName, o.Containers[i].ImageName)
		k.StopSignal = cmp.Or(k.StopSignal, o.Containers[i].StopSignal) // not part of the response to StartContainer
		o.Containers[i] = k
	}
	slices.SortStableFunc(o.Containers, newestContainer)
	return o
}

// WithSandbox is WithContainer for a sandbox.
func (o Observed) WithSandbox(s Sandbox) Observed {
	o.Sandboxes = slices.Clone(o.Sandboxes)
	if i := slices.IndexFunc(o.Sandboxes, func(x Sandbox) bool { return x.ID == s.ID }); i >= 0 {
		was := o.Sandboxes[i]
		s.Stopped = s.Stopped || was.Stopped
		s.Ready = s.Ready && !s.Stopped
		if len(s.IPs) == 0 { // a response without IPs does not remove them
			s.IPs = was.IPs
		}
		o.Sandboxes[i] = s
	} else {
		o.Sandboxes = append(o.Sandboxes, s)
	}
	slices.SortStableFunc(o.Sandboxes, newestSandbox)
	return o
}

// WithRuntime returns the state after a full listing of the runtime. The listing determines what
// exists. Fields known only to this agent process are preserved.
func (o Observed) WithRuntime(sandboxes []Sandbox, containers []Container) Observed {
	was := o
	o.Sandboxes, o.Containers = nil, slices.Clone(containers)
	for _, s := range sandboxes {
		known := Observed{Sandboxes: filter(was.Sandboxes, func(x Sandbox) bool { return x.ID != s.ID })}
		o.Sandboxes = append(o.Sandboxes, known.WithSandbox(s).Sandboxes...)
	}
	slices.SortStableFunc(o.Sandboxes, newestSandbox)
	slices.SortStableFunc(o.Containers, newestContainer)
	return o
}

// Diff describes the differences in existence and state between the known state and a listing of
// the runtime, or returns "" if there are none.
func (o Observed) Diff(sandboxes []Sandbox, containers []Container) string {
	var diff []string
	known := map[string]string{}
	for _, x := range o.Sandboxes {
		known[x.ID] = fmt.Sprintf("sandbox ready=%v", x.Ready)
	}
	for _, x := range o.Containers {
		known[x.ID] = fmt.Sprintf("container %s %s", x.Name, x.State)
	}
	compare := func(id, now string) {
		if was, ok := known[id]; !ok || was != now {
			diff = append(diff, fmt.Sprintf("%.12s: known %q, listed %q", id, was, now))
		}
		delete(known, id)
	}
	for _, x := range sandboxes {
		compare(x.ID, fmt.Sprintf("sandbox ready=%v", x.Ready))
	}
	for _, x := range containers {
		compare(x.ID, fmt.Sprintf("container %s %s", x.Name, x.State))
	}
	for id, was := range known {
		diff = append(diff, fmt.Sprintf("%.12s: known %q, not listed", id, was))
	}
	return strings.Join(diff, "; ")
}

func newestContainer(a, b Container) int {
	return cmp.Or(cmp.Compare(b.Attempt, a.Attempt), b.CreatedAt.Compare(a.CreatedAt), cmp.Compare(b.ID, a.ID))
}

func newestSandbox(a, b Sandbox) int {
	return cmp.Or(cmp.Compare(b.Attempt, a.Attempt), b.CreatedAt.Compare(a.CreatedAt), cmp.Compare(b.ID, a.ID))
}

func withKey[K comparable, V any](m map[K]V, k K, v V) map[K]V {
	m = maps.Clone(m)
	if m == nil {
		m = map[K]V{}
	}
	m[k] = v
	return m
}

func filter[T any](s []T, drop func(T) bool) (out []T) {
	for _, x := range s {
		if !drop(x) {
			out = append(out, x)
		}
	}
	return out
}

// KeepExits returns the observed containers, but keeps exits that are already known. An exited
// container never runs again.
func KeepExits(known, observed []Container) []Container {
	observed = slices.Clone(observed)
	for i, k := range observed {
		for _, was := range known {
			if was.ID == k.ID && was.State == Exited {
				observed[i] = was
			}
		}
	}
	return observed
}
