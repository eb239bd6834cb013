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

// intSetting returns the integer in an environment variable. The defaults are torture with BERTH_TORTURE
// and normal otherwise.
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

// TestRandomKillsUnderChurn kills the agent at random moments while it creates, edits and removes pods.
// Stable pods that are never changed run beside them. All pods have probes, many have hooks, and execs run
// in the stable pods all the time.
func TestRandomKillsUnderChurn(t *testing.T) {
	t.Parallel()
	kills := intSetting(t, "BERTH_KILLS", 15, 4000)
	seed := intSetting(t, "BERTH_SEED", time.Now().UnixNano()%1_000_000, time.Now().UnixNano()%1_000_000)
	versions := hosts.DividedVersions(t.Name())
	for i, v := range versions {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			t.Logf("seed %d: set BERTH_SEED=%d to repeat", seed, seed)
			c := &churn{
				node:         start(t, options{host: hosts.Options{Version: v}}),
				rand:         rand.New(rand.NewPCG(uint64(seed), uint64(i))),
				incarnations: map[string]*incarnation{}, edits: map[string]int32{},
			}
			killsPerVersion := int(kills) / len(versions)
			c.run(killsPerVersion)
		})
	}
}

// churn is one run with random changes and kills.
type churn struct {
	*node
	rand         *rand.Rand
	incarnations map[string]*incarnation
	created      int
	kills        atomic.Int32
	execRunning  atomic.Bool // an exec is running in a pod

	mu    sync.Mutex
	edits map[string]int32 // number of image edits by witness prefix
}

const stablePods = 3 // number of pods that are never changed

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
	c.must("restart the agent", c.agent.Restart(c.Context())) // writes its state to disk
	c.awaitRunning(names...)
	before, status := c.liveObjects(""), c.pods()
	watch := c.watchStatus(c.editCount, func(oldPod, newPod *corev1.Pod) {
		if slices.Contains(names, newPod.Name) {
			c.compareStatus(oldPod, newPod)
		}
	})
	stopExecs := c.runExecs(names)
	for i := range kills {
		for range 1 + c.rand.IntN(3) {
			c.step()
		}
		if i%5 == 4 {
			c.waitFor("exec to run", c.execRunning.Load)
		}
		// A random moment between the start of the agent and the completion of all syncs.
		time.Sleep(time.Duration(c.rand.ExpFloat64() * float64(250*time.Millisecond)))
		c.kill()
		c.kills.Add(1)
		c.checkNoDuplicates()
		if c.rand.IntN(4) == 0 {
			c.step() // while the agent is down
		}
		c.must("start the agent", c.agent.Start(c.Context()))
		if c.rand.IntN(3) == 0 {
			starts := watch.agentStarts()
			c.waitFor("agent to serve the pod watch", func() bool { return watch.agentStarts() > starts })
		}
		if c.Failed() {
			c.Fatalf("after %d kills", i+1)
		}
	}
	c.waitReady()
	stopExecs()
	c.settle()
	c.checkStillLive(before)
	c.waitFor("at most one hanging probe command to remain", func() bool { return c.processes(hangMarker) <= 1 })
	for _, name := range names {
		c.checkRanOnce(name)
		if p := c.pods()[name]; p.Status.PodIP != status[name].Status.PodIP {
			c.Errorf("%s: pod IP %s, want %s", name, p.Status.PodIP, status[name].Status.PodIP)
		}
	}
	watch.finish()
	for _, name := range slices.Concat(names, slices.Collect(maps.Keys(c.incarnations))) {
		c.removeManifest(name)
	}
	c.waitNothingLeft()
	for _, p := range watch.firstReady { // these pods were Ready when they were deleted
		if prefix := witnessPrefix(p); hasHooks(p) && c.startCount(prefix, "preStop") == 0 {
			c.Errorf("preStop hook of %s did not run", prefix)
		}
	}
	c.Logf("%d kills, %d pods created and deleted", kills, c.created)
}

// step creates, edits or removes one random pod.
func (c *churn) step() {
	names := slices.Sorted(maps.Keys(c.incarnations))
	if len(names) < 3 || len(names) < 6 && c.rand.IntN(2) == 0 {
		c.created++
		p := &incarnation{name: fmt.Sprintf("churn-%d", c.created), kind: c.rand.IntN(kinds), image: images.TestboxRef}
		c.incarnations[p.name] = p
		c.putPod(c.pod(p))
		return
	}
	name := names[c.rand.IntN(len(names))]
	p := c.incarnations[name]
	switch c.rand.IntN(3) {
	case 0: // in place
		if p.image == images.TestboxRef {
			p.image = otherImage
		} else {
			p.image = images.TestboxRef
		}
		pod := c.pod(p)
		c.mu.Lock()
		c.edits[witnessPrefix(pod)]++
		c.mu.Unlock()
		c.putPod(pod)
	case 1: // another incarnation
		p.edit++
		c.putPod(c.pod(p))
	case 2:
		delete(c.incarnations, name)
		c.removeManifest(name)
	}
}

// editCount returns the number of image edits of an incarnation so far.
func (c *churn) editCount(p *corev1.Pod) int32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.edits[witnessPrefix(p)]
}

