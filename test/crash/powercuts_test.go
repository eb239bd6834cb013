package crash

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/test/hosts"
)

// TestPowerCuts replaces a third of the pods, simulates a power cut at a random moment meanwhile, and starts
// the runtime and the agent in random order. BERTH_CUTS sets the number of power cuts over all versions of
// containerd. After each power cut, all desired pods run, each container has started once since then, and one
// address per pod is in use.
func TestPowerCuts(t *testing.T) {
	t.Parallel()
	cuts := intSetting(t, "BERTH_CUTS", 2, 50)
	pods := intSetting(t, "BERTH_PODS", 6, 50)
	seed := intSetting(t, "BERTH_SEED", time.Now().UnixNano()%1_000_000, time.Now().UnixNano()%1_000_000)
	versions := hosts.DividedVersions(t.Name())
	all := make([]*powerCuts, len(versions))
	startTime := time.Now()
	t.Cleanup(func() { reportCuts(t, seed, int(pods), startTime, all) })
	for i, v := range versions {
		all[i] = &powerCuts{version: v}
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			t.Logf("seed %d: set BERTH_SEED=%d to repeat the actions, though not the times of the power cuts",
				seed, seed)
			d := all[i]
			d.node, d.rand = start(t, options{host: hosts.Options{Version: v}}),
				rand.New(rand.NewPCG(uint64(seed), uint64(i)))
			d.run(int(cuts)/len(versions), int(pods))
		})
	}
}

// powerCuts is one run of TestPowerCuts on one version of containerd.
type powerCuts struct {
	*node
	version hosts.Version
	rand    *rand.Rand
	desired []string
	created int
	passed  bool
	rounds  []cutRound
}

// cutRound is one power cut.
type cutRound struct {
	elapsed    time.Duration // time from the first replaced pod to the power cut
	sandboxes  int           // number of sandboxes at the power cut, including those that are not ready
	started    int           // number of new pods that had started before the power cut
	agentFirst bool
	recovery   time.Duration // time until all pods were in their desired state
	addresses  int
}

func (d *powerCuts) run(cuts, pods int) {
	d.createPods(pods)
	for i := range cuts {
		d.powerCut(pods)
		if d.Failed() {
			d.Fatalf("after %d power cuts", i+1)
		}
	}
	for _, name := range d.desired {
		d.removeManifest(name)
	}
	d.waitNothingLeft()
	d.passed = !d.Failed()
	d.Logf("%d power cuts, %d pods created and deleted", cuts, d.created)
}

// createPods creates pods. Every tenth has an init container, a sidecar and volumes.
func (d *powerCuts) createPods(pods int) {
	d.Helper()
	for range pods {
		d.created++
		name := fmt.Sprintf("pod-%d", d.created)
		d.desired = append(d.desired, name)
		if d.created%10 == 0 {
			d.put(name, d.rich(name)...)
		} else {
			d.putPod(d.simple(name))
		}
	}
}

// containersOf returns the names of a pod's containers.
func containersOf(p *corev1.Pod) (names []string) {
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		names = append(names, c.Name)
	}
	return names
}

// powerCut replaces pods, cuts the power and waits until all pods run again.
func (d *powerCuts) powerCut(pods int) {
	d.Helper()
	startTime := time.Now()
	for range pods / 3 {
		at := d.rand.IntN(len(d.desired))
		d.removeManifest(d.desired[at])
		d.desired = slices.Delete(d.desired, at, at+1)
	}
	firstNew := len(d.desired)
	d.createPods(pods - firstNew)
	// A random moment between the first manifest and the start of the last new pod. Counting started pods
	// makes it independent of the speed of the machine.
	d.waitStarted(d.desired[firstNew:], d.rand.IntN(pods-firstNew+2)-1)
	time.Sleep(time.Duration(d.rand.Float64() * float64(300*time.Millisecond)))
	c := cutRound{elapsed: time.Since(startTime), sandboxes: len(d.sandboxes("")), agentFirst: d.rand.IntN(2) == 0}
	d.must("power loss", d.host.PowerLoss())
	startsBefore := map[string]int{} // number of starts by container at the power cut
	for i, name := range d.desired {
		for _, container := range []string{"init", "side", "main", "second"} {
			startsBefore[name+"."+container] = d.startCount(name, container)
		}
		if i >= firstNew {
			c.started += min(startsBefore[name+".main"], 1)
		}
	}
	powerOn := time.Now()
	if c.agentFirst {
		d.must("start the agent", d.agent.Start(d.Context()))
	}
	d.must("restart containerd", d.host.Restart(d.Context()))
	if !c.agentFirst {
		d.must("start the agent", d.agent.Start(d.Context()))
	}
	d.waitReady()
	reason := ""
	if !d.pollUntil(settleTimeout, "all pods to run again, once, with one address each", func() bool {
		reason = d.mismatch(startsBefore)
		return reason == ""
	}) {
		d.Fatalf("after a power cut at %s, agent started first %v: %s\naddresses in use: %v", c.elapsed, c.agentFirst,
			reason, d.addresses())
	}
	c.recovery, c.addresses = time.Since(powerOn), len(d.addresses())
	d.rounds = append(d.rounds, c)
	d.Logf("power cut %d at %s: %d sandboxes, %d new pods started; agent started first %v; recovered in %s",
		len(d.rounds), c.elapsed.Round(time.Millisecond), c.sandboxes, c.started, c.agentFirst,
		c.recovery.Round(time.Millisecond))
}

