package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

const maintainer = "The berth maintainers <maintainers@berth.example>"

// writeChangelog writes the changelog that Debian requires in each package. Its only entry names
// the commit.
func writeChangelog(name, program, version, describe string, committed time.Time) error {
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return err
	}
	const entry = "%s (%s) unstable; urgency=medium\n\n" +
		"  * Built from %s. See the history of the repository.\n\n -- %s  %s\n"
	_, err = fmt.Fprintf(z, entry, program, version, describe, maintainer, committed.Format(time.RFC1123Z))
	if err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	return os.WriteFile(name, out.Bytes(), 0o644)
}

// module is a module that a program is linked with.
type module struct {
	Path, Version, Dir string
	Main               bool
}

// copyright returns the copyright file of a package with the licenses of all modules, because the
// programs are statically linked.
func copyright(ctx context.Context, program string) ([]byte, error) {
	modules, err := linked(ctx, program)
	if err != nil {
		return nil, err
	}
	// Many modules share a text: include each text once.
	var texts []string
	users := map[string][]string{}
	for _, m := range modules {
		files, err := licenses(m)
		if err != nil {
			return nil, err
		}
		for _, text := range files {
			if users[text] == nil {
				texts = append(texts, text)
			}
			users[text] = append(users[text], m.Path+" "+m.Version)
		}
	}
	var out bytes.Buffer
	out.WriteString(
		"berth is licensed under the Apache License, Version 2.0, which is in " +
			"/usr/share/common-licenses/Apache-2.0.\n" +
			"\nThe program is linked with the modules below; their licenses and notices follow.\n",
	)
	for _, text := range texts {
		fmt.Fprintf(&out, "\n%s\n%s\n\n%s\n", strings.Repeat("=", 80), strings.Join(users[text], "\n"), text)
	}
	return out.Bytes(), nil
}

// linked returns the modules that a program is linked with, sorted by path, and the Go standard
// library.
func linked(ctx context.Context, program string) ([]module, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-deps", "-json=Module", "./cmd/"+program)
	// Use a fixed architecture for a reproducible result.
	cmd.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	goroot, err := exec.CommandContext(ctx, "go", "env", "GOROOT", "GOVERSION").Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	dir, version, _ := strings.Cut(strings.TrimSpace(string(goroot)), "\n")
	all := map[string]module{"": {Path: "Go's runtime and standard library", Version: version, Dir: dir}}
	for d := json.NewDecoder(bytes.NewReader(text)); ; {
		var p struct{ Module *module }
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		if m := p.Module; m != nil && !m.Main {
			all[m.Path] = *m
		}
	}
	var out []module
	for _, m := range all {
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b module) int { return strings.Compare(a.Path, b.Path) })
	return out, nil
}

var (
	licenseName = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)([-.].*)?$`)
	wholeApache = regexp.MustCompile(`(?s)^\s*Apache License\s+Version 2\.0, January 2004.*END OF TERMS AND CONDITIONS`)
)

// licenses returns the license texts in a module's root directory. A license that Debian installs
// on every host is replaced by its path.
func licenses(m module) (out []string, err error) {
	files, err := os.ReadDir(m.Dir)
	if err != nil {
		return nil, fmt.Errorf("license of %s: %w", m.Path, err)
	}
	for _, f := range files {
		if f.IsDir() || !licenseName.MatchString(f.Name()) || strings.HasSuffix(f.Name(), ".go") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(m.Dir, f.Name()))
		if err != nil {
			return nil, err
		}
		license := strings.TrimSpace(string(text))
		if wholeApache.MatchString(license) {
			license = "Apache License, Version 2.0: /usr/share/common-licenses/Apache-2.0"
		}
		out = append(out, license)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s has no license file in %s", m.Path, m.Dir)
	}
	return out, nil
}
