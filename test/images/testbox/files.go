package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

func write(a []string) error {
	return os.WriteFile(arg(a, 0, ""), []byte(strings.Join(a[min(1, len(a)):], " ")), 0o644)
}

func appendLine(a []string) error {
	f, err := os.OpenFile(arg(a, 0, ""), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, strings.Join(a[1:], " "))
	return joinClose(err, f)
}

func joinClose(err error, c io.Closer) error {
	if cerr := c.Close(); err == nil {
		return cerr
	}
	return err
}

func cat(a []string) error {
	for _, name := range a {
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if _, err := os.Stdout.Write(data); err != nil {
			return err
		}
	}
	return nil
}

func follow(a []string) error {
	gap, err := time.ParseDuration(arg(a, 1, "20ms"))
	if err != nil {
		return err
	}
	var last []byte
	for first := true; ; first = false {
		data, err := os.ReadFile(arg(a, 0, ""))
		if err == nil && (first || !bytes.Equal(data, last)) {
			fmt.Println(strings.TrimSuffix(string(data), "\n"))
			last = data
		}
		time.Sleep(gap)
	}
}

func await(a []string) error {
	for {
		if _, err := os.Stat(arg(a, 0, "")); err == nil {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func stat(a []string) error {
	for _, name := range a {
		fi, err := os.Lstat(name)
		if err != nil {
			return err
		}
		st := fi.Sys().(*syscall.Stat_t)
		line := fmt.Sprintf("%s %s %d:%d %d", name, fi.Mode(), st.Uid, st.Gid, fi.Size())
		if target, err := os.Readlink(name); err == nil {
			line += " -> " + target
		}
		fmt.Println(line)
	}
	return nil
}

func ls(a []string) error {
	entries, err := os.ReadDir(arg(a, 0, "."))
	for _, e := range entries {
		fmt.Println(e.Name(), e.Type())
	}
	return err
}

func fill(a []string) error {
	f, err := os.Create(arg(a, 0, ""))
	if err != nil {
		return err
	}
	mib := make([]byte, 1<<20)
	for range number(arg(a, 1, "1")) {
		if _, err = f.Write(mib); err != nil {
			break
		}
	}
	return joinClose(err, f)
}

// files creates empty files in a directory.
func files(a []string) error {
	dir, n := arg(a, 0, ""), number(arg(a, 1, "1"))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for i := range n {
		f, err := os.Create(filepath.Join(dir, fmt.Sprint("f", i)))
		if err := joinClose(err, f); err != nil {
			return err
		}
	}
	fmt.Println("created", n, "files")
	return nil
}

func stdin([]string) error {
	_, err := io.Copy(os.Stdout, os.Stdin)
	return err
}

func lines(a []string) error {
	size := int(number(arg(a, 1, "0")))
	gap, err := time.ParseDuration(arg(a, 2, "0s"))
	if err != nil {
		return err
	}
	for i := range number(arg(a, 0, "1")) {
		line := fmt.Sprintf("line %d", i+1)
		if pad := size - len(line) - 1; pad > 0 {
			line += strings.Repeat(".", pad)
		}
		fmt.Println(line)
		time.Sleep(gap)
	}
	return nil
}
