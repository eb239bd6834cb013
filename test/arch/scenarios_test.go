package arch

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

const scenarios = 40

var scenarioTest = regexp.MustCompile(`(?m)^func (TestScenario(\d\d)_\w+)\(`)

// TestScenarioTableMatchesTests checks docs/contributing/scenarios.md in both directions: every
// row names existing tests or a reason, and the row names every test of its number.
func TestScenarioTableMatchesTests(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(root, "docs/contributing/scenarios.md"))
	if err != nil {
		t.Fatal(err)
	}
	tests, rows := testSources{}, map[int]string{}
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 6 {
			continue
		}
		n, err := strconv.Atoi(strings.TrimSpace(cells[1]))
		if err != nil { // table header
			continue
		}
		if _, duplicate := rows[n]; duplicate {
			t.Errorf("row %d is duplicated", n)
		}
		named, reason := strings.TrimSpace(cells[3]), strings.TrimSpace(cells[4])
		rows[n] = named
		if named == "" && reason == "" {
			t.Errorf("row %d has neither a test nor a reason", n)
		}
		for test := range strings.SplitSeq(named, ", ") {
			if named != "" {
				tests.requireTest(t, test)
			}
		}
	}
	for n := 1; n <= scenarios; n++ {
		if _, ok := rows[n]; !ok {
			t.Errorf("row %d is missing", n)
		}
	}
	for pkg, all := range scenarioTests(t) {
		for _, m := range all {
			n, _ := strconv.Atoi(m[2]) // two digits
			if !strings.Contains(rows[n], pkg+" "+m[1]) {
				t.Errorf("row %d does not name %s of %s", n, m[1], pkg)
			}
		}
	}
}

// scenarioTests returns all scenario tests by package, each with its number.
func scenarioTests(t *testing.T) map[string][][]string {
	t.Helper()
	all, count := map[string][][]string{}, 0
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && strings.HasPrefix(e.Name(), ".") && path != root:
			return filepath.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		pkg, err := filepath.Rel(root, filepath.Dir(path))
		found := scenarioTest.FindAllStringSubmatch(string(text), -1)
		all[pkg], count = append(all[pkg], found...), count+len(found)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if count < 40 {
		t.Errorf("found only %d scenario tests", count)
	}
	return all
}
