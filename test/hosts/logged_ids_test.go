package hosts

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestFindIDs(t *testing.T) {
	t.Parallel()
	a, b := strings.Repeat("0a", 32), strings.Repeat("f9", 32)
	for name, c := range map[string]struct {
		text string
		want []string
	}{
		"no text":                   {},
		"only an ID":                {a, []string{a}},
		"IDs between other words":   {`id="` + a + `" /x/` + b + "/y", []string{a, b}},
		"the same ID twice":         {a + " " + a, []string{a, a}},
		"too short":                 {a[1:], nil},
		"too long":                  {a + "0", nil},
		"start of a longer word":    {a + "g", nil},
		"end of a longer word":      {"_" + a, nil},
		"upper-case letters":        {strings.ToUpper(a), nil},
		"another letter inside":     {a[:31] + "x" + a[32:], nil},
		"ID after a word of no hex": {"sandbox " + a + "\n", []string{a}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := findIDs(c.text); !slices.Equal(got, c.want) {
				t.Errorf("findIDs(%q): got %q, want %q", c.text, got, c.want)
			}
		})
	}
}

// TestIDSetReadsAppendedLines appends to a log, also a line in two parts, and replaces it by a shorter one.
func TestIDSetReadsAppendedLines(t *testing.T) {
	t.Parallel()
	a, b, c := strings.Repeat("0a", 32), strings.Repeat("1b", 32), strings.Repeat("2c", 32)
	file := filepath.Join(t.TempDir(), "log")
	var s idSet
	if got := s.read(file); len(got) != 0 {
		t.Errorf("missing file: got %q, want none", got)
	}
	for _, step := range []struct {
		name, text string
		want       []string
	}{
		{"first line", b + "\n", []string{b}},
		{"part of a line", b + "\n" + a[:20], []string{b}},
		{"complete lines", b + "\n" + a + "\n" + b + "\n", []string{a, b}},
		{"unchanged", b + "\n" + a + "\n" + b + "\n", []string{a, b}},
		{"shorter file", c + "\n", []string{c}},
	} {
		if err := os.WriteFile(file, []byte(step.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := s.read(file); !slices.Equal(got, step.want) {
			t.Errorf("%s: got %q, want %q", step.name, got, step.want)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if got := s.read(file); !slices.Equal(got, []string{c}) {
		t.Errorf("removed file: got %q, want the IDs read before", got)
	}
}
