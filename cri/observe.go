package cri

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
	"berth/cri/criconfig"
)

// labelPodUID is the kubelet's label with the UID of the pod.
const labelPodUID = "io.kubernetes.pod.uid"

// Pod is the state of one pod in the runtime. Each list is sorted newest first, by attempt and then
// by creation time.
type Pod struct {
	Sandboxes  []plan.Sandbox
	Containers []plan.Container
}

// PodMeta is a pod as the lists of runtime objects show it. The sandboxes have no addresses. The
// containers have neither exit codes nor times except the creation time. Client.Pod returns those.
type PodMeta struct {
	UID             types.UID
	Namespace, Name string
	Source          string // where the pod came from: file, api; empty: unknown
	HostNetwork     bool
	Pod

	labels, annotations map[string]string
	containers          []criconfig.ContainerLabels
}

// Restore returns enough of the pod to terminate it when its spec is lost. See
// criconfig.PodFromSandbox.
func (m PodMeta) Restore() *corev1.Pod {
	return criconfig.PodFromSandbox(m.labels, m.annotations, m.containers...)
}

// Pod returns the full state of the pod in the runtime.
func (c *Client) Pod(ctx context.Context, uid types.UID) (Pod, error) {
	selector := podSelector(string(uid))
	sandboxes, err := c.listSandboxes(ctx, &runtimeapi.PodSandboxFilter{LabelSelector: selector})
	if err != nil {
		return Pod{}, err
	}
	containers, err := c.listContainers(ctx, &runtimeapi.ContainerFilter{LabelSelector: selector})
	if err != nil {
		return Pod{}, err
	}
	var pod Pod
	for _, l := range sandboxes {
		observed, err := c.sandbox(ctx, l.Id)
		switch {
		case err == nil:
			pod.Sandboxes = append(pod.Sandboxes, observed)
		case ignoreNotFound(err) != nil:
			return Pod{}, err
		}
	}
	for _, l := range containers {
		observed, err := c.containerStatus(ctx, l.Id, l.PodSandboxId)
		switch {
		case err == nil:
			pod.Containers = append(pod.Containers, observed)
		case ignoreNotFound(err) != nil:
			return Pod{}, err
		}
	}
	pod.sort()
	return pod, nil
}

// Pods returns all pods of berth that have objects in the runtime. It makes two calls, regardless
// of the number of pods.
func (c *Client) Pods(ctx context.Context) (map[types.UID]PodMeta, error) {
	listedAt := time.Now()
	sandboxes, err := c.listSandboxes(ctx, &runtimeapi.PodSandboxFilter{LabelSelector: c.adoptions.selector()})
	if err != nil {
		return nil, err
	}
	containers, err := c.listContainers(ctx, &runtimeapi.ContainerFilter{LabelSelector: c.adoptions.selector()})
	if err != nil {
		return nil, err
	}
	found := map[types.UID]*PodMeta{}
	of := func(labels, annotations map[string]string) *PodMeta {
		s, _ := criconfig.ParseSandbox(labels, annotations)
		if found[s.UID] == nil {
			found[s.UID] = &PodMeta{UID: s.UID, Namespace: s.Namespace, Name: s.Name, labels: labels,
				annotations: annotations}
		}
		return found[s.UID]
	}
	existing := map[string]bool{}
	slices.SortFunc(sandboxes, func(a, b *runtimeapi.PodSandbox) int {
		return cmp.Compare(b.GetMetadata().GetAttempt(), a.GetMetadata().GetAttempt())
	})
	for _, l := range sandboxes {
		m := of(l.Labels, l.Annotations)
		if s, ok := criconfig.ParseSandbox(l.Labels, l.Annotations); ok && len(m.Sandboxes) == 0 {
			m.Source, m.HostNetwork = s.Source, s.HostNetwork
		}
		m.Sandboxes = append(m.Sandboxes, c.withNetworkState(sandboxFromList(l), l.Labels, l.Annotations))
		existing[l.Id] = true
	}
	c.netnsCache.retain(existing)
	clear(existing)
	for _, l := range containers {
		existing[l.Id] = true
		m := of(l.Labels, l.Annotations)
		own, _ := criconfig.ParseContainer(l.Labels, l.Annotations)
		m.containers = append(m.containers, own)
		m.Containers = append(m.Containers, containerFromList(l))
	}
	c.exits.Retain(existing, listedAt)
	out := make(map[types.UID]PodMeta, len(found))
	for uid, m := range found {
		m.sort()
		out[uid] = *m
	}
	return out, nil
}

// SandboxUIDs returns the pod UIDs of all sandboxes in the runtime, of any owner.
func (c *Client) SandboxUIDs(ctx context.Context) (map[string]bool, error) {
	all, err := c.allSandboxes(ctx, nil)
	if err != nil {
		return nil, err
	}
	uids := make(map[string]bool, len(all))
	for _, s := range all {
		uids[s.GetMetadata().GetUid()] = true
	}
	return uids, nil
}

