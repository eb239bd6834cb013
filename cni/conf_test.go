package cni

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// confDir is a directory with files, given as name and content in turn.
func confDir(t *testing.T, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for i := 0; i < len(files); i += 2 {
		file := filepath.Join(dir, files[i])
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(files[i+1]), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const good = `{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "bridge", "ipam": {"type": "host-local"}}, ` +
	`{"type": "portmap"}]}`

func TestBadConfigurations(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ name, file, text, want string }{
		{"invalid JSON", "a.conflist", "{\n\"name\": x}", "line 2: invalid JSON: "},
		{"truncated", "a.conflist", `{"name": "n", "plugins": [`, "line 1: invalid JSON: "},
		{"empty", "a.conflist", "", "line 1: invalid JSON: "},
		{"not an object", "a.conflist", `[1]`, "must be a JSON object"},
		{"null", "a.conflist", `null`, "name: required"},
		{"no name", "a.conflist", `{"plugins": [{"type": "x"}]}`, "name: required"},
		{"a name of another type", "a.conflist", `{"name": 1}`, "name: must be a string"},
		{"a name with a path", "a.conflist", `{"name": "../x"}`, `name: "../x" must start with`},
		{"an unknown version", "a.conflist", `{"name": "n", "cniVersion": "9.9.9"}`,
			`cniVersion: "9.9.9" is not one of `},
		{"a version of another type", "a.conflist", `{"name": "n", "cniVersion": 1}`, "cniVersion: must be a string"},
		{"no plugins", "a.conflist", `{"name": "n"}`, "plugins: required"},
		{"plugins is not a list", "a.conflist", `{"name": "n", "plugins": {}}`, "plugins: must be a list"},
		{"an empty list", "a.conflist", `{"name": "n", "plugins": []}`, "plugins: must not be empty"},
		{"a plugin that is not an object", "a.conflist", `{"name": "n", "plugins": [{"type": "x"}, 1]}`,
			"plugins[1]: must be an object"},
		{"a plugin without type", "a.conflist", `{"name": "n", "plugins": [{"type": "x"}, {}]}`,
			"plugins[1].type: required"},
		{"a plugin type with a path", "a.conflist", `{"name": "n", "plugins": [{"type": "../x"}]}`,
			`plugins[0].type: "../x" must be a plugin name without a path`},
		{"an IPAM plugin type with a path", "a.conflist",
			`{"name": "n", "plugins": [{"type": "x", "ipam": {"type": "/x"}}]}`, `plugins[0].ipam.type: "/x" must be`},
		{"an IPAM configuration that is not an object", "a.conflist",
			`{"name": "n", "plugins": [{"type": "x", "ipam": 1}]}`, "plugins[0].ipam: must be an object"},
		{"a field of another type", "a.conflist", `{"name": "n", "plugins": [{"type": "x", "capabilities": 1}]}`,
			"capabilities"},
		{"a flag of another type", "a.conflist", `{"name": "n", "disableCheck": 1, "plugins": [{"type": "x"}]}`,
			"disableCheck"},
		{"a list in a file of one plugin", "a.conf", `{"name": "n", "plugins": []}`, "plugins: only a *.conflist file"},
		{"one plugin without type", "a.json", `{"name": "n"}`, "type: required"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			dir := confDir(t, row.file, row.text, "b.conflist", good)
			_, err := load(dir)
			if want := filepath.Join(
				dir,
				row.file,
			) + ": "; err == nil || !strings.HasPrefix(err.Error(), want) ||
				!strings.Contains(err.Error(), row.want) {
				t.Errorf("got %v, want %s", err, row.want)
			}
		})
	}
}

func TestEffectiveConfiguration(t *testing.T) {
	t.Parallel()
	one := `{"name": "one", "type": "ptp"}`
	for _, row := range []struct {
		name    string
		files   []string
		network string
		plugins []string
	}{
		{"the IPAM plugin is required too", []string{"a.conflist", good}, "net",
			[]string{"bridge", "host-local", "portmap"}},
		{"the first file by name is used", []string{"b.conflist", good, "a.conf", one}, "one", []string{"ptp"}},
		{"files with other suffixes are ignored", []string{"b.conflist", good, "a.conflist.bak", "x", "README", "x"},
			"net", []string{"bridge", "host-local", "portmap"}},
		{"directories are ignored", []string{"b.conflist", good, "a.conflist/x", "x"}, "net",
			[]string{"bridge", "host-local", "portmap"}},
		{
			"plugins in separate files",
			[]string{"a.conflist", `{"name": "n", "cniVersion": "1.1.0"}`, "n/1.conf", `{"type": "ptp"}`}, "n",
			[]string{"ptp"},
		},
		{"a plugin that is used twice is listed once",
			[]string{"a.conflist", `{"name": "n", "plugins": [{"type": "x"}, {"type": "x"}]}`}, "n", []string{"x"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			got, err := load(confDir(t, row.files...))
			if err != nil || got.name != row.network || !slices.Equal(got.plugins, row.plugins) {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}

func TestUnreadable(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "not", "there")
	if _, err := load(dir); err == nil || err.Error() != "no network configuration in "+dir {
		t.Error(err)
	}
	big := confDir(t, "a.conflist", strings.Repeat(" ", maxConf+1))
	if _, err := load(big); err == nil || !strings.Contains(err.Error(), "larger than 1 MiB") {
		t.Error(err)
	}
	broken := t.TempDir()
	if err := os.Symlink("/nowhere", filepath.Join(broken, "a.conflist")); err != nil {
		t.Fatal(err)
	}
	if _, err := load(broken); err == nil || !strings.HasSuffix(err.Error(), "a.conflist: no such file or directory") {
		t.Error(err)
	}
}

// N3: any content either fails or results in valid plugin names.
func FuzzConfiguration(f *testing.F) { // N3
	for _, seed := range []string{good, `null`, `[]`, `{"name":"n"}`, `{"name":"n","plugins":[null]}`,
		`{"name":"n","type":"x","ipam":null}`, `{"name":"n","cniVersions":["1.0.0","x"]}`} {
		f.Add("a.conflist", []byte(seed))
		f.Add("a.conf", []byte(seed))
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, file string, text []byte) {
		n, err := parse(filepath.Join(dir, filepath.Base(file)), text)
		if err != nil {
			return
		}
		if n.name == "" || len(n.plugins) == 0 {
			t.Fatalf("parsed as %+v", n)
		}
		for _, p := range n.plugins {
			if p == "" || filepath.Base(p) != p {
				t.Fatalf("plugin %q", p)
			}
		}
	})
}
