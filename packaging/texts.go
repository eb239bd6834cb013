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

// writeChangelog writes the changelog that Debian wants of each package: its one entry names the commit, whose history
// is the true one.
func writeChangelog(name, program, version, describe string, committed time.Time) error {
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(z, "%s (%s) unstable; urgency=medium\n\n  * Made from %s; its history is that of the repository.\n\n -- %s  %s\n",
		program, version, describe, maintainer, committed.Format(time.RFC1123Z)); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	return os.WriteFile(name, out.Bytes(), 0o644)
}

// module is one that a program is linked with.
type module struct {
	Path, Version, Dir string
	Main               bool
}

// copyright is the package's file of that name: the programs are static, so it has the licences of all modules in it.
func copyright(ctx context.Context, program string) ([]byte, error) {
	modules, err := linked(ctx, program)
	if err != nil {
		return nil, err
	}
	// Many modules have one text: each text stands once.
	var texts []string
	users := map[string][]string{}
	for _, m := range modules {
		files, err := licences(m)
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
	out.WriteString("berth is licensed under the Apache License, Version 2.0, which is in /usr/share/common-licenses/Apache-2.0.\n" +
		"\nThe program is linked with the modules below; their licences and notices follow.\n")
	for _, text := range texts {
		fmt.Fprintf(&out, "\n%s\n%s\n\n%s\n", strings.Repeat("=", 80), strings.Join(users[text], "\n"), text)
	}
	return out.Bytes(), nil
}

// linked lists the modules that a program has anything of, in the order of their paths, and Go itself.
func linked(ctx context.Context, program string) ([]module, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-deps", "-json=Module", "./cmd/"+program)
	// The same modules for every architecture, whatever this machine is.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
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
	licenceName = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)([-.].*)?$`)
	wholeApache = regexp.MustCompile(`(?s)^\s*Apache License\s+Version 2\.0, January 2004.*END OF TERMS AND CONDITIONS`)
)

// licences are the texts in a module's top folder. One that Debian has on every host is named in place of it.
func licences(m module) (out []string, err error) {
	files, err := os.ReadDir(m.Dir)
	if err != nil {
		return nil, fmt.Errorf("licence of %s: %w", m.Path, err)
	}
	for _, f := range files {
		if f.IsDir() || !licenceName.MatchString(f.Name()) || strings.HasSuffix(f.Name(), ".go") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(m.Dir, f.Name()))
		if err != nil {
			return nil, err
		}
		says := strings.TrimSpace(string(text))
		if wholeApache.MatchString(says) {
			says = "Apache License, Version 2.0: /usr/share/common-licenses/Apache-2.0"
		}
		out = append(out, says)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s has no licence in %s", m.Path, m.Dir)
	}
	return out, nil
}
