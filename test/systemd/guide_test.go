package systemd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"berth/test/hosts"
)

// TestOperatorGuide runs the commands of docs/operate.md and docs/troubleshoot.md on a fresh host, in
// the order of their blocks and without other commands.
func TestOperatorGuide(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	repo, err := hosts.RepoRoot()
	if err != nil {
		t.Fatal(err)
	}
	sections, err := parsePages(filepath.Join(repo, "docs"), "operate.md", "troubleshoot.md")
	if err != nil {
		t.Fatal(err)
	}
	busybox := busyboxImage(ctx, t)
	kubectl, err := hosts.Kubectl()
	if err != nil {
		t.Fatal(err)
	}
	built, err := builtPackages()
	if err != nil {
		t.Fatal(err)
	}
	h := start(ctx, t, busybox.Path)
	// The guide assumes kubectl and the packages. The imported image replaces a registry.
	if err := h.Copy(kubectl, "/usr/local/bin/kubectl"); err != nil {
		t.Fatal(err)
	}
	for dir, all := range map[string]map[string]string{"/root/berth": built.first,
		"/root/berth-newer": built.newer} {
		for _, path := range all {
			if err := h.Copy(path, filepath.Join(dir, filepath.Base(path))); err != nil {
				t.Fatal(err)
			}
		}
	}
	r := &guideRunner{operator{t, h}}
	// No container may be restarted in these sections.
	noRestarts := map[string]bool{
		"Inspect": true, "Upgrade": true, "Back up": true, "Restore": true,
		"The node is NotReady: runtime down": true, "The server is not reachable": true,
	}
	for _, s := range sections {
		if len(s.blocks) == 0 {
			continue
		}
		if !t.Run(s.name, func(t *testing.T) {
			r.T = t
			var before string
			if noRestarts[s.name] {
				before = r.tasks()
			}
			for _, b := range s.blocks {
				r.run(b)
			}
			if noRestarts[s.name] {
				r.checkNotRestarted(before)
			}
			delete(noRestarts, s.name)
		}) {
			return
		}
	}
	if len(noRestarts) > 0 {
		t.Errorf("the guide has no sections %v", noRestarts)
	}
}

// TestGuideParser checks the parser and the comparison of output with the guide.
func TestGuideParser(t *testing.T) {
	t.Parallel()
	sections, err := parseGuide("a\n## B\n```sh\nberth ps\nls x\n```\n```text\nhello … Running…\nweb\n```\n```sh " +
		"elsewhere\nrm x\n```\n### C\n```sh fails\nrm x\n```\n")
	if err != nil || len(sections) != 3 || len(sections[1].blocks) != 1 || len(sections[2].blocks) != 1 {
		t.Fatalf("%v, %+v", err, sections)
	}
	b, c := sections[1].blocks[0], sections[2].blocks[0]
	if b.commands != "berth ps\nls x" || b.line != 3 || !b.readOnly() || c.readOnly() || b.fails || !c.fails {
		t.Errorf("%+v, %+v", b, c)
	}
	bad := errors.New("exit status 1")
	for _, row := range []struct {
		b       block
		out     string
		err     error
		matches bool
	}{
		{b, "hello  1/1   Running 0\nweb", nil, true}, {b, "hello  1/1   Running 0\nweb", bad, false},
		{b, "hello 1/1 Pending\nweb Running", nil, false},
		{b, "Running hello\nweb", nil, false}, {b, "hello Running", nil, false}, {c, "", bad, true},
		{c, "", nil, false},
	} {
		if err := row.b.check(row.out, row.err); (err == nil) != row.matches {
			t.Errorf("output %q, error %v: got %v, want match %v", row.out, row.err, err, row.matches)
		}
	}
	for _, text := range []string{"```sh\nls\n", "```bash\nls\n```\n", "## A\n```text\nx\n```\n"} {
		if _, err := parseGuide(text); err == nil {
			t.Errorf("parseGuide(%q) accepts an invalid guide", text)
		}
	}
}

// section is the part of a guide below one heading.
type section struct {
	name   string
	blocks []block
}

// block is a fenced block of commands with the text block that follows it, if any.
type block struct {
	line     int
	commands string
	fails    bool     // the last command must fail
	want     []string // patterns of the expected output lines
}

// parsePages reads the sections of several documents in order. Sections named Remove come last.
func parsePages(dir string, names ...string) ([]section, error) {
	var all []section
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		parsed, err := parseGuide(string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, parsed...)
	}
	slices.SortStableFunc(all, func(a, b section) int { return sectionOrder(a) - sectionOrder(b) })
	return all, nil
}

func sectionOrder(s section) int {
	if s.name == "Remove" {
		return 1
	}
	return 0
}

