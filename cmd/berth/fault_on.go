//go:build crashpoints

package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

var passed atomic.Int64

// fault kills this process at the point that BERTH_CRASH names, as kill -9
// would: "17" is the 17th point passed, "after start/web" the first of that name.
func fault(point string) {
	want := os.Getenv("BERTH_CRASH")
	n, err := strconv.ParseInt(want, 10, 64)
	if at := passed.Add(1); err == nil && at == n || err != nil && want != "" && strings.Contains(point, want) {
		fmt.Fprintln(os.Stderr, "crash at point", passed.Load(), point)
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}
