// Package guide reads the pages of docs that tests follow line by line, and compares the output of their
// commands.
package guide

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Section is the part of a guide below one heading.
type Section struct {
	Name   string
	Blocks []Block
}

// Block is a fenced block of commands with the text block that follows it, if any.
type Block struct {
	Line     int
	Commands string
	Fails    bool     // the last command must fail
	Want     []string // patterns of the expected output lines
}

// ReadPages reads the sections of several documents in order. Sections named Remove come last.
func ReadPages(dir string, names ...string) ([]Section, error) {
	var all []Section
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		parsed, err := Parse(string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, parsed...)
	}
	slices.SortStableFunc(all, func(a, b Section) int { return sectionOrder(a) - sectionOrder(b) })
	return all, nil
}

func sectionOrder(s Section) int {
	if s.Name == "Remove" {
		return 1
	}
	return 0
}

// Parse reads the blocks of a document. A block of kind "sh" is run. In a block of kind
// "sh fails" the last command must fail. A block of kind "sh elsewhere" is for another host and is
// skipped. A block of kind "text" is the expected output of the block before it.
func Parse(text string) (sections []Section, err error) {
	var fence string
	var body []string
	at := 0
	add := func() error {
		last := &sections[len(sections)-1]
		switch fence {
		case "sh", "sh fails":
			last.Blocks = append(last.Blocks, Block{Line: at, Commands: strings.Join(body, "\n"),
				Fails: fence == "sh fails"})
		case "sh elsewhere":
		case "text":
			if len(last.Blocks) == 0 || last.Blocks[len(last.Blocks)-1].Want != nil {
				return fmt.Errorf("line %d: text block without a command block before it", at)
			}
			last.Blocks[len(last.Blocks)-1].Want = body
		default:
			return fmt.Errorf("line %d: unknown kind of block %q", at, fence)
		}
		return nil
	}
	sections = []Section{{Name: "before"}}
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
			sections = append(sections, Section{Name: strings.TrimLeft(line, "# ")})
		}
	}
	if inside {
		return nil, errors.New("the last block is not closed")
	}
	return sections, nil
}

// Check returns nil if the exit status and the output of a block are as expected.
func (b Block) Check(out string, err error) error {
	switch {
	case b.Fails && err == nil:
		return errors.New("the command succeeds, want an error")
	case !b.Fails && err != nil:
		return err
	}
	lines := strings.Split(out, "\n")
	for _, want := range b.Want {
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

// ReadOnly reports whether all commands of a block are read-only, which allows repeating it.
func (b Block) ReadOnly() bool {
	for line := range strings.Lines(b.Commands) {
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

// words returns a text with single spaces.
func words(text string) string { return strings.Join(strings.Fields(text), " ") }
