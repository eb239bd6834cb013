package cri

import (
	"maps"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/cri/criconfig"
)

// adoptions are the pods that the kubelet created and berth has adopted. Objects of these pods without
// berth's labels count as berth's own.
type adoptions struct {
	mu   sync.RWMutex
	pods map[types.UID]criconfig.Adoption
	// released pods were handed over to the kubelet. Objects of these pods are foreign, even if berth
	// created them.
	released map[types.UID]bool
}

// SetAdoptions replaces the adopted and the released pods. It may be called at any time.
func (c *Client) SetAdoptions(adopted map[types.UID]criconfig.Adoption, released map[types.UID]bool) {
	c.adoptions.mu.Lock()
	defer c.adoptions.mu.Unlock()
	c.adoptions.pods, c.adoptions.released = maps.Clone(adopted), maps.Clone(released)
}

func (a *adoptions) get(uid types.UID) (criconfig.Adoption, bool) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	of, ok := a.pods[uid]
	return of, ok
}

func (a *adoptions) isReleased(uid types.UID) bool {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.released[uid]
}

// selector returns the labels that the runtime is asked for to find the objects of berth: its owner
// label, unless it has adopted pods, whose objects do not have it.
func (a *adoptions) selector() map[string]string {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if len(a.pods) > 0 {
		return nil
	}
	return ownerSelector()
}

// adopted returns the adoption of the pod of a foreign object, if it was adopted.
func (c *Client) adopted(labels map[string]string) (criconfig.Adoption, bool) {
	if !criconfig.Foreign(labels) {
		return criconfig.Adoption{}, false
	}
	return c.adoptions.get(types.UID(labels[labelPodUID]))
}

// adoptSandbox adds berth's labels and annotations to the listed sandbox of an adopted pod.
func (c *Client) adoptSandbox(s *runtimeapi.PodSandbox) {
	if a, ok := c.adopted(s.GetLabels()); ok {
		s.Labels, s.Annotations = a.Sandbox(c.instance, s.Labels, s.Annotations, s.GetMetadata().GetAttempt())
	}
}

// adoptContainer is adoptSandbox for a container.
func (c *Client) adoptContainer(k *runtimeapi.Container) {
	if a, ok := c.adopted(k.GetLabels()); ok {
		k.Labels, k.Annotations = a.Container(c.instance, k.Labels, k.Annotations)
	}
}

// adoptSandboxStatus is adoptSandbox for a status.
func (c *Client) adoptSandboxStatus(s *runtimeapi.PodSandboxStatus) {
	if a, ok := c.adopted(s.GetLabels()); ok {
		s.Labels, s.Annotations = a.Sandbox(c.instance, s.Labels, s.Annotations, s.GetMetadata().GetAttempt())
	}
}

// adoptContainerStatus is adoptSandbox for the status of a container.
func (c *Client) adoptContainerStatus(s *runtimeapi.ContainerStatus) {
	if a, ok := c.adopted(s.GetLabels()); ok {
		s.Labels, s.Annotations = a.Container(c.instance, s.Labels, s.Annotations)
	}
}
