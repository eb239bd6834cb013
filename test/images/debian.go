package images

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// unpackDebian downloads packages and the library packages that they directly depend on, and unpacks them
// below dir. It installs nothing. It returns the root of the unpacked files.
func unpackDebian(ctx context.Context, dir string, packages ...string) (string, error) {
	all := slices.Clone(packages)
	for _, p := range packages {
		libs, err := libraryPackages(ctx, p)
		if err != nil {
			return "", err
		}
		all = append(all, libs...)
	}
	slices.Sort(all)
	all = slices.Compact(all)
	debs, root := filepath.Join(dir, "debs"), filepath.Join(dir, "root")
	if err := os.MkdirAll(debs, 0o755); err != nil {
		return "", err
	}
	if err := run(ctx, debs, "apt-get", append([]string{"download", "-q", "-o", "APT::Sandbox::User=root"},
		all...)...); err != nil {
		return "", err
	}
	files, err := filepath.Glob(filepath.Join(debs, "*.deb"))
	if err != nil {
		return "", err
	}
	for _, f := range files {
		if err := run(ctx, debs, "dpkg", "-x", f, root); err != nil {
			return "", err
		}
	}
	return root, nil
}

// libraryPackages returns the library packages that a package depends on.
func libraryPackages(ctx context.Context, name string) ([]string, error) {
	cmd := exec.CommandContext(ctx, "apt-cache", "depends", "--important", name)
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list dependencies of %s (if package lists are missing, run apt-get update): %w", name,
			err)
	}
	var libs []string
	for line := range strings.Lines(string(out)) {
		if p, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: "); ok && isLibrary(p) {
			libs = append(libs, p)
		}
	}
	return libs, nil
}

func isLibrary(p string) bool { return strings.HasPrefix(p, "lib") || p == "zlib1g" }

// run runs a program in dir. An error contains its output.
func run(ctx context.Context, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
