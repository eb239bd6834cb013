package check

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"berth/cni"
	"berth/cri"
	"berth/internal/nodeconfig"
	"berth/node"
	"berth/node/cgroups"
	"berth/node/devices"
	"berth/node/pressure"
	"berth/nodeapi"
)

// StoreRemedy is the remedy for an unusable local store.
const StoreRemedy = "free disk space, mount the file system writable, or remove the file that is in the place " +
	"of the store: pod records are kept only in memory until then"

// Node contains the checks that do not require a running agent: the configuration, the host and the
// runtime. They change nothing.
type Node struct {
	Config  *nodeconfig.Config
	Runtime *cri.Client
	Network *cni.Network
	Cgroups *cgroups.Cgroups
	// Owns reports whether a pod on the host belongs to the running agent. Nil: no agent runs.
	Owns func(types.UID) bool
}

// Report runs the checks.
func (c Node) Report(ctx context.Context) (r nodeapi.CheckReport) {
	add := Adder(&r)
	c.checkRuntime(ctx, add)
	for _, item := range c.Network.Check(ctx).Items {
		r.Items = append(
			r.Items,
			nodeapi.CheckItem{
				Name:      "cni " + item.Name,
				OK:        item.OK,
				Essential: true,
				Detail:    item.Detail,
				Remedy:    item.Remedy,
			},
		)
	}
	c.CheckNameServers(add)
	c.checkKernel(add)
	c.checkFeatures(ctx, add)
	c.checkDisks(add)
	c.checkImageDisk(ctx, add)
	c.checkForeignPods(ctx, add)
	c.checkCosts(ctx, add)
	add("privileges", true, rootOnly(), "running as root", "run berth as root: it mounts volumes and creates cgroups")
	return r
}

// Adder returns a function that adds items to a report.
func Adder(r *nodeapi.CheckReport) AddFunc {
	return func(name string, essential bool, err error, detail, remedy string) {
		item := nodeapi.CheckItem{Name: name, Essential: essential, OK: err == nil, Detail: detail}
		if err != nil {
			item.Detail, item.Remedy = err.Error(), remedy
		}
		r.Items = append(r.Items, item)
	}
}

// AddFunc adds the result of a check. remedy is used only if err is not nil.
type AddFunc func(name string, essential bool, err error, detail, remedy string)

func (c Node) checkRuntime(ctx context.Context, add AddFunc) {
	remedy := "start containerd, or set its socket with --container-runtime-endpoint"
	name, version, err := c.Runtime.Version(ctx)
	add("runtime", true, err, name+" "+version+" at "+c.Config.RuntimeEndpoint, remedy)
	if at := c.Config.ImageEndpoint; at != c.Config.RuntimeEndpoint {
		_, err := c.Runtime.ImageFilesystem(ctx)
		add("image service", true, err, at, "start the image service at this address, or remove imageServiceEndpoint")
	}
	if err != nil {
		return
	}
	st, err := c.Runtime.Status(ctx)
	if err == nil && !st.Ready {
		err = errors.New(st.Reason)
	}
	add("runtime status", true, err, "ready", remedy)
	driver := c.Cgroups.Driver()
	if reported, err := c.Runtime.ReportedCgroupDriver(ctx); err == nil && reported != "" && reported != driver {
		add(
			"cgroup driver",
			true,
			fmt.Errorf("the runtime uses %s, berth uses %s", reported, driver),
			"",
			"set cgroupDriver: "+reported,
		)
	} else {
		add("cgroup driver", true, nil, driver, "")
	}
}

func (c Node) checkKernel(add AddFunc) {
	version := "cgroup v1"
	if c.Cgroups.V2() {
		version = "cgroup v2"
	}
	add("cgroups", true, node.CheckCgroupVersion(c.Config.Cgroups, c.Cgroups.V2()), version,
		"set failCgroupV1: false, or boot with cgroup v2")
	kernel{v2: c.Cgroups.V2(), ipv6: usesIPv6(c.Config)}.check(add)
	var tx unix.Timex
	state, err := unix.Adjtimex(&tx)
	if err == nil && state == unix.TIME_ERROR {
		err = errors.New("the clock is not synchronized")
	}
	add(
		"time",
		false,
		err,
		time.Now().UTC().Format(time.RFC3339),
		"run chrony or systemd-timesyncd: certificates and back-offs depend on the clock",
	)
}

