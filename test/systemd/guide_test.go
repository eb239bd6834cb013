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

// TestOperatorGuide follows docs/operate.md and docs/troubleshoot.md on a fresh host, in the order of their
// blocks and with no other commands.
func TestOperatorGuide(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	repo, err := hosts.RepoRoot()
	if err != nil {
		t.Fatal(err)
	}
	sections, err := pages(filepath.Join(repo, "docs"), "operate.md", "troubleshoot.md")
	if err != nil {
		t.Fatal(err)
	}
	busybox := busyboxOf(ctx, t)
	kubectl, err := hosts.Kubectl()
	if err != nil {
		t.Fatal(err)
	}
	made, err := thePackages()
	if err != nil {
		t.Fatal(err)
	}
	h := start(ctx, t, busybox.Path)
	// What a user has before the first line: kubectl, the packages and, in place of a registry, the image.
	if err := h.Copy(kubectl, "/usr/local/bin/kubectl"); err != nil {
		t.Fatal(err)
	}
	for folder, all := range map[string]map[string]string{"/root/berth": made.first, "/root/berth-newer": made.newer} {
		for _, path := range all {
			if err := h.Copy(path, filepath.Join(folder, filepath.Base(path))); err != nil {
				t.Fatal(err)
			}
		}
	}
	r := &reader{operator{t, h}}
	// In these no container may be restarted.
	harmless := map[string]bool{
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
			if harmless[s.name] {
				before = r.tasks()
			}
			for _, b := range s.blocks {
				r.follow(b)
			}
			if harmless[s.name] {
				r.unharmed(before)
			}
			delete(harmless, s.name)
		}) {
			return
		}
	}
	if len(harmless) > 0 {
		t.Errorf("the guide has no sections %v", harmless)
	}
}

// TestGuideParser notices when a guide and what happens differ.
func TestGuideParser(t *testing.T) {
	t.Parallel()
	sections, err := guide("a\n## B\n```sh\nberth ps\nls x\n```\n```text\nhello … Running…\nweb\n```\n```sh elsewhere\nrm x\n```\n### C\n```sh fails\nrm x\n```\n")
	if err != nil || len(sections) != 3 || len(sections[1].blocks) != 1 || len(sections[2].blocks) != 1 {
		t.Fatalf("%v, %+v", err, sections)
	}
	b, c := sections[1].blocks[0], sections[2].blocks[0]
	if b.commands != "berth ps\nls x" || b.line != 3 || !b.looks() || c.looks() || b.fails || !c.fails {
		t.Errorf("%+v, %+v", b, c)
	}
	bad := errors.New("exit status 1")
	for _, row := range []struct {
		b    block
		out  string
		err  error
		good bool
	}{
		{b, "hello  1/1   Running 0\nweb", nil, true}, {b, "hello  1/1   Running 0\nweb", bad, false}, {b, "hello 1/1 Pending\nweb Running", nil, false},
		{b, "Running hello\nweb", nil, false}, {b, "hello Running", nil, false}, {c, "", bad, true}, {c, "", nil, false},
	} {
		if err := row.b.judge(row.out, row.err); (err == nil) != row.good {
			t.Errorf("%q, %v: %v", row.out, row.err, err)
		}
	}
	for _, text := range []string{"```sh\nls\n", "```bash\nls\n```\n", "## A\n```text\nx\n```\n"} {
		if _, err := guide(text); err == nil {
			t.Errorf("%q: taken", text)
		}
	}
}

// section is what stands below a heading of the guide.
type section struct {
	name   string
	blocks []block
}

// block is a fenced block of commands and, when one of kind text follows, what they say.
type block struct {
	line     int
	commands string
	fails    bool // the last of them does
	says     []string
}

// pages reads the sections of several documents in order. A section Remove comes last.
func pages(dir string, names ...string) ([]section, error) {
	var all []section
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		some, err := guide(string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, some...)
	}
	slices.SortStableFunc(all, func(a, b section) int { return last(a) - last(b) })
	return all, nil
}

