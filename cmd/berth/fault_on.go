//go:build crashpoints

package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"berth/agent/plan"
)

var calls atomic.Int64

// fault kills this process with SIGKILL at the point that BERTH_CRASH names: "17" is the 17th
// call, "after StartContainer start/web" the first point whose name starts with that text.
func fault(phase string, a plan.Action) {
	want := os.Getenv("BERTH_CRASH")
	n, err := strconv.ParseInt(want, 10, 64)
	at := calls.Add(1)
	point := fmt.Sprintf("%s %s %s", phase, strings.TrimPrefix(fmt.Sprintf("%T", a), "plan."), a.Key())
	if err == nil && at == n || err != nil && want != "" && strings.HasPrefix(point, want) {
		fmt.Fprintln(os.Stderr, "crash at point", at, point)
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}

// stallFile contains the name of a main loop, which blocks as soon as it reads the file.
const stallFile = "/run/berth/stall"

// hang blocks the main loop that stallFile names.
func hang(loop string) {
	if text, err := os.ReadFile(stallFile); err == nil && strings.TrimSpace(string(text)) == loop {
		_ = os.Remove(stallFile) // block only once
		select {}
	}
}
