package handover

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCommandLine(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		unit  string
		texts map[string]string
		want  []string
		fails bool
	}{
		"continued line": {"[Service]\nExecStart=/bin/kubelet \\\n# comment\n  --a=1 \\\n  --b\n", nil,
			[]string{"/bin/kubelet", "--a=1", "--b"}, false},
		"prefixes and quotes": {"[Service]\nExecStart=-/bin/kubelet \"--a=1 2\" '--b=\\x'\n", nil,
			[]string{"/bin/kubelet", "--a=1 2", `--b=\x`}, false},
		"the last ExecStart after a reset": {
			"[Service]\nExecStart=/bin/old\n[Service]\nExecStart=\nExecStart=/bin/kubelet\n", nil,
			[]string{"/bin/kubelet"}, false,
		},
		"variables": {"[Service]\nEnvironment=\"A=--a --b=1\" B=x\nExecStart=/bin/kubelet $A --c=${B} $NONE $$x\n", nil,
			[]string{"/bin/kubelet", "--a", "--b=1", "--c=x", "$x"}, false},
		"environment file": {"[Service]\nEnvironment=A=--old\nEnvironmentFile=-/e\nExecStart=/bin/kubelet $A\n",
			map[string]string{"/e": "# comment\nA=\"--x --y=2\"\n"}, []string{"/bin/kubelet", "--x", "--y=2"}, false},
		"optional environment file": {"[Service]\nEnvironmentFile=-/e\nExecStart=/bin/kubelet\n", nil,
			[]string{"/bin/kubelet"}, false},
		"missing environment file": {"[Service]\nEnvironmentFile=/e\nExecStart=/bin/kubelet\n", nil, nil, true},
		"no command":               {"[Service]\nUser=root\n[Install]\nExecStart=/bin/x\n", nil, nil, true},
		"unbalanced quotes":        {"[Service]\nExecStart=/bin/kubelet \"--a\n", nil, nil, true},
	} {
		u, err := ParseUnit([]UnitFile{{"unit", c.unit}})
		var got []string
		if err == nil {
			got, err = u.CommandLine(c.texts)
		}
		if (err != nil) != c.fails || err == nil && !cmp.Equal(got, c.want) {
			t.Errorf("%s: got %q, error %v", name, got, err)
		}
	}
}

func TestParseFlags(t *testing.T) {
	t.Parallel()
	got, rest := ParseFlags([]string{"--max_pods=5", "--fail-swap-on", "--v", "2", "-root-dir", "/r", "x", "--node-ip"})
	want := []Flag{{"max-pods", "5"}, {"fail-swap-on", "true"}, {"v", "2"}, {"root-dir", "/r"}, {"node-ip", "true"}}
	if d := cmp.Diff(want, got); d != "" || !cmp.Equal(rest, []string{"x"}) {
		t.Errorf("got rest %q\n%s", rest, d)
	}
}

// TestRead reads a complete configuration from files.
func TestRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	root := filepath.Join(dir, "kubelet")
	write := func(path, content string) string {
		t.Helper()
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const header = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
	config := write("config.yaml", header+"maxPods: 10\nstaticPodPath: "+dir+"/static\n")
	write("conf.d/b.conf", header+"maxPods: 30\n")
	write("conf.d/a.conf", header+"maxPods: 20\n")
	write("conf.d/c.txt", "ignored")
	write("static/web.yaml", "")
	write("static/.hidden", "")
	write("kubelet/"+cpuManager, `{"policyName":"none"}`)
	write("kubelet/pods/u1/volumes/kubernetes.io~csi/data/vol_data.json", "{}")
	kubeconfig := write("kubeconfig", "")
	unit := write("kubelet.service", "[Service]\nExecStart=/bin/kubelet --config="+config+" --config-dir="+dir+
		"/conf.d --root-dir="+root+" --kubeconfig="+kubeconfig+"\n")
	state := UnitState{Loaded: true, Enabled: "enabled", Active: true}
	f, err := Read(Process{UnitFiles: []string{unit}}, state)
	if err != nil {
		t.Fatal(err)
	}
	s := Resolve(f.Args, f.Documents)
	if s.Kubelet["maxPods"] != 30.0 || s.RootDir() != root || !f.Existing[kubeconfig] || f.UnitChanged {
		t.Errorf("got %+v of %+v", s, f)
	}
	if !cmp.Equal(f.Volumes, []Volume{{"u1", "kubernetes.io~csi", "data"}}) || len(f.Checkpoints) != 1 ||
		!cmp.Equal(f.StaticFiles, []string{dir + "/static/web.yaml"}) {
		t.Errorf("got %+v", f)
	}
	running, err := Read(Process{UnitFiles: []string{unit}, CommandLine: []string{"kubelet", "--max-pods=7"}}, state)
	if err != nil || !running.UnitChanged || !cmp.Equal(running.Args, []string{"--max-pods=7"}) {
		t.Errorf("got %+v, %v for a running kubelet with other flags", running, err)
	}
	script := append([]string{"/bin/sh", "/bin/kubelet"}, f.Args...)
	if f, err := Read(Process{UnitFiles: []string{unit}, CommandLine: script}, state); err != nil || f.UnitChanged {
		t.Errorf("got %+v, %v for a script with the same flags", f, err)
	}
	if _, err := Read(Process{UnitFiles: []string{dir + "/none"}}, state); err == nil {
		t.Error("a missing unit file is no error")
	}
	if f, err := Read(Process{}, UnitState{}); err != nil || f.Args != nil {
		t.Errorf("got %+v, %v without a unit", f, err)
	}
}
