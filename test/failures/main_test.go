package main

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestSummaryHasTheMessagesOfFailedTestsOnly(t *testing.T) {
	t.Parallel()
	var in strings.Builder
	write := func(e event) {
		if err := json.NewEncoder(&in).Encode(e); err != nil {
			t.Fatal(err)
		}
	}
	output := func(test string, lines ...string) {
		for _, l := range lines {
			write(event{Action: "output", Package: "p", Test: test, Output: l + "\n"})
		}
	}
	output("TestGood", "    good_test.go:1: fine")
	write(event{Action: "pass", Package: "p", Test: "TestGood"})
	output("TestBad", "=== RUN   TestBad", "    bad_test.go:1: first", "    bad_test.go:2: second",
		"    bad_test.go:3: output:", "        a", "        b", "        c", "    bad_test.go:7: seed 1",
		"I1127 a line of a library",
		"    server.go:199: time=2026-11-27 level=INFO", "    bad_test.go:9: want 1", "        got 2",
		"    bad_test.go:12: agent log:", "        time=2026-11-27 msg=started", "--- FAIL: TestBad (0.00s)")
	write(event{Action: "fail", Package: "p", Test: "TestBad"})
	output("", "FAIL", "FAIL\tp\t0.1s")
	write(event{Action: "fail", Package: "p"})
	in.WriteString("not JSON\n")
	write(event{Action: "output", Package: "q", Output: "panic: oops\n"})
	write(event{Action: "fail", Package: "q"})

	var out strings.Builder
	if err := summarize(strings.NewReader(in.String()), &out); err != nil {
		t.Fatal(err)
	}
	const want = `Failed: p TestBad
    bad_test.go:2: second
    bad_test.go:3: output:
        a
        b
    bad_test.go:7: seed 1
    bad_test.go:9: want 1
        got 2
Failed: q 
panic: oops
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}
