package main

import (
	"go/token"
	"slices"
	"strings"
	"testing"
)

func TestCheckStrings(t *testing.T) {
	t.Parallel()
	banned, err := readTokens("styles/Berth/Dialect.yml")
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct{ name, body, want string }{
		{"a plain message", `log.Info("pod sandbox created", "pod", p)`, ""},
		{"a capital", `log.Info("Pod created")`, "starts with a capital"},
		{"an acronym", `log.Info("CNI plugin failed")`, ""},
		{"a period", `x.log.Warn("pod created.")`, "ends with a period"},
		{"a format verb", `log.Error("pod %s created")`, "has a format verb"},
		{"a concatenation", `log.Info("pod " + name)`, "is concatenated"},
		{"an attribute", `log.Info("pod created", "error", err)`, `call it "err"`},
		{"an attribute with an initialism", `log.Info("pod created", "podUID", uid)`, ""},
		{"an attribute in snake case", `log.Info("pod created", "pod_name", n)`, "not in lower camel case"},
		{"an attribute after a context", `log.InfoContext(ctx, "pod created", "uid", uid)`, `call it "podUID"`},
		{"a banned word in a log message", `log.Info("pull begun")`, `log message has "begun"`},
		{"a banned word in an error", `fmt.Errorf("nobody answers: %w", err)`, `error has "nobody"`},
		{"a banned word in a flag", `f.StringVar(&x, "name", "", "what is told to pods")`, `flag help has "told"`},
		{"a banned word in a command", `_ = C{Short: "Begin anew"}`, `help text has "anew"`},
		{"another package's Info", `table.Info("Pod.")`, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			c := checker{banned: banned, fset: token.NewFileSet()}
			if err := c.file("x.go", []byte("package x\nfunc f() { "+row.body+" }\n")); err != nil {
				t.Fatal(err)
			}
			got := strings.Join(c.found, "\n")
			if row.want == "" && got != "" || !strings.Contains(got, row.want) || len(c.found) > 1 {
				t.Errorf("got %q, want %q", got, row.want)
			}
		})
	}
}

func TestCommentProblems(t *testing.T) {
	t.Parallel()
	banned, err := readTokens("styles/Berth/Dialect.yml")
	if err != nil {
		t.Fatal(err)
	}
	for src, want := range map[string]string{
		"# start the agent\nset -e\n":              "",
		"# start the agent\n  x=1 # begin anew\n":  `x:2: comment has "anew"`,
		"test: ## what nobody needs\n":             `x:1: comment has "nobody"`,
		"echo anew $# anew\n":                      "",
		"description: anew\nurl: http://a/#anew\n": "",
	} {
		got := strings.Join(commentProblems("x", src, banned), "\n")
		if want == "" && got != "" || !strings.HasPrefix(got, want) {
			t.Errorf("%q: got %q, want %q", src, got, want)
		}
	}
}

func TestSubjectProblems(t *testing.T) {
	t.Parallel()
	for subject, want := range map[string]int{
		"cri: retry RemovePodSandbox after DeadlineExceeded": 0,
		"agent/plan, cri: name what is observed":             0,
		"Retry RemovePodSandbox":                             1,
		"cri: retry.":                                        1,
		"cri: " + strings.Repeat("x", maxSubject):            1,
		"Fix.": 2,
	} {
		if got := subjectProblems(subject); len(got) != want {
			t.Errorf("%q: %v, want %d problems", subject, slices.Concat(got), want)
		}
	}
}
