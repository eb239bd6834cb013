package cgroups

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// limitAllPods sets the limits of all pods together, once per process. While pods are there that do
// not belong to berth, it changes nothing, and neither do the other functions that set a level above
// the pods.
func (c *Cgroups) limitAllPods(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.limits == nil || c.allPodsLimited || c.shared() {
		return nil
	}
	if err := c.setLimits(ctx, c.layout.tier(""), c.limits); err != nil {
		return fmt.Errorf("limit all pods: %w", err)
	}
	c.allPodsLimited = true
	return nil
}

// writeShares writes the shares of the Burstable tier if they have changed. The caller holds c.mu.
func (c *Cgroups) writeShares(ctx context.Context) error {
	shares := c.requested.shares()
	if shares == c.writtenShares || len(c.requested) == 0 && c.writtenShares == 0 || c.shared() {
		return nil
	}
	err := c.setTier(ctx, c.layout.tier(burstable), &specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: &shares}})
	if err == nil {
		c.writtenShares = shares
	}
	return err
}

// writeMemoryProtection writes the memory protection of all pods together and of the Burstable tier
// if it has changed: a cgroup is protected only as far as its parents are. The caller holds c.mu.
func (c *Cgroups) writeMemoryProtection(ctx context.Context) error {
	now := c.memory.sum()
	if !c.rules.reserve || now == c.writtenProtection || c.shared() {
		return nil
	}
	shares := c.requested.shares()
	err := c.setTier(ctx, c.layout.tier(burstable), &specs.LinuxResources{
		CPU:     &specs.LinuxCPU{Shares: &shares},
		Unified: map[string]string{memoryLow: strconv.FormatInt(now.burstable, 10)},
	})
	if err == nil && c.limits != nil {
		all := *c.limits
		all.Unified = map[string]string{
			memoryMin: strconv.FormatInt(now.guaranteed, 10), memoryLow: strconv.FormatInt(now.guaranteed+now.burstable,
				10),
		}
		err = c.setTier(ctx, c.layout.tier(""), &all)
	}
	if err != nil {
		return fmt.Errorf("set memory protection: %w", err)
	}
	c.writtenProtection = now
	return nil
}

// setTier sets resources of a tier. With systemd they are also set as properties of the slice,
// because a daemon-reload would revert the files.
func (c *Cgroups) setTier(ctx context.Context, names []string, share *specs.LinuxResources) error {
	dir := c.layout.dir(names)
	i := slices.IndexFunc(c.hierarchies, func(h hierarchy) bool { return h.has("cpu") })
	if i < 0 || !exists(filepath.Join(c.hierarchies[i].mount, dir)) {
		return nil // the tier does not exist yet
	}
	if err := c.setUnit(ctx, names, share); err != nil {
		return err
	}
	return c.hierarchies[i].apply(dir, c.settings(share))
}

// setUnit creates or updates the slice of a cgroup if systemd is the driver.
func (c *Cgroups) setUnit(ctx context.Context, names []string, limits *specs.LinuxResources) error {
	if !c.layout.systemd {
		return nil
	}
	return c.units.start(ctx, slice(names), properties(c.v2, limits))
}

// settings converts limits to the cgroup files of this host.
func (c *Cgroups) settings(limits *specs.LinuxResources) []setting {
	if c.v2 {
		return settingsV2(limits)
	}
	return settingsV1(limits)
}

// setLimits creates a cgroup if it is missing and sets its limits.
func (c *Cgroups) setLimits(ctx context.Context, names []string, limits *specs.LinuxResources) error {
	if err := c.setUnit(ctx, names, limits); err != nil {
		return err
	}
	settings := c.settings(limits)
	dir := c.layout.dir(names)
	for _, h := range c.hierarchies {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := h.create(dir); err != nil {
			return err
		}
		if err := h.apply(dir, settings); err != nil {
			return err
		}
	}
	return nil
}
