package cni

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// plugin writes a fake CNI plugin that records its calls.
func plugin(t *testing.T, dir, name, versions string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf(
		"#!/bin/sh\necho >> %s/ran-%s\necho '{\"cniVersion\": \"1.0.0\", \"supportedVersions\": [%s]}'\n",
		dir,
		name,
		versions,
	)
	next := filepath.Join(dir, ".next-"+name)
	program(t, next, script)
	if err := os.Rename(next, filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
}

// program writes a script. The lock prevents concurrent forks: a child process would inherit the
// open file, and executing it would fail.
func program(t *testing.T, path, text string) {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestReady(t *testing.T) {
	t.Parallel()
	conf, bin := t.TempDir(), t.TempDir()
	n, err := New(Options{ConfDir: conf, BinDirs: []string{"/nowhere", bin}})
	if err != nil {
		t.Fatal(err)
	}
	expect := func(want string) {
		t.Helper()
		if ok, why := n.Ready(); why != want || ok != (want == "") {
			t.Errorf("%t, %q, want %q", ok, why, want)
		}
	}
	expect("no network configuration in " + conf)
	if err := os.WriteFile(filepath.Join(conf, "a.conflist"), []byte(`{"name": "n", "plugins": [{"type": "one"}]}`),
		0o644); err != nil {
		t.Fatal(err)
	}
	expect(`plugin "one" not found in /nowhere, ` + bin)
	if err := os.WriteFile(filepath.Join(bin, "one"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	expect(`plugin "one" not found in /nowhere, ` + bin) // is no program
	plugin(t, bin, "one", `"1.0.0"`)
	expect("")
}

func TestOptions(t *testing.T) {
	t.Parallel()
	for want, o := range map[string]Options{"cniConfDir: required": {BinDirs: []string{"/x"}},
		"cniBinDirs: required": {ConfDir: "/x"}} {
		if _, err := New(o); err == nil || err.Error() != want {
			t.Error(err)
		}
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	conf, bin := confDir(
		t,
		"a.conflist",
		`{"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "old"}, {"type": "new"}, {"type": "broken"}, `+
			`{"type": "absent"}]}`,
	), t.TempDir()
	plugin(t, bin, "old", `"0.4.0"`)
	plugin(t, bin, "new", `"0.4.0", "1.0.0"`)
	program(t, filepath.Join(bin, "broken"), "#!/bin/sh\nexit 1\n")
	n, err := New(Options{ConfDir: conf, BinDirs: []string{bin}})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		got := map[string]Item{}
		for _, item := range n.Check(t.Context()).Items {
			got[item.Name] = item
			if item.OK != (item.Remedy == "") || item.Detail == "" {
				t.Errorf("%+v", item)
			}
		}
		for name, want := range map[string]string{
			"configuration": "network n of " + conf + "/a.conflist",
			"plugin old":    bin + "/old supports CNI 0.4.0, the configuration requires 1.0.0",
			"plugin new":    bin + "/new, CNI 0.4.0, 1.0.0",
			"plugin broken": `plugin "broken" at ` + bin + "/broken: query version: ",
			"plugin absent": `plugin "absent" not found in ` + bin,

			"plugin loopback": `plugin "loopback" not found in ` + bin,
		} {
			item := got[name]
			if ok := name == "configuration" || name == "plugin new"; item.OK != ok ||
				!strings.HasPrefix(item.Detail, want) {
				t.Errorf("%s: %+v", name, item)
			}
		}
	}
	if ran, _ := os.ReadFile(filepath.Join(bin, "ran-new")); string(ran) != "\n" {
		t.Errorf("the plugin ran %d times", len(ran))
	}
	plugin(t, bin, "old", `"0.4.0", "1.0.0"`)
	plugin(t, bin, "loopback", `"0.4.0"`) // its versions are not checked
	for _, item := range n.Check(t.Context()).Items {
		if (item.Name == "plugin old" || item.Name == "plugin loopback") && !item.OK {
			t.Errorf("a new plugin file was not executed: %+v", item)
		}
	}
}

func TestCheckWithoutConfiguration(t *testing.T) {
	t.Parallel()
	n, err := New(Options{ConfDir: "/nowhere/x", BinDirs: []string{"/nowhere"}})
	if err != nil {
		t.Fatal(err)
	}
	items := n.Check(t.Context()).Items
	if len(items) != 1 || items[0].OK || items[0].Detail != "no network configuration in /nowhere/x" ||
		!strings.Contains(items[0].Remedy, "cniPodCIDRs") {
		t.Errorf("%+v", items)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "10-foreign.conflist") // never overwritten
	if err := os.WriteFile(file, []byte(`{"name": `), 0o644); err != nil {
		t.Fatal(err)
	}
	if n, err = New(Options{ConfDir: dir, BinDirs: []string{"/nowhere"}}); err != nil {
		t.Fatal(err)
	}
	if items := n.Check(t.Context()).Items; len(items) != 1 || items[0].OK ||
		items[0].Remedy != "fix "+file+", or remove it" {
		t.Errorf("with an invalid file: %+v", items)
	}
}

func TestRun(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	conf, bin := filepath.Join(root, "etc", "cni", "net.d"), filepath.Join(root, "opt", "bin")
	n, err := New(Options{ConfDir: conf, BinDirs: []string{bin}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	calls, done := make(chan struct{}, 100), make(chan error, 1)
	go func() { done <- n.Run(ctx, func() { calls <- struct{}{} }) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	expect := func(want string) {
		t.Helper()
		for bound := time.After(time.Minute); ; {
			if _, why := n.Ready(); why == want && n.running.Load() == 1 {
				return
			}
			select {
			case <-calls:
			case <-time.After(5 * time.Millisecond): // no calls before Run has started
			case <-bound:
				_, why := n.Ready()
				t.Fatalf("%q, want %q", why, want)
			}
		}
	}
	expect("no network configuration in " + conf)
	if err := writeNetwork(conf,
		defaultNetwork{name: "n", bridge: "b",
			cidrs: []netip.Prefix{netip.MustParsePrefix("10.9.0.0/24")}}); err != nil {
		t.Fatal(err)
	}
	expect(`plugin "bridge" not found in ` + bin)
	for _, name := range []string{"bridge", "host-local", "portmap"} {
		plugin(t, bin, name, `"1.0.0"`)
	}
	expect("")
	if err := os.RemoveAll(filepath.Join(root, "etc")); err != nil {
		t.Fatal(err)
	}
	expect("no network configuration in " + conf)
	if err := writeNetwork(conf,
		defaultNetwork{name: "n", bridge: "b",
			cidrs: []netip.Prefix{netip.MustParsePrefix("10.9.0.0/24")}}); err != nil {
		t.Fatal(err)
	}
	expect("")
}
