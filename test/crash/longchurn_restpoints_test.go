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

// figures are counts and sizes by what they are of.
type figures map[string]int64

// What is counted at a rest point, and must be what it was: first what costs little
// to look at, and is looked at all the time too.
var (
	cheapNames = []string{"goroutines", "descriptors", "mounts", "network namespaces", "cgroups", "addresses", "files", "notes"}
	restNames  = []string{"processes", "rules", "chains", "links", "attachments", "directories", "leases", "snapshots"}
)

const (
	heapSlack     = 1 << 20 // of what is in use at a rest point, from leg to leg: see flat
	residentSlack = 8 << 20
)

// restPoint is what there was after a leg, when only the untouched pods
// were left.
type restPoint struct {
	at     time.Duration
	life   int
	came   int // pods so far
	counts figures
	sizes  figures // bytes: heap, stacks, resident, store
}

// sample is a look in passing; -1: not to be had.
type sample struct {
	at      time.Duration
	figures figures
}

// recordRestPoint waits until the agent and the host have come to rest, with as much of
// everything as at the first time, and notes what there is.
func (h *longChurn) recordRestPoint() {
	h.Helper()
	h.waitFor("only the pods that stay to be in the runtime", func() bool {
		return len(h.pods()) == stablePods && len(h.sandboxes("")) == stablePods
	})
	p := restPoint{life: h.life, came: h.log.came}
	first := figures{}
	if len(h.log.rests) > 0 {
		first = maps.Clone(h.log.rests[0].counts)
	}
	if short := h.length < 5*time.Minute; short || len(h.log.rests) < h.legs {
		delete(first, "notes") // a user's command is noted for a minute, which is waited for at the end only
	}
	p.counts = h.pollMinimum("what is looked at in passing to be what it was", h.cheapFigures, first, 10)
	maps.Copy(p.counts, h.pollMinimum("what stays to be what it was", h.restFigures, first, 3))
	// What a leg has left to be given back is given back some seconds after it.
	resident := int64(0)
	for _, was := range h.log.rests[min(1, len(h.log.rests)):] {
		if was.life == h.life && !raceEnabled { // the race detector keeps a memory of its own
			resident = was.sizes["resident"] + residentSlack
			break
		}
	}
	p.sizes = h.memory()
	if resident > 0 && p.sizes["resident"] > resident {
		ctx, cancel := context.WithTimeout(h.Context(), waitTimeout)
		_ = hosts.WaitFor(ctx, "memory to be given back", func() (bool, error) { // whether it was enough is judged at the end
			p.sizes["resident"] = min(p.sizes["resident"], residentOf(h.agent.Pid()))
			return p.sizes["resident"] <= resident, nil
		})
		cancel()
	}
	p.at = h.elapsed()
	h.log.rests = append(h.log.rests, p)
	h.Logf("rest point after %s, %d pods: %v, in KiB %v", p.at.Round(time.Second), p.came, p.counts, p.sizes.inKiB())
}

func (f figures) inKiB() figures {
	out := figures{}
	for k, v := range f {
		out[k] = v >> 10
	}
	return out
}

// pollMinimum looks time and again until of nothing there is more than at first; the first
// time it looks so many times. What is under way at one look, as a probe, is not at
// the next: the least of each is what stays.
func (h *longChurn) pollMinimum(what string, look func() figures, first figures, looks int) figures {
	h.Helper()
	least := figures{}
	over := func() (out []string) {
		for _, name := range slices.Sorted(maps.Keys(first)) {
			if is, looked := least[name]; looked && is > first[name] {
				was := first[name]
				out = append(out, fmt.Sprintf("%d %s, at first %d", is, name, was))
			}
		}
		return out
	}
	if !h.pollUntil(cleanupTimeout, what, func() bool {
		for name, n := range look() {
			if old, seen := least[name]; !seen || n < old {
				least[name] = n
			}
		}
		looks--
		return looks < 0 && len(first) == 0 || len(first) > 0 && len(over()) == 0
	}) {
		h.Errorf("more than at first: %s", strings.Join(over(), ", "))
		h.Logf("goroutines:\n%s", h.getPage("/debug/pprof/goroutine?debug=1"))
		h.Logf("descriptors: %v", h.descriptors())
		h.Logf("files:\n%s", strings.Join(h.files(), "\n"))
		h.Logf("of pods:\n%s", strings.Join(h.host.PodLeftovers(), "\n"))
	}
	return least
}

// cheapFigures is what can be looked at all the time; nothing of it needs the runtime.
func (h *longChurn) cheapFigures() figures {
	h.client.Close() // this program's idle connections are descriptors of the agent
	t := h.host.CountResources()
	f := figures{
		"goroutines": h.metric("go_goroutines"), "descriptors": int64(len(h.descriptors())), "mounts": int64(t.Mounts),
		"network namespaces": int64(t.Namespaces), "cgroups": int64(t.Cgroups), "addresses": int64(t.Addresses), "notes": 0,
	}
	all := h.files()
	for _, file := range all {
		if strings.HasPrefix(file, h.agent.StateDir+"/commands/") {
			f["notes"]++ // of commands under way
		}
	}
	f["files"] = int64(len(all)) - f["notes"]
	return f
}

