// Command failures prints what failed tests reported at their end, without their logs: a log of a server or an agent
// hides the few lines that matter, and a record of a run may keep its last lines only. It reads the output of
// go test -json from the file in its argument.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
)

const (
	maxMessages = 4   // of one test: the last ones
	maxLines    = 3   // of one message: the first ones
	maxWidth    = 300 // bytes of one line
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

// report collects the last messages of a test.
type report struct {
	messages [][]string
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
	begins := true
	switch {
	case crash.MatchString(line):
		r.continued = false
	case message.MatchString(line):
		r.continued = !logLine.MatchString(line)
		if !r.continued {
			return
		}
	case r.continued && strings.HasPrefix(line, "        "):
		begins = false
	default:
		r.continued = false
		return
	}
	if len(line) > maxWidth {
		line = line[:maxWidth] + "…"
	}
	last := len(r.messages) - 1
	switch {
	case begins && len(r.messages) == maxMessages:
		r.messages = append(r.messages[1:], []string{line})
	case begins:
		r.messages = append(r.messages, []string{line})
	case len(r.messages[last]) < maxLines:
		r.messages[last] = append(r.messages[last], line)
	}
}

func (r *report) write(w io.Writer, name testName) error {
	_, err := fmt.Fprintf(w, "Failed: %s %s\n", name.pkg, name.test)
	if r == nil || err != nil {
		return err
	}
	for _, line := range slices.Concat(r.messages...) {
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	return nil
}
