package main

import (
	"cmp"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// testProcess is a subset of the tests that one process runs sequentially. sig is the special interest group that owns
// the tests.
type testProcess struct{ sig, name, focus, skip, labels string }

const (
	parallelLabels = "Conformance && !Serial"
	serialLabels   = "Conformance && Serial"
)

// processGroups lists the test processes. Those of one group run in parallel because their tests mostly wait.
// The groups run one after the other.
var processGroups = [][]testProcess{
	{
		{"storage", "storage-sources", `\[sig-storage\] (Projected|Downward)`, ``, parallelLabels},
		{"storage", "storage", `\[sig-storage\]`, `\[sig-storage\] (Projected|Downward)`, parallelLabels},
		{"node", "node", `\[sig-node\]`, `\[sig-node\] Probing`, parallelLabels},
		{"node", "probing-exec", `\[sig-node\] Probing.*exec`, ``, parallelLabels},
		{"node", "probing", `\[sig-node\] Probing`, `exec`, parallelLabels},
	},
	{
		{"apps", "statefulset", `\[sig-apps\] StatefulSet`, ``, parallelLabels},
		{"apps", "jobs", `\[sig-apps\] (CronJob|Job)`, ``, parallelLabels},
		{"apps", "apps", `\[sig-apps\]`, `\[sig-apps\] (StatefulSet|CronJob|Job)`, parallelLabels},
		{"apps", "garbage-collector", `\[sig-api-machinery\] Garbage collector`, ``, parallelLabels},
	},
	{
		{"network", "services", `\[sig-network\] Services`, ``, parallelLabels},
		{"network", "dns", `\[sig-network\] DNS`, ``, parallelLabels},
		{"network", "network", `\[sig-network\]`, `\[sig-network\] (Services|DNS)`, parallelLabels},
	},
	{{"storage", "serial-storage", `\[sig-storage\]`, ``, serialLabels}},
	{{"node", "serial-node", `\[sig-node\]`, ``, serialLabels}},
	{{"apps", "serial-apps", `\[sig-apps\]`, ``, serialLabels}},
	{{"network", "serial-network", `\[sig-network\]`, ``, serialLabels}},
}

// standInFailures maps name prefixes of tests that fail because of the replaced images to the reason. They count
// as neither passed nor failed.
var standInFailures = map[string]string{
	"[sig-node] Kubelet when scheduling a read only busybox container should not write": "it expects the error " +
		"message of busybox's shell; the replacement has bash, because busybox's shell drops variables that other " +
		"tests set",
}

// result is the result of one test.
type result struct {
	Name    string  `xml:"name,attr"`
	Status  string  `xml:"status,attr"`
	Seconds float64 `xml:"time,attr"`
	Failure string  `xml:"failure"`
}

type results []result

// test runs the selected tests and returns their results.
func test(ctx context.Context, p *programs, pl *controlPlane, s selection, dir string) (results, error) {
	all := results(nil)
	for _, group := range s.groups() {
		group, err := runParallel(ctx, p, pl, group, dir)
		if err != nil {
			return nil, err
		}
		all = append(all, group...)
	}
	if len(all) == 0 {
		return nil, errors.New("no tests were run")
	}
	slices.SortFunc(all, func(a, b result) int { return cmp.Compare(a.Name, b.Name) })
	return all, nil
}

// selection selects tests: those of the special interest groups, or those whose names match focus if it is not empty
// and whose labels match the filter labels. lan requests nodes on a LAN.
type selection struct {
	sigs   []string
	focus  string
	labels string
	lan    bool
}

// onLAN reports whether the tests run on nodes on a LAN.
func (s selection) onLAN() bool { return s.lan || s.focus == "" && slices.Contains(s.sigs, "network") }

// groups returns the selected test processes in their groups.
func (s selection) groups() (out [][]testProcess) {
	if s.focus != "" {
		return [][]testProcess{{{"", "focus", s.focus, "", s.labels}}}
	}
	for _, group := range processGroups {
		if selected := slices.DeleteFunc(slices.Clone(group), func(o testProcess) bool {
			return !slices.Contains(s.sigs, o.sig)
		}); len(selected) > 0 {
			out = append(out, selected)
		}
	}
	return out
}

func runParallel(ctx context.Context, p *programs, pl *controlPlane, group []testProcess, dir string) (results, error) {
	each, errs := make([]results, len(group)), make([]error, len(group))
	var wg sync.WaitGroup
	for i, one := range group {
		wg.Go(func() { each[i], errs[i] = one.run(ctx, p, pl, filepath.Join(dir, one.name)) })
	}
	wg.Wait()
	return slices.Concat(each...), errors.Join(errs...)
}

// run runs one process. Failed tests are not an error: they are in the report.
func (o testProcess) run(ctx context.Context, p *programs, pl *controlPlane, dir string) (results, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	args := []string{"--kubeconfig", pl.kubeconfig, "--kubectl-path", pl.kubectl, "--provider", "skeleton",
		"--report-dir", dir, "--ginkgo.no-color",
		"--ginkgo.timeout", "90m",
		"--ginkgo.label-filter", o.labels, "--ginkgo.focus", o.focus}
	if o.skip != "" {
		args = append(args, "--ginkgo.skip", o.skip)
	}
	_, suiteErr := p.suite(ctx, dir, func(cmd *exec.Cmd) ([]byte, error) {
		cmd.Stdout, cmd.Stderr = log, log
		return nil, cmd.Run()
	}, args...)
	group, err := readReport(filepath.Join(dir, "junit_01.xml"))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.name, errors.Join(suiteErr, err))
	}
	return group, nil
}

// readReport returns the results of the tests that were run, from a JUnit report.
func readReport(file string) (all results, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var report struct {
		Suites []struct {
			Cases results `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.Unmarshal(text, &report); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	for _, s := range report.Suites {
		for _, c := range s.Cases {
			if name, is := strings.CutPrefix(c.Name, "[It] "); is && c.Status != "skipped" {
				c.Name = name
				all = append(all, c.classified())
			}
		}
	}
	return all, nil
}

// classified returns the result with status excluded if the failure is caused by a replaced image.
func (r result) classified() result {
	for name, reason := range standInFailures {
		if r.Status == "failed" && strings.HasPrefix(r.Name, name) {
			r.Status, r.Failure = "excluded", reason
		}
	}
	return r
}

func (r results) passed() bool {
	return !slices.ContainsFunc(r, func(x result) bool { return x.Status != "passed" && x.Status != "excluded" })
}

// print writes the number of passed tests per group, and the other tests with the first lines of the reason.
func (r results) print(w io.Writer, server string) {
	groups, byGroup := []string(nil), map[string]results{}
	for _, x := range r {
		group, _, _ := strings.Cut(x.Name, " ")
		if byGroup[group] == nil {
			groups = append(groups, group)
		}
		byGroup[group] = append(byGroup[group], x)
	}
	for _, group := range groups {
		passed, seconds := 0, 0.0
		for _, x := range byGroup[group] {
			seconds += x.Seconds
			if x.Status == "passed" {
				passed++
			}
		}
		fmt.Fprintf(w, "%-8s %-22s %3d of %3d passed, %5.0f s\n", server, group, passed, len(byGroup[group]), seconds)
	}
	for _, x := range r {
		if x.Status != "passed" {
			reason := strings.Split(x.Failure, "\n")
			fmt.Fprintf(w, "%s: %s\n  %s\n", x.Status, x.Name, strings.Join(reason[:min(len(reason), 8)], "\n  "))
		}
	}
}
