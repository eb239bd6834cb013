package guide

import (
	"errors"
	"testing"
)

// TestGuideParser checks the parser and the comparison of output with the guide.
func TestGuideParser(t *testing.T) {
	t.Parallel()
	sections, err := Parse("a\n## B\n```sh\nberth ps\nls x\n```\n```text\nhello … Running…\nweb\n```\n```sh " +
		"elsewhere\nrm x\n```\n### C\n```sh fails\nrm x\n```\n")
	if err != nil || len(sections) != 3 || len(sections[1].Blocks) != 1 || len(sections[2].Blocks) != 1 {
		t.Fatalf("%v, %+v", err, sections)
	}
	b, c := sections[1].Blocks[0], sections[2].Blocks[0]
	if b.Commands != "berth ps\nls x" || b.Line != 3 || !b.ReadOnly() || c.ReadOnly() || b.Fails || !c.Fails {
		t.Errorf("%+v, %+v", b, c)
	}
	bad := errors.New("exit status 1")
	for _, row := range []struct {
		b       Block
		out     string
		err     error
		matches bool
	}{
		{b, "hello  1/1   Running 0\nweb", nil, true}, {b, "hello  1/1   Running 0\nweb", bad, false},
		{b, "hello 1/1 Pending\nweb Running", nil, false},
		{b, "Running hello\nweb", nil, false}, {b, "hello Running", nil, false}, {c, "", bad, true},
		{c, "", nil, false},
	} {
		if err := row.b.Check(row.out, row.err); (err == nil) != row.matches {
			t.Errorf("output %q, error %v: got %v, want match %v", row.out, row.err, err, row.matches)
		}
	}
	for _, text := range []string{"```sh\nls\n", "```bash\nls\n```\n", "## A\n```text\nx\n```\n"} {
		if _, err := Parse(text); err == nil {
			t.Errorf("Parse(%q) accepts an invalid guide", text)
		}
	}
}
