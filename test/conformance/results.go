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

// part is a share of the tests that one process runs, one test after the other.
type part struct{ name, focus, skip, labels string }

const (
	beside = "Conformance && !Serial"
	alone  = "Conformance && Serial"
)

// parts are run at once, for their tests take minutes of waiting each; those of the
// second list come after the others, alone.
var parts = [][]part{
	{
		{"storage-sources", `\[sig-storage\] (Projected|Downward)`, ``, beside},
		{"storage", `\[sig-storage\]`, `\[sig-storage\] (Projected|Downward)`, beside},
		{"node", `\[sig-node\]`, `\[sig-node\] Probing`, beside},
		{"probing-exec", `\[sig-node\] Probing.*exec`, ``, beside},
		{"probing", `\[sig-node\] Probing`, `exec`, beside},
	},
	{{"serial", `\[sig-(node|storage)\]`, ``, alone}},
}

// standInFailures are tests, by the beginnings of their names, that fail for the stand-ins whatever
// runs them. They count as neither passed nor failed.
var standInFailures = map[string]string{
	"[sig-node] Kubelet when scheduling a read only busybox container should not write": "it wants the words of busybox's shell; the stand-in has bash, for busybox's drops variables that other tests set",
}

// result is one test that was run.
type result struct {
	Name    string  `xml:"name,attr"`
	Status  string  `xml:"status,attr"`
	Seconds float64 `xml:"time,attr"`
	Failure string  `xml:"failure"`
}

type results []result

// test runs the tests and reads their reports.
func test(ctx context.Context, p *programs, pl *controlPlane, focus, dir string) (results, error) {
	all, todo := results(nil), parts
	if focus != "" {
		todo = [][]part{{{"focus", focus, "", "Conformance"}}}
	}
	for _, some := range todo {
		some, err := together(ctx, p, pl, some, dir)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	if len(all) == 0 {
		return nil, errors.New("no test was run")
	}
	slices.SortFunc(all, func(a, b result) int { return cmp.Compare(a.Name, b.Name) })
	return all, nil
}

func together(ctx context.Context, p *programs, pl *controlPlane, some []part, dir string) (results, error) {
	each, errs := make([]results, len(some)), make([]error, len(some))
	var wg sync.WaitGroup
	for i, one := range some {
		wg.Go(func() { each[i], errs[i] = one.run(ctx, p, pl, filepath.Join(dir, one.name)) })
	}
	wg.Wait()
	return slices.Concat(each...), errors.Join(errs...)
}

// run runs one process. That tests fail is no error: its report says it.
func (o part) run(ctx context.Context, p *programs, pl *controlPlane, dir string) (results, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	args := []string{"--kubeconfig", pl.kubeconfig, "--provider", "skeleton", "--report-dir", dir, "--ginkgo.no-color", "--ginkgo.timeout", "90m",
		"--ginkgo.label-filter", o.labels, "--ginkgo.focus", o.focus}
	if o.skip != "" {
		args = append(args, "--ginkgo.skip", o.skip)
	}
	_, failed := p.suite(ctx, dir, func(cmd *exec.Cmd) ([]byte, error) {
		cmd.Stdout, cmd.Stderr = log, log
		return nil, cmd.Run()
	}, args...)
	some, err := read(filepath.Join(dir, "junit_01.xml"))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.name, errors.Join(failed, err))
	}
	return some, nil
}

// read returns what was run of a report's tests.
func read(file string) (all results, err error) {
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

// classified is the result with what is known of the stand-ins.
func (r result) classified() result {
	for name, why := range standInFailures {
		if r.Status == "failed" && strings.HasPrefix(r.Name, name) {
			r.Status, r.Failure = "apart", why
		}
	}
	return r
}

func (r results) passed() bool {
	return !slices.ContainsFunc(r, func(x result) bool { return x.Status != "passed" && x.Status != "apart" })
}

// print writes how many tests of each group passed, and those that did not with the
// first lines of why.
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
			why := strings.Split(x.Failure, "\n")
			fmt.Fprintf(w, "%s: %s\n  %s\n", x.Status, x.Name, strings.Join(why[:min(len(why), 8)], "\n  "))
		}
	}
}
