package images

import (
	"debug/elf"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// libDirs returns where a dynamic linker of Debian looks, in its order.
func libDirs() []string {
	triplet := map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[runtime.GOARCH]
	return []string{"/lib/" + triplet, "/usr/lib/" + triplet, "/lib", "/usr/lib"}
}

// program adds the program at name, taken from the first of roots that has it,
// with its dynamic linker and all the libraries that it needs.
func (t tree) program(name string, roots ...string) error {
	todo := []string{name}
	for len(todo) > 0 {
		next := todo[0]
		todo = todo[1:]
		if _, ok := t[next]; ok {
			continue
		}
		src, err := find(next, roots)
		if err != nil {
			return fmt.Errorf("add %s: %w", name, err)
		}
		if err := t.copyFile(next, src); err != nil {
			return fmt.Errorf("add %s: %w", name, err)
		}
		needs, err := needed(src, roots)
		if err != nil {
			return fmt.Errorf("add %s: libraries of %s: %w", name, src, err)
		}
		todo = append(todo, needs...)
	}
	return nil
}

// needed returns where the libraries and the linker of an ELF file are to lie.
func needed(file string, roots []string) ([]string, error) {
	f, err := elf.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var paths []string
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			name, err := io.ReadAll(p.Open())
			if err != nil {
				return nil, err
			}
			paths = append(paths, strings.TrimRight(string(name), "\x00"))
		}
	}
	libs, err := f.ImportedLibraries()
	if err != nil {
		return nil, err
	}
	for _, lib := range libs {
		p, err := findLib(lib, roots)
		if err != nil {
			return nil, err
		}
		paths = append(paths, p)
	}
	return paths, nil
}

func findLib(lib string, roots []string) (string, error) {
	for _, root := range roots {
		for _, d := range libDirs() {
			p := filepath.Join(d, lib)
			if _, err := os.Stat(filepath.Join(root, p)); err == nil {
				// One spelling for all, so that no library is added twice.
				return strings.TrimPrefix(p, "/usr"), nil
			}
		}
	}
	return "", fmt.Errorf("library %s is not on this machine", lib)
}

// find returns the file on this machine that is name in one of roots. With a
// merged /usr the two spellings of a path mean the same file.
func find(name string, roots []string) (string, error) {
	for _, root := range roots {
		for _, n := range []string{name, "/usr" + name, strings.TrimPrefix(name, "/usr")} {
			p := filepath.Join(root, n)
			if fi, err := os.Stat(p); err == nil && fi.Mode().IsRegular() {
				return p, nil
			}
		}
	}
	return "", fmt.Errorf("%s: %w", name, os.ErrNotExist)
}
