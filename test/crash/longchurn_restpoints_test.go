package crash

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/test/hosts"
)

// measurements are counts and sizes by name.
type measurements map[string]int64

// Names of the counts at a rest point. They must not exceed the baseline. The cheap ones are sampled during
// the whole run too.
var (
	cheapNames = []string{"goroutines", "descriptors", "mounts", "network namespaces", "cgroups", "addresses",
		"files", "exec records"}
	restNames = []string{"processes", "rules", "chains", "links", "attachments", "directories", "leases", "snapshots"}
)

const (
	heapSlack     = 1 << 20 // permitted growth between rest points: see checkMemoryGrowth
	residentSlack = 8 << 20
)

// restPoint contains the measurements after a leg, when only the stable pods run.
type restPoint struct {
	at       time.Duration
	agentRun int
	created  int // number of pods created so far
	counts   measurements
	sizes    measurements // bytes: heap, stacks, resident, store
}

// sample contains measurements during a leg. The value -1 means that it could not be measured.
type sample struct {
	at           time.Duration
	measurements measurements
}

// recordRestPoint waits until only the stable pods run and no count exceeds the baseline, and records the
// measurements.
func (h *longChurn) recordRestPoint() {
	h.Helper()
	h.waitFor("only the stable pods to remain in the runtime", func() bool {
		return len(h.pods()) == stablePods && len(h.sandboxes("")) == stablePods
	})
	p := restPoint{agentRun: h.agentRun, created: h.log.created}
	baseline := measurements{}
	if len(h.log.restPoints) > 0 {
		baseline = maps.Clone(h.log.restPoints[0].counts)
	}
	if len(h.log.restPoints) < h.legs {
		// The agent keeps the record of an exec for a minute. Only the last rest point waits for its removal.
		delete(baseline, "exec records")
	}
	p.counts = h.pollMinimum("cheap counts to return to the baseline", h.measureCheap, baseline, 10)
	maps.Copy(p.counts, h.pollMinimum("other counts to return to the baseline", h.measureAtRest, baseline, 3))
	// The agent returns memory to the OS some seconds after a leg.
	residentLimit := int64(0)
	for _, old := range h.log.restPoints[min(1, len(h.log.restPoints)):] {
		if old.agentRun == h.agentRun && !raceEnabled { // the race detector has its own memory
			residentLimit = old.sizes["resident"] + residentSlack
			break
		}
	}
	p.sizes = h.memory()
	if residentLimit > 0 && p.sizes["resident"] > residentLimit {
		ctx, cancel := context.WithTimeout(h.Context(), waitTimeout)
		// checkMemoryGrowth checks the result.
		_ = hosts.WaitFor(ctx, "memory to be returned to the OS", func() (bool, error) {
			p.sizes["resident"] = min(p.sizes["resident"], residentBytes(h.agent.Pid()))
			return p.sizes["resident"] <= residentLimit, nil
		})
		cancel()
	}
	p.at = h.elapsed()
	h.log.restPoints = append(h.log.restPoints, p)
	h.Logf("rest point after %s, %d pods: %v, sizes in KiB %v", p.at.Round(time.Second), p.created, p.counts,
		p.sizes.inKiB())
}

func (f measurements) inKiB() measurements {
	out := measurements{}
	for k, v := range f {
		out[k] = v >> 10
	}
	return out
}

// pollMinimum measures until no count exceeds the baseline. Without a baseline, it measures the given
// number of rounds. It returns the minimum of each count, because short activities such as probes are part
// of some measurements only.
func (h *longChurn) pollMinimum(what string, measure func() measurements, baseline measurements,
	rounds int) measurements {
	h.Helper()
	minimum := measurements{}
	exceeded := func() (out []string) {
		for _, name := range slices.Sorted(maps.Keys(baseline)) {
			if n, ok := minimum[name]; ok && n > baseline[name] {
				out = append(out, fmt.Sprintf("%s: got %d, want at most %d", name, n, baseline[name]))
			}
		}
		return out
	}
	if !h.pollUntil(cleanupTimeout, what, func() bool {
		for name, n := range measure() {
			if old, ok := minimum[name]; !ok || n < old {
				minimum[name] = n
			}
		}
		rounds--
		return rounds < 0 && len(baseline) == 0 || len(baseline) > 0 && len(exceeded()) == 0
	}) {
		h.Errorf("counts exceed the baseline: %s", strings.Join(exceeded(), ", "))
		h.Logf("goroutines:\n%s", h.httpGet("/debug/pprof/goroutine?debug=1"))
		h.Logf("descriptors: %v", h.descriptors())
		h.Logf("files:\n%s", strings.Join(h.files(), "\n"))
		h.Logf("pod resources on the host:\n%s", strings.Join(h.host.PodResources(), "\n"))
	}
	return minimum
}

