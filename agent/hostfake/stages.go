package hostfake

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/podspec"
)

// --- prepare

// Pod returns the sandboxes and containers of a pod.
func (h *Host) Pod(ctx context.Context, uid types.UID) (sbs []plan.Sandbox, ks []plan.Container, err error) {
	h.Mu.Lock() // the response has the state at the start of the call
	sbs, ks = slices.Clone(h.StateOf(uid).Sandboxes), slices.Clone(h.StateOf(uid).Containers)
	h.Mu.Unlock()
	err = h.call(ctx, "observe", string(uid), func() error { return nil })
	return sbs, ks, err
}

// Container returns the container with an ID.
func (h *Host) Container(ctx context.Context, id string) (k plan.Container, err error) {
	err = h.call(ctx, "status", id, func() error {
		for _, p := range h.AllPods {
			for _, x := range p.Containers {
				if x.ID == id {
					k = x
					return nil
				}
			}
		}
		return &plan.Error{Kind: plan.NotFound, Err: errors.New("no such container")}
	})
	return k, err
}

// Observe reports whether the directories of a pod exist, and the state of its volumes.
func (h *Host) Observe(ctx context.Context, pod *corev1.Pod) (dirs bool, vols map[string]plan.VolumeStatus, err error) {
	err = h.call(ctx, "observeHost", name(pod), func() error {
		dirs, vols = h.StateOf(pod.UID).Dirs, maps.Clone(h.StateOf(pod.UID).Volumes)
		return nil
	})
	return dirs, vols, err
}

// Images is the adapter of images.
type Images struct{ *Host }

// Images returns the adapter of images.
func (h *Host) Images() Images { return Images{h} }

// Observe returns the status of images on the host and counts the checks in ImageChecks.
func (h Images) Observe(_ context.Context, _ *corev1.Pod, names []string, _ plan.Objects) plan.ImageStatuses {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	statuses := plan.ImageStatuses{}
	for _, image := range names {
		h.ImageChecks[image]++
		statuses[image] = plan.ImageStatus{Image: h.image(image), Present: h.HasImage[image], Err: h.ImageError}
	}
	return statuses
}

// image returns the image that a name refers to now. The caller holds Mu.
func (h *Host) image(name string) plan.Image {
	return plan.Image{ID: "sha:" + name + h.MovedTags[name], InspectedAt: time.Now()}
}

// Resolve returns the image that a name refers to. It fails with ImageNotFound if the image is not present.
func (h *Host) Resolve(_ context.Context, _ *corev1.Pod, image string, _ plan.Objects) (plan.Image, error) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	if h.Count["resolve "+image]++; !h.HasImage[image] {
		return plan.Image{}, &plan.Error{
			Kind: plan.ImageNotFound, Reason: "CreateContainerError", Err: errors.New("no such image"),
		}
	}
	return h.image(image), nil
}

// --- configure

// CreateDirs creates the directories of a pod.
func (h *Host) CreateDirs(ctx context.Context, pod *corev1.Pod) error {
	return h.call(ctx, "createDirs", name(pod), func() error { h.StateOf(pod.UID).Dirs = true; return nil })
}

// Mount mounts a volume of a pod.
func (h *Host) Mount(ctx context.Context, pod *corev1.Pod, vol, version string, _ plan.Objects, _ []string) error {
	return h.call(ctx, "mount", name(pod)+"/"+vol, func() error {
		h.StateOf(pod.UID).Volumes[vol] = plan.VolumeStatus{Version: version}
		return nil
	})
}

// Project writes a new version of a projected volume.
func (h *Host) Project(ctx context.Context, pod *corev1.Pod, vol, version string, objs plan.Objects, _ []string) error {
	return h.call(ctx, "project", name(pod)+"/"+vol+" "+version, func() error {
		h.StateOf(pod.UID).Volumes[vol] = plan.VolumeStatus{Version: version}
		return nil
	})
}

// Cgroups is the adapter of cgroups.
type Cgroups struct{ h *Host }

// Cgroups returns the adapter of cgroups.
func (h *Host) Cgroups() Cgroups { return Cgroups{h} }

