package localworkloads

import (
	"fmt"
	"strings"
	"testing"

	"berth/agent/source"
)

// startedWorld returns a world with ready pods of as many Deployments as named, and their files.
func startedWorld(t *testing.T, deployments int) (*world, []source.Workload) {
	t.Helper()
	w := newWorld(t, 0)
	for i := range deployments {
		name := fmt.Sprintf("web-%d", i)
		w.files[name] = strings.ReplaceAll(fmt.Sprintf(deploymentManifest, 1, 1), "web", name)
	}
	files := workloadsOf(t, w.files)
	w.reconciler.SetFiles(files)
	for range 3 {
		w.sync(false)
		w.advanceWithoutFailure()
	}
	if got := len(w.pods); got != deployments {
		t.Fatalf("%d pods, want %d", got, deployments)
	}
	return w, files
}

// start starts a reconciler with the stored objects and lets it decide.
func (w *world) start(files []source.Workload) {
	e := New(w.reconciler.Config, w.disk)
	e.SetFiles(files)
	for _, pod := range w.pods {
		e.PodObserved(pod, w.now)
	}
	if changes := e.Sync(w.now); len(changes) > 0 {
		w.t.Fatalf("the start changed %d objects", len(changes))
	}
}

// TestStartCostIsLinear checks that the allocations at the start grow with the number of workloads, and not with its
// square.
func TestStartCostIsLinear(t *testing.T) { // not parallel, because it counts allocations
	cost := func(deployments int) float64 {
		w, files := startedWorld(t, deployments)
		return testing.AllocsPerRun(1, func() { w.start(files) })
	}
	if few, many := cost(25), cost(100); many > 5*few {
		t.Errorf("%.0f allocations for 25 Deployments, %.0f for 100", few, many)
	}
}