// measureCheap returns the counts that do not require a call to the runtime.
func (h *longChurn) measureCheap() measurements {
	h.client.Close() // idle connections of the test count as descriptors of the agent
	t := h.host.CountResources()
	f := measurements{
		"goroutines": h.metric("go_goroutines"), "descriptors": int64(len(h.descriptors())), "mounts": int64(t.Mounts),
		"network namespaces": int64(t.Namespaces), "cgroups": int64(t.Cgroups), "addresses": int64(t.Addresses),
		"exec records": 0,
	}
	all := h.files()
	for _, file := range all {
		if strings.HasPrefix(file, h.agent.StateDir+"/commands/") {
			f["exec records"]++ // of execs in progress
		}
	}
	f["files"] = int64(len(all)) - f["exec records"]
	return f
}

// files returns the files of the agent and its pods. It ignores the records of canceled image pulls: the
// agent keeps them until image garbage collection because the outcome of the pull is unknown.
func (h *longChurn) files() []string {
	out := h.logLinks()
	for _, dir := range []string{h.agent.RootDir, h.agent.LogsDir, h.agent.StateDir} {
		_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() && !strings.Contains(path, "/image_manager/pulling/") {
				out = append(out, path)
			}
			return nil // files may disappear during the walk
		})
	}
	return out
}

// isTransientProcess reports whether a process of the runtime belongs to a probe that runs now: on a busy machine,
// there always is one.
func isTransientProcess(command string) bool {
	_, args, _ := strings.Cut(command, " ") // after the PID
	return args == "" || strings.HasPrefix(args, "runc ")
}

// measureAtRest returns the counts of other pod resources on the host and of containerd's resources.
func (h *longChurn) measureAtRest() measurements {
	h.Helper()
	f := measurements{}
	for _, name := range restNames {
		f[name] = 0
	}
	for _, l := range h.host.PodResources() {
		switch kind, what, _ := strings.Cut(l, " "); kind {
		case "process":
			if !isTransientProcess(what) {
				f["processes"]++
			}
		case "rule":
			f["rules"]++
		case "chain":
			f["chains"]++
		case "link":
			f["links"]++
		case "directory":
			f["directories"]++
		case "file":
			if strings.HasPrefix(what, "/var/lib/cni/") {
				f["attachments"]++
			}
		}
	}
	leases, snapshots, err := h.host.CountLeasesAndSnapshots(h.Context())
	h.must("count leases and snapshots", err)
	f["leases"], f["snapshots"] = int64(leases), int64(snapshots)
	return f
}

// descriptors returns the targets of the agent's file descriptors, sorted.
func (h *longChurn) descriptors() (targets []string) {
	dir := fmt.Sprintf("/proc/%d/fd", h.agent.Pid())
	all, _ := os.ReadDir(dir)
	for _, d := range all {
		if l, err := os.Readlink(filepath.Join(dir, d.Name())); err == nil {
			targets = append(targets, l)
		}
	}
	slices.Sort(targets)
	return targets
}

