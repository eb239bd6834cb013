package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"berth/internal/nodeconfig"
)

// kernel is what of the kernel's settings is looked at; it only reads.
type kernel struct {
	root string // before /proc and /sys; empty but in tests
	v2   bool   // the host has cgroup v2
	six  bool   // pods or the node have addresses of IPv6
}

// wish is what a setting should be; a node runs pods without it.
type wish struct {
	name        string
	value       int64
	more        bool   // a greater value is as good
	why, absent string // what becomes of pods otherwise; what to do where the kernel has no such setting
}

// wishes are upstream's (protectKernelDefaults; of kernel.panic any time will do), and those of networks and of
// programs that watch files.
var wishes = []wish{
	{name: "vm.overcommit_memory", value: 1, why: "programs may be refused memory that their pods' limits give them"},
	{name: "vm.panic_on_oom", value: 0, why: "the whole node goes down when memory is short"},
	{name: "kernel.panic", value: 1, more: true, why: "a node whose kernel has panicked does not come back by itself"},
	{name: "kernel.panic_on_oops", value: 1, why: "a kernel that is broken goes on with pods on it"},
	{name: "kernel.keys.root_maxkeys", value: 1_000_000, more: true, why: "each container takes a key, and none starts when there is none left", absent: "a kernel with CONFIG_KEYS has it"},
	{name: "kernel.keys.root_maxbytes", value: 25_000_000, more: true, why: "each container takes a key, and none starts when there is none left", absent: "a kernel with CONFIG_KEYS has it"},
	{name: "fs.inotify.max_user_instances", value: 512, more: true, why: "programs of many pods cannot watch files: too many open files"},
	{name: "fs.inotify.max_user_watches", value: 65_536, more: true, why: "programs of many pods cannot watch files: no space left on device"},
	{name: "net.ipv4.ip_forward", value: 1, why: "pods reach nothing outside the node"},
	{name: "net.bridge.bridge-nf-call-iptables", value: 1, why: "rules of services do not hold between pods on one bridge", absent: "modprobe br_netfilter"},
}

var wishSix = wish{name: "net.ipv6.conf.all.forwarding", value: 1, why: "pods reach nothing outside the node by IPv6", absent: "boot without ipv6.disable=1"}

func usesSix(c *nodeconfig.Config) bool {
	for _, p := range c.Network.CNIPodCIDRs {
		if p.Addr().Is6() {
			return true
		}
	}
	for _, a := range c.NodeIPs {
		if a.Is6() {
			return true
		}
	}
	return false
}

// check adds an item for each setting and one for the cgroup controllers.
func (k kernel) check(add addItem) {
	all := wishes
	if k.six {
		all = append(slices.Clone(wishes), wishSix)
	}
	for _, w := range all {
		now, err := k.sysctl(w)
		remedy := fmt.Sprintf("sysctl -w %s=%d, and in /etc/sysctl.d: else %s", w.name, w.value, w.why)
		if errors.Is(err, fs.ErrNotExist) {
			err = errors.New("this kernel does not have it now")
			remedy = cmp.Or(w.absent, "boot a kernel that has it") + "; else " + w.why
		}
		add("sysctl "+w.name, false, err, now, remedy)
	}
	missing, err := k.missingControllers()
	if err == nil && len(missing) > 0 {
		err = fmt.Errorf("%s missing", strings.Join(missing, ", "))
	}
	add("cgroup controllers", false, err, strings.Join(controllers, ", "), "boot with cgroup_enable= for those that are missing, and have those above berth's cgroup hand them down (systemd: Delegate=yes): else pods' requests and limits of these do not hold")
}

func (k kernel) sysctl(w wish) (now string, err error) {
	text, err := os.ReadFile(filepath.Join(k.root, "/proc/sys", strings.ReplaceAll(w.name, ".", "/")))
	if err != nil {
		return "", err
	}
	now = strings.TrimSpace(string(text))
	n, err := strconv.ParseInt(now, 10, 64)
	if err != nil || n == w.value || w.more && n > w.value {
		return now, err
	}
	return now, errors.New("is " + now)
}

// controllers are those that the limits of every pod need.
var controllers = []string{"cpu", "cpuset", "memory", "pids"}

func (k kernel) missingControllers() (missing []string, err error) {
	var has []string
	if k.v2 {
		text, err := os.ReadFile(filepath.Join(k.root, "/sys/fs/cgroup/cgroup.controllers"))
		if err != nil {
			return nil, err
		}
		has = strings.Fields(string(text))
	} else {
		text, err := os.ReadFile(filepath.Join(k.root, "/proc/cgroups"))
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(text)) { // name, hierarchy, cgroups, enabled
			if f := strings.Fields(line); len(f) == 4 && f[3] == "1" {
				has = append(has, f[0])
			}
		}
	}
	for _, name := range controllers {
		if !slices.Contains(has, name) {
			missing = append(missing, name)
		}
	}
	return missing, nil
}
