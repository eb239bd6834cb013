package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth/agent/source"
	"berth/cli"
)

func validateCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "validate PATH...",
		Short: "Check manifest files and directories without a running agent",
		Long: `Check manifests as the agent does when it reads them: syntax, unknown fields, values, and fields that
berth does not support. PATH is a file, a directory, or - for stdin. In a directory, berth checks the files that the
agent reads: those that end in .yaml, .yml, .json or .manifest and are not hidden.

All files are checked together, as if they were in one directory: an object that two files define is an error of the
one that is later by name. The exit code is 1 if a file is invalid. Warnings do not change it.`,
		Example: `  berth validate web.yaml
  berth validate /etc/berth/pods
  kubectl kustomize overlays/edge | berth validate -`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return validate(args, cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
}

// validate checks the manifests of paths. It prints what they define and their warnings to out, and errors to problems.
func validate(paths []string, stdin io.Reader, out, problems io.Writer) error {
	hostname, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("host name: %w", err)
	}
	files, err := readManifests(paths, stdin, out)
	if err != nil {
		return err
	}
	invalid := 0
	for _, f := range source.CheckFiles(files, source.Identity{NodeName: strings.ToLower(hostname)}, time.Now()) {
		if len(f.Errors) > 0 {
			invalid++
		}
		if err := printChecked(f, out, problems); err != nil {
			return err
		}
	}
	if invalid > 0 {
		return &cli.ExitError{Code: 1, Err: fmt.Errorf("invalid files: %d of %d", invalid, len(files))}
	}
	return nil
}

// readManifests reads the files that the arguments name, each one once. It prints what it does not read to out.
func readManifests(paths []string, stdin io.Reader, out io.Writer) (files []source.ManifestFile, err error) {
	known := map[string]bool{}
	for _, path := range paths {
		var found []source.ManifestFile
		switch st, err := os.Stat(path); {
		case path == "-":
			if !known[path] {
				known[path] = true
				files = append(files, readManifest("<stdin>", stdin))
			}
		case err == nil && st.IsDir():
			var unread []string
			if found, unread, err = source.ReadDirectory(path); err != nil {
				found = []source.ManifestFile{{Path: path, Err: err}}
			} else if err := printUnread(path, len(found), unread, out); err != nil {
				return nil, err
			}
		default:
			found = []source.ManifestFile{readManifestFile(path)}
		}
		for _, file := range found {
			absolute, err := filepath.Abs(file.Path)
			if err != nil {
				return nil, err
			}
			if !known[absolute] {
				known[absolute] = true
				files = append(files, file)
			}
		}
	}
	return files, nil
}

// readManifestFile reads a file of any type, such as a pipe that a shell passes.
func readManifestFile(path string) source.ManifestFile {
	file, err := os.Open(path)
	if err != nil {
		return source.ManifestFile{Path: path, Err: err}
	}
	defer file.Close() // read only
	return readManifest(path, file)
}

func readManifest(name string, from io.Reader) source.ManifestFile {
	data, err := io.ReadAll(io.LimitReader(from, source.MaxFileSize+1))
	if err == nil && len(data) > source.MaxFileSize {
		err = fmt.Errorf("more than %d bytes", source.MaxFileSize)
	}
	return source.ManifestFile{Path: name, Data: data, Err: err}
}

// printUnread prints which files of a directory are not manifests, or that it has none.
func printUnread(dir string, manifests int, unread []string, out io.Writer) error {
	for _, name := range unread {
		if _, err := fmt.Fprintf(out, "%s: warning: ignored because of its name: manifests end in .yaml, .yml, .json "+
			"or .manifest\n", filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	if manifests > 0 {
		return nil
	}
	_, err := fmt.Fprintf(out, "%s: no manifests\n", dir)
	return err
}

// printChecked prints the errors of a file, or what it defines and its warnings.
func printChecked(f source.CheckedFile, out, problems io.Writer) error {
	for _, e := range f.Errors {
		if _, err := fmt.Fprintln(problems, e.String()); err != nil {
			return err
		}
	}
	if f.Desired == nil {
		return nil
	}
	for _, w := range f.Desired.Warnings {
		at := f.Path
		if w.Line > 0 {
			at += fmt.Sprintf(":%d", w.Line)
		}
		if _, err := fmt.Fprintf(out, "%s: warning: %s\n", at, w.Message); err != nil {
			return err
		}
	}
	if len(f.Errors) > 0 {
		return nil
	}
	_, err := fmt.Fprintf(out, "%s: valid: %s\n", f.Path, f.Desired.Summary())
	return err
}
