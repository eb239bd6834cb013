package vm

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseReport(t *testing.T) {
	t.Parallel()
	got, err := parseReport("started at 9s\r\nchecks: a b c\r\n\x16=== RUN   a\r\n\x16--- PASS: a (0.20s)\r\n\x16=== " +
		"NAME  \r\n" +
		"\x16=== RUN   b\r\n    b.go:1: bad\r\n--- PASS: b (0.10s), printed by the check\r\n\x16--- FAIL: b " +
		"(1.00s)\r\n\x16=== RUN   c\r\nhangs\r\n")
	want := []result{
		{name: "a", took: "0.20s", ok: true},
		{name: "b", took: "1.00s", output: "    b.go:1: bad\n--- PASS: b (0.10s), printed by the check\n"},
		{name: "c", output: "hangs\n"},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(result{})); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	for _, text := range []string{"", "started at 9s\n"} {
		if _, err := parseReport(text); err == nil {
			t.Errorf("parseReport(%q) succeeds, want an error", text)
		}
	}
	if got, err := parseReport("\nchecks: a\n"); err != nil || len(got) != 1 || got[0].ok {
		t.Errorf("check without result: got %v, %v; want one unfinished result", got, err)
	}
}
