package crash

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/hosts"
	"berth/test/images"
)

const defaultDuration = time.Hour

// durationSetting returns the duration in an environment variable, or normal if it is not set.
func durationSetting(t *testing.T, name string, normal time.Duration) time.Duration {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return normal
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		t.Fatalf("%s: invalid duration %q: %v", name, text, err)
	}
	return d
}

// TestLongChurn creates, edits and removes pods of all kinds, sends user requests, and injects and
// reverts one fault after another, for an hour. It runs with BERTH_TORTURE only. Three stable pods are
// never changed and must not be affected. The run consists of legs. After each leg, all other pods are
// deleted and the test records a rest point: all resource counts must be those before the first leg, and
// the agent's memory must not grow from leg to leg.
//
// The test restarts the agent only once, in the middle, so that leaks become visible. In its second run,
// the agent reaches the runtime through a proxy that injects faults.
func TestLongChurn(t *testing.T) {
	if os.Getenv("BERTH_TORTURE") == "" {
		t.Skip("runs for an hour: make torture PKGS=./test/crash RUN=LongChurn HOUR=1h")
	}
	t.Parallel()
	duration := durationSetting(t, "BERTH_HOUR", defaultDuration)
	seed := intSetting(t, "BERTH_SEED", time.Now().UnixNano()%1_000_000, time.Now().UnixNano()%1_000_000)
	versions := hosts.Versions()
	all := make([]*runRecord, len(versions))
	t.Cleanup(func() { writeChurnReport(t, seed, duration, all) })
	for i, v := range versions {
		all[i] = &runRecord{version: v, edits: map[string]int{}}
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			t.Logf("seed %d: set BERTH_SEED=%d to repeat the actions, though not their timing", seed, seed)
			n := start(t, options{host: hosts.Options{Version: v},
				agent: hosts.AgentOptions{StateDir: smallDisk(t, "64m")}})
			h := &longChurn{
				churn: &churn{node: n, rand: rand.New(rand.NewPCG(uint64(seed), uint64(i))), edits: map[string]int32{}},
				log:   all[i], duration: duration, desired: map[string]*desiredPod{}, port: freePort(t),
			}
			h.legs = min(max(int(duration/(6*time.Minute)), 4), 12)
			h.run()
		})
	}
}

// longChurn is one run of TestLongChurn on one version of containerd.
type longChurn struct {
	*churn        // creates and checks pods
	log           *runRecord
	duration      time.Duration
	legs          int
	agentRun      int    // index of the agent's run: 0 or 1
	proxy         *proxy // in the second run; nil: the agent uses the runtime's socket
	started       time.Time
	desired       map[string]*desiredPod
	port          int   // host port for one pod at a time
	pendingFaults []int // shuffled indexes into faultKinds
}

func (h *longChurn) run() {
	h.must("no registry", h.host.SetRegistry("registry.example", "server = \"http://127.0.0.1:1\"\n"))
	names := h.createStablePods()
	before, status := h.liveObjects(""), h.pods()
	watch := h.watchStatus(h.editCount, func(oldPod, newPod *corev1.Pod) {
		if slices.Contains(names, newPod.Name) {
			h.compareStatus(oldPod, newPod)
		}
	})
	v, err := h.host.Runtime.Version(h.Context(), &runtimeapi.VersionRequest{})
	h.must("version of containerd", err)
	h.log.runtime, h.log.passed = v.RuntimeVersion, false
	h.started = time.Now()
	h.log.started = h.started
	stopSampling := h.startSampling()
	h.recordRestPoint() // the baseline
	for leg := range h.legs {
		h.runLeg(leg, names)
		h.recordRestPoint()
		if h.Failed() {
			h.Fatalf("in leg %d of %d", leg+1, h.legs)
		}
	}
	stopSampling()
	h.log.duration = time.Since(h.started)
	h.checkMemoryGrowth()
	h.checkStillLive(before)
	h.waitFor("at most one hanging probe command to remain", func() bool { return h.processes(hangMarker) <= 1 })
	for _, name := range names {
		h.checkRanOnce(name)
		if p := h.pods()[name]; p.Status.PodIP != status[name].Status.PodIP {
			h.Errorf("%s: pod IP %s, want %s", name, p.Status.PodIP, status[name].Status.PodIP)
		}
	}
	watch.finish()
	h.log.comparisons, h.log.readyPods = watch.comparisons, len(watch.firstReady)
	for _, name := range names {
		h.removeManifest(name)
	}
	h.waitNothingLeft()
	h.log.passed = !h.Failed()
	h.Logf("%d pods created and deleted in %s with %d faults; user requests: %s", h.log.created,
		h.log.duration.Round(time.Second), len(h.log.faults), h.log.users.summary())
}

// createStablePods creates the pods that are never changed.
func (h *longChurn) createStablePods() []string {
	h.Helper()
	names := make([]string, stablePods)
	for i := range names {
		names[i] = fmt.Sprintf("stable-%d", i)
		if i == 0 {
			h.put(names[i], h.withHangingProbe(h.rich(names[i]))...)
		} else {
			h.putPod(h.pod(&incarnation{name: names[i], kind: (i - 1) * 3, image: images.TestboxRef}))
		}
	}
	h.awaitRunning(names...)
	h.must("restart the agent", h.agent.Restart(h.Context())) // writes its state to disk
	h.awaitRunning(names...)
	h.waitFor("hanging probe command to run", func() bool { return h.processes(hangMarker) == 1 })
	return names
}

