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

// TestPowerCuts has a third of many pods replaced by others, cuts the power somewhere
// in the middle of it, has the runtime and the agent come back in either order, and
// does it again. Each time all pods that are wanted run, each container has started
// once since the power is back, and as many addresses are in use as pods live.
func TestPowerCuts(t *testing.T) {
	t.Parallel()
	cuts := intSetting(t, "BERTH_CUTS", 4, 50)
	pods := intSetting(t, "BERTH_PODS", 8, 50)
	seed := intSetting(t, "BERTH_SEED", time.Now().UnixNano()%1_000_000, time.Now().UnixNano()%1_000_000)
	all := make([]*powerCuts, len(hosts.Versions()))
	began := time.Now()
	t.Cleanup(func() { reportCuts(t, seed, int(pods), began, all) })
	for i, v := range hosts.Versions() {
		all[i] = &powerCuts{version: v}
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			t.Logf("seed %d: BERTH_SEED=%d replays what is done, not when the power goes", seed, seed)
			d := all[i]
			d.node, d.rand = start(t, options{host: hosts.Options{Version: v}}), rand.New(rand.NewPCG(uint64(seed), uint64(i)))
			d.run(int(cuts)/len(hosts.Versions()), int(pods))
		})
	}
}

// powerCuts is one run.
type powerCuts struct {
	*node
	version hosts.Version
	rand    *rand.Rand
	wanted  []string
	made    int
	passed  bool
	rounds  []cutRound
}

// cutRound is one loss of power.
type cutRound struct {
	into       time.Duration // since pods began to be replaced
	half       int           // sandboxes that were there when it happened, also those that are not ready
	begun      int           // of the new pods, before
	agentFirst bool
	back       time.Duration // until all was as it is to be
	addresses  int
}

func (d *powerCuts) run(cuts, pods int) {
	d.createPods(pods)
	for i := range cuts {
		d.cut(pods)
		if d.Failed() {
			d.Fatalf("after %d cuts", i+1)
		}
	}
	for _, name := range d.wanted {
		d.removeManifest(name)
	}
	d.waitNothingLeft()
	d.passed = !d.Failed()
	d.Logf("%d cuts, %d pods came and went", cuts, d.made)
}

// createPods wants that many more pods; every tenth has an init container, a sidecar and
// volumes.
func (d *powerCuts) createPods(pods int) {
	d.Helper()
	for range pods {
		d.made++
		name := fmt.Sprintf("lit-%d", d.made)
		d.wanted = append(d.wanted, name)
		if d.made%10 == 0 {
			d.put(name, d.rich(name)...)
		} else {
			d.putPod(d.simple(name))
		}
	}
}

// containersOf are the names of a pod's containers.
func containersOf(p *corev1.Pod) (names []string) {
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		names = append(names, c.Name)
	}
	return names
}

// cut is one round.
func (d *powerCuts) cut(pods int) {
	d.Helper()
	began := time.Now()
	for range pods / 3 {
		at := d.rand.IntN(len(d.wanted))
		d.removeManifest(d.wanted[at])
		d.wanted = slices.Delete(d.wanted, at, at+1)
	}
	fresh := len(d.wanted)
	d.createPods(pods - fresh)
	// A random moment: somewhere between two of the new pods' beginnings, on however
	// busy a machine, from before the agent knows them to when all have started.
	d.waitStarted(d.wanted[fresh:], d.rand.IntN(pods-fresh+2)-1)
	time.Sleep(time.Duration(d.rand.Float64() * float64(300*time.Millisecond)))
	c := cutRound{into: time.Since(began), half: len(d.sandboxes("")), agentFirst: d.rand.IntN(2) == 0}
	d.must("power loss", d.host.PowerLoss())
	dark := map[string]int{} // how often a container had started when the light went out
	for i, name := range d.wanted {
		for _, container := range []string{"init", "side", "main", "second"} {
			dark[name+"."+container] = d.startCount(name, container)
		}
		if i >= fresh {
			c.begun += min(dark[name+".main"], 1)
		}
	}
	light := time.Now()
	if c.agentFirst {
		d.must("agent", d.agent.Start(d.Context()))
	}
	d.must("containerd", d.host.Restart(d.Context()))
	if !c.agentFirst {
		d.must("agent", d.agent.Start(d.Context()))
	}
	d.waitReady()
	amiss := ""
	if !d.pollUntil(settleTimeout, "all to run again, once, and as many addresses as pods", func() bool {
		amiss = d.mismatch(dark)
		return amiss == ""
	}) {
		d.Fatalf("after a cut %s into it, the agent first %v: %s\nin use: %v", c.into, c.agentFirst, amiss, d.addresses())
	}
	c.back, c.addresses = time.Since(light), len(d.addresses())
	d.rounds = append(d.rounds, c)
	d.Logf("cut %d: %s into it, %d sandboxes were there, %d of the new pods had begun; the agent first %v; all was right after %s",
		len(d.rounds), c.into.Round(time.Millisecond), c.half, c.begun, c.agentFirst, c.back.Round(time.Millisecond))
}

