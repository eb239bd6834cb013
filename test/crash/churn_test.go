package crash

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/nodeapi"
	"berth/test/hosts"
	"berth/test/images"
)

// setting is a number that the environment may give.
func setting(t *testing.T, name string, normal, torture int64) int64 {
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

// TestKilledAtRandomUnderChurn kills the agent at random moments while pods are
// made, edited and removed beside pods that nobody touches.
func TestKilledAtRandomUnderChurn(t *testing.T) {
	t.Parallel()
	kills := setting(t, "BERTH_KILLS", 100, 4000)
	seed := setting(t, "BERTH_SEED", time.Now().UnixNano()%1_000_000, time.Now().UnixNano()%1_000_000)
	for i, v := range hosts.Versions() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			t.Logf("seed %d: BERTH_SEED=%d replays it", seed, seed)
			c := &churn{node: start(t, options{host: hosts.Options{Version: v}}), rand: rand.New(rand.NewPCG(uint64(seed), uint64(i))), wanted: map[string]*corev1.Pod{}}
			share := int(kills) / len(hosts.Versions())
			c.run(share)
		})
	}
}

// churn is one random run.
type churn struct {
	*node
	rand   *rand.Rand
	wanted map[string]*corev1.Pod
	made   int
	kills  int
}

const stable = 3 // pods that nobody touches

func (c *churn) run(kills int) {
	names := make([]string, stable)
	for i := range names {
		names[i] = fmt.Sprintf("stable-%d", i)
		if i == 0 {
			c.put(names[i], c.rich(names[i])...)
		} else {
			c.putPod(c.simple(names[i]))
		}
	}
	c.awaitRunning(30*time.Second, names...)
	c.must("restart the agent", c.agent.Restart(c.Context())) // what it leaves behind is on disk
	c.awaitRunning(10*time.Second, names...)
	before, status := c.living(""), c.pods()
	watch := c.watch(names, status)
	for c.kills = range kills {
		for range 1 + c.rand.IntN(3) {
			c.step()
		}
		// From before the first look at the runtime to long after the dust settled.
		// The one sleep of this package that is no wait: a random moment.
		time.Sleep(time.Duration(c.rand.ExpFloat64() * float64(250*time.Millisecond)))
		c.kill()
		c.noDoubles()
		if c.rand.IntN(4) == 0 {
			c.step() // nobody sees it
		}
		c.must("start the agent", c.agent.Start(c.Context()))
		if c.rand.IntN(4) == 0 {
			c.ready()
		}
		if c.Failed() {
			c.Fatalf("after %d kills", c.kills+1)
		}
	}
	c.ready()
	c.settle()
	watch()
	c.stillLiving(before)
	for _, name := range names {
		c.once(name)
		if p := c.pods()[name]; p.Status.PodIP != status[name].Status.PodIP {
			c.Errorf("%s has the address %s, had %s", name, p.Status.PodIP, status[name].Status.PodIP)
		}
		c.drop(name)
	}
	for name := range c.wanted {
		c.drop(name)
	}
	c.gone(40 * time.Second)
	c.Logf("%d kills, %d pods came and went", kills, c.made)
}

// step changes what is wanted.
func (c *churn) step() {
	names := slices.Sorted(maps.Keys(c.wanted))
	if len(names) < 3 || len(names) < 6 && c.rand.IntN(2) == 0 {
		c.made++
		p := c.simple(fmt.Sprintf("churn-%d", c.made))
		if c.rand.IntN(3) == 0 { // one that takes its time to leave
			p = c.simple(p.Name, "ignore-term", ",", "sleep")
		}
		c.wanted[p.Name] = p
		c.putPod(p)
		return
	}
	name := names[c.rand.IntN(len(names))]
	p := c.wanted[name]
	switch c.rand.IntN(3) {
	case 0: // in place
		image := &p.Spec.Containers[0].Image
		if *image == images.TestboxRef {
			*image = otherImage
		} else {
			*image = images.TestboxRef
		}
		c.putPod(p)
	case 1: // another incarnation
		p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "EDIT", Value: strconv.Itoa(c.rand.IntN(1000))}}
		c.putPod(p)
	case 2:
		delete(c.wanted, name)
		c.drop(name)
	}
}

// noDoubles looks at the runtime while the agent is dead.
func (c *churn) noDoubles() {
	c.Helper()
	live := map[string]int{}
	for _, what := range c.living("") {
		if live[what]++; live[what] > 1 {
			c.Errorf("%s lives %d times", what, live[what])
		}
	}
}

// settle waits until all that is wanted runs as it is wanted and nothing else.
func (c *churn) settle() {
	c.Helper()
	c.until(60*time.Second, "what is wanted to run and nothing else", func() bool {
		pods := c.pods()
		if len(pods) != len(c.wanted)+stable {
			return false
		}
		for name, want := range c.wanted {
			p, ok := pods[name]
			if !ok || !isReady(&p) || p.DeletionTimestamp != nil || p.Spec.Containers[0].Image != want.Spec.Containers[0].Image {
				return false
			}
		}
		return len(c.sandboxes("")) == len(pods)
	})
	c.noDoubles()
}

// watch looks at pods all the time until the function that it returns is
// called. What the agent says of them must never change.
func (c *churn) watch(names []string, first map[string]corev1.Pod) (stop func()) {
	ctx, cancel := context.WithCancel(c.Context())
	var wg sync.WaitGroup
	answers := 0
	wg.Go(func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			list, err := c.client.Pods(ctx, nodeapi.PodsRequest{})
			if err != nil {
				continue // dead, just now
			}
			for _, p := range list.Items {
				if was, ok := first[p.Name]; ok && slices.Contains(names, p.Name) {
					answers++
					c.compare(&was, &p)
				}
			}
			if c.Failed() {
				return
			}
		}
	})
	return func() {
		cancel()
		wg.Wait()
		c.Logf("%d answers about pods that nobody touches", answers)
		if answers == 0 {
			c.Error("nobody was ever asked")
		}
	}
}

// compare finds regressions of a pod that nobody touched.
func (n *node) compare(was, is *corev1.Pod) {
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