// runLeg runs steps and faults until its share of the time is over, at least one fault. It then removes
// all pods except the stable ones. The middle leg kills the agent.
func (h *longChurn) runLeg(number int, names []string) {
	h.Helper()
	stopUsers := h.runUsers(names)
	end := h.started.Add(h.duration * time.Duration(number+1) / time.Duration(h.legs))
	for faults := 0; faults == 0 || time.Now().Before(end); faults++ {
		for range 3 + h.rand.IntN(12) {
			h.step()
			h.randomSleep()
		}
		if number == h.legs/2 && h.agentRun == 0 {
			h.injectFault(faultKind{"agent killed", (*longChurn).killAgent})
		} else {
			h.injectFault(faultKind{})
		}
		if h.Failed() {
			break // run reports the leg
		}
	}
	stopUsers()
	for _, name := range slices.Sorted(maps.Keys(h.desired)) {
		h.remove(name)
	}
	h.waitSettled("all pods except the stable ones to be deleted")
}

// randomSleep pauses between steps for a random time of at most 3 s: users are slower than a loop.
func (h *longChurn) randomSleep() {
	d := time.Duration(h.rand.ExpFloat64() * float64(500*time.Millisecond))
	time.Sleep(min(d, 3*time.Second))
}

func (h *longChurn) elapsed() time.Duration { return time.Since(h.started) }

// waitSettled waits until all pods are in their desired state. It then compares the number of starts in the
// witness files with the restart counts.
func (h *longChurn) waitSettled(what string) {
	h.Helper()
	reason := ""
	if !h.pollUntil(settleTimeout, what, func() bool { reason = h.mismatch(); return reason == "" }) {
		h.Fatalf("%s: %s", what, reason)
	}
	h.checkNoDuplicates()
	ran := map[string]int{}
	for name, w := range h.desired {
		if w.canStart() {
			ran[name] = h.waitRan(w.witness(), "main")
		}
	}
	pods := h.pods()
	for name, w := range h.desired {
		p, ok := pods[name]
		if !ok || len(p.Status.ContainerStatuses) == 0 {
			h.Errorf("%s: missing from the pod list or without container status", name)
			continue
		}
		starts := int(p.Status.ContainerStatuses[0].RestartCount) + 1
		if w.behavior == crashLoops {
			starts++ // it may be restarting now
		}
		interrupted := h.interruptedStarts(string(p.UID), "main")
		switch {
		case !w.canStart():
			if h.startCount(w.witness(), "main") > 0 {
				h.Errorf("%s started without an image", name)
			}
		case ran[name] < 1 || ran[name] > starts+interrupted:
			h.Errorf("%s: got %d starts, want 1 to %d according to its status and %d interrupted starts",
				name, ran[name], starts, interrupted)
		case (w.behavior == succeeds || w.behavior == fails) && ran[name] > 1+interrupted:
			h.Errorf("%s: got %d starts, want 1 and at most %d interrupted ones", name, ran[name], interrupted)
		}
		if hasHooks(&p) && h.startCount(w.witness(), "postStart") == 0 {
			h.Errorf("postStart hook of %s did not run", name)
		}
	}
}

// mismatch describes the first difference from the desired state. It returns an empty string if there is
// none.
func (h *longChurn) mismatch() string {
	pods := h.pods()
	if pods == nil {
		return "the agent does not answer"
	}
	for name, w := range h.desired {
		p, ok := pods[name]
		if !ok {
			return name + ": not in the pod list"
		}
		if why := w.mismatch(&p); why != "" {
			return name + ": " + why
		}
		if want, got := w.configText(), h.configMapFile(&p); w.config > 0 && got != want {
			return fmt.Sprintf("%s: ConfigMap content: got %q, want %q", name, got, want)
		}
	}
	if want := len(h.desired) + stablePods; len(pods) != want {
		return fmt.Sprintf("got %d pods, want %d", len(pods), want)
	}
	return ""
}

// runRecord collects the results of one run for the report.
type runRecord struct {
	version     hosts.Version
	runtime     string // version reported by containerd
	started     time.Time
	duration    time.Duration
	passed      bool
	created     int
	edits       map[string]int
	faults      []faultRecord
	restPoints  []restPoint
	users       userRequests
	comparisons int // number of compared statuses of pods that had been Ready
	readyPods   int // number of pods that had been Ready
	samples     []sample
}

// faultRecord is a fault that took effect.
type faultRecord struct {
	kind         string
	at, duration time.Duration
	recovery     time.Duration // from the revert until all pods were in their desired state
}

// faultsByKind groups the faults by kind, each group sorted by recovery time.
func (c *runRecord) faultsByKind() (kinds []string, of map[string][]faultRecord) {
	of = map[string][]faultRecord{}
	for _, b := range c.faults {
		of[b.kind] = append(of[b.kind], b)
	}
	for _, all := range of {
		slices.SortFunc(all, func(a, b faultRecord) int { return cmp.Compare(a.recovery, b.recovery) })
	}
	return slices.Sorted(maps.Keys(of)), of
}
