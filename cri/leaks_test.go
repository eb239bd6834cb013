package cri

import (
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	idA = strings.Repeat("a", 64)
	idB = strings.Repeat("b", 64)
)

func TestParseLayout(t *testing.T) {
	t.Parallel()
	const config = `{"containerdEndpoint":"unix:///run/x/c.sock","rootDir":"/r/io.containerd.grpc.v1.cri",
		"stateDir":"/s/io.containerd.grpc.v1.cri",
		"netnsMountsUnderStateDir":true,
		"containerd":{"runtimes":{"runc":{"options":{"Root":"/run/x/runc","SystemdCgroup":false}},"other":{}}}}`
	f := parseLayout(json.RawMessage(config))
	if f.Address != "/run/x/c.sock" || f.TaskDir != "/s/io.containerd.runtime.v2.task/k8s.io" ||
		f.StateDir != "/s/io.containerd.grpc.v1.cri/sandboxes" ||
		f.RootDir != "/r/io.containerd.grpc.v1.cri/sandboxes" || f.NetNSDir != "/s/io.containerd.grpc.v1.cri/netns" ||
		!f.PrivateNetNSDir ||
		!slices.Equal(f.RuncRoots, []string{"/run/containerd/runc", "/run/x/runc"}) {
		t.Errorf("%+v", f)
	}
	if f := parseLayout(json.RawMessage(strings.Replace(config, "true", "false", 1))); f.PrivateNetNSDir ||
		f.NetNSDir != "/var/run/netns" {
		t.Errorf("shared: %+v", f)
	}
	for _, other := range []string{``, `{}`, `"text"`,
		`{"containerdEndpoint":"/x","stateDir":"relative","rootDir":"/r"}`} {
		if f := parseLayout(json.RawMessage(other)); f.Address != "" {
			t.Errorf("%s: parsed as containerd's: %+v", other, f)
		}
	}
}

func TestParseShim(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name     string
		args     []string
		busy, ok bool
	}{
		{"a shim", []string{"/usr/bin/containerd-shim-runc-v2", "-namespace", "k8s.io", "-id", idA, "-address",
			"/c.sock"},
			false, true},
		{"a start command", []string{"containerd-shim-runc-v2", "-namespace", "k8s.io", "-address", "/c.sock",
			"-publish-binary", "x", "-id", idA, "start"}, true, true},
		{"a delete command", []string{"containerd-shim-runc-v2", "-namespace", "k8s.io", "-address", "/c.sock", "-id",
			idA,
			"-bundle", "/b", "delete"}, true, true},
		{"another namespace", []string{"containerd-shim-runc-v2", "-namespace", "moby", "-id", idA, "-address",
			"/c.sock"},
			false, false},
		{"an ID that CRI does not generate", []string{"containerd-shim-runc-v2", "-namespace", "k8s.io", "-id", "mine",
			"-address", "/c.sock"}, false, false},
		{"another program", []string{"/bin/sh", "containerd-shim-runc-v2", "-namespace", "k8s.io", "-id", idA}, false,
			false},
		{"nothing", []string{""}, false, false},
	} {
		s, busy, ok := parseShim(strings.Join(row.args, "\x00") + "\x00")
		if ok != row.ok || ok && (busy != row.busy || s.id != idA || s.address != "/c.sock") {
			t.Errorf("%s: %+v busy=%v ok=%v", row.name, s, busy, ok)
		}
	}
}

