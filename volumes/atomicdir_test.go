package volumes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"berth/volumes/content"
)

// writerEnv is the environment variable that makes this test binary replace the content of a directory
// until it is killed.
const writerEnv = "BERTH_TEST_WRITE_UNTIL_KILLED"

func TestMain(m *testing.M) {
	if dir := os.Getenv(writerEnv); dir != "" {
		for n := 0; ; n++ {
			if _, err := (atomicDir{path: dir, mode: 0o755}).write(context.Background(), numbered(n)); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(3)
			}
		}
	}
	os.Exit(m.Run())
}

// numbered returns files with the same number as content. Even and odd numbers have different keys.
func numbered(n int) content.Files {
	f := content.File{Data: fmt.Append(nil, n), Mode: 0o644}
	files := content.Files{"a": f, "b": f, "dir/c": f}
	if n%2 == 0 {
		files["even"] = f
	}
	return files
}

// visible lists the files that users of the directory see, and counts the entries of the writer.
func visible(t testing.TB, dir string) (files map[string]string, own int) {
	t.Helper()
	files = map[string]string{}
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "..") {
			own++
			continue
		}
		top, err := filepath.EvalSymlinks(filepath.Join(dir, e.Name()))
		must(t, err)
		must(t, filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				files[e.Name()+strings.TrimPrefix(p, top)] = read(t, p)
			}
			return err
		}))
	}
	return files, own
}

func wantFiles(t testing.TB, dir string, want content.Files) {
	t.Helper()
	got, own := visible(t, dir)
	texts := map[string]string{}
	for p, f := range want {
		texts[p] = string(f.Data)
	}
	if !maps.Equal(got, texts) || own != 2 {
		t.Errorf("got files %v and %d entries of the writer, want %v and 2", got, own, texts)
	}
}

func TestWriteReplaces(t *testing.T) {
	t.Parallel()
	d := atomicDir{path: t.TempDir(), mode: 0o755}
	for n, files := range []content.Files{numbered(0), numbered(1), {}, numbered(2),
		{"a": {Data: []byte("x"), Mode: 0o400}}, {"a": {Data: []byte("x"), Mode: 0o600}},
		{"a/b": {Data: nil, Mode: 0o600}}} {
		changed, err := d.write(t.Context(), files)
		if err != nil || !changed {
			t.Fatalf("step %d: changed %v, %v", n, changed, err)
		}
		wantFiles(t, d.path, files)
		before, _ := os.Readlink(d.path + "/..data")
		changed, err = d.write(t.Context(), files)
		if after, _ := os.Readlink(d.path + "/..data"); err != nil || changed || before != after {
			t.Errorf("step %d: identical content was written again (%v, %v)", n, changed, err)
		}
	}
}

// Files of interrupted writes, each created manually.
func TestWriteAfterCrash(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(t *testing.T, dir, old string){
		"half a generation": func(t *testing.T, dir, _ string) {
			must(t, os.MkdirAll(dir+"/..2020_01_01_00_00_00.1/dir", 0o755))
			must(t, os.WriteFile(dir+"/..2020_01_01_00_00_00.1/dir/c", []byte("half"), 0o644))
		},
		"a generation with its link not yet renamed": func(t *testing.T, dir, _ string) {
			must(t, os.Mkdir(dir+"/..2020_01_01_00_00_00.1", 0o755))
			must(t, os.Symlink("..2020_01_01_00_00_00.1", dir+"/..data_tmp"))
		},
		"a swap without the new entries": func(t *testing.T, dir, old string) {
			must(t, os.Remove(dir+"/b"))
			must(t, os.Symlink("..data/stale", dir+"/stale"))
		},
		"a replaced generation": func(t *testing.T, dir, _ string) {
			must(t, os.Mkdir(dir+"/..2020_01_01_00_00_00.1", 0o755))
		},
		"an entry not yet renamed": func(t *testing.T, dir, _ string) {
			must(t, os.Symlink("..data/b", dir+"/..entry_tmp"))
		},
		"no generation behind the link": func(t *testing.T, dir, old string) {
			must(t, os.RemoveAll(filepath.Join(dir, old)))
		},
		"a file emptied by a power loss": func(t *testing.T, dir, old string) {
			must(t, os.Truncate(filepath.Join(dir, old, "a"), 0))
		},
		"a file that should not be there": func(t *testing.T, dir, old string) {
			must(t, os.WriteFile(filepath.Join(dir, old, "more"), nil, 0o644))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := atomicDir{path: t.TempDir(), mode: 0o755}
			_, err := d.write(t.Context(), numbered(0))
			must(t, err)
			old, err := os.Readlink(d.path + "/..data")
			must(t, err)
			leave(t, d.path, old)
			_, err = d.write(t.Context(), numbered(0))
			must(t, err)
			wantFiles(t, d.path, numbered(0))
		})
	}
}

