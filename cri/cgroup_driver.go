package cri

import (
	"context"
	"encoding/json"
)

// The cgroup drivers.
const (
	driverCgroupfs = "cgroupfs"
	driverSystemd  = "systemd"
)

// CgroupDriver returns the runtime's cgroup driver, or cgroupfs, the default of all runtimes, if the
// runtime does not report one.
func (c *Client) CgroupDriver(ctx context.Context) (string, error) {
	driver, err := c.ReportedCgroupDriver(ctx)
	if err == nil && driver == "" {
		driver = driverCgroupfs
	}
	return driver, err
}

// ReportedCgroupDriver returns the cgroup driver from the runtime's status or configuration, or an
// empty string.
func (c *Client) ReportedCgroupDriver(ctx context.Context) (string, error) {
	st, err := c.Status(ctx)
	if err != nil || st.CgroupDriver != "" {
		return st.CgroupDriver, err
	}
	info, err := c.StatusInfo(ctx)
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
