package cri

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
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

// ErrCgroupDriverChanged means that berth has to restart with the runtime's cgroup driver.
var ErrCgroupDriverChanged = errors.New(
	"the runtime uses another cgroup driver than assumed while it was unavailable",
)

// DriverVerification verifies the cgroup driver that was assumed because the runtime was unavailable
// at startup. No pod is changed before. A different driver requires a restart, because all
// components were created for one driver.
type DriverVerification struct {
	Assumed atomic.Bool   // the driver is assumed
	Current func() string // the driver in use
	Runtime func(context.Context) (string, error)
}

// Verify asks the runtime for its driver if the driver is assumed. It returns an error that wraps
// ErrCgroupDriverChanged if it is another one.
func (v *DriverVerification) Verify(ctx context.Context) error {
	if !v.Assumed.Load() {
		return nil
	}
	driver, err := v.Runtime(ctx)
	if err != nil {
		return err
	}
	if current := v.Current(); driver != current {
		return fmt.Errorf("%w (%s, not %s)", ErrCgroupDriverChanged, driver, current)
	}
	v.Assumed.Store(false)
	return nil
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
