package localworkloads

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/source"
)

// maxIdleMemory is the memory that the workloads of files may need on a node that has none.
const maxIdleMemory = 512 << 10

// memoryInUse returns the size of live heap objects and of stacks.
func memoryInUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // frees what finalizers and pools held
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// TestMemoryWithNoWorkloads measures the growth by a Source on a node whose files define no workload, and on one whose
// last workload has been deleted. What is created once in the process, such as caches of encoders, is a part of it.
func TestMemoryWithNoWorkloads(t *testing.T) { // not parallel, because it measures the process
	before := memoryInUse()
	check := func(when string) {
		t.Helper()
		grown := memoryInUse() - before
		t.Logf("%s: %d KiB", when, grown>>10)
		if grown > maxIdleMemory {
			t.Errorf("%s: grown by %d KiB, at most %d KiB", when, grown>>10, maxIdleMemory>>10)
		}
	}
	n := startNode(t, &disk{}, "")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx, func(s source.Snapshot) { n.sent <- s }) }()
	n.files <- source.Snapshot{Ready: true}
	<-n.sent
	check("no workload")
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if n.reconciler != nil {
		t.Error("a reconciler runs without workloads")
	}

	n.run(fmt.Sprintf(deploymentManifest, 10, 1), func(pods []*corev1.Pod) bool { return len(pods) == 10 })
	n.run("", func(pods []*corev1.Pod) bool { return len(pods) == 0 })
	if !n.reconciler.Empty() {
		t.Fatal("the deleted workload is left")
	}
	check("after the last workload")
	runtime.KeepAlive(n)
}