// waitStarted waits until so many of the pods have started; below 0: for nothing.
func (d *powerCuts) waitStarted(names []string, many int) {
	d.Helper()
	if many < 0 {
		return
	}
	if !d.pollUntil(settleTimeout, fmt.Sprintf("%d of the new pods to begin", many), func() bool {
		begun := 0
		for _, name := range names {
			begun += min(d.startCount(name, "main"), 1)
		}
		return begun >= many
	}) {
		d.FailNow()
	}
}

// mismatch says what is not as it is to be; empty: nothing. That a container began more
// than once since the power is back cannot become right again.
func (d *powerCuts) mismatch(dark map[string]int) string {
	pods := d.pods()
	for _, name := range d.wanted {
		p, ok := pods[name]
		if !ok || !isReady(&p) || p.DeletionTimestamp != nil {
			return fmt.Sprintf("%s is %s", name, p.Status.Phase)
		}
		for _, container := range containersOf(&p) {
			switch again := d.startCount(name, container) - dark[name+"."+container]; {
			case again > 1:
				d.Fatalf("%s/%s began %d times since the power is back", name, container, again)
			case again < 1:
				return fmt.Sprintf("%s/%s has not begun again", name, container)
			}
		}
	}
	if len(pods) != len(d.wanted) {
		return fmt.Sprintf("%d pods are known, and %d are wanted", len(pods), len(d.wanted))
	}
	live := map[string]int{}
	for _, what := range d.liveObjects("") {
		if live[what]++; live[what] > 1 {
			return what + " lives twice"
		}
	}
	sandboxes := 0 // those of before the cut, which are kept for their logs, are not ready
	for what := range live {
		if strings.HasPrefix(what, "sandbox of ") {
			sandboxes++
		}
	}
	if sandboxes != len(d.wanted) {
		return fmt.Sprintf("%d sandboxes for %d pods", sandboxes, len(d.wanted))
	}
	if n := len(d.host.Addresses()); n != len(d.wanted) {
		return fmt.Sprintf("%d addresses for %d pods", n, len(d.wanted))
	}
	return ""
}

// reportCuts writes the report of power cuts, if one is asked for.
func reportCuts(t *testing.T, seed int64, pods int, began time.Time, all []*powerCuts) {
	t.Helper()
	dir := reportDir(t)
	if dir == "" {
		return
	}
	date := began.UTC().Format(time.DateOnly)
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	cuts := 0
	for _, d := range all {
		cuts += len(d.rounds)
	}
	p("# %d power cuts with %d pods, %s\n", cuts, pods, date)
	p("`BERTH_CUTS=%d BERTH_PODS=%d BERTH_SEED=%d BERTH_REPORT=docs/reports go test -v -count=1 -timeout 3h -run TestPowerCuts ./test/crash` wrote this.", cuts, pods, seed)
	p("%s\n", machine())
	p("On each host %d pods are wanted, every tenth with an init container, a sidecar and volumes. A third of them is replaced by new ones, the power", pods)
	p("is cut somewhere between the beginnings of the new ones, and the runtime and the agent come back in either order. The versions of containerd share the cuts.\n")
	p("| containerd | cuts | of them the agent came first | into the replacing, median and latest | new pods that had begun by then, fewest, median and most | all right again after, median and worst | addresses in use, of %d pods that live | result |", pods)
	p("|---|---|---|---|---|---|---|---|")
	for _, d := range all {
		if len(d.rounds) == 0 {
			continue
		}
		into, back := d.sortedTimes(func(c cutRound) time.Duration { return c.into }), d.sortedTimes(func(c cutRound) time.Duration { return c.back })
		begun, first, addresses := []int{}, 0, []int{}
		for _, c := range d.rounds {
			begun, addresses = append(begun, c.begun), append(addresses, c.addresses)
			if c.agentFirst {
				first++
			}
		}
		slices.Sort(begun)
		slices.Sort(addresses)
		p("| %s | %d | %d | %.1f s, %.1f s | %d, %d, %d | %.1f s, %.1f s | %d to %d | %s |", d.version, len(d.rounds), first,
			into[len(into)/2].Seconds(), into[len(into)-1].Seconds(), begun[0], begun[len(begun)/2], begun[len(begun)-1], back[len(back)/2].Seconds(), back[len(back)-1].Seconds(),
			addresses[0], addresses[len(addresses)-1], verdict(d.passed))
	}
	p("\nRight means: every wanted pod is Ready, each of its containers has begun exactly once since the power is back, no container lives twice, there is")
	p("one sandbox and one address for each of them and none besides. At the end nothing is left of any pod. How long it takes includes the start of containerd")
	p("and of the agent, and what the other host's boot takes from the same CPUs.")
	writeReport(t, dir, date+"-power-cuts.md", b.String())
}

// sortedTimes is one time of all rounds, sorted.
func (d *powerCuts) sortedTimes(of func(cutRound) time.Duration) (out []time.Duration) {
	for _, c := range d.rounds {
		out = append(out, of(c))
	}
	slices.Sort(out)
	return out
}
