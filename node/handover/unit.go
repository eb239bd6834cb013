package handover

import (
	"fmt"
	"maps"
	"strings"
)

// UnitFile is a unit file or a drop-in, in the order in which systemd reads them.
type UnitFile struct{ Path, Text string }

// Unit is what the unit files say about the kubelet's process.
type Unit struct {
	Command          []string // words of ExecStart, before variables are expanded
	Environment      map[string]string
	EnvironmentFiles []EnvironmentFile
}

// EnvironmentFile is an EnvironmentFile= setting.
type EnvironmentFile struct {
	Path     string
	Optional bool // a missing file is no error
}

// ParseUnit reads the [Service] sections. As in systemd, a later file adds to a list and an empty
// value resets it.
func ParseUnit(files []UnitFile) (Unit, error) {
	u := Unit{Environment: map[string]string{}}
	for _, f := range files {
		section := ""
		for _, line := range logicalLines(f.Text) {
			if strings.HasPrefix(line, "[") {
				section = line
				continue
			}
			key, value, ok := strings.Cut(line, "=")
			if !ok || section != "[Service]" {
				continue
			}
			if err := u.set(strings.TrimSpace(key), strings.TrimSpace(value)); err != nil {
				return u, fmt.Errorf("%s: %w", f.Path, err)
			}
		}
	}
	if len(u.Command) == 0 {
		return u, fmt.Errorf("the unit has no ExecStart=")
	}
	return u, nil
}

func (u *Unit) set(key, value string) error {
	switch key {
	case "ExecStart":
		words, err := splitWords(value)
		if len(words) > 0 {
			words[0] = strings.TrimLeft(words[0], "-@:+!|")
		}
		u.Command = words
		return err
	case "Environment":
		if value == "" {
			clear(u.Environment)
		}
		words, err := splitWords(value)
		for _, w := range words {
			name, v, _ := strings.Cut(w, "=")
			u.Environment[name] = v
		}
		return err
	case "EnvironmentFile":
		if value == "" {
			u.EnvironmentFiles = nil
			return nil
		}
		path, optional := strings.CutPrefix(value, "-")
		u.EnvironmentFiles = append(u.EnvironmentFiles, EnvironmentFile{path, optional})
	}
	return nil
}

// CommandLine returns the command line of the kubelet with its variables expanded. texts are the
// contents of the environment files by path. A variable of a file replaces one of Environment=.
func (u *Unit) CommandLine(texts map[string]string) ([]string, error) {
	env := map[string]string{}
	maps.Copy(env, u.Environment)
	for _, f := range u.EnvironmentFiles {
		content, ok := texts[f.Path]
		if !ok && !f.Optional {
			return nil, fmt.Errorf("environment file %s does not exist", f.Path)
		}
		if err := readEnvironment(content, env); err != nil {
			return nil, fmt.Errorf("%s: %w", f.Path, err)
		}
	}
	var out []string
	for _, w := range u.Command {
		name, isVariable := strings.CutPrefix(w, "$")
		if isVariable && !strings.HasPrefix(name, "{") && !strings.HasPrefix(name, "$") {
			words, err := splitWords(env[name]) // a variable that is a word of its own is split
			if err != nil {
				return nil, fmt.Errorf("variable %s: %w", name, err)
			}
			out = append(out, words...)
			continue
		}
		out = append(out, expandBraces(w, env))
	}
	return out, nil
}

func readEnvironment(content string, env map[string]string) error {
	for _, line := range logicalLines(content) {
		name, value, ok := strings.Cut(line, "=")
		if !ok {
			continue
		}
		words, err := splitWords(value)
		if err != nil {
			return err
		}
		env[strings.TrimSpace(name)] = strings.Join(words, " ")
	}
	return nil
}

// expandBraces replaces ${NAME} in a word, and $$ by one dollar sign.
func expandBraces(w string, env map[string]string) string {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(w, "$")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		name, rest, closed := strings.Cut(strings.TrimPrefix(after, "{"), "}")
		switch {
		case strings.HasPrefix(after, "$"):
			b.WriteByte('$')
			w = after[1:]
		case strings.HasPrefix(after, "{") && closed:
			b.WriteString(env[name])
			w = rest
		default:
			b.WriteByte('$')
			w = after
		}
	}
}

// logicalLines returns the lines without comments, with continued lines joined.
func logicalLines(content string) (out []string) {
	joined := ""
	for line := range strings.Lines(content) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "#") || strings.HasPrefix(line, ";") {
			continue
		}
		if head, more := strings.CutSuffix(line, `\`); more {
			joined += head + " "
			continue
		}
		if line = strings.TrimSpace(joined + line); line != "" {
			out = append(out, line)
		}
		joined = ""
	}
	return out
}

// splitWords splits at white space. Quotes group words, and a backslash escapes the next character.
func splitWords(s string) (words []string, err error) {
	var word strings.Builder
	inWord, quote := false, rune(0)
	escaped := false
	for _, c := range s {
		switch {
		case escaped:
			word.WriteRune(c)
			escaped = false
		case c == '\\' && quote != '\'':
			inWord, escaped = true, true
		case quote != 0 && c == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(c)
		case c == '"' || c == '\'':
			inWord, quote = true, c
		case c == ' ' || c == '\t':
			if inWord {
				words = append(words, word.String())
			}
			word.Reset()
			inWord = false
		default:
			inWord = true
			word.WriteRune(c)
		}
	}
	if quote != 0 || escaped {
		return nil, fmt.Errorf("unbalanced quotes in %q", s)
	}
	if inWord {
		words = append(words, word.String())
	}
	return words, nil
}
