package crash

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/test/hosts"
)

// reportDir returns the directory for reports, or an empty string if none is requested.
func reportDir(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("BERTH_REPORT")
	if dir == "" || filepath.IsAbs(dir) {
		return dir
	}
	repo, err := hosts.RepoRoot()
	if err != nil {
		t.Error(err)
		return ""
	}
	return filepath.Join(repo, dir)
}

// writeReport writes a file in the report directory.
func writeReport(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Error(err)
		return
	}
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
		t.Error(err)
	}
	t.Logf("report: %s", filepath.Join(dir, name))
}

// machine describes the machine and the build of a run.
func machine() string {
	var u unix.Utsname
	_ = unix.Uname(&u) // empty on error
	field := func(file, name string) string {
		text, _ := os.ReadFile(file)
		for l := range strings.Lines(string(text)) {
			if k, v, ok := strings.Cut(l, ":"); ok && strings.TrimSpace(k) == name {
				return strings.TrimSpace(v)
			}
		}
		return "unknown"
	}
	groups := "v1"
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		groups = "v2"
	}
	load, _ := os.ReadFile("/proc/loadavg")
	built := "without"
	if raceEnabled {
		built = "with"
	}
	return fmt.Sprintf("%d CPUs (%s), %s of memory, Linux %s, cgroup %s, %s; commit %s; "+
		"built with %s, %s the race detector; load average at the end %s.",
		runtime.NumCPU(), field("/proc/cpuinfo", "model name"), field("/proc/meminfo", "MemTotal"),
		unix.ByteSliceToString(u.Release[:]), groups,
		runtime.GOARCH, commit(), runtime.Version(), built, strings.Join(strings.Fields(string(load))[:3], " "))
}

func commit() string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty", "--abbrev=9").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

func verdict(passed bool) string {
	if passed {
		return "passed"
	}
	return "**failed**"
}

// writeChurnReport writes the report of TestLongChurn if BERTH_REPORT is set.
func writeChurnReport(t *testing.T, seed int64, duration time.Duration, all []*runRecord) {
	t.Helper()
	dir := reportDir(t)
	if dir == "" {
		return
	}
	all = slices.DeleteFunc(slices.Clone(all), func(c *runRecord) bool { return c == nil || len(c.restPoints) == 0 })
	if len(all) == 0 {
		return
	}
	date := all[0].started.UTC().Format(time.DateOnly)
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p("# %s of churn with faults, %s\n", formatDuration(duration), date)
	p("`BERTH_HOUR=%s BERTH_SEED=%d BERTH_REPORT=docs/reports go test -v -count=1 -timeout 3h -run TestLongChurn "+
		"./test/crash` generated this report.", duration, seed)
	p("%s\n", machine())
	p("The test creates, edits and removes pods with seven behaviors at random. Edits change the image or the memory")
	p("limit in place, change the ConfigMap, or replace the pod by one of the same name. Three stable pods are never")
	p("changed. User requests and execs use the stable pods. The test injects and reverts one fault after another.")
	p("After each leg, it deletes all other pods and counts the remaining resources. All versions of containerd run in")
	p("parallel.\n")
	p("| containerd | duration | pods created and deleted | edits | faults | user requests sent, succeeded | " +
		"compared statuses of pods that had been Ready | result |")
	p("|---|---|---|---|---|---|---|---|")
	for _, c := range all {
		p("| %s | %s | %d | %d | %d | %d, %d | %d of %d pods | %s |", c.runtime, c.duration.Round(time.Second),
			c.created, total(c.edits), len(c.faults), total(c.users.sent), total(c.users.succeeded), c.comparisons,
			c.readyPods, verdict(c.passed))
	}
	p("\n![memory, goroutines and descriptors of the agent, and pods, over time; vertical lines are faults]"+
		"(%s-hour.svg)\n", date)
	for _, c := range all {
		c.writeRestPoints(p)
		c.writeFaults(p)
	}
	p("## Criteria\n")
	p("* No count at a rest point exceeds the first rest point, before any churn. The count is the minimum of several")
	p("  measurements, because some of them include short activities such as probes.")
	p("* From the first rest point after churn to the last one in the same run of the agent, the heap after a garbage")
	p("  collection grows by at most %d KiB and the resident memory by at most %d KiB. The agent keeps the events of",
		heapSlack>>10, residentSlack>>10)
	p("  up to 200 deleted pods for an hour.")
	p("* No container of a stable pod restarts, and no condition of a stable pod changes.")
	p("* Other pods stay Ready and keep their containers and address, unless their image was edited or a fault")
	p("  targeted them.")
	p("* No container starts more often than its status reports.")
	p("* After each fault, all pods reach their desired state. The recovery time includes the starts of pods that were")
	p("  just created. The row \"none\" shows how long these starts take without a fault.")
	p("* At the end, no resources remain.")
	writeReport(t, dir, date+"-hour.md", b.String())
	writeReport(t, dir, date+"-hour.svg", drawChurnPlot(all))
}

