package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// hashComment is a comment of a shell script, a makefile, a unit or a YAML file.
var hashComment = regexp.MustCompile(`(?:^|\s)#(.*)$`)

// commentFiles are the extensions of the files with such comments. Scripts without an extension are
// recognized by their first line.
var commentFiles = []string{".sh", ".yml", ".yaml", ".service", ".toml"}

// checkComments reports banned words in the comments of files that Vale does not check.
func checkComments(dir string, banned *regexp.Regexp) (found []string, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			skipped := []string{".git", ".cache", "testdata", "bin", "node_modules"}
			if path != dir && slices.Contains(skipped, name) {
				return filepath.SkipDir
			}
			return nil
		}
		ext := filepath.Ext(name)
		if !d.Type().IsRegular() || ext != "" && !slices.Contains(commentFiles, ext) {
			return nil
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if ext != "" || name == "Makefile" || bytes.HasPrefix(src, []byte("#!")) {
			if rel, err := filepath.Rel(dir, path); err == nil {
				path = rel
			}
			found = append(found, commentProblems(path, string(src), banned)...)
		}
		return nil
	})
	return found, err
}

func commentProblems(path, src string, banned *regexp.Regexp) (found []string) {
	n := 0
	for line := range strings.Lines(src) {
		n++
		comment := hashComment.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		if comment == nil {
			continue
		}
		for _, word := range banned.FindAllString(comment[1], -1) {
			found = append(found,
				fmt.Sprintf("%s:%d: comment has %q, which is not standard technical English here", path, n, word))
		}
	}
	return found
}
