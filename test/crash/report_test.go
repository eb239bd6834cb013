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

// reportDir is where a run is to leave its report; empty: nowhere.
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

// writeReport writes a file of a report.
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

// machine says where and with what a run was made.
func machine() string {
	var u unix.Utsname
	_ = unix.Uname(&u) // then it is empty
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
	return fmt.Sprintf("%d CPUs (%s), %s of memory, Linux %s, cgroup %s, %s; commit %s; built with %s, %s the race detector; load at the end %s.",
		runtime.NumCPU(), field("/proc/cpuinfo", "model name"), field("/proc/meminfo", "MemTotal"), unix.ByteSliceToString(u.Release[:]), groups,
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

// reportHour writes the report of an hour of churn, if one is asked for.
func reportHour(t *testing.T, seed int64, length time.Duration, all []*runRecord) {
	t.Helper()
	dir := reportDir(t)
	if dir == "" {
		return
	}
	all = slices.DeleteFunc(slices.Clone(all), func(c *runRecord) bool { return c == nil || len(c.rests) == 0 })
	if len(all) == 0 {
		return
	}
	date := all[0].began.UTC().Format(time.DateOnly)
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p("# %s of churn under faults, %s\n", formatLength(length), date)
	p("`BERTH_HOUR=%s BERTH_SEED=%d BERTH_REPORT=docs/reports go test -v -count=1 -timeout 3h -run TestLongChurn ./test/crash` wrote this.", length, seed)
	p("%s\n", machine())
	p("Pods of seven kinds are made, edited (image and memory in place, ConfigMap, another pod of the name) and removed at random beside three that")
	p("nobody touches, users look at those and run commands in them, and one fault after another strikes and is let go. After each leg all but the")
	p("three go, and what is left is counted. All versions of containerd ran side by side.\n")
	p("| containerd | time | pods that came and went | edits | faults | users' questions, answered | answers about pods that had been Ready | result |")
	p("|---|---|---|---|---|---|---|---|")
	for _, c := range all {
		p("| %s | %s | %d | %d | %d | %d, %d | %d about %d | %s |", c.runtime, c.took.Round(time.Second), c.came, total(c.edits), len(c.faults),
			total(c.users.asked), total(c.users.answered), c.answers, c.wereReady, verdict(c.passed))
	}
	p("\n![the agent's memory, goroutines, descriptors and pods over time; faults are vertical lines](%s-hour.svg)\n", date)
	for _, c := range all {
		c.writeRestPoints(p)
		c.writeFaults(p)
	}
	p("## What is judged\n")
	p("At each rest point there is of everything that is counted no more than at the first, before any churn: the least of several looks, because a probe")
	p("that is under way is none the next time. From the first rest point with churn behind it to the last of the same life of the agent its heap, after")
	p("garbage is collected, grows by %d KiB at most and its resident memory by %d: it remembers the events of up to 200 pods that are gone for an hour.", heapSlack>>10, residentSlack>>10)
	p("Of the untouched pods no container restarts and no condition ever changes; of the others that were Ready none is said not to be, or to have another")
	p("container or address, unless its image was edited or a fault struck it by name; every pod really begins as often as its status says, or less. After every")
	p("fault all comes to be as it is wanted: that is the recovery")
	p("below, which includes the starts of pods that were just made; the row \"none\" says how long those take by themselves. At the end nothing is left.")
	writeReport(t, dir, date+"-hour.md", b.String())
	writeReport(t, dir, date+"-hour.svg", drawHour(all))
}

func formatLength(length time.Duration) string {
	if length == time.Hour {
		return "An hour"
	}
	return length.String()
}

func total(of map[string]int) (sum int) {
	for _, n := range of {
		sum += n
	}
	return sum
}

// writeRestPoints writes the table of rest points.
func (c *runRecord) writeRestPoints(p func(format string, args ...any)) {
	p("## containerd %s\n", c.runtime)
	counts := slices.Concat(cheapNames, restNames)
	p("| rest point | the agent's life | pods so far | heap, KiB | stacks | resident | store | %s |", strings.Join(counts, " | "))
	p("|%s", strings.Repeat("---|", 7+len(counts)))
	for _, r := range c.rests {
		row := fmt.Sprintf("| %s | %d | %d |", r.at.Round(time.Second), r.life+1, r.came)
		for _, s := range []string{"heap", "stacks", "resident", "store"} {
			row += fmt.Sprintf(" %d |", r.sizes[s]>>10)
		}
		for _, n := range counts {
			row += fmt.Sprintf(" %d |", r.counts[n])
		}
		p("%s", row)
	}
	p("\n-1: not to be told, because containerd holds something for a day for a call of its own that its death cut off.\n")
}

// writeFaults writes the table of faults.
func (c *runRecord) writeFaults(p func(format string, args ...any)) {
	p("| fault, containerd %s | times | held up to | recovery, median | worst |", c.runtime)
	p("|---|---|---|---|---|")
	kinds, of := c.faultsByKind()
	for _, kind := range kinds {
		all := of[kind]
		longest := slices.MaxFunc(all, func(a, b faultRecord) int { return cmp.Compare(a.held, b.held) })
		p("| %s | %d | %.1f s | %.1f s | %.1f s |", kind, len(all), longest.held.Seconds(), all[len(all)/2].recovery.Seconds(), all[len(all)-1].recovery.Seconds())
	}
	p("\nEdits: %s. Users: %s.\n", countsText(c.edits), c.users.table())
}

func countsText(of map[string]int) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(of)) {
		out = append(out, fmt.Sprintf("%s %d", k, of[k]))
	}
	return strings.Join(out, ", ")
}

func (v userRequests) table() string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(v.asked)) {
		out = append(out, fmt.Sprintf("%s %d of %d", k, v.answered[k], v.asked[k]))
	}
	return strings.Join(out, ", ") + " were answered; the rest they left themselves, or something was away"
}

// drawHour is the plot: three panels of each run.
func drawHour(all []*runRecord) string {
	var panels []chartPanel
	length := time.Duration(0)
	for _, c := range all {
		length = max(length, c.took)
		for _, s := range c.samples {
			length = max(length, s.at)
		}
		for _, r := range c.rests {
			length = max(length, r.at)
		}
		of := func(name string, per float64) (out []point) {
			for _, s := range c.samples {
				v := float64(s.figures[name]) / per
				if s.figures["goroutines"] < 0 {
					v = -1 // the agent was dead
				}
				out = append(out, point{s.at, v})
			}
			return out
		}
		var heap []point
		for _, r := range c.rests {
			heap = append(heap, point{r.at, float64(r.sizes["heap"]) / (1 << 20)})
		}
		var ticks []time.Duration
		for _, s := range c.faults {
			ticks = append(ticks, s.at)
		}
		name := "containerd " + c.runtime
		panels = append(panels,
			chartPanel{title: name + ": memory of the agent, MiB", ticks: ticks, lines: []line{
				{name: "resident", points: of("resident", 1<<20)}, {name: "heap at rest points", points: heap, dots: true},
			}},
			chartPanel{title: name + ": of the agent", ticks: ticks, lines: []line{
				{name: "goroutines", points: of("goroutines", 1)}, {name: "descriptors", points: of("descriptors", 1)},
			}},
			chartPanel{title: name + ": on the host", ticks: ticks, lines: []line{
				{name: "pods that run", points: of("pods", 1)}, {name: "addresses", points: of("addresses", 1)}, {name: "network namespaces", points: of("network namespaces", 1)},
			}},
		)
	}
	return draw(length, panels)
}