// Exists reports whether the cgroup of a pod exists.
func (c Cgroups) Exists(_ context.Context, pod *corev1.Pod) (bool, error) {
	c.h.Mu.Lock()
	defer c.h.Mu.Unlock()
	return c.h.StateOf(pod.UID).Cgroup, nil
}

// Ensure creates the cgroup of a pod.
func (c Cgroups) Ensure(ctx context.Context, pod *corev1.Pod) error {
	return c.h.call(ctx, "ensureCgroup", name(pod), func() error { c.h.StateOf(pod.UID).Cgroup = true; return nil })
}

// Remove removes the cgroup of a pod.
func (c Cgroups) Remove(ctx context.Context, pod *corev1.Pod) error {
	return c.h.call(ctx, "removeCgroup", name(pod), func() error { c.h.StateOf(pod.UID).Cgroup = false; return nil })
}

// --- build-run

// Pull pulls the image of a container.
func (h *Host) Pull(ctx context.Context, pod *corev1.Pod, a plan.PullImage, _ plan.Objects) (plan.Image, error) {
	var img plan.Image
	err := h.call(
		ctx, "pull", name(pod)+"/"+a.Container,
		func() error { h.HasImage[a.Image], img = true, h.image(a.Image); return nil },
	)
	return img, err
}

// RunSandbox creates a ready sandbox. A second ready sandbox of the pod is a violation.
func (h *Host) RunSandbox(ctx context.Context, pod *corev1.Pod, s plan.SandboxConfig) (sb plan.Sandbox, err error) {
	err = h.call(ctx, "runSandbox", name(pod), func() error {
		p := h.StateOf(pod.UID)
		p.Pod = pod
		for _, x := range p.Sandboxes {
			if x.Ready {
				h.violates("pod %s has two ready sandboxes", pod.Name)
			}
		}
		h.n++
		sb = plan.Sandbox{
			ID: fmt.Sprintf("sb%d", h.n), Ready: true, Attempt: s.Attempt, CreatedAt: time.Now(),
			IPs: []string{"10.0.0.1"},
		}
		p.Sandboxes = append([]plan.Sandbox{sb}, p.Sandboxes...)
		h.notify(pod.UID)
		return nil
	})
	return sb, err
}

// StartContainer creates and starts a container. A second live instance is a violation.
func (h *Host) StartContainer(ctx context.Context, pod *corev1.Pod, name string,
	s plan.ContainerConfig) (k plan.Container, err error) {
	err = h.call(ctx, "start", string(pod.UID)+"/"+name, func() error {
		p := h.StateOf(pod.UID)
		for _, x := range p.Containers {
			if x.Name == name && x.Live() {
				h.violates("container %s of pod %s has two live instances", name, pod.UID)
			}
		}
		h.n++
		h.LastContainerConfig = s
		k = plan.Container{
			ID: fmt.Sprintf("k%d", h.n), Name: name, SandboxID: s.Sandbox.ID, State: plan.Running, Attempt: s.Attempt,
			Image: s.Image.ID, SpecHash: podspec.ContainerHash(podspec.FindContainer(pod, name)), CreatedAt: time.Now(),
			StartedAt: time.Now(),
		}
		p.Containers = append([]plan.Container{k}, p.Containers...)
		h.notify(pod.UID)
		if h.Exits != nil {
			if after, code, ok := h.Exits(name); ok {
				time.AfterFunc(after, func() { h.Kill(pod.UID, name, code, false) })
			}
		}
		return nil
	})
	if err != nil {
		return plan.Container{}, err
	}
	return k, nil
}

// EnvFiles returns no environment files.
func (h *Host) EnvFiles(*corev1.Pod, *corev1.Container) plan.EnvFiles { return nil }

// ResizeContainer records the new memory limit of a container.
func (h *Host) ResizeContainer(ctx context.Context, pod *corev1.Pod, name, _ string) error {
	c := podspec.FindContainer(pod, name)
	return h.call(
		ctx, "resize", string(pod.UID)+"/"+name+" "+c.Resources.Limits.Memory().String(),
		func() error { return nil },
	)
}

// ContainerMounts returns VolumeMounts for every container.
func (h *Host) ContainerMounts(context.Context, *corev1.Pod, *corev1.Container, uint32, plan.Objects,
	plan.Sandbox) ([]plan.Mount, error) {
	return slices.Clone(h.VolumeMounts), nil
}

