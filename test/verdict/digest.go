package main

import (
	"regexp"
	"strings"
)

const (
	widest     = 400 // bytes of a line
	following  = 6   // lines shown after the first of a message
	traceLines = 80  // lines shown of a panic or a race
)

var (
	// runner matches lines of go test itself, also those of a package that does not build.
	runner = regexp.MustCompile(`^(ok  |FAIL|PASS|\?   |# |\s*--- FAIL|\S+\.go:\d+:\d+: )`)
	// broken begins what is shown at length.
	broken = regexp.MustCompile(`^(panic: |fatal error: |WARNING: DATA RACE|SIGQUIT: )`)
	// message begins what a test said; it is printed only for those that failed.
	message = regexp.MustCompile(`^\s+\w+\.go:\d+: `)
)

// digester decides line by line. The zero value is ready.
type digester struct{ more int }

// line is a line as it is to be shown, if it is.
func (d *digester) line(s string) (string, bool) {
	switch {
	case s == "":
		return "", false
	case broken.MatchString(s):
		d.more = traceLines
	case runner.MatchString(s):
		d.more = 0
	case message.MatchString(s):
		d.more = max(d.more, following)
	case d.more > 0:
		d.more--
	default:
		return "", false
	}
	if len(s) > widest {
		s = strings.ToValidUTF8(s[:widest], "") + "…\n"
	}
	return s, true
}
