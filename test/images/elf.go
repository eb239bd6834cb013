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

// libDirs returns the search path of Debian's dynamic linker.
func libDirs() []string {
	triplet := map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[runtime.GOARCH]
	return []string{"/lib/" + triplet, "/usr/lib/" + triplet, "/lib", "/usr/lib"}
}

// program adds the program name from the first of roots that contains it, with its dynamic linker and all
// libraries.
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

// needed returns the image paths of the libraries and the dynamic linker of an ELF file.
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
				// One canonical path, which prevents adding a library twice.
				return strings.TrimPrefix(p, "/usr"), nil
			}
		}
	}
	return "", fmt.Errorf("library %s does not exist on this machine", lib)
}

// find returns the file name from the first of roots that contains it. With a merged /usr, both paths of a
// file are equivalent.
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