func formatDuration(duration time.Duration) string {
	if duration == time.Hour {
		return "An hour"
	}
	return duration.String()
}

func total(of map[string]int) (sum int) {
	for _, n := range of {
		sum += n
	}
	return sum
}

// writeRestPoints writes the table of rest points of one run.
func (c *runRecord) writeRestPoints(p func(format string, args ...any)) {
	p("## containerd %s\n", c.runtime)
	counts := slices.Concat(cheapNames, restNames)
	p("| rest point | run of the agent | pods so far | heap, KiB | stacks, KiB | resident, KiB | store, KiB | %s |",
		strings.Join(counts, " | "))
	p("|%s", strings.Repeat("---|", 7+len(counts)))
	for _, r := range c.restPoints {
		row := fmt.Sprintf("| %s | %d | %d |", r.at.Round(time.Second), r.agentRun+1, r.created)
		for _, s := range []string{"heap", "stacks", "resident", "store"} {
			row += fmt.Sprintf(" %d |", r.sizes[s]>>10)
		}
		for _, n := range counts {
			row += fmt.Sprintf(" %d |", r.counts[n])
		}
		p("%s", row)
	}
	p("\n-1: unknown, because containerd keeps resources of an interrupted call for a day.\n")
}

// writeFaults writes the table of faults of one run.
func (c *runRecord) writeFaults(p func(format string, args ...any)) {
	p("| fault, containerd %s | count | maximum duration | recovery, median | recovery, maximum |", c.runtime)
	p("|---|---|---|---|---|")
	kinds, of := c.faultsByKind()
	for _, kind := range kinds {
		all := of[kind]
		longest := slices.MaxFunc(all, func(a, b faultRecord) int { return cmp.Compare(a.duration, b.duration) })
		p("| %s | %d | %.1f s | %.1f s | %.1f s |", kind, len(all), longest.duration.Seconds(),
			all[len(all)/2].recovery.Seconds(), all[len(all)-1].recovery.Seconds())
	}
	p("\nEdits: %s. User requests: %s.\n", countsText(c.edits), c.users.table())
}

func countsText(of map[string]int) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(of)) {
		out = append(out, fmt.Sprintf("%s %d", k, of[k]))
	}
	return strings.Join(out, ", ")
}

func (r userRequests) table() string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(r.sent)) {
		out = append(out, fmt.Sprintf("%s %d of %d", k, r.succeeded[k], r.sent[k]))
	}
	return strings.Join(out, ", ") + " succeeded; the others were canceled, or the agent or the runtime was down"
}

// drawChurnPlot returns an SVG with three panels per run.
func drawChurnPlot(all []*runRecord) string {
	var panels []chartPanel
	duration := time.Duration(0)
	for _, c := range all {
		duration = max(duration, c.duration)
		for _, s := range c.samples {
			duration = max(duration, s.at)
		}
		for _, r := range c.restPoints {
			duration = max(duration, r.at)
		}
		of := func(name string, per float64) (out []point) {
			for _, s := range c.samples {
				v := float64(s.measurements[name]) / per
				if s.measurements["goroutines"] < 0 {
					v = -1 // the agent was down
				}
				out = append(out, point{s.at, v})
			}
			return out
		}
		var heap []point
		for _, r := range c.restPoints {
			heap = append(heap, point{r.at, float64(r.sizes["heap"]) / (1 << 20)})
		}
		var ticks []time.Duration
		for _, s := range c.faults {
			ticks = append(ticks, s.at)
		}
		name := "containerd " + c.runtime
		panels = append(panels,
			chartPanel{title: name + ": agent memory, MiB", ticks: ticks, lines: []line{
				{name: "resident", points: of("resident", 1<<20)}, {name: "heap at rest points", points: heap,
					dots: true},
			}},
			chartPanel{title: name + ": agent resources", ticks: ticks, lines: []line{
				{name: "goroutines", points: of("goroutines", 1)}, {name: "descriptors", points: of("descriptors", 1)},
			}},
			chartPanel{title: name + ": host resources", ticks: ticks, lines: []line{
				{name: "running pods", points: of("pods", 1)}, {name: "addresses", points: of("addresses", 1)},
				{name: "network namespaces", points: of("network namespaces", 1)},
			}},
		)
	}
	return draw(duration, panels)
}
