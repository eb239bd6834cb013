// Command guest runs the checks inside the emulated machine of package vm, on a host with only cgroup
// v2 where systemd runs berth. It is a program instead of a test because it must not run anywhere
// else.
//
// The kernel command line selects the set of checks: first, or second after the reboot that ends
// the first set. The program writes its results to the second serial port in the format of
// -test.v=test2json. When it exits, its unit reboots the machine.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

const reportPort = "/dev/ttyS1"

func main() {
	port, err := os.OpenFile(reportPort, os.O_WRONLY, 0)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Stdout, os.Stderr = port, port
	fmt.Printf("started at %s\n", uptime())
	testing.Init()
	flag.Parse()
	if err := flag.Set("test.v", "test2json"); err != nil {
		fmt.Println(err)
	}
	var tests []testing.InternalTest
	var diagnosed sync.Once // diagnostics of a second failure are rarely worth the time
	fmt.Print("checks:")
	for _, c := range checks[requestedChecks()] {
		fmt.Print(" ", c.Name)
		tests = append(tests, testing.InternalTest{Name: c.Name, F: func(t *testing.T) {
			defer func() {
				if t.Failed() {
					diagnosed.Do(printDiagnostics)
				}
			}()
			c.F(t)
		}})
	}
	fmt.Println()
	testing.Main(func(string, string) (bool, error) { return true, nil }, tests, nil, nil)
}

// checks lists the sets of checks by name, each in the order of execution.
var checks = map[string][]testing.InternalTest{
	"first": {
		{Name: "boot", F: boot},
		{Name: "slices", F: systemdSlices},
		{Name: "slice-limits", F: sliceLimits},
		{Name: "memory", F: memoryProtection},
		{Name: "hugepages", F: hugePages},
		{Name: "oom", F: oomKilled},
		{Name: "reload", F: reload}, // after oom, because it resets memory.oom.group
		{Name: "commands", F: commands},
		{Name: "volumes", F: localVolumes},
		{Name: "restart", F: restart},
		{Name: "swap", F: limitedSwap},
		{Name: "removal", F: removal},
	},
	"second": {
		{Name: "reboot", F: reboot},
		{Name: "driver", F: changeDriver},
		{Name: "cgroupfs", F: cgroupfs},
		{Name: "oom-single", F: oomSingle},
		{Name: "top", F: topCommand},
		{Name: "users", F: userNamespaces},
		{Name: "apparmor", F: appArmor},
		{Name: "resize", F: resize},
		{Name: "clock", F: clockSteps},
		{Name: "watches", F: withoutInotify},
		{Name: "evict", F: evict},
		{Name: "removal", F: removalCgroupfs},
	},
	"kubeadm": {
		{Name: "node", F: kubeadmNode},
		{Name: "pods", F: kubeletPods},
		{Name: "takeover", F: takeOver},
		{Name: "works", F: podsWork},
		{Name: "kill", F: killAgent},
		{Name: "handback", F: handBack},
		{Name: "interrupted", F: interruptTakeover},
	},
	"kubeadm-rebooted": {
		{Name: "boot", F: bootWithBerth},
		{Name: "kubelet", F: kubeletStaysOff},
		{Name: "works", F: podsWork},
		{Name: "resize", F: resizeBeforeHandback},
		{Name: "certificate", F: rotatedCertificate},
		{Name: "handback", F: handBackAfterReboot},
	},
}

// requestedChecks returns the name of the set of checks from the kernel command line.
func requestedChecks() string {
	text, _ := os.ReadFile("/proc/cmdline")
	for f := range strings.FieldsSeq(string(text)) {
		if name, ok := strings.CutPrefix(f, "berth.checks="); ok {
			return name
		}
	}
	return ""
}

// printDiagnostics prints the state of pods, services and cgroups after a failure.
func printDiagnostics() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for _, line := range []string{
		"berth ps -A -o wide", "berth events -A", "journalctl -b --no-pager -o cat -u berth | tail -n 60",
		"test ! -e /etc/systemd/system/kubelet.service || journalctl -b --no-pager -o cat -u kubelet | tail -n 60; " +
			"journalctl -b --no-pager -o cat -u berth-control | tail -n 20",
		"journalctl -b --no-pager -o cat -u containerd | grep -v level=info | tail -n 40",
		"find /sys/fs/cgroup/kubepods* -type d", "systemctl --failed --no-pager", "dmesg | tail -n 20",
	} {
		out, err := exec.CommandContext(ctx, "sh", "-c", line).CombinedOutput()
		fmt.Printf("\n$ %s\n%s", line, out)
		if err != nil {
			fmt.Println(err)
		}
	}
}