// checkDisks requires 10% of free space on each file system that berth writes to.
func (c Node) checkDisks(add AddFunc) {
	for _, d := range []struct{ name, dir string }{
		{"root-dir", c.Config.RootDir}, {"state-dir", c.Config.StateDir}, {"pod logs", c.Config.PodLogsDir},
	} {
		used, detail, err := diskUsage(existingParent(d.dir), d.dir)
		if err == nil && used > 90 {
			err = errors.New(detail)
		}
		add("disk of "+d.name, false, err, detail, "free disk space: pods are at risk below 10%")
	}
}

// checkImageDisk requires usage below the image garbage collection threshold, and at least 10% of
// free space, on the runtime's image filesystem.
func (c Node) checkImageDisk(ctx context.Context, add AddFunc) {
	const name = "disk of images"
	d, err := c.Runtime.ImageFilesystem(ctx)
	if err == nil && d.Path == "" {
		err = errors.New("the runtime does not report its image filesystem")
	}
	if err != nil {
		add(name, false, err, "", "start the image service")
		return
	}
	used, detail, err := diskUsage(d.Path, d.Path)
	if high := c.Config.Images.HighThresholdPercent; err == nil && used >= min(high, 91) {
		if high <= 90 {
			detail += fmt.Sprintf(", unused images are removed from %d%% usage on", high)
		}
		err = errors.New(detail)
	}
	add(
		name,
		false,
		err,
		detail,
		"free disk space, remove unused images, or move the runtime's root directory to a larger disk: images that "+
			"do not fit cannot be pulled",
	)
}

// diskUsage returns the usage of a directory's file system in percent, and as text with the given
// name of the directory.
func diskUsage(dir, name string) (percent int, words string, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, "", fmt.Errorf("statfs of %s: %w", name, err)
	}
	free := int(100 * st.Bavail / max(st.Blocks, 1))
	return 100 - free, fmt.Sprintf("%s: %d%% free", name, free), nil
}

// existingParent returns the directory, or the closest parent that exists: berth creates its
// directories when it starts.
func existingParent(dir string) string {
	for {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) || filepath.Dir(dir) == dir {
			return dir
		}
		dir = filepath.Dir(dir)
	}
}

func rootOnly() error {
	if os.Geteuid() != 0 {
		return errors.New("not running as root")
	}
	return nil
}

// Pressure adds the pressure conditions of the node with their values.
func Pressure(add AddFunc, c pressure.Config, r pressure.Reading, v pressure.Evaluation) {
	for _, condition := range pressure.NodeConditions {
		i := slices.IndexFunc(v.Pressures, func(p pressure.Pressure) bool { return p.Condition == condition })
		if i >= 0 {
			add(string(condition), false, errors.New(v.Pressures[i].Message()), "", pressureRemedy)
			continue
		}
		add(string(condition), false, nil, c.AvailabilityMessage(condition, r), "")
	}
}

const pressureRemedy = "free resources or add capacity: until then new pods are rejected or have to wait, and " +
	"pods are evicted"

// Devices adds the registration of device plugins, if it fails, and every registered resource.
func Devices(add AddFunc, registration error, resources []devices.ResourceStats) {
	if registration != nil {
		add("device plugins", false, registration, "",
			"check the socket directory: no device plugin can register")
	}
	for _, r := range resources {
		var err error
		switch {
		case !r.Connected:
			err = errors.New("device plugin is not running")
		case r.Healthy < r.Listed:
			err = fmt.Errorf("%d of %d devices are unhealthy", r.Listed-r.Healthy, r.Listed)
		}
		add("devices "+r.Resource, false, err,
			fmt.Sprintf("%d devices, %d healthy, %d allocated", r.Listed, r.Healthy, r.Allocated),
			"see the log of the device plugin: pods that request such a device have to wait")
	}
}
