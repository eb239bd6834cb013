package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestDigest(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 2*widest)
	var trace, shown strings.Builder
	for i := range 2 * traceLines {
		fmt.Fprintf(&trace, "goroutine %d\n", i)
		if i < traceLines {
			fmt.Fprintf(&shown, "goroutine %d\n", i)
		}
	}
	for _, row := range []struct{ name, in, want string }{
		{"a package that is well", "I1123 noise\nok  \tberth/a\t1s\n", "ok  \tberth/a\t1s\n"},
		{
			"a failure", "--- FAIL: TestA (0.0s)\n    a_test.go:3: wrong\n        1\n        2\n        3\n        4\n        5\n        6\n        7\n    a_test.go:4: too\nFAIL\nnoise\nFAIL\tberth/a\t1s\n",
			"--- FAIL: TestA (0.0s)\n    a_test.go:3: wrong\n        1\n        2\n        3\n        4\n        5\n        6\n    a_test.go:4: too\nFAIL\nFAIL\tberth/a\t1s\n",
		},
		{"a part of a failure", "    --- FAIL: TestA/b (0.0s)\nnoise\n", "    --- FAIL: TestA/b (0.0s)\n"},
		{"what does not build", "# berth/a\na/a.go:3:4: undefined: b\nFAIL\tberth/a [build failed]\n", "# berth/a\na/a.go:3:4: undefined: b\nFAIL\tberth/a [build failed]\n"},
		{"a panic", "noise\npanic: b\n" + trace.String(), "panic: b\n" + shown.String()},
		{"a race", "WARNING: DATA RACE\nRead at\n==================\nFAIL\n", "WARNING: DATA RACE\nRead at\n==================\nFAIL\n"},
		{"a long line", "ok  " + long + "\n", ("ok  " + long)[:widest] + "…\n"},
		{"no end of a line", "FAIL", "FAIL"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			var got strings.Builder
			if err := digest(&got, strings.NewReader(row.in)); err != nil || got.String() != row.want {
				t.Errorf("got %q, %v, want %q", got.String(), err, row.want)
			}
		})
	}
}

func TestItEndsAsItsCommandDid(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "all")
	for want, args := range map[int][]string{0: {"true"}, 3: {"sh", "-c", "echo noise; echo more >&2; exit 3"}, 1: {"sh", "-c", "kill -9 $$"}} {
		if code, err := run(file, args); code != want || err != nil {
			t.Errorf("%v: %d, %v, want %d", args, code, err, want)
		}
		if want == 3 {
			if text, err := os.ReadFile(file); err != nil || string(text) != "noise\nmore\n" {
				t.Errorf("the file has %q, %v", text, err)
			}
		}
	}
	if _, err := run(file, []string{"/no/such/program"}); err == nil {
		t.Error("a program that is not there is no error")
	}
	if _, err := run(file, nil); err == nil {
		t.Error("no command is no error")
	}
}
