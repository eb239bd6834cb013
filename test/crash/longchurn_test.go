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

const (
	shortHour = 45 * time.Second // in make test
	wholeHour = time.Hour
)

// durationSetting is a length of time that the environment may give.
func durationSetting(t *testing.T, name string, normal, torture time.Duration) time.Duration {
	t.Helper()
	if text := os.Getenv(name); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil || d <= 0 {
			t.Fatalf("%s: %q is no length of time: %v", name, text, err)
		}
		return d
	}
	if os.Getenv("BERTH_TORTURE") != "" {
		return torture
	}
	return normal
}

// TestLongChurn has pods of all kinds come, change and go, and users look at
// them and run commands in them, for an hour, while one fault after another strikes
// and is let go. It goes by legs. After each leg all pods but three end, which no test
// touches and that never notice anything, and the agent and the host come to rest:
// then there is as much of everything as before the first leg, and the agent's
// memory does not grow from leg to leg.
//
// The agent lives as long as half of the run, so that what it loses can be seen; in
// its second life a proxy stands between it and the runtime, which loses calls.
func TestLongChurn(t *testing.T) {
	t.Parallel()
	length := durationSetting(t, "BERTH_HOUR", shortHour, wholeHour)
	seed := intSetting(t, "BERTH_SEED", time.Now().UnixNano()%1_000_000, time.Now().UnixNano()%1_000_000)
	all := make([]*runRecord, len(hosts.Versions()))
	t.Cleanup(func() { reportHour(t, seed, length, all) })
	for i, v := range hosts.Versions() {
		all[i] = &runRecord{version: v, edits: map[string]int{}}
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			t.Logf("seed %d: BERTH_SEED=%d replays what is done, not when it strikes", seed, seed)
			n := start(t, options{host: hosts.Options{Version: v}, agent: hosts.AgentOptions{StateDir: smallDisk(t, "64m")}})
			h := &longChurn{
				churn: &churn{node: n, rand: rand.New(rand.NewPCG(uint64(seed), uint64(i))), edits: map[string]int32{}},
				log:   all[i], length: length, desired: map[string]*desiredPod{}, port: freePort(t),
			}
			h.legs = min(max(int(length/(6*time.Minute)), 4), 12)
			h.run()
		})
	}
}

// longChurn is one run.
type longChurn struct {
	*churn        // its makers of pods and who judges them
	log           *runRecord
	length        time.Duration
	legs          int
	life          int    // of the agent, from 0
	proxy         *proxy // in its second life; nil: it talks to the runtime itself
	began         time.Time
	desired       map[string]*desiredPod
	port          int   // of the host, for one pod at a time
	pendingFaults []int // of troubles, not yet dealt
}

func (h *longChurn) run() {
	h.must("no registry", h.host.SetRegistry("registry.example", "server = \"http://127.0.0.1:1\"\n"))
	names := h.createStablePods()
	before, status := h.liveObjects(""), h.pods()
	watch := h.watchStatus(h.editCount, func(was, is *corev1.Pod) {
		if slices.Contains(names, is.Name) {
			h.compareStatus(was, is)
		}
	})
	v, err := h.host.Runtime.Version(h.Context(), &runtimeapi.VersionRequest{})
	h.must("version of containerd", err)
	h.log.runtime, h.log.passed = v.RuntimeVersion, false
	h.began = time.Now()
	h.log.began = h.began
	samples := h.sampling()
	h.recordRestPoint() // before anything
	for leg := range h.legs {
		h.runLeg(leg, names)
		h.recordRestPoint()
		if h.Failed() {
			h.Fatalf("in leg %d of %d", leg+1, h.legs)
		}
	}
	samples()
	h.log.took = time.Since(h.began)
	h.checkMemoryGrowth()
	h.checkStillLive(before)
	h.waitFor("of the commands that hang no more than one to be left", func() bool { return h.processes(hangMarker) <= 1 })
	for _, name := range names {
		h.checkRanOnce(name)
		if p := h.pods()[name]; p.Status.PodIP != status[name].Status.PodIP {
			h.Errorf("%s has the address %s, had %s", name, p.Status.PodIP, status[name].Status.PodIP)
		}
	}
	watch.finish()
	h.log.answers, h.log.wereReady = watch.comparisons, len(watch.firstReady)
	for _, name := range names {
		h.removeManifest(name)
	}
	h.waitNothingLeft()
	h.log.passed = !h.Failed()
	h.Logf("%d pods came and went in %s under %d faults; users: %s", h.log.came, h.log.took.Round(time.Second), len(h.log.faults), h.log.users.summary())
}