// A writer killed at any time leaves one complete generation, and the next write cleans up.
func TestWriterKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, err := (atomicDir{path: dir, mode: 0o755}).write(t.Context(), numbered(0))
	must(t, err)
	for round := range 12 {
		last, err := os.Readlink(dir + "/..data")
		must(t, err)
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), writerEnv+"="+dir)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		must(t, cmd.Start())
		// The writer has started when the link changes. Then kill it at any time.
		for began := time.Now(); ; {
			if now, err := os.Readlink(dir + "/..data"); err == nil && now != last {
				break
			}
			if time.Since(began) > 2*time.Minute {
				t.Error("the writer has not written anything")
				break
			}
		}
		must(t, cmd.Process.Kill())
		if err := cmd.Wait(); cmd.ProcessState.ExitCode() == 3 {
			t.Fatalf("writer: %v: %s", err, stderr.String())
		}
		a, b, c := read(t, dir+"/..data/a"), read(t, dir+"/..data/b"), read(t, dir+"/..data/dir/c")
		if a == "" || a != b || b != c {
			t.Fatalf("round %d: mixed generations %q %q %q", round, a, b, c)
		}
		if read(t, dir+"/a") != a {
			t.Fatalf("round %d: a user-visible link has other content", round)
		}
		_, err = (atomicDir{path: dir, mode: 0o755}).write(t.Context(), numbered(round))
		must(t, err)
		wantFiles(t, dir, numbered(round))
	}
}

// A reader sees either the old or the new content (V4).
func TestReaderDuringWrites(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d := atomicDir{path: dir, mode: 0o755, grace: readerGrace}
	_, err := d.write(t.Context(), numbered(0))
	must(t, err)
	stop := make(chan struct{})
	var reads int
	var wg sync.WaitGroup
	wg.Go(func() {
		for ; ; reads++ {
			select {
			case <-stop:
				return
			default:
			}
			if data, err := os.ReadFile(dir + "/a"); err != nil || len(data) == 0 {
				t.Errorf("got content %q, %v", data, err)
				return
			}
			if err := readWhole(dir); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for n := range 20 {
		_, err := d.write(t.Context(), numbered(n+1))
		must(t, err)
	}
	close(stop)
	wg.Wait()
	if reads < 20 {
		t.Errorf("got only %d reads", reads)
	}
}

// readWhole reads one generation through the directory that ..data links to. A generation that was
// replaced meanwhile may be deleted.
func readWhole(dir string) error {
	gen, err := os.Readlink(dir + "/..data")
	if err != nil {
		return err
	}
	var texts []string
	for _, name := range []string{"a", "b", "dir/c"} {
		data, err := os.ReadFile(filepath.Join(dir, gen, name))
		if now, _ := os.Readlink(dir + "/..data"); errors.Is(err, fs.ErrNotExist) && now != gen {
			return nil
		}
		if err != nil {
			return err
		}
		texts = append(texts, string(data))
	}
	if len(slices.Compact(texts)) != 1 {
		return fmt.Errorf("mixed generations: %v", texts)
	}
	return nil
}

// A write removes only what the writer has created.
func TestWriteLeavesForeignEntries(t *testing.T) {
	t.Parallel()
	d := atomicDir{path: t.TempDir(), mode: 0o755}
	must(t, os.Mkdir(d.path+"/own", 0o755))
	must(t, os.Symlink("/etc/passwd", d.path+"/link"))
	_, err := d.write(t.Context(), numbered(1))
	must(t, err)
	if _, err := os.Lstat(d.path + "/own"); err != nil {
		t.Error(err)
	}
	if to, _ := os.Readlink(d.path + "/link"); to != "/etc/passwd" {
		t.Error("a foreign link was removed")
	}
}
