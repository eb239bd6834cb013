package criconfig

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
)

// fileKey returns the value of a variable from a file in a volume. ok is false if it is optional
// and the file or the variable does not exist. Files may change, so none of the errors is
// permanent.
func fileKey(name string, ref *corev1.FileKeySelector, files plan.EnvFiles) (value string, ok bool, err error) {
	optional := isTrue(ref.Optional)
	file, read := files[plan.EnvFile{Volume: ref.VolumeName, Path: ref.Path}]
	what := fmt.Sprintf("file %q of volume %q", ref.Path, ref.VolumeName)
	switch {
	case file.Err != "":
		return "", false, missing(reasonContainer, "env %q: %s: %s", name, what, file.Err)
	case (!read || file.Missing) && optional:
		return "", false, nil
	case !read || file.Missing:
		return "", false, missing(reasonContainer, "env %q: %s not found", name, what)
	}
	vars, err := parseEnvFile(file.Content)
	if err != nil {
		return "", false, missing(reasonContainer, "env %q: %s: %w", name, what, err)
	}
	if value, ok = vars[ref.Key]; !ok && !optional {
		return "", false, missing(reasonContainer, "env %q: environment variable key %q not found in %s", name, ref.Key,
			what)
	}
	return value, ok, nil
}

// parseEnvFile parses variables in the format that Kubernetes defines, a subset of shell syntax:
// VAR='value' with a literal value in single quotes that may contain newlines, blank lines, and
// lines that begin with #. Errors name the line and never a value. If a variable is defined twice,
// the last definition wins, as in a shell.
func parseEnvFile(content string) (map[string]string, error) {
	vars := map[string]string{}
	for rest, line := content, 1; rest != ""; {
		head, next, _ := strings.Cut(rest, "\n")
		if text := strings.TrimSpace(head); text == "" || text[0] == '#' {
			rest, line = next, line+1
			continue
		}
		name, _, found := strings.Cut(head, "=")
		if !found || strings.TrimSpace(name) == "" {
			return nil, badLine(line, "want VAR='value'")
		}
		value, quoted := strings.CutPrefix(strings.TrimLeft(rest[len(name)+1:], " \t"), "'")
		if !quoted {
			return nil, badLine(line, "the value is not in single quotes")
		}
		value, after, closed := strings.Cut(value, "'") // may be some lines below
		if !closed {
			return nil, badLine(line, "the single quotes are not closed")
		}
		line += strings.Count(value, "\n")
		tail, next, _ := strings.Cut(after, "\n")
		if strings.TrimSpace(tail) != "" {
			return nil, badLine(line, "something follows the closing quote")
		}
		vars[strings.TrimSpace(name)] = value
		rest, line = next, line+1
	}
	return vars, nil
}

func badLine(line int, why string) error {
	return fmt.Errorf("invalid environment variable format at line %d: %s", line, why)
}
