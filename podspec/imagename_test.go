package podspec

import (
	"strings"
	"testing"
)

var hex64 = strings.Repeat("0123456789abcdef", 4)

func TestParseImageName(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"nginx":                              "docker.io/library/nginx:latest",
		"nginx:1.14.2":                       "docker.io/library/nginx:1.14.2",
		"polinux/stress":                     "docker.io/polinux/stress:latest",
		"docker.io/nginx":                    "docker.io/library/nginx:latest",
		"index.docker.io/library/nginx":      "docker.io/library/nginx:latest",
		"localhost/x:1":                      "localhost/x:1",
		"localhost:5000/x":                   "localhost:5000/x:latest",
		"127.0.0.1:5000/a/b/c:v1":            "127.0.0.1:5000/a/b/c:v1",
		"[::1]:5000/a:v1":                    "[::1]:5000/a:v1",
		"Registry/x":                         "Registry/x:latest",
		"registry.k8s.io/pause:3.10":         "registry.k8s.io/pause:3.10",
		"x@sha256:" + hex64:                  "docker.io/library/x@sha256:" + hex64,
		"quay.io/x/y:1@sha256:" + hex64:      "quay.io/x/y:1@sha256:" + hex64,
		"a.b/foo__bar/b-_-":                  "",
		"a.b/foo__bar/b--c.d_e":              "a.b/foo__bar/b--c.d_e:latest",
		"x:" + strings.Repeat("t", 128):      "docker.io/library/x:" + strings.Repeat("t", 128),
		"":                                   "",
		" nginx":                             "",
		"nginx ":                             "",
		"Nginx":                              "",
		"library/Nginx":                      "",
		"docker.io/Nginx":                    "",
		"nginx:":                             "",
		"nginx:-1":                           "",
		"nginx:a/b":                          "",
		"x:" + strings.Repeat("t", 129):      "",
		"x@":                                 "",
		"x@sha256:abc":                       "",
		"x@md5:" + hex64:                     "",
		"x@sha256:" + strings.ToUpper(hex64): "",
		"a//b":                               "",
		"/a":                                 "",
		"a/":                                 "",
		"a.b/":                               "",
		"a..b/c":                             "",
		"-a.b/c":                             "",
		"a.b:/c":                             "",
		"a.b:x/c":                            "",
		"a___b":                              "",
		"a..b":                               "",
		"a.-b":                               "",
		".a":                                 "",
		"http://a.b/c":                       "",
		hex64:                                "",
		"a.b/" + strings.Repeat("p", 252):    "",
	} {
		n, err := ParseImageName(in)
		switch {
		case want == "" && err == nil:
			t.Errorf("%q: got %s, want an error", in, n)
		case want != "" && err != nil:
			t.Errorf("%q: %v", in, err)
		case want != "" && n.String() != want:
			t.Errorf("%q: got %s, want %s", in, n, want)
		}
	}
}

func FuzzParseImageName(f *testing.F) {
	for _, s := range []string{"nginx", "a.b:5/c/d:e@sha256:" + hex64, "[::1]:1/x", "localhost/x:1", "A/b", "a@b@c",
		"::", "docker.io/x/y", "index.docker.io/x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := ParseImageName(s)
		if err != nil {
			return
		}
		again, err := ParseImageName(n.String())
		if err != nil || again != n {
			t.Errorf("%q: got %s, which is parsed as %s (%v)", s, n, again, err)
		}
	})
}
