package main

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"time"

	"berth/test/hosts"
)

// decide runs the benchmark of a plan decision for a pod in steady state.
func (b *bench) decide(ctx context.Context) error {
	took, err := benchmark(ctx, "BenchmarkDecide20", "./agent/plan")
	if err != nil {
		return err
	}
	b.add("one decision, a steady pod of 20 containers, median", fmt.Sprintf("%.1f µs", float64(took)/1e3), "-", "",
		"<= 50 µs")
	return nil
}

// evictionDecide runs the benchmark of the eviction ranking.
func (b *bench) evictionDecide(ctx context.Context) error {
	took, err := benchmark(ctx, "BenchmarkEviction500", "./node/pressure")
	if err != nil {
		return err
	}
	b.add("eviction ranking of 500 pods, median", fmt.Sprintf("%.2f ms", float64(took)/1e6), "-", "", "<= 5 ms")
	return nil
}

// benchmark runs a Go benchmark of a package and returns the median time of one operation.
func benchmark(ctx context.Context, name, pkg string) (time.Duration, error) {
	repo, err := hosts.RepoRoot()
	if err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "^"+name+"$", "-count", strconv.Itoa(*rounds),
		pkg)
	cmd.Dir = repo
	out, err := cmd.CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("%w\n%s", err, out)
	}
	took, err := perOp(string(out))
	if err != nil {
		return 0, err
	}
	return median(took), nil
}

var nsPerOp = regexp.MustCompile(`(?m)^Benchmark\S+\s+\d+\s+([0-9.]+) ns/op`)

// perOp parses the times of one operation in the output of go test -bench.
func perOp(text string) (took []time.Duration, err error) {
	for _, m := range nsPerOp.FindAllStringSubmatch(text, -1) {
		ns, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			return nil, err
		}
		took = append(took, time.Duration(ns))
	}
	if len(took) == 0 {
		return nil, fmt.Errorf("no benchmark result in\n%s", text)
	}
	return took, nil
}
