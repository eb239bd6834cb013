package check

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

// kernel checks kernel settings. It only reads.
type kernel struct {
	root string // prefix of /proc and /sys; empty except in tests
	v2   bool   // cgroup v2 is in use
	ipv6 bool   // pods or the node have IPv6 addresses
}

// sysctl is a recommended kernel setting.
type sysctl struct {
	name        string
	value       int64
	atLeast     bool   // greater values are accepted
	why, absent string // the consequence of another value; what to do if the kernel does not have the setting
}

// sysctls are the settings of protectKernelDefaults (any positive value of kernel.panic is
// accepted), and settings for networking and file watches.
var sysctls = []sysctl{
	{name: "vm.overcommit_memory", value: 1, why: "programs can be denied memory within the limits of their pods"},
	{name: "vm.panic_on_oom", value: 0, why: "the node crashes when it is out of memory"},
	{name: "kernel.panic", value: 1, atLeast: true, why: "the node does not reboot after a kernel panic"},
	{name: "kernel.panic_on_oops", value: 1, why: "the node continues with a corrupted kernel"},
	{
		name:    "kernel.keys.root_maxkeys",
		value:   1_000_000,
		atLeast: true,
		why:     "containers cannot start when the kernel keys are used up",
		absent:  "use a kernel with CONFIG_KEYS",
	},
	{
		name:    "kernel.keys.root_maxbytes",
		value:   25_000_000,
		atLeast: true,
		why:     "containers cannot start when the kernel keys are used up",
		absent:  "use a kernel with CONFIG_KEYS",
	},
	{
		name:    "fs.inotify.max_user_instances",
		value:   512,
		atLeast: true,
		why:     "programs cannot watch files with many pods: too many open files",
	},
	{
		name:    "fs.inotify.max_user_watches",
		value:   65_536,
		atLeast: true,
		why:     "programs cannot watch files with many pods: no space left on device",
	},
	{name: "net.ipv4.ip_forward", value: 1, why: "pods have no connectivity outside the node"},
	{
		name:   "net.bridge.bridge-nf-call-iptables",
		value:  1,
		why:    "Service rules do not apply between pods on the same bridge",
		absent: "modprobe br_netfilter",
	},
}

var sysctlIPv6Forwarding = sysctl{
	name:   "net.ipv6.conf.all.forwarding",
	value:  1,
	why:    "pods have no IPv6 connectivity outside the node",
	absent: "boot without ipv6.disable=1",
}

func usesIPv6(c *nodeconfig.Config) bool {
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
func (k kernel) check(add AddFunc) {
	all := sysctls
	if k.ipv6 {
		all = append(slices.Clone(sysctls), sysctlIPv6Forwarding)
	}
	for _, w := range all {
		now, err := k.value(w)
		remedy := fmt.Sprintf("sysctl -w %s=%d, and persist it in /etc/sysctl.d: otherwise %s", w.name, w.value, w.why)
		if errors.Is(err, fs.ErrNotExist) {
			err = errors.New("not available in the running kernel")
			remedy = cmp.Or(w.absent, "boot a kernel that has this setting") + ": otherwise " + w.why
		}
		add("sysctl "+w.name, false, err, now, remedy)
	}
	missing, err := k.missingControllers()
	if err == nil && len(missing) > 0 {
		err = fmt.Errorf("%s missing", strings.Join(missing, ", "))
	}
	add(
		"cgroup controllers",
		false,
		err,
		strings.Join(controllers, ", "),
		"boot with cgroup_enable= for the missing controllers, and delegate them to the cgroup of berth (systemd: "+
			"Delegate=yes): otherwise requests and limits of these resources are not enforced",
	)
}

func (k kernel) value(w sysctl) (now string, err error) {
	text, err := os.ReadFile(filepath.Join(k.root, "/proc/sys", strings.ReplaceAll(w.name, ".", "/")))
	if err != nil {
		return "", err
	}
	now = strings.TrimSpace(string(text))
	n, err := strconv.ParseInt(now, 10, 64)
	if err != nil || n == w.value || w.atLeast && n > w.value {
		return now, err
	}
	return now, errors.New("is " + now)
}

// controllers are required by the limits of pods.
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
		for line := range strings.Lines(string(text)) { // name, hierarchy, number of cgroups, enabled
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
