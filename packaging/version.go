package main

import (
	"fmt"
	"regexp"
	"strings"
	"time"
)

var (
	// described is what git describe says where there is a tag: v1.2.3, v1.2.3-rc.1, v1.2.3-14-gabc1234.
	described = regexp.MustCompile(`^v?([0-9]+(?:\.[0-9]+)*)(?:-([0-9A-Za-z.]+?))?(?:-([0-9]+)-g([0-9a-f]+))?$`)
	bare      = regexp.MustCompile(`^[0-9a-f]{7,40}$`)
)

// debianVersion translates what git describe --tags --always --dirty says of a commit, made at that time, so that
// newer commits have higher versions for dpkg: a tag's own, ~ before and + after it. Without a tag it is below all.
func debianVersion(describe string, committed time.Time) (string, error) {
	says, dirty := strings.CutSuffix(describe, "-dirty")
	suffix := ""
	if dirty {
		suffix = "+dirty"
	}
	// A commit alone may be all digits, and looks like a version then.
	if bare.MatchString(says) {
		return "0~git" + committed.UTC().Format("20060102.150405") + "." + says + suffix, nil
	}
	m := described.FindStringSubmatch(says)
	if m == nil {
		return "", fmt.Errorf("%q is no version: want v1.2.3, v1.2.3-rc.1 or either with -14-gabc1234", describe)
	}
	version := m[1]
	if m[2] != "" {
		version += "~" + m[2]
	}
	if m[3] != "" {
		version += "+" + m[3] + ".g" + m[4]
	}
	return version + suffix, nil
}
