package install

import (
	"bufio"
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

// Executor runs steps.
type Executor struct {
	Context context.Context
	Out     io.Writer // progress output, one line per step
	// Skipped lists the paths that were not removed, with the reason.
	Skipped []string
}

// Run runs all steps in order and stops at the first failure.
func (d *Executor) Run(steps []Step) error {
	for _, s := range steps {
		if _, err := fmt.Fprintln(d.Out, s); err != nil {
			return err
		}
		if err := d.runStep(s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

func (d *Executor) runStep(s Step) error {
	switch s.Kind {
	case RemoveFile, RemoveTree, RemoveEmpty:
		if !Exists(s.Path) {
			return nil // already removed by an earlier step
		}
		return d.remove(s)
	case MakeDir:
		if err := os.MkdirAll(s.Path, s.Mode); err != nil {
			return err
		}
		return os.Chmod(s.Path, s.Mode) // independent of the umask
	case CopyProgram:
		from, err := os.Open(s.From)
		if err != nil {
			return err
		}
		defer from.Close()
		return replaceFile(s.Path, s.Mode, from)
	case WriteFile:
		return replaceFile(s.Path, s.Mode, strings.NewReader(s.Content))
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
		d.Skipped = append(d.Skipped, fmt.Sprintf("%s: has mounts below it: %s", path, strings.Join(mounts, ", ")))
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
		d.Skipped = append(d.Skipped, fmt.Sprintf("%s: contains %s, which does not belong to berth", path,
			inside[0].Name()))
		return nil
	}
	return os.Remove(path)
}

// replaceFile replaces a file atomically.
func replaceFile(path string, mode fs.FileMode, content io.Reader) (err error) {
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

// systemctl runs systemctl. Its error contains the output.
func systemctl(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, "systemctl", args...).CombinedOutput()
	if err != nil && len(bytes.TrimSpace(out)) > 0 {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(out))
	}
	return err
}

// PrintSteps prints the steps, one per line.
func PrintSteps(out io.Writer, steps []Step) error {
	for _, s := range steps {
		if _, err := fmt.Fprintln(out, s); err != nil {
			return err
		}
	}
	return nil
}

// Confirm prints the steps and asks for confirmation. Any answer but yes is an error.
func Confirm(in io.Reader, out io.Writer, steps []Step) error {
	if err := PrintSteps(out, steps); err != nil {
		return err
	}
	if _, err := fmt.Fprint(out, "Continue? [y/N] "); err != nil {
		return err
	}
	answer, err := bufio.NewReader(in).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if answer = strings.ToLower(strings.TrimSpace(answer)); answer != "y" && answer != "yes" {
		return errors.New("canceled; use --yes to skip the confirmation")
	}
	return nil
}