func TestClassifyTaskByBundle(t *testing.T) {
	t.Parallel()
	s := LeakSearch{OwnsCgroup: func(c string) bool {
		return strings.HasPrefix(c, "/kubepods/")
	}, LogDir: "/var/log/pods"}
	for _, row := range []struct {
		name, config string
		ours         bool
	}{
		{"a sandbox of berth",
			`{"annotations":{"` + sandboxLogDirAnnotation +
				`":"/var/log/pods/ns_p_u"},"linux":{"cgroupsPath":"/kubepods/podu/x"}}`, true},
		{"a container of berth", `{"linux":{"cgroupsPath":"/kubepods/podu/x"}}`, true},
		{"a sandbox of berth without cgroup", `{"annotations":{"` + sandboxLogDirAnnotation +
			`":"/var/log/pods/ns_p_u"}}`,
			true},
		{"a foreign log directory",
			`{"annotations":{"` + sandboxLogDirAnnotation +
				`":"/var/log/other/ns_p_u"},"linux":{"cgroupsPath":"/kubepods/podu/x"}}`, false},
		{"the logs' directory itself", `{"annotations":{"` + sandboxLogDirAnnotation + `":"/var/log/pods"}}`, false},
		{"a foreign cgroup",
			`{"annotations":{"` + sandboxLogDirAnnotation +
				`":"/var/log/pods/ns_p_u"},"linux":{"cgroupsPath":"/foreign/x"}}`, false},
		{"an empty spec", `{}`, false},
		{"an invalid spec", `{`, false},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(row.config), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, ok := classifyTask(LeakedTask{ID: idA, Bundle: dir}, "/tasks", processes{}, s); ok != row.ours || ok &&
			!got.Owned {
			t.Errorf("%s: %v %+v", row.name, ok, got)
		}
	}
}

func TestClassifyTaskByProcesses(t *testing.T) {
	t.Parallel()
	self, parent := os.Getpid(), os.Getppid()
	p := processes{children: map[int][]int{parent: {self}}, busy: map[int]bool{}}
	ours := LeakSearch{OwnsCgroup: func(string) bool { return true }}
	others := LeakSearch{OwnsCgroup: func(string) bool { return false }}
	if f, ok := classifyTask(LeakedTask{ID: idA, Shims: []int{parent}}, "/tasks", p, ours); !ok || !f.Owned {
		t.Errorf("with a process of berth: %v %+v", ok, f)
	}
	if _, ok := classifyTask(LeakedTask{ID: idA, Shims: []int{parent}}, "/tasks", p, others); ok {
		t.Error("a task with a foreign process was classified as owned")
	}
	if f, ok := classifyTask(LeakedTask{ID: idA, Shims: []int{self}}, "/tasks", p, others); !ok || f.Owned {
		t.Errorf("a shim without processes: %v %+v", ok, f)
	}
	if _, ok := classifyTask(LeakedTask{ID: idA, Bundle: t.TempDir(), Shims: []int{self}}, "/tasks", p, ours); ok {
		t.Error("a bundle in creation was classified as leaked")
	}
	p.busy[self] = true
	if _, ok := classifyTask(LeakedTask{ID: idA, Shims: []int{self}}, "/tasks", p, ours); ok {
		t.Error("a shim that containerd is starting was classified as leaked")
	}
}

func TestListBundles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{idA, "." + idB, "mine"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, idB), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	found, err := listBundles(dir)
	if err != nil || len(found) != 1 || found[idA] == nil || found[idA].Bundle != filepath.Join(dir, idA) {
		t.Errorf("%v %v", found, err)
	}
	if found, err := listBundles(filepath.Join(dir, "nowhere")); err != nil || len(found) != 0 {
		t.Errorf("%v %v", found, err)
	}
}

func TestSocketDirsFromBundles(t *testing.T) {
	t.Parallel()
	name := strings.Repeat("5", 64)
	var c Client
	var persisted [][]string
	c.SetSocketDirs([]string{"/zero/s"}, func(dirs []string) { persisted = append(persisted, dirs) })
	if got := c.sockets.all(); !slices.Equal(got, []string{defaultSocketDir, "/zero/s"}) {
		t.Errorf("restored: %v", got)
	}
	for _, row := range []struct{ file, text, dir string }{
		{"address", "unix:///one/s/" + name + "\n", "/one/s"},
		{"bootstrap.json", `{"version":3,"address":"unix:///two/s/` + name + `","protocol":"ttrpc"}`, "/two/s"},
		{"address", "unix:///one/s/" + name, ""},
		{"address", "vsock://3", ""},
		{"address", "unix:///three/by-name", ""},
		{"other", "", ""},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, row.file), []byte(row.text), 0o600); err != nil {
			t.Fatal(err)
		}
		before := c.sockets.all()
		c.addSocketDirs(map[string]*LeakedTask{idA: {ID: idA, Bundle: dir}})
		want := before
		if row.dir != "" {
			want = append(before, row.dir)
		}
		if got := c.sockets.all(); !slices.Equal(got, want) {
			t.Errorf("%s: %v", row.text, got)
		}
	}
	if want := [][]string{{"/zero/s", "/one/s"}, {"/zero/s", "/one/s", "/two/s"}}; !slices.EqualFunc(persisted, want,
		slices.Equal) {
		t.Errorf("persisted: %v", persisted)
	}
	got := shimSockets(LeakedTask{ID: idA}, "/run/x/c.sock", []string{"/a", "/b"})
	if len(got) != 2 || filepath.Dir(got[0]) != "/a" || filepath.Dir(got[1]) != "/b" ||
		!isContainerID(filepath.Base(got[0])) || filepath.Base(got[0]) != filepath.Base(got[1]) {
		t.Errorf("%v", got)
	}
}