// memory returns the agent's memory sizes in bytes after a garbage collection. The heap and stack sizes are
// the minimum of several measurements, because each one includes some short-lived memory.
func (h *longChurn) memory() measurements {
	h.Helper()
	f := measurements{}
	for range 5 {
		text := h.httpGet("/debug/pprof/heap?gc=1&debug=1")
		for name, marker := range map[string]string{"heap": "# HeapAlloc = ", "stacks": "# Stack = "} {
			_, rest, found := strings.Cut(text, marker)
			digits, _, _ := strings.Cut(rest, "\n")
			digits, _, _ = strings.Cut(digits, " ")
			n, err := strconv.ParseInt(digits, 10, 64)
			if !found || err != nil {
				h.Fatalf("%s: %v in %.200q", marker, err, text)
			}
			if old, ok := f[name]; !ok || n < old {
				f[name] = n
			}
		}
	}
	f["resident"] = residentBytes(h.agent.Pid())
	if st, err := os.Stat(filepath.Join(h.agent.StateDir, "berth.db")); err == nil {
		f["store"] = st.Size()
	}
	if dir := os.Getenv("BERTH_CRASH_LOGS"); dir != "" { // set GODEBUG=memprofilerate=… for more detail
		file := fmt.Sprintf("hour-%s-%02d.", h.host.Version, len(h.log.restPoints))
		h.must("write a profile", os.WriteFile(filepath.Join(dir, file+"heap"),
			[]byte(h.httpGet("/debug/pprof/heap?gc=1")), 0o644))
		h.must("write a profile", os.WriteFile(filepath.Join(dir, file+"goroutines"),
			[]byte(h.httpGet("/debug/pprof/goroutine?debug=1")), 0o644))
	}
	return f
}

// residentBytes returns the resident memory of a process in bytes, or -1 if there is no such process.
func residentBytes(pid int) int64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	f := strings.Fields(string(text))
	if len(f) < 2 {
		return -1
	}
	pages, err := strconv.ParseInt(f[1], 10, 64)
	if err != nil {
		return -1
	}
	return pages * int64(os.Getpagesize())
}

// httpGet gets a page from the agent over a new connection. It returns an empty string on error.
func (h *longChurn) httpGet(path string) string {
	ctx, cancel := context.WithTimeout(h.Context(), 10*time.Second)
	defer cancel()
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _,
		_ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", h.agent.Socket)
	}}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://berth"+path, nil)
	if err != nil {
		return ""
	}
	resp, err := c.Do(req)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return string(text)
}

// metric returns the value of one of the agent's metrics, or -1 if it is not available.
func (h *longChurn) metric(name string) int64 {
	lines := bufio.NewScanner(strings.NewReader(h.httpGet("/metrics")))
	for lines.Scan() {
		if v, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			n, err := strconv.ParseFloat(v, 64)
			if err != nil {
				return -1
			}
			return int64(n)
		}
	}
	return -1
}

// startSampling takes samples until stop is called.
func (h *longChurn) startSampling() (stop func()) {
	every := min(max(h.duration/360, time.Second), 10*time.Second)
	ctx, cancel := context.WithCancel(h.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			f := h.measureCheap()
			f["resident"] = residentBytes(h.agent.Pid())
			f["pods"] = -1
			if pods := h.pods(); pods != nil {
				f["pods"] = 0
				for _, p := range pods {
					if p.Status.Phase == corev1.PodRunning {
						f["pods"]++
					}
				}
			}
			h.log.samples = append(h.log.samples, sample{at: h.elapsed(), measurements: f})
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
		}
	})
	stop = func() { cancel(); wg.Wait() }
	h.Cleanup(stop) // in case the test fails before
	return stop
}

// checkMemoryGrowth checks the memory growth in each run of the agent, from the first rest point after churn
// to the last. recordRestPoint checks the counts.
//
// heapSlack permits the growth of the event history: the agent keeps the events of 200 deleted pods for an
// hour, about 4 KiB each, and the first leg may have had a quarter of these pods.
func (h *longChurn) checkMemoryGrowth() {
	h.Helper()
	for agentRun := range h.agentRun + 1 {
		var points []restPoint
		for _, p := range h.log.restPoints[1:] {
			if p.agentRun == agentRun {
				points = append(points, p)
			}
		}
		first, last := points[0], points[len(points)-1]
		for what, slack := range map[string]int64{"heap": heapSlack, "resident": residentSlack} {
			if what == "resident" && raceEnabled {
				continue
			}
			if growth := last.sizes[what] - first.sizes[what]; growth > slack {
				h.Errorf("%s memory grew by %d KiB over %d pods in run %d of the agent: %d KiB, was %d KiB", what,
					growth>>10, last.created-first.created, agentRun+1, last.sizes[what]>>10, first.sizes[what]>>10)
			}
		}
	}
}
