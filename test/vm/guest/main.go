// Command guest is what runs inside the emulated machine of package vm: checks
// of a berth that systemd runs on a host with cgroup v2 alone. It is a program
// and no test, because it must never run anywhere else.
//
// The kernel's command line says which checks are wanted: first, and second
// after the reboot that ends the first. It writes to the second serial port, in
// the form of a test with -test.v=test2json. When it ends, its unit reboots the
// machine.
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
	fmt.Printf("begun at %s\n", uptime())
	testing.Init()
	flag.Parse()
	if err := flag.Set("test.v", "test2json"); err != nil {
		fmt.Println(err)
	}
	var tests []testing.InternalTest
	var told sync.Once // what a second failure would add is seldom worth the machine's time
	fmt.Print("checks:")
	for _, c := range checks[wanted()] {
		fmt.Print(" ", c.Name)
		tests = append(tests, testing.InternalTest{Name: c.Name, F: func(t *testing.T) {
			defer func() {
				if t.Failed() {
					told.Do(tell)
				}
			}()
			c.F(t)
		}})
	}
	fmt.Println()
	testing.Main(func(string, string) (bool, error) { return true, nil }, tests, nil, nil)
}

// checks by the word that asks for them, in the order in which they run.
var checks = map[string][]testing.InternalTest{
	"first": {
		{Name: "boot", F: boot},
		{Name: "slices", F: slices},
		{Name: "slice-limits", F: sliceLimits},
		{Name: "memory", F: memoryKept},
		{Name: "hugepages", F: hugePages},
		{Name: "oom", F: oomKilled},
		{Name: "reload", F: reload}, // after oom: it takes memory.oom.group away
		{Name: "commands", F: commands},
		{Name: "restart", F: restart},
		{Name: "swap", F: limitedSwap},
		{Name: "removal", F: removal},
	},
	"second": {
		{Name: "reboot", F: reboot},
		{Name: "driver", F: changeDriver},
		{Name: "cgroupfs", F: cgroupfs},
		{Name: "oom-single", F: oomSingle},
		{Name: "top", F: top},
		{Name: "users", F: users},
		{Name: "apparmor", F: appArmor},
		{Name: "resize", F: resize},
		{Name: "clock", F: clock},
		{Name: "watches", F: watches},
		{Name: "evict", F: evict},
		{Name: "removal", F: removalOfFiles},
	},
}

// wanted is the word on the kernel's command line.
func wanted() string {
	text, _ := os.ReadFile("/proc/cmdline")
	for f := range strings.FieldsSeq(string(text)) {
		if word, ok := strings.CutPrefix(f, "berth.checks="); ok {
			return word
		}
	}
	return ""
}

// tell prints what helps to understand a failure.
func tell() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for _, line := range []string{
		"berth ps -A -o wide", "berth events -A", "journalctl -b --no-pager -o cat -u berth | tail -n 60",
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
