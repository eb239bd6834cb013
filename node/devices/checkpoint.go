package devices

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
)

// checkpointVersion is the version of the format.
const checkpointVersion = 1

// checkpoint is the persisted state, in JSON.
type checkpoint struct {
	Version   int                   `json:"version"`
	Resources []corev1.ResourceName `json:"resources,omitempty"` // registered by a plugin
	Held      []checkpointEntry     `json:"held,omitempty"`
}

type checkpointEntry struct {
	Pod        types.UID           `json:"pod"`
	Container  string              `json:"container"`
	Resource   corev1.ResourceName `json:"resource"`
	IDs        []string            `json:"ids"`
	Init       bool                `json:"init,omitempty"`
	Response   *plan.Devices       `json:"answer,omitempty"`
	Boot       string              `json:"boot,omitempty"`
	NoPreStart bool                `json:"alone,omitempty"`
}

// save passes the state to SaveCheckpoint. The caller holds mu, so that states are saved in order.
func (d *Manager) save() {
	k := checkpoint{Version: checkpointVersion}
	for name, r := range d.resources {
		if !r.expired {
			k.Resources = append(k.Resources, name)
		}
	}
	slices.Sort(k.Resources)
	for s, h := range d.allocations {
		k.Held = append(
			k.Held,
			checkpointEntry{
				Pod:        s.pod,
				Container:  s.container,
				Resource:   s.resource,
				IDs:        h.IDs,
				Init:       h.Init,
				Response:   h.Response,
				Boot:       h.Boot,
				NoPreStart: h.NoPreStart,
			},
		)
	}
	slices.SortFunc(k.Held, func(a, b checkpointEntry) int {
		return cmp.Or(cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Container, b.Container),
			cmp.Compare(a.Resource, b.Resource))
	})
	text, err := json.Marshal(k)
	if err != nil {
		d.opt.Log.Error("device checkpoint not saved", "err", err)
		return
	}
	d.opt.SaveCheckpoint(text)
}

// CheckpointOfKubelet returns the checkpoint of a Manager that continues after the kubelet, whose checkpoint
// is content. It has the resources of registered plugins without allocations: until a plugin registers
// again, pods wait for its devices instead of starting without them.
func CheckpointOfKubelet(content []byte) ([]byte, error) {
	var s struct {
		Data struct {
			RegisteredDevices map[corev1.ResourceName][]string
		}
	}
	if err := json.Unmarshal(content, &s); err != nil {
		return nil, fmt.Errorf("read device checkpoint of the kubelet: %w", err)
	}
	return json.Marshal(checkpoint{
		Version: checkpointVersion, Resources: slices.Sorted(maps.Keys(s.Data.RegisteredDevices)),
	})
}

// restore reads a checkpoint, without the allocations of unknown pods.
func (d *Manager) restore(text []byte) error {
	if len(text) == 0 {
		return nil
	}
	var k checkpoint
	if err := json.Unmarshal(text, &k); err != nil {
		return fmt.Errorf("read device checkpoint: %w", err)
	}
	if k.Version != checkpointVersion {
		return fmt.Errorf("read device checkpoint: unknown version %d", k.Version)
	}
	for _, name := range k.Resources {
		d.resourceFor(name)
	}
	for _, h := range k.Held {
		if d.opt.PodKnown != nil && !d.opt.PodKnown(h.Pod) {
			continue
		}
		d.resourceFor(h.Resource)
		d.allocations[allocationKey{h.Pod, h.Container, h.Resource}] = allocation{
			IDs:        h.IDs,
			Init:       h.Init,
			Response:   h.Response,
			Boot:       h.Boot,
			NoPreStart: h.NoPreStart,
		}
	}
	return nil
}
