package cgroups

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// Owner decides which pods belong to berth.
type Owner interface {
	// Owns reports whether the pod belongs to berth. The cgroup of any other pod is not changed.
	Owns(uid types.UID) bool
	// Claim is called before the cgroup of a pod is created. After an error it is not.
	Claim(uid types.UID) error
}

func (c *Cgroups) ownsPod(uid types.UID) bool { return c.owner == nil || c.owner.Owns(uid) }

func (c *Cgroups) claim(uid types.UID) error {
	if c.owner == nil {
		return nil
	}
	return c.owner.Claim(uid)
}

// Pods lists the pods of berth with a cgroup in any hierarchy, sorted.
func (c *Cgroups) Pods(ctx context.Context) ([]types.UID, error) {
	own, _, err := c.pods(ctx)
	return own, err
}

// ForeignPods lists the other pods with a cgroup in any hierarchy, sorted.
func (c *Cgroups) ForeignPods(ctx context.Context) ([]types.UID, error) {
	_, foreign, err := c.pods(ctx)
	return foreign, err
}

func (c *Cgroups) pods(ctx context.Context) (own, foreign []types.UID, err error) {
	uids := map[types.UID]bool{}
	for _, h := range c.hierarchies {
		for _, tier := range tiers() {
			if err := ctx.Err(); err != nil {
				return nil, nil, failed(reasonRemove, err)
			}
			entries, err := os.ReadDir(filepath.Join(h.mount, c.layout.dir(c.layout.tier(tier))))
			if err != nil && !isGone(err) {
				return nil, nil, failed(reasonRemove, err)
			}
			for _, entry := range entries {
				if uid, ok := c.layout.uid(tier, entry.Name()); ok && entry.IsDir() {
					uids[uid] = true
				}
			}
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(uids)) {
		if c.ownsPod(uid) {
			own = append(own, uid)
		} else {
			foreign = append(foreign, uid)
		}
	}
	return own, foreign, nil
}

// shared reports whether other pods have a cgroup beside those of berth. The levels above the pods
// are then not changed: their limits also apply to those pods.
func (c *Cgroups) shared() bool {
	if c.owner == nil {
		return false
	}
	h := c.hierarchies[max(0, slices.IndexFunc(c.hierarchies, func(h hierarchy) bool { return h.has("cpu") }))]
	for _, tier := range tiers() {
		entries, _ := os.ReadDir(filepath.Join(h.mount, c.layout.dir(c.layout.tier(tier)))) // may be missing
		for _, entry := range entries {
			if uid, ok := c.layout.uid(tier, entry.Name()); ok && entry.IsDir() && !c.owner.Owns(uid) {
				return true
			}
		}
	}
	return false
}

// Processes returns the processes in the pod's cgroup and below it, in any tier and hierarchy.
func (c *Cgroups) Processes(uid types.UID) (pids []string) {
	if !plainName(string(uid)) {
		return nil
	}
	for _, tier := range tiers() {
		for _, g := range c.find(c.layout.pod(tier, uid)) {
			pids = append(pids, g.processes()...)
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids)
}

// InUse reports whether the pod's cgroup contains processes.
func (c *Cgroups) InUse(uid types.UID) bool { return len(c.Processes(uid)) > 0 }

// processes returns the processes in a cgroup and below it.
func (g group) processes() (pids []string) {
	dirs, _ := g.dirs() // removed meanwhile
	for _, dir := range dirs {
		pids = append(pids, fields(filepath.Join(dir, "cgroup.procs"))...)
	}
	return pids
}
