// Command failures prints what failed tests reported, without their logs: a log of a server or an agent
// hides the few lines that matter. It reads the output of go test -json from the file in its argument.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
)

const (
	maxLines = 40  // of one test
	maxWidth = 400 // bytes of one line
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: failures FILE")
		os.Exit(2)
	}
	f, err := os.Open(os.Args[1])
	if err == nil {
		err = summarize(f, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "failures:", err)
		os.Exit(1)
	}
}

// event is a line of go test -json.
type event struct {
	Action, Package, Test, Output string
}

type testName struct{ pkg, test string }

// report collects the relevant lines of a test.
type report struct {
	lines   []string
	omitted int
	// continued is whether the previous line belongs to a message, so that indented lines after it do too.
	continued bool
}

var (
	// message is the first line of a call of t.Error, t.Fatal or t.Log.
	message = regexp.MustCompile(`^\s+[\w-]+\.go:\d+: `)
	// logLine is a line of a log that a test repeats with t.Log.
	logLine = regexp.MustCompile(`^\s+[\w-]+\.go:\d+: (time=|level=|agent log:)`)
	// crash is a line that the test framework or the Go runtime prints for a failure.
	crash = regexp.MustCompile(
		`^(panic: |fatal error: |\*\*\* Test killed|FAIL\s)|test timed out|DATA RACE`)
)

// summarize writes the relevant lines of each failed test. A failed package without a failed test counts as a test.
func summarize(r io.Reader, w io.Writer) error {
	reports := map[testName]*report{}
	failed := map[string]bool{} // packages with a failed test
	in := bufio.NewScanner(r)
	in.Buffer(nil, 64<<20)
	for in.Scan() {
		var e event
		if json.Unmarshal(in.Bytes(), &e) != nil {
			continue // output of a build
		}
		name := testName{e.Package, e.Test}
		switch e.Action {
		case "output":
			if reports[name] == nil {
				reports[name] = &report{}
			}
			reports[name].add(strings.TrimRight(e.Output, "\n"))
		case "pass", "skip":
			delete(reports, name)
		case "fail":
			if e.Test == "" && failed[e.Package] {
				continue
			}
			failed[e.Package] = true
			if err := reports[name].write(w, name); err != nil {
				return err
			}
			delete(reports, name)
		}
	}
	return in.Err()
}

func (r *report) add(line string) {
	switch {
	case crash.MatchString(line):
		r.continued = false
	case message.MatchString(line):
		r.continued = !logLine.MatchString(line)
		if !r.continued {
			return
		}
	case !r.continued || !strings.HasPrefix(line, "        "):
		r.continued = false
		return
	}
	if len(r.lines) == maxLines {
		r.omitted++
		return
	}
	if len(line) > maxWidth {
		line = line[:maxWidth] + "…"
	}
	r.lines = append(r.lines, line)
}

func (r *report) write(w io.Writer, name testName) error {
	_, err := fmt.Fprintf(w, "Failed: %s %s\n", name.pkg, name.test)
	if r == nil || err != nil {
		return err
	}
	for _, line := range r.lines {
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	if r.omitted > 0 {
		_, err = fmt.Fprintf(w, "    and %d more lines\n", r.omitted)
	}
	return err
}