// files are those of the agent and of what it keeps for pods, but for the names of
// images whose pull was called off: one stays each, until images are collected,
// because the outcome is unknown.
func (h *longChurn) files() []string {
	out := h.logLinks()
	for _, dir := range []string{h.agent.RootDir, h.agent.LogsDir, h.agent.StateDir} {
		_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() && !strings.Contains(path, "/image_manager/pulling/") {
				out = append(out, path)
			}
			return nil // what vanishes meanwhile is gone
		})
	}
	return out
}

// restFigures is what else pods have on the host, and what containerd keeps.
func (h *longChurn) restFigures() figures {
	h.Helper()
	f := figures{}
	for _, name := range restNames {
		f[name] = 0
	}
	for _, l := range h.host.PodLeftovers() {
		switch kind, what, _ := strings.Cut(l, " "); kind {
		case "process":
			f["processes"]++
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
	held, layers, err := h.host.CountLeasesAndSnapshots(h.Context())
	h.must("count what containerd keeps", err)
	f["leases"], f["snapshots"] = int64(held), int64(layers)
	return f
}

// descriptors are what the agent's lead to.
func (h *longChurn) descriptors() (to []string) {
	dir := fmt.Sprintf("/proc/%d/fd", h.agent.Pid())
	all, _ := os.ReadDir(dir)
	for _, d := range all {
		if l, err := os.Readlink(filepath.Join(dir, d.Name())); err == nil {
			to = append(to, l)
		}
	}
	slices.Sort(to)
	return to
}

// memory is what the agent has after it collected its garbage, the least of several
// times: of what is in use for a moment a part is found each time.
func (h *longChurn) memory() figures {
	h.Helper()
	f := figures{}
	for range 5 {
		text := h.getPage("/debug/pprof/heap?gc=1&debug=1")
		for name, mark := range map[string]string{"heap": "# HeapAlloc = ", "stacks": "# Stack = "} {
			_, rest, found := strings.Cut(text, mark)
			digits, _, _ := strings.Cut(rest, "\n")
			digits, _, _ = strings.Cut(digits, " ")
			n, err := strconv.ParseInt(digits, 10, 64)
			if !found || err != nil {
				h.Fatalf("%s: %v in %.200q", mark, err, text)
			}
			if old, seen := f[name]; !seen || n < old {
				f[name] = n
			}
		}
	}
	f["resident"] = residentOf(h.agent.Pid())
	if st, err := os.Stat(filepath.Join(h.agent.StateDir, "berth.db")); err == nil {
		f["store"] = st.Size()
	}
	if dir := os.Getenv("BERTH_CRASH_LOGS"); dir != "" { // GODEBUG=memprofilerate=… has it say more
		file := fmt.Sprintf("hour-%s-%02d.", h.host.Version, len(h.log.rests))
		h.must("keep a profile", os.WriteFile(filepath.Join(dir, file+"heap"), []byte(h.getPage("/debug/pprof/heap?gc=1")), 0o644))
		h.must("keep a profile", os.WriteFile(filepath.Join(dir, file+"goroutines"), []byte(h.getPage("/debug/pprof/goroutine?debug=1")), 0o644))
	}
	return f
}

// residentOf is the resident memory of a process in bytes; -1: it has none.
func residentOf(pid int) int64 {
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

// getPage asks the agent for a page on a connection of its own; empty: no answer.
func (h *longChurn) getPage(path string) string {
	ctx, cancel := context.WithTimeout(h.Context(), 10*time.Second)
	defer cancel()
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
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

// metric is a number that the agent tells; -1: it does not answer.
func (h *longChurn) metric(name string) int64 {
	lines := bufio.NewScanner(strings.NewReader(h.getPage("/metrics")))
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

// sampling looks in passing until the function that it returns is called.
func (h *longChurn) sampling() (stop func()) {
	every := min(max(h.length/360, time.Second), 10*time.Second)
	ctx, cancel := context.WithCancel(h.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		again := time.NewTicker(every)
		defer again.Stop()
		for {
			f := h.cheapFigures()
			f["resident"] = residentOf(h.agent.Pid())
			f["pods"] = -1
			if pods := h.pods(); pods != nil {
				f["pods"] = 0
				for _, p := range pods {
					if p.Status.Phase == corev1.PodRunning {
						f["pods"]++
					}
				}
			}
			h.log.samples = append(h.log.samples, sample{at: h.elapsed(), figures: f})
			select {
			case <-ctx.Done():
				return
			case <-again.C:
			}
		}
	})
	stop = func() { cancel(); wg.Wait() }
	h.Cleanup(stop) // of a test that fails before
	return stop
}

// checkMemoryGrowth judges the memory of each life: from the first rest point that churn came
// before to the last. Counts were waited for to be what they were.
//
// heapSlack is what the agent's memories of pods that are gone may still grow by: the
// events of 200 of them are kept for an hour, some 4 KiB each, and the first leg may
// have had a quarter of as many.
func (h *longChurn) checkMemoryGrowth() {
	h.Helper()
	for life := range h.life + 1 {
		var of []restPoint
		for _, p := range h.log.rests[1:] {
			if p.life == life {
				of = append(of, p)
			}
		}
		first, last := of[0], of[len(of)-1]
		for what, slack := range map[string]int64{"heap": heapSlack, "resident": residentSlack} {
			if what == "resident" && raceEnabled {
				continue
			}
			if grown := last.sizes[what] - first.sizes[what]; grown > slack {
				h.Errorf("%s has grown by %d KiB over %d pods in life %d: %d KiB, was %d", what, grown>>10, last.came-first.came, life+1, last.sizes[what]>>10, first.sizes[what]>>10)
			}
		}
	}
}
