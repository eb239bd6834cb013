package cli

import (
	"archive/tar"
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

type packed struct {
	name, text, link string
	kind             byte
}

func archiveOf(t *testing.T, files ...packed) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		h := &tar.Header{Name: f.name, Typeflag: f.kind, Linkname: f.link, Mode: 0o644, Size: int64(len(f.text))}
		if f.kind == 0 {
			h.Typeflag = tar.TypeReg
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(f.text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

// files lists the files below a directory with their contents.
func files(t *testing.T, dir string) string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		text, err := os.ReadFile(p)
		rel, _ := filepath.Rel(dir, p)
		out = append(out, rel+"="+string(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(out, " ")
}

func TestUnpackedFilesStayBelowTarget(t *testing.T) { // V4
	t.Parallel()
	for _, tt := range []struct {
		name    string
		archive []packed
		prepare func(t *testing.T, top string) // top/target is the target, top/secret is outside
		want    string                         // in top/target
		err     string
		note    string
	}{
		{
			"directory into an existing directory",
			[]packed{{name: "./src/", kind: tar.TypeDir}, {name: "./src/a", text: "1"}, {name: "./src/b/c", text: "2"}},
			nil,
			"src/a=1 src/b/c=2", "", "",
		},
		{
			"parent directory in a name is rejected", []packed{{name: "./src/../../secret", text: "x"}}, nil, "",
			"does not start with src", "",
		},
		{"absolute name is rejected", []packed{{name: "/etc/passwd", text: "x"}}, nil, "", "does not start with src",
			""},
		{"links are skipped, and files below them are written to a directory", []packed{
			{name: "./src/out", link: "..", kind: tar.TypeSymlink}, {name: "./src/out/x", text: "1"},
			{name: "./src/hard", link: "../secret", kind: tar.TypeLink},
		}, nil, "src/out/x=1", "", `skipping symlink: "src/out" -> ".."`},
		{"existing link is not followed", []packed{
			{name: "./src", text: "new"},
		}, func(t *testing.T, top string) {
			if err := os.Symlink("../secret", filepath.Join(top, "target", "src")); err != nil {
				t.Fatal(err)
			}
		}, "src=new", "", ""},
		{"existing link to a directory is not followed", []packed{
			{name: "./src/secret", text: "new"},
		}, func(t *testing.T, top string) {
			if err := os.Symlink("..", filepath.Join(top, "target", "src")); err != nil {
				t.Fatal(err)
			}
		}, "-", "escapes", ""},
		{"truncated archive is an error", nil, nil, "", "no data received", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			top := t.TempDir()
			target := filepath.Join(top, "target")
			if err := os.Mkdir(target, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(top, "secret"), []byte("s"), 0o600); err != nil {
				t.Fatal(err)
			}
			if tt.prepare != nil {
				tt.prepare(t, top)
			}
			var notes strings.Builder
			err := unpack(archiveOf(t, tt.archive...), "src", target, &notes)
			if (tt.err == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("error %v, want %q", err, tt.err)
			}
			if tt.want != "-" {
				if got := files(t, target); got != tt.want {
					t.Errorf("got %q, want %q", got, tt.want)
				}
			}
			if got, _ := os.ReadFile(filepath.Join(top, "secret")); string(got) != "s" {
				t.Errorf("a file outside was changed to %q", got)
			}
			if !strings.Contains(notes.String(), tt.note) {
				t.Errorf("notes %q", notes.String())
			}
		})
	}
}

func TestPackUnpackRoundTrip(t *testing.T) {
	t.Parallel()
	from, to := t.TempDir(), t.TempDir()
	for name, text := range map[string]string{"a": "1", "d/b": "22", "d/e/c": ""} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(from, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(from, name), []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	var b bytes.Buffer
	if err := pack(&b, from, "x"); err != nil {
		t.Fatal(err)
	}
	if err := unpack(&b, "x", filepath.Join(to, "fresh"), &strings.Builder{}); err != nil {
		t.Fatal(err)
	}
	if got, want := files(t, filepath.Join(to, "fresh")), files(t, from); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
