package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Inspect compares the host with the spec.
func Inspect(ctx context.Context, w Spec) (HostState, error) {
	var seen HostState
	var err error
	if w.Source != "" { // not needed for a removal
		if seen.Program, err = sameFile(w.Source, w.program()); err != nil {
			return seen, err
		}
	}
	if seen.Unit, err = hasContent(w.unitFile(), w.unitText()); err != nil {
		return seen, err
	}
	seen.ExtraUnits = make([]UnitState, len(w.ExtraUnits))
	for i, u := range w.ExtraUnits {
		if seen.ExtraUnits[i].Installed, err = hasContent(w.fileOf(u.Name), w.textOf(u.Content)); err != nil {
			return seen, err
		}
	}
	seen.Config = Exists(w.ConfigFile)
	for _, d := range w.Dirs {
		if !Exists(d.Path) {
			seen.MissingDirs = append(seen.MissingDirs, d.Path)
		}
	}
	if w.NoStart {
		return seen, nil
	}
	if !Exists("/run/systemd/system") { // as sd_booted(3)
		return seen, errors.New("this host does not run systemd: use --no-start and start the program manually")
	}
	is := func(what, unit string) bool { return systemctl(ctx, "is-"+what, "--quiet", unit) == nil }
	seen.Enabled, seen.Active = is("enabled", w.service()), is("active", w.service())
	needsReload := func(unit string) bool { return property(ctx, unit, "NeedDaemonReload") == "yes" }
	seen.ProgramReplaced, seen.NeedsReload = w.programReplaced(
		"/proc/"+property(ctx, w.service(), "MainPID"),
	), needsReload(
		w.service(),
	)
	for i, u := range w.ExtraUnits {
		seen.ExtraUnits[i].Enabled, seen.ExtraUnits[i].Active, seen.ExtraUnits[i].NeedsReload = is(
			"enabled",
			u.Name,
		), is(
			"active",
			u.Name,
		), needsReload(
			u.Name,
		)
	}
	return seen, nil
}

// programReplaced reports whether the process, a directory in /proc, runs another program than the
// installed one, because the file was replaced without a restart of the service. It returns false
// if this cannot be determined.
func (w Spec) programReplaced(process string) bool {
	same, err := sameFile(process+"/exe", w.program())
	return err == nil && !same
}

// property returns a property of a unit. Empty: unknown.
func property(ctx context.Context, unit, name string) string {
	out, err := exec.CommandContext(ctx, "systemctl", "show", "--value", "--property="+name, unit).Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

// Properties returns properties of a unit by name, as systemctl show prints them.
func Properties(ctx context.Context, unit string, names ...string) (map[string]string, error) {
	args := []string{"show", "--property=" + strings.Join(names, ","), unit}
	out, err := exec.CommandContext(ctx, "systemctl", args...).Output()
	if err != nil {
		return nil, fmt.Errorf("properties of %s: %w", unit, err)
	}
	all := map[string]string{}
	for line := range strings.Lines(string(out)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		all[name] = value
	}
	return all, nil
}

// IsPackaged reports whether a package has installed the program.
func IsPackaged(name string) bool { return checkNotPackaged(name, DebianLayout) != nil }

// Status returns the status text of the service. Empty: none.
func Status(ctx context.Context, w Spec) string { return property(ctx, w.service(), "StatusText") }

// hasContent reports whether a file exists with this content.
func hasContent(path, content string) (bool, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && string(text) == content, err
}

// Exists reports whether a path exists, including broken symbolic links.
func Exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// sameFile reports whether two files have the same content. A missing second file counts as
// different.
func sameFile(a, b string) (bool, error) {
	info, err := os.Stat(b)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if first, err := os.Stat(a); err != nil || os.SameFile(first, info) || first.Size() != info.Size() {
		return err == nil && os.SameFile(first, info), err
	}
	x, err := os.ReadFile(a)
	if err != nil {
		return false, err
	}
	y, err := os.ReadFile(b)
	return err == nil && bytes.Equal(x, y), err
}

// CheckNotPackaged returns an error if a package has installed the program: only the package
// manager may change it, and a second installation would shadow the first.
func CheckNotPackaged(name string) error {
	return checkNotPackaged(name, DebianLayout)
}

func checkNotPackaged(name string, l Layout) error {
	unit := filepath.Join(l.Units, name+".service")
	if !Exists(unit) {
		return nil
	}
	return fmt.Errorf(
		"%[1]s was installed from a package (%[2]s): upgrade it with apt install ./%[1]s_VERSION_ARCH.deb, "+
			"remove it with apt remove %[1]s (including its state with apt purge %[1]s)",
		name,
		unit,
	)
}

// mountsBelow lists the mounts at or below a path.
func mountsBelow(path string) (out []string, err error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		at := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(strings.Fields(line)[4])
		if at == target || strings.HasPrefix(at, target+"/") {
			out = append(out, at)
		}
	}
	return out, nil
}
