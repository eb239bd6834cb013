package main

import (
	"fmt"
	"regexp"
	"strings"
	"time"
)

var (
	// described matches the output of git describe with a tag: v1.2.3, v1.2.3-rc.1,
	// v1.2.3-14-gabc1234.
	described = regexp.MustCompile(`^v?([0-9]+(?:\.[0-9]+)*)(?:-([0-9A-Za-z.]+?))?(?:-([0-9]+)-g([0-9a-f]+))?$`)
	bare      = regexp.MustCompile(`^[0-9a-f]{7,40}$`)
)

// debianVersion converts the output of git describe --tags --always --dirty to a Debian version.
// Later commits have higher versions: a tag has its own version, pre-releases get ~ and commits
// after it get +. A commit without a tag is lower than all tags.
func debianVersion(describe string, committed time.Time) (string, error) {
	version, dirty := strings.CutSuffix(describe, "-dirty")
	suffix := ""
	if dirty {
		suffix = "+dirty"
	}
	// A commit hash may consist of digits only and look like a version.
	if bare.MatchString(version) {
		return "0~git" + committed.UTC().Format("20060102.150405") + "." + version + suffix, nil
	}
	m := described.FindStringSubmatch(version)
	if m == nil {
		return "", fmt.Errorf("%q is not a version: must be v1.2.3 or v1.2.3-rc.1, optionally with -14-gabc1234",
			describe)
	}
	version = m[1]
	if m[2] != "" {
		version += "~" + m[2]
	}
	if m[3] != "" {
		version += "+" + m[3] + ".g" + m[4]
	}
	return version + suffix, nil
}
