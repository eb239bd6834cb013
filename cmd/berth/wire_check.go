package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"berth/cni"
	"berth/cri"
	"berth/internal/nodeconfig"
	"berth/node/cgroups"
	"berth/nodeapi"
)

// check checks whether this node can run pods.
func (b *berth) check(ctx context.Context) (nodeapi.CheckReport, error) {
	r := checks{config: b.config, client: b.runtime.client, network: b.host.network, cgroups: b.host.cgroups}.report(ctx)
	var err error
	if bad, why := b.store.Degraded(); bad {
		err = errors.New(why)
	}
	add := adder(&r)
	add("local store", false, err, b.config.StateDir, storeRemedy)
	b.checkPressure(add)
	b.checkDevices(add)
	if j := b.cluster; j != nil {
		(&serverChecks{config: b.config, identity: j.identity, serving: j.serving, now: time.Now()}).check(ctx, add)
	}
	return r, nil
}

const storeRemedy = "free disk space, mount the file system writable, or remove the file that is in the place of the store: pod records are kept only in memory until then"

// Node contains the checks that do not require a running agent: the configuration, the host and the
// runtime. They change nothing.
type checks struct {
	config  *nodeconfig.Config
	client  *cri.Client
	network *cni.Network
	cgroups *cgroups.Cgroups
}

func (c checks) report(ctx context.Context) (r nodeapi.CheckReport) {
	add := adder(&r)
	c.checkRuntime(ctx, add)
	for _, item := range c.network.Check(ctx).Items {
		r.Items = append(r.Items, nodeapi.CheckItem{Name: "cni " + item.Name, OK: item.OK, Essential: true, Detail: item.Detail, Remedy: item.Remedy})
	}
	c.checkNameServers(add)
	c.checkKernel(add)
	c.checkFeatures(ctx, add)
	c.checkDisks(add)
	c.checkImageDisk(ctx, add)
	add("privileges", true, rootOnly(), "running as root", "run berth as root: it mounts volumes and creates cgroups")
	return r
}

func adder(r *nodeapi.CheckReport) addItem {
	return func(name string, essential bool, err error, detail, remedy string) {
		item := nodeapi.CheckItem{Name: name, Essential: essential, OK: err == nil, Detail: detail}
		if err != nil {
			item.Detail, item.Remedy = err.Error(), remedy
		}
		r.Items = append(r.Items, item)
	}
}

type addItem func(name string, essential bool, err error, detail, remedy string)

func (c checks) checkRuntime(ctx context.Context, add addItem) {
	remedy := "start containerd, or set its socket with --container-runtime-endpoint"
	name, version, err := c.client.Version(ctx)
	add("runtime", true, err, name+" "+version+" at "+c.config.RuntimeEndpoint, remedy)
	if at := c.config.ImageEndpoint; at != c.config.RuntimeEndpoint {
		_, err := c.client.ImageFilesystem(ctx)
		add("image service", true, err, at, "start the image service at this address, or remove imageServiceEndpoint")
	}
	if err != nil {
		return
	}
	st, err := c.client.Status(ctx)
	if err == nil && !st.Ready {
		err = errors.New(st.Reason)
	}
	add("runtime status", true, err, "ready", remedy)
	driver := c.cgroups.Driver()
	if theirs, err := reportedDriver(ctx, c.client); err == nil && theirs != "" && theirs != driver {
		add("cgroup driver", true, fmt.Errorf("the runtime uses %s, berth uses %s", theirs, driver), "", "set cgroupDriver: "+theirs)
	} else {
		add("cgroup driver", true, nil, driver, "")
	}
}

func (c checks) checkKernel(add addItem) {
	version := "cgroup v1"
	if c.cgroups.V2() {
		version = "cgroup v2"
	}
	var refused error
	if c.config.Cgroups.FailV1 && !c.cgroups.V2() {
		refused = errors.New("failCgroupV1: this host has cgroup v1")
	}
	add("cgroups", true, refused, version, "set failCgroupV1: false, or boot with cgroup v2")
	kernel{v2: c.cgroups.V2(), ipv6: usesIPv6(c.config)}.check(add)
	var tx unix.Timex
	state, err := unix.Adjtimex(&tx)
	if err == nil && state == unix.TIME_ERROR {
		err = errors.New("the clock is not synchronized")
	}
	add("time", false, err, time.Now().UTC().Format(time.RFC3339), "run chrony or systemd-timesyncd: certificates and back-offs depend on the clock")
}

// checkDisks requires 10% of free space on each file system that berth writes to.
func (c checks) checkDisks(add addItem) {
	for _, d := range []struct{ name, dir string }{{"root-dir", c.config.RootDir}, {"state-dir", c.config.StateDir}, {"pod logs", c.config.PodLogsDir}} {
		used, detail, err := diskUsage(existingParent(d.dir), d.dir)
		if err == nil && used > 90 {
			err = errors.New(detail)
		}
		add("disk of "+d.name, false, err, detail, "free disk space: pods are at risk below 10%")
	}
}

// checkImageDisk requires usage below the image garbage collection threshold, and at least 10% of
// free space, on the runtime's image filesystem.
func (c checks) checkImageDisk(ctx context.Context, add addItem) {
	const name = "disk of images"
	d, err := c.client.ImageFilesystem(ctx)
	if err == nil && d.Path == "" {
		err = errors.New("the runtime does not report its image filesystem")
	}
	if err != nil {
		add(name, false, err, "", "start the image service")
		return
	}
	used, detail, err := diskUsage(d.Path, d.Path)
	if high := c.config.Images.HighThresholdPercent; err == nil && used >= min(high, 91) {
		if high <= 90 {
			detail += fmt.Sprintf(", unused images are removed from %d%% usage on", high)
		}
		err = errors.New(detail)
	}
	add(name, false, err, detail, "free disk space, remove unused images, or move the runtime's root directory to a larger disk: images that do not fit cannot be pulled")
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