// waitStarted waits until count of the pods have started. It returns at once if count is negative.
func (d *powerCuts) waitStarted(names []string, count int) {
	d.Helper()
	if count < 0 {
		return
	}
	if !d.pollUntil(settleTimeout, fmt.Sprintf("%d new pods to start", count), func() bool {
		started := 0
		for _, name := range names {
			started += min(d.startCount(name, "main"), 1)
		}
		return started >= count
	}) {
		d.FailNow()
	}
}

// mismatch describes the first difference from the desired state. It returns an empty string if there is none.
// It fails the test if a container has started more than once since the power cut, because that is final.
func (d *powerCuts) mismatch(startsBefore map[string]int) string {
	pods := d.pods()
	for _, name := range d.desired {
		p, ok := pods[name]
		if !ok || !isReady(&p) || p.DeletionTimestamp != nil {
			return fmt.Sprintf("%s: phase %s, not Ready", name, p.Status.Phase)
		}
		for _, container := range containersOf(&p) {
			switch restarts := d.startCount(name, container) - startsBefore[name+"."+container]; {
			case restarts > 1:
				d.Fatalf("%s/%s: got %d starts since the power cut, want 1", name, container, restarts)
			case restarts < 1:
				return fmt.Sprintf("%s/%s has not started since the power cut", name, container)
			}
		}
	}
	if len(pods) != len(d.desired) {
		return fmt.Sprintf("got %d pods, want %d", len(pods), len(d.desired))
	}
	live := map[string]int{}
	for _, what := range d.liveObjects("") {
		if live[what]++; live[what] > 1 {
			return what + ": two instances, want one"
		}
	}
	sandboxes := 0 // without the old ones, which are kept for their logs and not ready
	for what := range live {
		if strings.HasPrefix(what, "sandbox of ") {
			sandboxes++
		}
	}
	if sandboxes != len(d.desired) {
		return fmt.Sprintf("got %d ready sandboxes, want %d", sandboxes, len(d.desired))
	}
	if n := len(d.host.Addresses()); n != len(d.desired) {
		return fmt.Sprintf("got %d addresses, want %d", n, len(d.desired))
	}
	return ""
}

// reportCuts writes the report of TestPowerCuts if BERTH_REPORT is set.
func reportCuts(t *testing.T, seed int64, pods int, startTime time.Time, all []*powerCuts) {
	t.Helper()
	dir := reportDir(t)
	if dir == "" {
		return
	}
	date := startTime.UTC().Format(time.DateOnly)
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	cuts := 0
	for _, d := range all {
		cuts += len(d.rounds)
	}
	p("# %d power cuts with %d pods, %s\n", cuts, pods, date)
	p("`BERTH_CUTS=%d BERTH_PODS=%d BERTH_SEED=%d BERTH_REPORT=docs/reports go test -v -count=1 -timeout 3h "+
		"-run TestPowerCuts ./test/crash` generated this report.", cuts, pods, seed)
	p("%s\n", machine())
	p("Each host runs %d pods. Every tenth pod has an init container, a sidecar and volumes. The test replaces a", pods)
	p("third of the pods, cuts the power at a random moment between the starts of the new pods, and starts the runtime")
	p("and the agent in random order. The power cuts are divided among the versions of containerd.\n")
	p("| containerd | power cuts | agent started first | time of the cut, median, maximum | "+
		"new pods started before, minimum, median, maximum | recovery, median, maximum | "+
		"addresses in use by %d pods | result |", pods)
	p("|---|---|---|---|---|---|---|---|")
	for _, d := range all {
		if len(d.rounds) == 0 {
			continue
		}
		elapsed, recovery := d.sortedTimes(func(c cutRound) time.Duration { return c.elapsed }),
			d.sortedTimes(func(c cutRound) time.Duration { return c.recovery })
		started, first, addresses := []int{}, 0, []int{}
		for _, c := range d.rounds {
			started, addresses = append(started, c.started), append(addresses, c.addresses)
			if c.agentFirst {
				first++
			}
		}
		slices.Sort(started)
		slices.Sort(addresses)
		p("| %s | %d | %d | %.1f s, %.1f s | %d, %d, %d | %.1f s, %.1f s | %d to %d | %s |", d.version, len(d.rounds),
			first,
			elapsed[len(elapsed)/2].Seconds(), elapsed[len(elapsed)-1].Seconds(), started[0], started[len(started)/2],
			started[len(started)-1], recovery[len(recovery)/2].Seconds(), recovery[len(recovery)-1].Seconds(),
			addresses[0], addresses[len(addresses)-1], verdict(d.passed))
	}
	p("\nCriteria: every desired pod is Ready, and each of its containers has started exactly once since the power")
	p("cut. There is one instance of each container and exactly one sandbox and one address per pod. At the end, no")
	p("resources of any pod remain. The recovery time includes the starts of containerd and the agent. The other host")
	p("uses the same CPUs.")
	writeReport(t, dir, date+"-power-cuts.md", b.String())
}

// sortedTimes returns one duration of each round, sorted.
func (d *powerCuts) sortedTimes(of func(cutRound) time.Duration) (out []time.Duration) {
	for _, c := range d.rounds {
		out = append(out, of(c))
	}
	slices.Sort(out)
	return out
}
