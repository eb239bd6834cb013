package arch

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var namedTest = regexp.MustCompile(`^([a-z0-9/-]+) (Test\w+)$`)

// TestPodBehaviorTableMatchesTests checks that every test that docs/reference/pod-behavior.md
// names exists in the named package.
func TestPodBehaviorTableMatchesTests(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(root, "docs/reference/pod-behavior.md"))
	if err != nil {
		t.Fatal(err)
	}
	tests := testSources{}
	rows := 0
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 4 || strings.HasPrefix(cells[1], "--") || strings.TrimSpace(cells[2]) == "test" {
			continue
		}
		rows++
		for test := range strings.SplitSeq(strings.TrimSpace(cells[2]), ", ") {
			tests.requireTest(t, test)
		}
	}
	if rows < 60 {
		t.Errorf("found only %d rows", rows)
	}
}

// testSources caches the test sources of packages.
type testSources map[string]string

// requireTest fails the test unless a test, written "package TestName", exists.
func (s testSources) requireTest(t *testing.T, test string) {
	t.Helper()
	m := namedTest.FindStringSubmatch(test)
	if m == nil {
		t.Errorf("%q does not have the form PACKAGE TESTNAME", test)
		return
	}
	if _, read := s[m[1]]; !read {
		s[m[1]] = testsOf(t, m[1])
	}
	if !strings.Contains(s[m[1]], "\nfunc "+m[2]+"(") {
		t.Errorf("%s has no %s", m[1], m[2])
	}
}

func testsOf(t *testing.T, pkg string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, pkg, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}
