package cis

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// File has the permissions and the owner of a file or directory.
type File struct {
	Path string
	// Mode has the permission bits.
	Mode     fs.FileMode
	UID, GID uint32
	Dir      bool
	Size     int64 // in bytes
	// Err is why the file cannot be read; nil for a file that exists. It matches fs.ErrNotExist for a missing file.
	Err error
}

// Stat reads the permissions of a file. It follows symbolic links, like the commands of the benchmark.
func Stat(path string) File {
	st, err := os.Stat(path)
	if err != nil {
		return File{Path: path, Err: err}
	}
	return newFile(path, st)
}

func newFile(path string, st fs.FileInfo) File {
	f := File{Path: path, Mode: st.Mode().Perm(), Dir: st.IsDir(), Size: st.Size()}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		f.UID, f.GID = sys.Uid, sys.Gid
	}
	return f
}

// Tree reads the permissions of a directory and of all directories and regular files below it. Files that vanish
// meanwhile are left out.
func Tree(dir string) (files []File, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && path != dir {
			return nil
		}
		if err != nil {
			return err
		}
		if !d.IsDir() && !d.Type().IsRegular() {
			return nil
		}
		st, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		files = append(files, newFile(path, st))
		return nil
	})
	return files, err
}

// Missing reports whether the file does not exist.
func (f File) Missing() bool { return errors.Is(f.Err, fs.ErrNotExist) }

// Owner returns the owner and the group as text, such as root:root or 1000:1000.
func (f File) Owner() string { return ownerName(f.UID) + ":" + ownerName(f.GID) }

func ownerName(id uint32) string {
	if id == 0 {
		return "root"
	}
	return fmt.Sprint(id)
}

// CheckModes checks that no file has a permission that most lacks. Missing files are ignored. Without a file, the
// verdict is NotApplicable.
func CheckModes(files []File, most fs.FileMode) Finding {
	return checkFiles(files, "mode", func(f File) (string, string) {
		if f.Mode&^most == 0 {
			return fmt.Sprintf("%04o", f.Mode), ""
		}
		return fmt.Sprintf("%04o", f.Mode), fmt.Sprintf("chmod %o %s", f.Mode&most, f.Path)
	})
}

// CheckOwners checks that all files belong to root:root. Missing files are ignored. Without a file, the verdict is
// NotApplicable. Files of the user that runs the program are accepted: it has no other user.
func CheckOwners(files []File, user uint32) Finding {
	others := false
	f := checkFiles(files, "owner", func(f File) (string, string) {
		switch {
		case f.UID == 0 && f.GID == 0:
			return f.Owner(), ""
		case user != 0 && f.UID == user:
			others = true
			return f.Owner(), ""
		}
		return f.Owner(), "chown root:root " + f.Path
	})
	if f.Verdict == Pass && others {
		return Deviation("%s: the program runs without root privileges", f.Evidence)
	}
	return f
}

// checkFiles applies a check that returns the state of a file and, for a wrong one, what to change.
func checkFiles(files []File, what string, check func(File) (state, remedy string)) Finding {
	var wrong, states, remedies, unknown []string
	count, first := 0, ""
	for _, f := range files {
		if f.Missing() {
			continue
		}
		if f.Err != nil {
			unknown = append(unknown, f.Err.Error())
			continue
		}
		count++
		if first == "" {
			first = f.Path
		}
		state, remedy := check(f)
		if remedy != "" {
			wrong, remedies = append(wrong, f.Path+" has "+what+" "+state), append(remedies, remedy)
		}
		states = append(states, state)
	}
	switch {
	case len(wrong) > 0:
		return Failed(List(remedies), "%s", List(wrong))
	case len(unknown) > 0:
		return Unknown("%s", List(unknown))
	case count == 0:
		var paths []string
		for _, f := range files {
			paths = append(paths, f.Path)
		}
		return Absent("no such file: %s", List(paths))
	case count == 1:
		return Passed("%s has %s %s", first, what, states[0])
	}
	return Passed("%d files from %s have %s %s", count, first, what, List(states))
}

// UnitModes checks the modes of systemd units, which may be readable by all users.
func UnitModes(units []File) Finding {
	f := CheckModes(units, 0o644)
	if f.Verdict != Pass {
		return f
	}
	return Deviation("%s: systemd warns about units that not all users can read, and shows their content anyway; "+
		"units contain no secrets", f.Evidence)
}