// Container returns the full state of a container. A container that berth did not create is not
// found.
func (c *Client) Container(ctx context.Context, id string) (plan.Container, error) {
	// Only the list has the ID of the sandbox.
	listed, err := c.listContainers(ctx, &runtimeapi.ContainerFilter{Id: id})
	if err != nil {
		return plan.Container{}, err
	}
	for _, l := range listed {
		if l.Id == id {
			return c.containerStatus(ctx, id, l.PodSandboxId)
		}
	}
	return plan.Container{}, notOwned(verbContainerStatus, id)
}

func notOwned(v verb, id string) error {
	return &plan.Error{Kind: plan.NotFound, Err: fmt.Errorf("%s %s: the runtime has no such object created by berth", v,
		id)}
}

// ownerSelector selects the objects that berth created.
func ownerSelector() map[string]string {
	return map[string]string{criconfig.OwnerLabel: criconfig.OwnerVersion}
}

// podSelector selects the objects of a pod, of any owner.
func podSelector(uid string) map[string]string { return map[string]string{labelPodUID: uid} }

// listSandboxes lists the matching sandboxes that berth created.
func (c *Client) listSandboxes(ctx context.Context,
	filter *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error) {
	all, err := c.allSandboxes(ctx, filter)
	return slices.DeleteFunc(all, func(s *runtimeapi.PodSandbox) bool {
		_, ok := criconfig.ParseSandbox(s.Labels, s.Annotations)
		return !ok || !c.owns(s.Labels)
	}), err
}

// listContainers lists the matching containers that berth created.
func (c *Client) listContainers(ctx context.Context,
	filter *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	all, err := c.allContainers(ctx, filter)
	return slices.DeleteFunc(all, func(l *runtimeapi.Container) bool {
		_, ok := criconfig.ParseContainer(l.Labels, l.Annotations)
		return !ok || !c.owns(l.Labels)
	}), err
}

func (c *Client) allSandboxes(ctx context.Context,
	filter *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error) {
	var resp *runtimeapi.ListPodSandboxResponse
	err := c.call(ctx, verbListSandboxes, "", c.deadlines.Query, func(ctx context.Context) (err error) {
		resp, err = c.runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{Filter: filter})
		return err
	})
	for _, s := range resp.GetItems() {
		c.adoptSandbox(s)
	}
	return resp.GetItems(), err
}

func (c *Client) allContainers(ctx context.Context,
	filter *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	var resp *runtimeapi.ListContainersResponse
	err := c.call(ctx, verbListContainers, "", c.deadlines.Query, func(ctx context.Context) (err error) {
		resp, err = c.runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: filter})
		return err
	})
	for _, k := range resp.GetContainers() {
		c.adoptContainer(k)
	}
	return resp.GetContainers(), err
}

// Sandbox returns the full state of a sandbox.
func (c *Client) Sandbox(ctx context.Context, id string) (plan.Sandbox, error) {
	return c.sandbox(ctx, id)
}

// sandbox returns the full state of a sandbox.
func (c *Client) sandbox(ctx context.Context, id string) (plan.Sandbox, error) {
	resp, err := c.sandboxStatus(ctx, id, false)
	if err != nil {
		return plan.Sandbox{}, err
	}
	observed, ok := sandboxFromStatus(resp.GetStatus())
	if !ok || !c.owns(resp.GetStatus().GetLabels()) {
		return plan.Sandbox{}, notOwned(verbSandboxStatus, id)
	}
	return c.withNetworkState(observed, resp.GetStatus().GetLabels(), resp.GetStatus().GetAnnotations()), nil
}

func (c *Client) sandboxStatus(ctx context.Context, id string,
	verbose bool) (resp *runtimeapi.PodSandboxStatusResponse, err error) {
	err = c.call(ctx, verbSandboxStatus, id, c.deadlines.Query, func(ctx context.Context) (err error) {
		resp, err = c.runtime.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id,
			Verbose: verbose})
		return err
	})
	c.adoptSandboxStatus(resp.GetStatus())
	return resp, err
}

// containerStatus returns the full state of a container.
func (c *Client) containerStatus(ctx context.Context, id, sandboxID string) (plan.Container, error) {
	var resp *runtimeapi.ContainerStatusResponse
	err := c.call(ctx, verbContainerStatus, id, c.deadlines.Query, func(ctx context.Context) (err error) {
		resp, err = c.runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
		return err
	})
	if err != nil {
		return plan.Container{}, err
	}
	c.adoptContainerStatus(resp.GetStatus())
	if !c.owns(resp.GetStatus().GetLabels()) {
		return plan.Container{}, notOwned(verbContainerStatus, id)
	}
	observed, ok := c.observedContainer(ctx, resp.GetStatus(), sandboxID)
	if !ok {
		return plan.Container{}, notOwned(verbContainerStatus, id)
	}
	return observed, nil
}

// sort puts the newest objects first.
func (p *Pod) sort() {
	slices.SortFunc(p.Sandboxes, func(a, b plan.Sandbox) int {
		return cmp.Or(cmp.Compare(b.Attempt, a.Attempt), b.CreatedAt.Compare(a.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	slices.SortFunc(p.Containers, func(a, b plan.Container) int {
		return cmp.Or(cmp.Compare(b.Attempt, a.Attempt), b.CreatedAt.Compare(a.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
}
