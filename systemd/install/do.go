package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Inspect sees what the host has of what is wanted.
func Inspect(ctx context.Context, w Spec) (HostState, error) {
	var seen HostState
	var err error
	if w.Source != "" { // else it is to go, whichever it is
		if seen.Program, err = sameFile(w.Source, w.program()); err != nil {
			return seen, err
		}
	}
	if seen.Unit, err = has(w.unitFile(), w.unitText()); err != nil {
		return seen, err
	}
	seen.ExtraUnits = make([]UnitState, len(w.ExtraUnits))
	for i, u := range w.ExtraUnits {
		if seen.ExtraUnits[i].Installed, err = has(w.fileOf(u.Name), w.textOf(u.Content)); err != nil {
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
		return seen, errors.New("this host does not run systemd: use --no-start, and start the program yourself")
	}
	is := func(what, unit string) bool { return systemctl(ctx, "is-"+what, "--quiet", unit) == nil }
	seen.Enabled, seen.Active = is("enabled", w.service()), is("active", w.service())
	unread := func(unit string) bool { return property(ctx, unit, "NeedDaemonReload") == "yes" }
	seen.ProgramReplaced, seen.NeedsReload = w.runsAnother("/proc/"+property(ctx, w.service(), "MainPID")), unread(w.service())
	for i, u := range w.ExtraUnits {
		seen.ExtraUnits[i].Enabled, seen.ExtraUnits[i].Active, seen.ExtraUnits[i].NeedsReload = is("enabled", u.Name), is("active", u.Name), unread(u.Name)
	}
	return seen, nil
}

// runsAnother reports whether the process, a directory of /proc, has another program
// than the one that is there: that was swapped, and whoever did it did not restart the
// service. Of a process that is not there, or not to be looked into, that is not known.
func (w Spec) runsAnother(process string) bool {
	same, err := sameFile(process+"/exe", w.program())
	return err == nil && !same
}

// property is one of a unit's; empty: systemd does not tell.
func property(ctx context.Context, unit, name string) string {
	out, err := exec.CommandContext(ctx, "systemctl", "show", "--value", "--property="+name, unit).Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

// Status is what the service says that it does; empty: nothing.
func Status(ctx context.Context, w Spec) string { return property(ctx, w.service(), "StatusText") }

// has reports whether a file is there with that content.
func has(path, content string) (bool, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && string(text) == content, err
}

// Exists reports whether something bears a name, be it a broken link.
func Exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// sameFile reports whether two files have the same bytes; one that is not there
// is another.
func sameFile(a, b string) (bool, error) {
	info, err := os.Stat(b)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if mine, err := os.Stat(a); err != nil || os.SameFile(mine, info) || mine.Size() != info.Size() {
		return err == nil && os.SameFile(mine, info), err
	}
	x, err := os.ReadFile(a)
	if err != nil {
		return false, err
	}
	y, err := os.ReadFile(b)
	return err == nil && bytes.Equal(x, y), err
}

// Executor is a list of steps in the making.
type Executor struct {
	Context context.Context
	Out     io.Writer // a line per step
	// Skipped names what a step has left, with the reason.
	Skipped []string
}

// Run does all steps, in order, and stops at the first that fails.
func (d *Executor) Run(steps []Step) error {
	for _, s := range steps {
		if _, err := fmt.Fprintln(d.Out, s); err != nil {
			return err
		}
		if err := d.one(s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

func (d *Executor) one(s Step) error {
	switch s.Kind {
	case RemoveFile, RemoveTree, RemoveEmpty:
		if !Exists(s.Path) {
			return nil // a step before has taken it along
		}
		return d.remove(s)
	case MakeDir:
		if err := os.MkdirAll(s.Path, s.Mode); err != nil {
			return err
		}
		return os.Chmod(s.Path, s.Mode) // whatever the umask
	case CopyProgram:
		from, err := os.Open(s.From)
		if err != nil {
			return err
		}
		defer from.Close()
		return swap(s.Path, s.Mode, from)
	case WriteFile:
		return swap(s.Path, s.Mode, strings.NewReader(s.Content))
	case Systemctl:
		return systemctl(d.Context, s.Args...)
	default:
		return s.Run(d)
	}
}

func (d *Executor) remove(s Step) error {
	switch s.Kind {
	case RemoveFile:
		return os.Remove(s.Path)
	case RemoveEmpty:
		return d.removeEmpty(s.Path)
	default:
		return d.removeTree(s.Path)
	}
}

func (d *Executor) removeTree(path string) error {
	mounts, err := mountsBelow(path)
	if err != nil {
		return err
	}
	if len(mounts) > 0 {
		d.Skipped = append(d.Skipped, fmt.Sprintf("%s: mounted below it: %s", path, strings.Join(mounts, ", ")))
		return nil
	}
	return os.RemoveAll(path)
}

func (d *Executor) removeEmpty(path string) error {
	inside, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	if len(inside) > 0 {
		d.Skipped = append(d.Skipped, fmt.Sprintf("%s: in it %s, which is not berth's", path, inside[0].Name()))
		return nil
	}
	return os.Remove(path)
}

// swap puts a file in place in one step.
func swap(path string, mode fs.FileMode, content io.Reader) (err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	_, err = io.Copy(f, content)
	if err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// systemctl runs it; what it said is in the error.
func systemctl(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, "systemctl", args...).CombinedOutput()
	if err != nil && len(bytes.TrimSpace(out)) > 0 {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(out))
	}
	return err
}

// mountsBelow lists what is mounted at or below a path.
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
