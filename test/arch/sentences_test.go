package arch

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var namedTest = regexp.MustCompile(`^([a-z0-9/-]+) (Test\w+)$`)

// TestTheSentencesHaveTheirTests holds docs/reference/pod-behavior.md to the tree: every test
// that it names is there, in the package that it says.
func TestTheSentencesHaveTheirTests(t *testing.T) {
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
			tests.has(t, test)
		}
	}
	if rows < 60 {
		t.Errorf("only %d rows were read", rows)
	}
}

// testSources are the sources of packages' tests, read when they are asked for.
type testSources map[string]string

// has wants a test, written "package TestName", to be there.
func (s testSources) has(t *testing.T, test string) {
	t.Helper()
	m := namedTest.FindStringSubmatch(test)
	if m == nil {
		t.Errorf("%q names no test", test)
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