func TestStaleSockets(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "s") //nolint:usetesting // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	listen := func(name string) *net.UnixListener {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, name)})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		return l
	}
	alive := listen(idA)
	defer alive.Close()
	listen(idB).Close()
	listen("by-name").Close()
	if err := os.WriteFile(filepath.Join(dir, strings.Repeat("c", 64)), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var c Client
	c.sockets.add("unix://" + filepath.Join(dir, idA))
	found := slices.DeleteFunc(c.StaleSockets(), func(path string) bool { return filepath.Dir(path) != dir })
	if !slices.Equal(found, []string{filepath.Join(dir, idB)}) {
		t.Errorf("%v", found)
	}
	for _, name := range []string{idA, idB, idB} {
		if err := c.RemoveStaleSocket(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	for name, want := range map[string]bool{idA: true, idB: false, "by-name": true} {
		if _, err := os.Lstat(filepath.Join(dir, name)); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestMountsBelow(t *testing.T) {
	t.Parallel()
	const info = "1 0 0:1 / / rw - ext4 x rw\n2 1 0:2 / /a rw - tmpfs x rw\n3 2 0:3 / /a/b\\040c rw - tmpfs x rw\n4 " +
		"2 0:3 / /ab rw - tmpfs x rw\n"
	if got := mountsBelow(info, "/a"); !slices.Equal(got, []string{"/a/b c", "/a"}) {
		t.Errorf("%q", got)
	}
}

func TestContainerIDFromCgroup(t *testing.T) {
	t.Parallel()
	for cgroup, want := range map[string]string{
		"/kubepods/podu/" + idA: idA, "/kubepods.slice/kubepods-podu.slice/cri-containerd-" + idB + ".scope": idB,
		"/kubepods/podu": "", "/": "",
	} {
		if got := containerIDFromCgroup(cgroup); got != want {
			t.Errorf("%s: %q", cgroup, got)
		}
	}
}

func TestRemoveBundle(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	bundle := filepath.Join(dir, "state", "io.containerd.runtime.v2.task", "k8s.io", idA)
	work := filepath.Join(dir, "root", "io.containerd.runtime.v2.task", "k8s.io", idA)
	keep := filepath.Join(dir, "keep", idA)
	for _, d := range []string{filepath.Join(bundle, "rootfs"), work, keep} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	tasks := filepath.Join(dir, "state", "io.containerd.runtime.v2.task")
	for _, to := range []string{work, keep} {
		if err := os.MkdirAll(bundle, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(to, filepath.Join(bundle, "work")); err != nil {
			t.Fatal(err)
		}
		if err := removeBundle(bundle, tasks); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]bool{bundle: false, work: false, keep: true} {
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestClassifyTaskByRuncState(t *testing.T) {
	t.Parallel()
	s := LeakSearch{OwnsCgroup: func(c string) bool {
		return strings.HasPrefix(c, "/kubepods/") || strings.HasPrefix(c, "kubepods-podu.slice:")
	}, LogDir: "/var/log/pods"}
	for _, row := range []struct {
		name, bundle, cgroups, logs string
		ours                        bool
	}{
		{"a container of berth", "/tasks/" + idA, `{"path":"/kubepods/podu/x"}`, "", true},
		{"with the systemd cgroup driver", "/tasks/" + idA, `{"name":"x","parent":"kubepods-podu.slice"}`, "", true},
		{"a sandbox of berth", "/tasks/" + idA, `{"path":"/kubepods/podu/x"}`, "/var/log/pods/x", true},
		{"a task of another containerd", "/elsewhere/" + idA, `{"path":"/kubepods/podu/x"}`, "", false},
		{"a task of another agent", "/tasks/" + idA, `{"path":"/foreign/x"}`, "", false},
		{"with a foreign log directory", "/tasks/" + idA, `{"path":"/kubepods/podu/x"}`, "/elsewhere/x", false},
	} {
		root := t.TempDir()
		dir := filepath.Join(root, criNamespace, idA)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		labels := `"a=b","bundle=` + row.bundle + `"`
		if row.logs != "" {
			labels += `,"` + sandboxLogDirAnnotation + "=" + row.logs + `"`
		}
		text := `{"init_process_pid":0,"config":{"labels":[` + labels + `],"cgroups":` + row.cgroups + `}}`
		if err := os.WriteFile(filepath.Join(dir, "state.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		found := map[string]*LeakedTask{}
		if err := addRuncDirs(found, []string{root, filepath.Join(root, "nowhere")}); err != nil || found[idA] == nil ||
			found[idA].RuncDir != dir {
			t.Fatalf("%v %v", found, err)
		}
		if got, ok := classifyTask(*found[idA], "/tasks", processes{}, s); ok != row.ours || ok && !got.Owned {
			t.Errorf("%s: %v %+v", row.name, ok, got)
		}
	}
}

func TestClassifyTaskAbortedByRunc(t *testing.T) {
	t.Parallel()
	id := strings.Repeat("ab12", 16) // no other test runs a process that mentions it
	dir := t.TempDir()
	aged := func() {
		at := time.Now().Add(-abortedCreateAge - time.Second)
		if err := os.Chtimes(dir, at, at); err != nil {
			t.Fatal(err)
		}
	}
	check := func(what string, want bool) {
		t.Helper()
		if got, ok := classifyTask(LeakedTask{ID: id, RuncDir: dir}, "/tasks", processes{}, LeakSearch{}); ok != want ||
			got.Owned {
			t.Errorf("%s: %v %+v", what, ok, got)
		}
	}
	check("a new directory", false)
	aged()
	runc := exec.CommandContext(t.Context(), "sh", "-c", "echo started; read end", "create", id)
	in, err := runc.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := runc.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := runc.Start(); err != nil {
		t.Fatal(err)
	}
	// Start returns before the kernel shows the new command line.
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	check("a process mentions it", false)
	_ = in.Close()
	_ = runc.Wait() // stdin is closed
	check("no process mentions it", true)
	if err := os.WriteFile(filepath.Join(dir, "state.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	aged()
	check("it has a state file", false)
	if _, ok := classifyTask(LeakedTask{ID: id, RuncDir: filepath.Join(dir, "gone")}, "/tasks", processes{},
		LeakSearch{}); ok {
		t.Error("a missing directory was classified as leaked")
	}
}

// TestClassifyIncompleteBundle: a bundle without a specification, shim and runc state has no owner after a while.
func TestClassifyIncompleteBundle(t *testing.T) {
	t.Parallel()
	id := strings.Repeat("cd34", 16) // no other test runs a process that mentions it
	bundle := filepath.Join(t.TempDir(), id)
	if err := os.MkdirAll(filepath.Join(bundle, "rootfs"), 0o711); err != nil {
		t.Fatal(err)
	}
	aged := func() {
		at := time.Now().Add(-abortedCreateAge - time.Second)
		if err := os.Chtimes(bundle, at, at); err != nil {
			t.Fatal(err)
		}
	}
	check := func(what string, task LeakedTask, want bool) {
		t.Helper()
		task.ID, task.Bundle = id, bundle
		got, ok := classifyTask(task, "/tasks", processes{}, LeakSearch{})
		if ok != want || got.Owned {
			t.Errorf("%s: %v %+v", what, ok, got)
		}
	}
	check("a new directory", LeakedTask{}, false)
	aged()
	check("an old directory", LeakedTask{}, true)
	check("it has a shim", LeakedTask{Shims: []int{1 << 30}}, false)
	check("runc has a state", LeakedTask{RuncDir: t.TempDir()}, false)
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	aged()
	check("it has a specification of another owner", LeakedTask{}, false)
}
