package main

import (
	"context"
	"encoding/json"
	"fmt"

	"berth/cri"
)

const (
	driverCgroupfs = "cgroupfs"
	driverSystemd  = "systemd"
)

// errCgroupDriverChanged restarts the agent with the runtime's cgroup driver.
var errCgroupDriverChanged = fmt.Errorf("the runtime uses another cgroup driver than assumed while it was unavailable: %w", errReload)

// cgroupDriver returns the runtime's cgroup driver, or cgroupfs, the default of all runtimes, if
// the runtime does not report it.
func cgroupDriver(ctx context.Context, client *cri.Client) (string, error) {
	driver, err := reportedDriver(ctx, client)
	if err == nil && driver == "" {
		driver = driverCgroupfs
	}
	return driver, err
}

// reportedDriver returns the cgroup driver from the runtime's status or configuration, or an empty
// string.
func reportedDriver(ctx context.Context, client *cri.Client) (string, error) {
	st, err := client.Status(ctx)
	if err != nil || st.CgroupDriver != "" {
		return st.CgroupDriver, err
	}
	info, err := client.StatusInfo(ctx)
	if err != nil {
		return "", err
	}
	return configuredDriver(info["config"]), nil
}

// configuredDriver reads the cgroup driver from containerd's configuration as JSON, which
// containerd reports before version 2.0. It returns an empty string for the configuration of
// another runtime.
func configuredDriver(text json.RawMessage) string {
	var config struct {
		Containerd struct {
			DefaultRuntimeName string `json:"defaultRuntimeName"`
			Runtimes           map[string]struct {
				Options struct{ SystemdCgroup *bool } `json:"options"`
			} `json:"runtimes"`
		} `json:"containerd"`
	}
	if json.Unmarshal(text, &config) != nil {
		return ""
	}
	switch set := config.Containerd.Runtimes[config.Containerd.DefaultRuntimeName].Options.SystemdCgroup; {
	case set == nil:
		return ""
	case *set:
		return driverSystemd
	}
	return driverCgroupfs
}

// verifyDriver verifies the cgroup driver that was assumed because the runtime was unavailable at
// startup. No pod is changed before. A different driver requires a restart, because all components
// were created for one driver. Pods keep running meanwhile.
func (r *runtime) verifyDriver(ctx context.Context) error {
	if !r.b.host.driverAssumed.Load() {
		return nil
	}
	driver, err := cgroupDriver(ctx, r.client)
	if err != nil {
		return err
	}
	if mine := r.b.host.cgroups.Driver(); driver != mine {
		return fmt.Errorf("%w (%s, not %s)", errCgroupDriverChanged, driver, mine)
	}
	r.b.host.driverAssumed.Store(false)
	return nil
}
