package main

import (
	"strings"
	"testing"
)

func TestMissedGoalIsMarked(t *testing.T) {
	t.Parallel()
	rows := []row{
		{"warm", "160.0 ms", "148.0 ms", "1.08 x", "<= 1.10 x"},
		{"burst", "4000.0 ms", "3500.0 ms", "1.14 x", "<= 1.10 x"},
		{"idle", "30.0 MiB", "-", "", "<= 30 MiB"},
		{"full", "38.1 MiB", "-", "", "<= 38 MiB"},
		{"exec", "80.0", "81.0", "0.94 x", ">= 0.95 x"},
		{"watch", "9.0 ms / 16.0 ms", "-", "", "p99 <= 15 ms"},
		{"late", "1", "0", "", "<= 0"},
		{"made", "500.0", "500", "", ">= 499"},
		{"cpu", "0.31 %", "0", "", "<= 0.3 %"},
		{"creates", "300 /s", "-", "", "as kube-apiserver"},
		{"reported", "3.0 %", "0", "", "reported"},
		{"part", "3.0 ms", "-", "", ""},
	}
	summary, err := markMissed(rows)
	if err != nil {
		t.Fatal(err)
	}
	var missed []string
	for _, r := range rows {
		if strings.HasSuffix(r.goal, "MISSED") {
			missed = append(missed, r.what)
		}
	}
	if got := strings.Join(missed, " "); got != "burst full exec watch late cpu" {
		t.Errorf("missed: got %s, want burst full exec watch late cpu", got)
	}
	want := "MISSED: 6 of 9 goals: burst (4000.0 ms, 1.14 x); full (38.1 MiB); exec (80.0, 0.94 x); watch (9.0 ms / " +
		"16.0 ms); late (1); cpu (0.31 %)."
	if summary != want {
		t.Errorf("summary: got %s, want %s", summary, want)
	}
	if s, err := markMissed(rows[:1]); err != nil || s != "All 1 goals are met." {
		t.Errorf("summary of one row: got %s, %v", s, err)
	}
	for _, r := range []row{{"unit", "1.0 s", "-", "", "<= 1500 ms"}, {"no ratio", "1.0 ms", "-", "", "<= 1.10 x"},
		{"text", "much", "-", "", "<= 1 %"}} {
		if _, err := r.missed(); err == nil {
			t.Errorf("%s: comparison of %s with %s succeeds, want an error", r.what, r.got, r.goal)
		}
	}
}

func TestBenchmarkTimesAreParsed(t *testing.T) {
	t.Parallel()
	took, err := perOp("goos: linux\nBenchmarkDecide20-2   \t   32421\t     37012 ns/op\t   24792 " +
		"B/op\nBenchmarkDecide20 \t 100\t 812.5 ns/op\nPASS\n")
	if err != nil || len(took) != 2 || took[0] != 37012 || took[1] != 812 {
		t.Errorf("got %v, %v; want 37012 and 812", took, err)
	}
	if took, err := perOp("PASS\nok\tberth/agent/plan\n"); err == nil {
		t.Errorf("perOp without results: got %v, want an error", took)
	}
	if is, err := (row{"decide", "50.1 µs", "-", "", "<= 50 µs"}).missed(); err != nil || !is {
		t.Errorf("50.1 µs with goal 50 µs: got missed %v, %v; want true", is, err)
	}
}
