package images

import (
	"strings"
	"testing"

	"berth/podspec"
)

var hex64 = strings.Repeat("0123456789abcdef", 4)

func TestTheRuntimeIsAskedInThePodsOwnWords(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"nginx":                        "nginx:latest",
		"nginx:latest":                 "nginx:latest",
		"nginx:1":                      "nginx:1",
		"localhost:5000/x":             "localhost:5000/x:latest",
		"nginx@sha256:" + hex64:        "nginx@sha256:" + hex64,
		"nginx:latest@sha256:" + hex64: "nginx:latest@sha256:" + hex64,
	} {
		n, err := podspec.ParseImageName(in)
		if err != nil {
			t.Fatal(err)
		}
		got := tagged(in, n)
		if got != want {
			t.Errorf("%q is asked for as %q, want %q", in, got, want)
		}
		if asked, err := podspec.ParseImageName(got); err != nil || asked != n {
			t.Errorf("%q asked for as %q is %s (%v), want %s", in, got, asked, err, n)
		}
	}
}