func last(s section) int {
	if s.name == "Remove" {
		return 1
	}
	return 0
}

// guide reads the blocks of a document. What is fenced as "sh" is done; as "sh fails"
// too, and its last command fails; as "sh elsewhere" it is for another host.
func guide(text string) (sections []section, err error) {
	var fence string
	var body []string
	at := 0
	add := func() error {
		last := &sections[len(sections)-1]
		switch fence {
		case "sh", "sh fails":
			last.blocks = append(last.blocks, block{line: at, commands: strings.Join(body, "\n"), fails: fence == "sh fails"})
		case "sh elsewhere":
		case "text":
			if len(last.blocks) == 0 || last.blocks[len(last.blocks)-1].says != nil {
				return fmt.Errorf("line %d: an answer to nothing", at)
			}
			last.blocks[len(last.blocks)-1].says = body
		default:
			return fmt.Errorf("line %d: a block of kind %q", at, fence)
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
		return nil, errors.New("the last block has no end")
	}
	return sections, nil
}

// reader follows the guide in one shell.
type reader struct{ operator }

const shellState = "/root/.guide-shell"

// follow does what a block says. One that only looks is done again until it says what it
// should: things take their time.
func (r *reader) follow(b block) {
	r.Helper()
	script := "set -e\n[ ! -e " + shellState + " ] || . " + shellState + "\n" + b.commands + "\n{ export -p; printf 'cd %q\\n' \"$PWD\"; } >" + shellState + "\n"
	ctx, cancel := context.WithTimeout(r.Context(), bound)
	defer cancel()
	var out string
	var wrong error
	err := hosts.WaitFor(ctx, "the block of line "+fmt.Sprint(b.line), func() (bool, error) {
		var err error
		out, err = r.host.RunWith(ctx, strings.NewReader(script), "bash", "-c", "exec 2>&1; . /dev/stdin")
		wrong = b.judge(out, err)
		if wrong != nil && !b.looks() {
			return false, wrong
		}
		return wrong == nil, nil
	})
	if err == nil && strings.Contains(b.commands, "./berth_") { // the machine's own disk is not the host's
		r.until("berth to be up, which apt does not wait for long", "systemctl is-active berth")
		r.sh("grep -q ^evictionHard /etc/berth/config.yaml || { sed -i '" + anyDisk + "' /etc/berth/config.yaml && systemctl reload berth; }")
	}
	if err != nil {
		r.Fatalf("docs/operate.md, line %d: %v\n%s\nsays\n%s\n%s", b.line, wrong, b.commands, out, r.journal())
	}
}

// judge is nil when a block ended and answered as it should.
func (b block) judge(out string, err error) error {
	switch {
	case b.fails && err == nil:
		return errors.New("it has to fail, and does not")
	case !b.fails && err != nil:
		return err
	}
	lines := strings.Split(out, "\n")
	for _, want := range b.says {
		if !slices.ContainsFunc(lines, func(line string) bool { return holds(words(line), words(want)) }) {
			return fmt.Errorf("it says not %q", want)
		}
	}
	return nil
}

// holds reports whether a text has the parts between … in their order.
func holds(text, pattern string) bool {
	for part := range strings.SplitSeq(pattern, "…") {
		_, rest, found := strings.Cut(text, strings.TrimSpace(part))
		if !found {
			return false
		}
		text = rest
	}
	return true
}

// looking are commands that change nothing.
var looking = []string{
	"kubectl get ", "kubectl describe ", "kubectl logs ", "kubectl wait ", "berth ps", "berth why ", "berth describe ", "berth logs ", "berth check", "berth images", "berth events",
	"berth version", "berth timeline ", "berth probes ", "systemctl is-active ", "systemctl show ", "journalctl ", "ls ", "cat ", "berth-control token list",
}

// looks reports whether a block may be done again.
func (b block) looks() bool {
	for line := range strings.Lines(b.commands) {
		known := false
		for _, l := range looking {
			known = known || strings.HasPrefix(line, l)
		}
		if !known {
			return false
		}
	}
	return true
}
