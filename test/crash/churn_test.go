package crash

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/test/hosts"
	"berth/test/images"
)

// intSetting is a number that the environment may give.
func intSetting(t *testing.T, name string, normal, torture int64) int64 {
	t.Helper()
	if text := os.Getenv(name); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return n
	}
	if os.Getenv("BERTH_TORTURE") != "" {
		return torture
	}
	return normal
}

// TestRandomKillsUnderChurn kills the agent at random moments while pods are
// made, edited and removed beside untouched pods. All are probed, many
// have hooks, and commands are run in them all the time.
func TestRandomKillsUnderChurn(t *testing.T) {
	t.Parallel()
	kills := intSetting(t, "BERTH_KILLS", 100, 4000)
	seed := intSetting(t, "BERTH_SEED", time.Now().UnixNano()%1_000_000, time.Now().UnixNano()%1_000_000)
	for i, v := range hosts.Versions() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			t.Logf("seed %d: BERTH_SEED=%d replays it", seed, seed)
			c := &churn{
				node: start(t, options{host: hosts.Options{Version: v}}), rand: rand.New(rand.NewPCG(uint64(seed), uint64(i))),
				wanted: map[string]*incarnation{}, edits: map[string]int32{},
			}
			share := int(kills) / len(hosts.Versions())
			c.run(share)
		})
	}
}

// churn is one random run.
type churn struct {
	*node
	rand   *rand.Rand
	wanted map[string]*incarnation
	made   int
	kills  atomic.Int32
	under  atomic.Bool // a command of a user is running in a pod

	mu    sync.Mutex
	edits map[string]int32 // of the image, by incarnation
}

const stablePods = 3 // untouched pods

func (c *churn) run(kills int) {
	names := make([]string, stablePods)
	for i := range names {
		names[i] = fmt.Sprintf("stable-%d", i)
		if i == 0 {
			c.put(names[i], c.withHangingProbe(c.rich(names[i]))...)
		} else {
			c.putPod(c.pod(&incarnation{name: names[i], kind: (i - 1) * 3, image: images.TestboxRef}))
		}
	}
	c.awaitRunning(names...)
	c.must("restart the agent", c.agent.Restart(c.Context())) // what it leaves behind is on disk
	c.awaitRunning(names...)
	before, status := c.liveObjects(""), c.pods()
	watch := c.watchStatus(c.editCount, func(was, is *corev1.Pod) {
		if slices.Contains(names, is.Name) {
			c.compareStatus(was, is)
		}
	})
	commands := c.runExecs(names)
	for i := range kills {
		for range 1 + c.rand.IntN(3) {
			c.step()
		}
		if i%5 == 4 {
			c.waitFor("a command to run", c.under.Load)
		}
		// From before the first look at the runtime to long after the dust settled.
		// The one sleep of this package that is no wait: a random moment.
		time.Sleep(time.Duration(c.rand.ExpFloat64() * float64(250*time.Millisecond)))
		c.kill()
		c.kills.Add(1)
		c.checkNoDuplicates()
		if c.rand.IntN(4) == 0 {
			c.step() // not visible to tests
		}
		c.must("start the agent", c.agent.Start(c.Context()))
		if c.rand.IntN(3) == 0 {
			lives := watch.agentStarts()
			c.waitFor("the agent to be heard", func() bool { return watch.agentStarts() > lives })
		}
		if c.Failed() {
			c.Fatalf("after %d kills", i+1)
		}
	}
	c.waitReady()
	commands()
	c.settle()
	c.checkStillLive(before)
	c.waitFor("of the commands that hang no more than one to be left", func() bool { return c.processes(hangMarker) <= 1 })
	for _, name := range names {
		c.checkRanOnce(name)
		if p := c.pods()[name]; p.Status.PodIP != status[name].Status.PodIP {
			c.Errorf("%s has the address %s, had %s", name, p.Status.PodIP, status[name].Status.PodIP)
		}
	}
	watch.end()
	for _, name := range slices.Concat(names, slices.Collect(maps.Keys(c.wanted))) {
		c.removeManifest(name)
	}
	c.waitNothingLeft()
	for _, p := range watch.first { // they were ended while they were Ready
		if of := witnessPrefix(p); hasHooks(p) && c.startCount(of, "preStop") == 0 {
			c.Errorf("preStop of %s never ran", of)
		}
	}
	c.Logf("%d kills, %d pods came and went", kills, c.made)
}