// ContainerDevices returns no devices.
func (h *Host) ContainerDevices(context.Context, *corev1.Pod, *corev1.Container, plan.Objects) ([]plan.DeviceNode,
	error) {
	return nil, nil
}

// Run runs a hook, recorded as "hook pod/container".
func (h *Host) Run(ctx context.Context, pod *corev1.Pod, c *corev1.Container, _ *corev1.LifecycleHandler, _ string,
	_ []string) error {
	return h.call(ctx, "hook", string(pod.UID)+"/"+c.Name, func() error { return nil })
}

// --- cleanup

// find returns the pod of a container or sandbox. The caller holds Mu.
func (h *Host) find(id string) (types.UID, *PodState) {
	for uid, p := range h.AllPods {
		for _, k := range p.Containers {
			if k.ID == id {
				return uid, p
			}
		}
		for _, s := range p.Sandboxes {
			if s.ID == id {
				return uid, p
			}
		}
	}
	return "", &PodState{}
}

// StopContainer stops a container. A running container exits with code 137.
func (h *Host) StopContainer(ctx context.Context, id string, grace time.Duration) (out plan.Container, err error) {
	h.Mu.Lock()
	uid, _ := h.find(id)
	h.Mu.Unlock()
	err = h.call(ctx, "stop", string(uid)+"/"+id+" "+grace.String(), func() error {
		uid, p := h.find(id)
		for i := range p.Containers {
			if k := &p.Containers[i]; k.ID == id {
				if k.State == plan.Running {
					k.State, k.ExitCode, k.FinishedAt = plan.Exited, 137, time.Now()
				}
				out = *k
			}
		}
		h.notify(uid)
		return nil
	})
	return out, err
}

// RemoveContainer removes a container. Removing a running container is a violation.
func (h *Host) RemoveContainer(ctx context.Context, id string) error {
	return h.call(ctx, "removeContainer", id, func() error {
		_, p := h.find(id)
		p.Containers = slices.DeleteFunc(slices.Clone(p.Containers), func(k plan.Container) bool {
			if k.ID == id && k.State == plan.Running {
				h.violates("running container %s removed", k.Name)
			}
			return k.ID == id
		})
		return nil
	})
}

// StopSandbox stops a sandbox.
func (h *Host) StopSandbox(ctx context.Context, id string) error {
	return h.call(ctx, "stopSandbox", id, func() error {
		_, p := h.find(id)
		for i := range p.Sandboxes {
			if p.Sandboxes[i].ID == id {
				p.Sandboxes[i].Ready = false
			}
		}
		return nil
	})
}

// RemoveSandbox removes a sandbox with its containers.
func (h *Host) RemoveSandbox(ctx context.Context, id string) error {
	return h.call(ctx, "removeSandbox", id, func() error {
		_, p := h.find(id)
		p.Sandboxes = slices.DeleteFunc(slices.Clone(p.Sandboxes), func(s plan.Sandbox) bool { return s.ID == id })
		p.Containers = slices.DeleteFunc(slices.Clone(p.Containers), func(k plan.Container) bool {
			return k.SandboxID == id
		})
		return nil
	})
}

// Unmount unmounts a volume of a pod. Running containers in the pod are a violation.
func (h *Host) Unmount(ctx context.Context, pod *corev1.Pod, vol string) error {
	return h.call(ctx, "unmount", name(pod)+"/"+vol, func() error {
		if n := len(h.runningContainersOf(pod.UID)); n > 0 {
			h.violates("volume %s unmounted while %d containers are running", vol, n)
		}
		delete(h.StateOf(pod.UID).Volumes, vol)
		return nil
	})
}

func (h *Host) runningContainersOf(uid types.UID) (running []plan.Container) {
	for _, k := range h.StateOf(uid).Containers {
		if k.State == plan.Running {
			running = append(running, k)
		}
	}
	return running
}

// RemoveDirs removes the directories of a pod.
func (h *Host) RemoveDirs(ctx context.Context, pod *corev1.Pod) error {
	return h.call(ctx, "removeDirs", name(pod), func() error { h.StateOf(pod.UID).Dirs = false; return nil })
}
