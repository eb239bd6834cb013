package devices

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
)

// keptVersion is of the written form of the ledger.
const keptVersion = 1

// kept is the written form: JSON.
type kept struct {
	Version   int                   `json:"version"`
	Resources []corev1.ResourceName `json:"resources,omitempty"` // that a plugin has registered
	Held      []keptHolding         `json:"held,omitempty"`
}

type keptHolding struct {
	Pod       types.UID           `json:"pod"`
	Container string              `json:"container"`
	Resource  corev1.ResourceName `json:"resource"`
	IDs       []string            `json:"ids"`
	Init      bool                `json:"init,omitempty"`
	Answer    *plan.Devices       `json:"answer,omitempty"`
	Boot      string              `json:"boot,omitempty"`
	Alone     bool                `json:"alone,omitempty"`
}

// note hands the ledger to the store. The caller holds mu: what is noted later
// is newer.
func (d *Manager) note() {
	k := kept{Version: keptVersion}
	for name, r := range d.resources {
		if !r.forgotten {
			k.Resources = append(k.Resources, name)
		}
	}
	slices.Sort(k.Resources)
	for s, h := range d.held {
		k.Held = append(k.Held, keptHolding{Pod: s.pod, Container: s.container, Resource: s.resource, IDs: h.IDs, Init: h.Init, Answer: h.Answer, Boot: h.Boot, Alone: h.Alone})
	}
	slices.SortFunc(k.Held, func(a, b keptHolding) int {
		return cmp.Or(cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Container, b.Container), cmp.Compare(a.Resource, b.Resource))
	})
	text, err := json.Marshal(k)
	if err != nil {
		d.opt.Log.Error("who holds which device cannot be kept", "err", err)
		return
	}
	d.opt.SaveCheckpoint(text)
}

// restore reads what note wrote, less what pods held that nobody knows any more.
func (d *Manager) restore(text []byte) error {
	if len(text) == 0 {
		return nil
	}
	var k kept
	if err := json.Unmarshal(text, &k); err != nil {
		return fmt.Errorf("read the devices that are held: %w", err)
	}
	if k.Version != keptVersion {
		return fmt.Errorf("read the devices that are held: version %d is not known", k.Version)
	}
	for _, name := range k.Resources {
		d.sortOf(name)
	}
	for _, h := range k.Held {
		if d.opt.PodKnown != nil && !d.opt.PodKnown(h.Pod) {
			continue
		}
		d.sortOf(h.Resource)
		d.held[slot{h.Pod, h.Container, h.Resource}] = holding{IDs: h.IDs, Init: h.Init, Answer: h.Answer, Boot: h.Boot, Alone: h.Alone}
	}
	return nil
}