// step changes what is wanted.
func (c *churn) step() {
	names := slices.Sorted(maps.Keys(c.wanted))
	if len(names) < 3 || len(names) < 6 && c.rand.IntN(2) == 0 {
		c.made++
		p := &incarnation{name: fmt.Sprintf("churn-%d", c.made), kind: c.rand.IntN(kinds), image: images.TestboxRef}
		c.wanted[p.name] = p
		c.putPod(c.pod(p))
		return
	}
	name := names[c.rand.IntN(len(names))]
	p := c.wanted[name]
	switch c.rand.IntN(3) {
	case 0: // in place
		if p.image == images.TestboxRef {
			p.image = otherImage
		} else {
			p.image = images.TestboxRef
		}
		made := c.pod(p)
		c.mu.Lock()
		c.edits[witnessPrefix(made)]++
		c.mu.Unlock()
		c.putPod(made)
	case 1: // another incarnation
		p.edit++
		c.putPod(c.pod(p))
	case 2:
		delete(c.wanted, name)
		c.removeManifest(name)
	}
}

// editCount is how often the image of an incarnation was edited so far.
func (c *churn) editCount(p *corev1.Pod) int32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.edits[witnessPrefix(p)]
}

// checkNoDuplicates looks at the runtime while the agent is dead.
func (c *churn) checkNoDuplicates() {
	c.Helper()
	live := map[string]int{}
	for _, what := range c.liveObjects("") {
		if live[what]++; live[what] > 1 {
			c.Errorf("%s lives %d times", what, live[what])
		}
	}
}

// settleTimeout is how long what churned may take to come to rest: back-offs of several
// pods are over by then.
const settleTimeout = 3 * time.Minute

// settle waits until all that is wanted runs as it is wanted and nothing else, and
// looks how often it really began.
func (c *churn) settle() {
	c.Helper()
	if !c.pollUntil(settleTimeout, "what is wanted to run and nothing else", func() bool {
		pods := c.pods()
		if len(pods) != len(c.wanted)+stablePods {
			return false
		}
		for name, want := range c.wanted {
			p, ok := pods[name]
			if !ok || !isReady(&p) || p.DeletionTimestamp != nil || p.Spec.Containers[0].Image != want.image {
				return false
			}
		}
		return len(c.sandboxes("")) == len(pods)
	}) {
		c.FailNow()
	}
	c.checkNoDuplicates()
	for name, p := range c.pods() {
		of := witnessPrefix(&p)
		// What a cut-off start has made may never have run.
		starts := int(p.Status.ContainerStatuses[0].RestartCount) + 1
		if ran := c.waitRan(of, "main"); ran < 1 || ran > starts {
			c.Errorf("%s really began %d times, and its status says %d", name, ran, starts)
		}
		if hasHooks(&p) && c.startCount(of, "postStart") == 0 {
			c.Errorf("the postStart hook of %s never ran", name)
		}
	}
}

// compareStatus finds regressions of a pod that was not changed.
func (n *node) compareStatus(was, is *corev1.Pod) {
	if !isReady(is) {
		n.Errorf("%s: phase %s, not ready any more: %v", is.Name, is.Status.Phase, is.Status.Conditions)
	}
	if is.Status.PodIP != was.Status.PodIP {
		n.Errorf("%s: address %q, was %q", is.Name, is.Status.PodIP, was.Status.PodIP)
	}
	before := map[string]corev1.ContainerStatus{}
	for _, s := range statuses(was) {
		before[s.Name] = s
	}
	for _, s := range statuses(is) {
		if b := before[s.Name]; s.ContainerID != b.ContainerID || s.RestartCount != b.RestartCount || s.Ready != b.Ready {
			n.Errorf("%s/%s: %s restarts=%d ready=%v, was %s restarts=%d ready=%v", is.Name, s.Name,
				s.ContainerID, s.RestartCount, s.Ready, b.ContainerID, b.RestartCount, b.Ready)
		}
	}
	for _, c := range is.Status.Conditions {
		for _, b := range was.Status.Conditions {
			if b.Type == c.Type && (b.Status != c.Status || !b.LastTransitionTime.Equal(&c.LastTransitionTime)) {
				n.Errorf("%s: condition %s is %s since %s, was %s since %s", is.Name, c.Type, c.Status, c.LastTransitionTime, b.Status, b.LastTransitionTime)
			}
		}
	}
}
