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

// errOtherDriver has the agent begin anew, with the runtime's driver.
var errOtherDriver = fmt.Errorf("the runtime has another cgroup driver than was taken while it did not answer: %w", errReload)

// cgroupDriver is the runtime's as far as it tells, else cgroupfs: that is every
// runtime's default.
func cgroupDriver(ctx context.Context, client *cri.Client) (string, error) {
	driver, err := toldDriver(ctx, client)
	if err == nil && driver == "" {
		driver = driverCgroupfs
	}
	return driver, err
}

// toldDriver is what the runtime says, else what its configuration says; empty:
// neither does.
func toldDriver(ctx context.Context, client *cri.Client) (string, error) {
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

// configuredDriver reads the driver of containerd's default runtime from its
// configuration as JSON, as versions before 2.0 tell it. Empty: it is not there,
// or the configuration is another runtime's.
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

// sameDriver asks for the driver that was guessed because the runtime did not
// answer at the start, and lets no pod be touched before. All that knows of
// cgroups was made for one driver, so with another one the agent begins anew; pods
// go on meanwhile.
func (r *runtime) sameDriver(ctx context.Context) error {
	if !r.b.host.guessed.Load() {
		return nil
	}
	driver, err := cgroupDriver(ctx, r.client)
	if err != nil {
		return err
	}
	if mine := r.b.host.cgroups.Driver(); driver != mine {
		return fmt.Errorf("%w (%s, not %s)", errOtherDriver, driver, mine)
	}
	r.b.host.guessed.Store(false)
	return nil
}
