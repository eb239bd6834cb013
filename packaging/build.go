package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
)

// extraFiles lists, by program, additional files of the repository that are included in its package
// without their directories.
var extraFiles = map[string][]string{
	"berth": {
		"systemd/berth.service", "systemd/berth-drain.service", "docs/operate.md", "docs/troubleshoot.md",
		"docs/install.md", "docs/pods.md", "docs/pods-from-files.md", "docs/node-resources.md", "docs/join-a-server.md",
		"docs/debug-a-pod.md", "docs/reference/configuration.md", "docs/networking.md",
	},
	"berth-control": {
		"systemd/berth-control.service", "docs/operate.md", "docs/troubleshoot.md", "docs/control-server.md",
		"docs/control-access.md", "docs/control-requests.md",
	},
}

// build builds packages in the root of the repository.
type build struct {
	describe, ldflags, tags, out string
	committed                    time.Time
	version                      string // Debian version
	work                         string // temporary directory
}

func (b *build) all(ctx context.Context, programs, archs []string) (err error) {
	if b.version, err = debianVersion(b.describe, b.committed); err != nil {
		return err
	}
	if b.out, err = filepath.Abs(b.out); err != nil {
		return err
	}
	if err := os.MkdirAll(b.out, 0o755); err != nil {
		return err
	}
	if b.work, err = os.MkdirTemp("", "berth-packaging-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.work)) }()
	// A separate module has to be built in its own directory.
	if err := b.run(ctx, "packaging/nfpm", nil, "go", "build", "-trimpath", "-o", b.tool(), "."); err != nil {
		return err
	}
	for _, p := range programs {
		if err := b.common(ctx, p); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		for _, arch := range archs {
			if err := b.one(ctx, p, arch); err != nil {
				return fmt.Errorf("%s for %s: %w", p, arch, err)
			}
		}
	}
	return nil
}

func (b *build) tool() string                { return filepath.Join(b.work, "nfpm") }
func (b *build) stage(program string) string { return filepath.Join(b.work, "stage", program) }

// common collects the files that are the same for all architectures.
func (b *build) common(ctx context.Context, program string) error {
	stage := b.stage(program)
	if err := os.MkdirAll(stage, 0o755); err != nil {
		return err
	}
	own, err := filepath.Glob(filepath.Join("packaging", program, "*"))
	if err != nil {
		return err
	}
	for _, from := range append(own, extraFiles[program]...) {
		text, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(stage, filepath.Base(from)), text, 0o644); err != nil {
			return err
		}
	}
	args := []string{ // with the tags of the program, whose compiled packages it shares
		"go", "run", "-trimpath", "-tags", b.tags + ",packaging", "-ldflags", b.ldflags, "./cmd/" + program,
		"packaging-files", stage,
	}
	if err := b.run(ctx, ".", nil, args...); err != nil {
		return err
	}
	copyright, err := copyright(ctx, program)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(stage, "copyright"), copyright, 0o644); err != nil {
		return err
	}
	return writeChangelog(filepath.Join(stage, "changelog.gz"), program, b.version, b.describe, b.committed)
}

// one builds one package.
func (b *build) one(ctx context.Context, program, arch string) error {
	stage := b.stage(program)
	for _, p := range []struct {
		dir  string
		env  []string
		args []string
	}{
		{".", []string{"GOOS=linux", "GOARCH=" + arch}, []string{
			"go", "build", "-trimpath", "-tags", b.tags, "-ldflags", b.ldflags, "-o", filepath.Join(stage, program),
			"./cmd/" + program,
		}},
		{stage, []string{"ARCH=" + arch, "VERSION=" + b.version}, []string{b.tool(), "nfpm.yaml", "package.deb"}},
	} {
		if err := b.run(ctx, p.dir, p.env, p.args...); err != nil {
			return err
		}
	}
	name := fmt.Sprintf("%s_%s_%s.deb", program, b.version, arch)
	text, err := os.ReadFile(filepath.Join(stage, "package.deb"))
	if err != nil {
		return err
	}
	// Rename the complete file.
	tmp := filepath.Join(b.out, "."+name)
	if err := os.WriteFile(tmp, text, 0o644); err != nil {
		return err
	}
	if err := os.Rename(tmp, filepath.Join(b.out, name)); err != nil {
		return err
	}
	_, err = fmt.Println(filepath.Join(b.out, name))
	return err
}

// run runs a program with the time of the commit.
func (b *build) run(ctx context.Context, dir string, env []string, args ...string) error {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = dir
	cmd.Env = append(
		os.Environ(),
		"CGO_ENABLED=0",
		"GOFLAGS=-buildvcs=false",
		"GOWORK=off", // the versions of go.mod, not those of the workspace with the tests
		"TZ=UTC",
		"SOURCE_DATE_EPOCH="+strconv.FormatInt(b.committed.Unix(), 10),
	)
	cmd.Env = append(cmd.Env, env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%q: %w\n%s", args, err, out)
	}
	return nil
}