// parseGuide reads the blocks of a document. A block of kind "sh" is run. In a block of kind
// "sh fails" the last command must fail. A block of kind "sh elsewhere" is for another host and is
// skipped. A block of kind "text" is the expected output of the block before it.
func parseGuide(text string) (sections []section, err error) {
	var fence string
	var body []string
	at := 0
	add := func() error {
		last := &sections[len(sections)-1]
		switch fence {
		case "sh", "sh fails":
			last.blocks = append(last.blocks, block{line: at, commands: strings.Join(body, "\n"),
				fails: fence == "sh fails"})
		case "sh elsewhere":
		case "text":
			if len(last.blocks) == 0 || last.blocks[len(last.blocks)-1].want != nil {
				return fmt.Errorf("line %d: text block without a command block before it", at)
			}
			last.blocks[len(last.blocks)-1].want = body
		default:
			return fmt.Errorf("line %d: unknown kind of block %q", at, fence)
		}
		return nil
	}
	sections = []section{{name: "before"}}
	inside := false
	for n, line := range strings.Split(text, "\n") {
		kind, edge := strings.CutPrefix(line, "```")
		switch {
		case edge && inside:
			inside = false
			if err := add(); err != nil {
				return nil, err
			}
		case edge:
			inside, fence, body, at = true, kind, nil, n+1
		case inside:
			body = append(body, line)
		case strings.HasPrefix(line, "#"):
			sections = append(sections, section{name: strings.TrimLeft(line, "# ")})
		}
	}
	if inside {
		return nil, errors.New("the last block is not closed")
	}
	return sections, nil
}

// guideRunner runs the blocks of the guide. Environment and working directory carry over from one
// block to the next.
type guideRunner struct{ operator }

const shellState = "/root/.guide-shell"

// run runs a block. A read-only block is repeated until its output matches.
func (r *guideRunner) run(b block) {
	r.Helper()
	script := "set -e\n[ ! -e " + shellState + " ] || . " + shellState + "\n" + b.commands +
		"\n{ export -p; printf 'cd %q\\n' \"$PWD\"; } >" + shellState + "\n"
	ctx, cancel := context.WithTimeout(r.Context(), waitTimeout)
	defer cancel()
	var out string
	var mismatch error
	err := hosts.WaitFor(ctx, "the block of line "+fmt.Sprint(b.line), func() (bool, error) {
		var err error
		out, err = r.host.RunWith(ctx, strings.NewReader(script), "bash", "-c", "exec 2>&1; . /dev/stdin")
		mismatch = b.check(out, err)
		if mismatch != nil && !b.readOnly() {
			return false, mismatch
		}
		return mismatch == nil, nil
	})
	// The disk usage of this machine must not affect the test.
	if err == nil && strings.Contains(b.commands, "./berth_") {
		r.until("berth to be active after the installation", "systemctl is-active berth")
		r.sh("grep -q ^evictionHard /etc/berth/config.yaml || { sed -i '" + ignoreDiskUsage +
			"' /etc/berth/config.yaml && systemctl reload berth; }")
	}
	if err != nil {
		r.Fatalf("docs/operate.md, line %d: %v\n%s\noutput:\n%s\n%s", b.line, mismatch, b.commands, out, r.journal())
	}
}

// check returns nil if the exit status and the output of a block are as expected.
func (b block) check(out string, err error) error {
	switch {
	case b.fails && err == nil:
		return errors.New("the command succeeds, want an error")
	case !b.fails && err != nil:
		return err
	}
	lines := strings.Split(out, "\n")
	for _, want := range b.want {
		if !slices.ContainsFunc(lines, func(line string) bool { return matchesPattern(words(line), words(want)) }) {
			return fmt.Errorf("no output line matches %q", want)
		}
	}
	return nil
}

// matchesPattern reports whether a text contains the parts of a pattern, which … separates, in order.
func matchesPattern(text, pattern string) bool {
	for part := range strings.SplitSeq(pattern, "…") {
		_, rest, found := strings.Cut(text, strings.TrimSpace(part))
		if !found {
			return false
		}
		text = rest
	}
	return true
}

// readOnlyCommands are prefixes of commands that change nothing.
var readOnlyCommands = []string{
	"kubectl get ", "kubectl describe ", "kubectl logs ", "kubectl wait ", "berth ps", "berth why ", "berth describe ",
	"berth logs ", "berth check", "berth images", "berth events", "berth version", "berth timeline ", "berth probes ",
	"systemctl is-active ", "systemctl show ", "journalctl ", "ls ", "cat ", "berth-control token list",
}

// readOnly reports whether all commands of a block are read-only, which allows repeating it.
func (b block) readOnly() bool {
	for line := range strings.Lines(b.commands) {
		match := false
		for _, l := range readOnlyCommands {
			match = match || strings.HasPrefix(line, l)
		}
		if !match {
			return false
		}
	}
	return true
}