// createStablePods makes the untouched pods.
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
	h.must("restart the agent", h.agent.Restart(h.Context())) // what it leaves behind is on disk
	h.awaitRunning(names...)
	h.waitFor("the probe that hangs to be under way", func() bool { return h.processes(hangMarker) == 1 })
	return names
}

// runLeg churns until its share of the time is over, and for some steps and a fault at
// least; then all that it wanted goes. In the middle of the run the agent is killed.
func (h *longChurn) runLeg(number int, names []string) {
	h.Helper()
	users := h.runUsers(names)
	end := h.began.Add(h.length * time.Duration(number+1) / time.Duration(h.legs))
	for struck := 0; struck == 0 || time.Now().Before(end); struck++ {
		for range 3 + h.rand.IntN(12) {
			h.step()
			h.randomSleep()
		}
		if number == h.legs/2 && h.life == 0 {
			h.injectFault(faultKind{"agent killed", (*longChurn).killAgent})
		} else {
			h.injectFault(faultKind{})
		}
		if h.Failed() {
			break // it says in which leg
		}
	}
	users()
	for _, name := range slices.Sorted(maps.Keys(h.desired)) {
		h.remove(name)
	}
	h.waitSettled("all pods but those that stay to go")
}

// randomSleep waits for a random moment: users are not as fast as a loop. The second
// sleep of this package that is no wait for anything.
func (h *longChurn) randomSleep() {
	d := time.Duration(h.rand.ExpFloat64() * float64(500*time.Millisecond))
	time.Sleep(min(d, 3*time.Second))
}

func (h *longChurn) elapsed() time.Duration { return time.Since(h.began) }

// waitSettled waits until all that is wanted is as it is wanted, and looks how often it
// really began.
func (h *longChurn) waitSettled(what string) {
	h.Helper()
	amiss := ""
	if !h.pollUntil(settleTimeout, what, func() bool { amiss = h.mismatch(); return amiss == "" }) {
		h.Fatalf("%s: %s", what, amiss)
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
			h.Errorf("%s is not known any more", name)
			continue
		}
		starts := int(p.Status.ContainerStatuses[0].RestartCount) + 1
		if w.fate == crashes {
			starts++ // it may be beginning again just now
		}
		switch {
		case !w.canStart():
			if h.startCount(w.witness(), "main") > 0 {
				h.Errorf("%s ran, and has no image", name)
			}
		case ran[name] < 1 || ran[name] > starts:
			h.Errorf("%s really began %d times, and its status says %d", name, ran[name], starts)
		case (w.fate == works || w.fate == fails) && ran[name] != 1:
			h.Errorf("%s is to run once, and really began %d times", name, ran[name])
		}
		if hasHooks(&p) && h.startCount(w.witness(), "postStart") == 0 {
			h.Errorf("the postStart hook of %s never ran", name)
		}
	}
}

// mismatch says what is not as it is wanted; empty: nothing.
func (h *longChurn) mismatch() string {
	pods := h.pods()
	if pods == nil {
		return "the agent does not answer"
	}
	for name, w := range h.desired {
		p, ok := pods[name]
		if !ok {
			return name + " is not known"
		}
		if why := w.mismatch(&p); why != "" {
			return name + ": " + why
		}
		if want, is := w.configText(), h.configMapFile(&p); w.config > 0 && is != want {
			return fmt.Sprintf("%s: its ConfigMap says %q and is to say %q", name, is, want)
		}
	}
	if want := len(h.desired) + stablePods; len(pods) != want {
		return fmt.Sprintf("%d pods are known, and %d are wanted", len(pods), want)
	}
	return ""
}

// runRecord is what one run leaves for the report.
type runRecord struct {
	version   hosts.Version
	runtime   string // as containerd says
	began     time.Time
	took      time.Duration
	passed    bool
	came      int
	edits     map[string]int
	faults    []faultRecord
	rests     []restPoint
	users     userRequests
	answers   int // about pods that had been Ready
	wereReady int // pods that were
	samples   []sample
}

// faultRecord is a fault that struck.
type faultRecord struct {
	kind     string
	at, held time.Duration
	recovery time.Duration // from when it was let go until all was as wanted
}

// faultsByKind are those of each kind, by name.
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
