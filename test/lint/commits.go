package main

import (
	"fmt"
	"os/exec"
	"regexp"
	"strings"
)

const (
	maxSubject = 72 // characters of a commit subject
	marker     = "test/lint/commits.go"
)

// subject is "area: what changes", where the area is a path, a package or a list of them.
var subject = regexp.MustCompile(`^[a-z0-9][\w./-]*(, ?[a-z0-9][\w./-]*)*: \S`)

// checkCommits reads the subjects of the commits that follow the one that added this file.
func checkCommits(dir string) ([]string, error) {
	added, err := git(dir, "log", "--diff-filter=A", "--format=%H", "--", marker)
	if err != nil {
		return nil, err
	}
	hashes := strings.Fields(added)
	if len(hashes) == 0 {
		return nil, nil // a checkout without history
	}
	log, err := git(dir, "log", "--no-merges", "--format=%h %s", hashes[len(hashes)-1]+"..HEAD")
	if err != nil {
		return nil, err
	}
	var found []string
	for line := range strings.Lines(log) {
		hash, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		for _, problem := range subjectProblems(text) {
			found = append(found, fmt.Sprintf("commit %s: %s: %q", hash, problem, text))
		}
	}
	return found, nil
}

// subjectProblems returns the rules that a commit subject violates.
func subjectProblems(text string) []string {
	var found []string
	if n := len([]rune(text)); n > maxSubject {
		found = append(found, fmt.Sprintf("subject has %d characters, at most %d are allowed", n, maxSubject))
	}
	if !subject.MatchString(text) {
		found = append(found, `subject is not of the form "area: what changes"`)
	}
	if strings.HasSuffix(text, ".") {
		found = append(found, "subject ends with a period")
	}
	return found
}

func git(dir string, args ...string) (string, error) {
	cmd := exec.Command("git", append([]string{"-C", dir}, args...)...)
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w", strings.Join(args, " "), err)
	}
	return string(out), nil
}