// checkNoDuplicates checks that the runtime has at most one live instance of each sandbox and container.
func (c *churn) checkNoDuplicates() {
	c.Helper()
	live := map[string]int{}
	for _, what := range c.liveObjects("") {
		if live[what]++; live[what] > 1 {
			c.Errorf("%s: %d instances, want 1", what, live[what])
		}
	}
}

// settleTimeout limits how long the pods may take to reach the desired state. It includes the back-offs
// of several pods.
const settleTimeout = 6 * time.Minute

// settle waits until exactly the desired pods run. It then compares the number of starts in the witness
// files with the restart counts.
func (c *churn) settle() {
	c.Helper()
	if !c.pollUntil(settleTimeout, "exactly the desired pods to run", func() bool {
		pods := c.pods()
		if len(pods) != len(c.incarnations)+stablePods {
			return false
		}
		for name, want := range c.incarnations {
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
		prefix := witnessPrefix(&p)
		// A start that a kill of the agent interrupts is no restart. Its process may have run before
		// containerd killed it.
		starts, interrupted := int(p.Status.ContainerStatuses[0].RestartCount)+1,
			c.interruptedStarts(string(p.UID), "main")
		if ran := c.waitRan(prefix, "main"); ran < 1 || ran > starts+interrupted {
			c.Errorf("%s: got %d starts, want 1 to %d according to its status and %d interrupted starts",
				name, ran, starts, interrupted)
		}
		if hasHooks(&p) && c.startCount(prefix, "postStart") == 0 {
			c.Errorf("postStart hook of %s did not run", name)
		}
	}
}

// compareStatus reports status changes of a pod that was not edited.
func (n *node) compareStatus(oldPod, newPod *corev1.Pod) {
	if !isReady(newPod) {
		n.Errorf("%s: phase %s, no longer Ready: %v", newPod.Name, newPod.Status.Phase, newPod.Status.Conditions)
	}
	if newPod.Status.PodIP != oldPod.Status.PodIP {
		n.Errorf("%s: pod IP %q, was %q", newPod.Name, newPod.Status.PodIP, oldPod.Status.PodIP)
	}
	before := map[string]corev1.ContainerStatus{}
	for _, s := range statuses(oldPod) {
		before[s.Name] = s
	}
	for _, s := range statuses(newPod) {
		if b := before[s.Name]; s.ContainerID != b.ContainerID || s.RestartCount != b.RestartCount ||
			s.Ready != b.Ready {
			n.Errorf("%s/%s: %s restarts=%d ready=%v, was %s restarts=%d ready=%v", newPod.Name, s.Name,
				s.ContainerID, s.RestartCount, s.Ready, b.ContainerID, b.RestartCount, b.Ready)
		}
	}
	for _, c := range newPod.Status.Conditions {
		for _, b := range oldPod.Status.Conditions {
			if b.Type == c.Type && (b.Status != c.Status || !b.LastTransitionTime.Equal(&c.LastTransitionTime)) {
				n.Errorf("%s: condition %s is %s since %s, was %s since %s", newPod.Name, c.Type, c.Status,
					c.LastTransitionTime, b.Status, b.LastTransitionTime)
			}
		}
	}
}

func TestFailedStartsAreFoundInContainerdLog(t *testing.T) {
	t.Parallel()
	for version, log := range map[hosts.Version]string{
		hosts.Version16: `
msg="RunPodSandbox for &PodSandboxMetadata{Name:a,Uid:uid-a,Namespace:default,Attempt:0,} returns sandbox id \"s1\""
msg="CreateContainer within sandbox \"s1\" for &ContainerMetadata{Name:main,Attempt:0,} returns container id \"c1\""
msg="CreateContainer within sandbox \"s1\" for &ContainerMetadata{Name:other,Attempt:0,} returns container id \"c2\""
msg="CreateContainer within sandbox \"s1\" for &ContainerMetadata{Name:main,Attempt:1,} returns container id \"c4\""
msg="StartContainer for \"c1\""
msg="StartContainer for \"c1\" failed" error="context canceled"
msg="StartContainer for \"c2\" failed" error="context canceled"
msg="StartContainer for \"c3\" failed" error="context canceled"
msg="StartContainer for \"c4\""
msg="StartContainer for \"c4\" returns successfully"`,
		hosts.Version2: `
msg="RunPodSandbox for name:\"a\"  uid:\"uid-a\"  namespace:\"default\" returns sandbox id \"s1\""
msg="CreateContainer within sandbox \"s1\" for name:\"main\"  attempt:1 returns container id \"c1\""
msg="CreateContainer within sandbox \"s1\" for name:\"other\" returns container id \"c2\""
msg="StartContainer for \"c1\""
msg="starting containerd"
msg="StartContainer for \"c2\" failed" error="context canceled"`,
	} {
		if got := failedStarts(log, "uid-a", "main"); got != 1 {
			t.Errorf("containerd %s: got %d failed starts, want 1", version, got)
		}
		if got := failedStarts(log, "uid-b", "main"); got != 0 {
			t.Errorf("containerd %s: got %d failed starts of another pod, want 0", version, got)
		}
	}
}
