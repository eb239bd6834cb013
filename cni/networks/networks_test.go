package networks

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
	"berth/podspec"
)

func podWith(networks string) *corev1.Pod {
	p := &corev1.Pod{}
	p.Namespace, p.Name, p.UID = "ns", "p", "u-1"
	p.Annotations = map[string]string{podspec.NetworksAnnotation: networks}
	return p
}

func TestRequests(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		text string
		want []Request
		err  string
	}{
		{"", nil, ""},
		{"  ", nil, ""},
		{"a", []Request{{Name: "a", Interface: "net1"}}, ""},
		{"a, infra/b@data0", []Request{{Name: "a", Interface: "net1"},
			{Name: "b", Namespace: "infra", Interface: "data0"}}, ""},
		{"a,a", []Request{{Name: "a", Interface: "net1"}, {Name: "a", Interface: "net2"}}, ""},
		{
			`[{"name": "a", "interface": "x", "ips": ["10.1.0.7/24", "fd00::7"], "mac": "02:00:00:00:00:07"}]`,
			[]Request{{Name: "a", Interface: "x", IPs: []string{"10.1.0.7/24", "fd00::7"}, MAC: "02:00:00:00:00:07"}},
			"",
		},
		{"[]", []Request{}, ""},
		{`[{"name": "a", "default-route": ["10.0.0.1"]}]`, nil, `unknown field "default-route"`},
		{`[{"name": "a"}] x`, nil, "after the list"},
		{`[{"name": "a"}`, nil, "EOF"},
		{`[{}]`, nil, `"" is not a valid network name`},
		{"../a", nil, ""},
		{"a/../b", nil, `"../b" is not a valid network name`},
		{"a@", nil, "missing interface after @"},
		{"a@eth0", nil, "interface eth0 is already in use"},
		{"a@net2,b", nil, "interface net2 is already in use"},
		{"a@x/y", nil, `"x/y" is not a valid interface name`},
		{"a@" + strings.Repeat("x", 16), nil, "is not a valid interface name"},
		{`[{"name": "a", "ips": ["here"]}]`, nil, `"here" is not an IP address`},
		{`[{"name": "a", "mac": "02"}]`, nil, `"02" is not a MAC address`},
		{strings.Repeat("a,", maxNetworks) + "a", nil, "33 networks requested"},
	} {
		got, err := requests(podWith(row.text))
		switch {
		case row.text == "../a": // the namespace is ignored
			if err != nil {
				t.Errorf("%q: %v", row.text, err)
			}
		case row.err != "" && (err == nil || !strings.Contains(err.Error(), row.err)):
			t.Errorf("%q: %v, want %s", row.text, err, row.err)
		case row.err == "" && (err != nil || !reflect.DeepEqual(got, row.want)):
			t.Errorf("%q: %+v, %v", row.text, got, err)
		}
	}
	onHost := podWith("a")
	onHost.Spec.HostNetwork = true
	if _, err := requests(onHost); err == nil {
		t.Error("a pod on the host network was attached")
	}
}

func FuzzRequests(f *testing.F) {
	f.Add(`[{"name": "a", "ips": ["10.1.0.7/24"]}]`)
	f.Add("a, infra/b@data0")
	f.Fuzz(func(t *testing.T, text string) {
		list, err := requests(podWith(text))
		if err != nil {
			return
		}
		seen := map[string]bool{}
		for _, r := range list {
			if r.Name == "" || r.Interface == "" || strings.ContainsAny(r.Name+r.Interface, "/ \x00") ||
				seen[r.Interface] {
				t.Errorf("%q: %+v", text, list)
			}
			seen[r.Interface] = true
		}
	})
}

// fixture is a node with a plugin that records its calls, and fails while a file named after the verb
// exists. A CHECK of sandbox s hangs while a file hangs-s exists, and fails with a file wrong-s.
type fixture struct {
	*testing.T
	dir  string
	nets *Networks
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	r := &fixture{T: t, dir: t.TempDir()}
	r.write("bin/note", fmt.Sprintf(`#!/bin/sh
cat >/dev/null
case $CNI_COMMAND in VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}'; exit;; esac
echo "$CNI_COMMAND $CNI_IFNAME" >> %[1]s/calls
ls %[1]s/state/*.json >> %[1]s/calls 2>/dev/null
if [ $CNI_COMMAND = CHECK ]; then
	echo "$CNI_CONTAINERID" >> %[1]s/checked
	[ ! -e %[1]s/hangs-$CNI_CONTAINERID ] || exec sleep 100
fi
if [ -e %[1]s/$CNI_COMMAND ] || [ -e %[1]s/wrong-$CNI_CONTAINERID ]; then
	echo '{"cniVersion":"1.0.0","code":11,"msg":"injected"}'
	exit 1
fi
[ $CNI_COMMAND != ADD ] || echo '{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.5/24"}]}'
`, r.dir), 0o755)
	r.write("conf/20-b.conflist", `{"cniVersion":"1.0.0","name":"b","plugins":[{"type":"note"}]}`, 0o644)
	r.write(
		"conf/10-a.conflist",
		`{"cniVersion":"1.0.0","name":"a","plugins":[{"type":"note","capabilities":{"ips":true}}]}`,
		0o644,
	)
	r.restart()
	return r
}

func (r *fixture) write(name, text string, mode os.FileMode) {
	r.Helper()
	file := filepath.Join(r.dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		r.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), mode); err != nil {
		r.Fatal(err)
	}
}

// restart creates Networks as a restarted agent does.
func (r *fixture) restart() {
	r.Helper()
	var err error
	r.nets, err = New(
		Options{
			Dir:     filepath.Join(r.dir, "state"),
			ConfDir: filepath.Join(r.dir, "conf"),
			BinDirs: []string{filepath.Join(r.dir, "bin")},
		},
	)
	if err != nil {
		r.Fatal(err)
	}
}

// attach attaches sandbox s to the networks of the annotation.
func (r *fixture) attach(networks string) error {
	r.Helper()
	resolved, err := r.nets.Resolve(podWith(networks))
	if err != nil {
		r.Fatal(err)
	}
	return r.nets.Attach(r.Context(), "s", "/nowhere", podWith(networks), resolved)
}

// attachSandbox attaches a sandbox of a pod with the same name.
func (r *fixture) attachSandbox(sandbox, networks string) {
	r.Helper()
	pod := podWith(networks)
	pod.Name = sandbox
	resolved, err := r.nets.Resolve(pod)
	if err == nil {
		err = r.nets.Attach(r.Context(), sandbox, "/proc/self/ns/net", pod, resolved)
	}
	if err != nil {
		r.Fatal(err)
	}
}

// calls returns and clears the recorded calls with the files that existed at the time.
func (r *fixture) calls() string {
	text, _ := os.ReadFile(filepath.Join(r.dir, "calls"))
	os.Remove(filepath.Join(r.dir, "calls"))
	return strings.ReplaceAll(strings.ReplaceAll(string(text), r.dir+"/state/", ""), "\n", " ")
}

func TestEntryIsWrittenBeforeADD(t *testing.T) { // S1
	t.Parallel()
	r := newFixture(t)
	if err := r.attach("a,b@data"); err != nil {
		t.Fatal(err)
	}
	if got := r.calls(); got != "ADD net1 s.json ADD data s.json " {
		t.Errorf("calls %q", got)
	}
	r.restart()
	r.write("conf/10-a.conflist", "", 0o644) // DEL uses the configuration of ADD
	r.write("DEL", "", 0o644)
	if err := r.nets.Detach(t.Context(), "s"); err == nil || plan.KindOf(err) != plan.Network ||
		!strings.Contains(err.Error(), `network "a" from net1`) {
		t.Errorf("%v", err)
	}
	if got := r.calls(); got != "DEL data s.json DEL net1 s.json " {
		t.Errorf("calls %q", got)
	}
	r.restart()
	if left := r.nets.Orphaned(func(string) bool { return false }); !reflect.DeepEqual(left, []string{"s"}) {
		t.Errorf("remaining entries %v", left)
	}
	os.Remove(filepath.Join(r.dir, "DEL"))
	for range 2 {
		if err := r.nets.Detach(t.Context(), "s"); err != nil {
			t.Error(err)
		}
	}
	if got := r.calls(); got != "DEL data s.json DEL net1 s.json " {
		t.Errorf("calls %q", got)
	}
	if left, _ := filepath.Glob(filepath.Join(r.dir, "state", "*.json")); len(left) > 0 {
		t.Errorf("remaining entries %v", left)
	}
}

func TestOnlyDoneEntriesAreAttached(t *testing.T) { // S2
	t.Parallel()
	r := newFixture(t)
	state := func(wantDone, wantAttaching bool) {
		t.Helper()
		if done, attaching := r.nets.Attached("u-1", "s"); done != wantDone || attaching != wantAttaching {
			t.Errorf("got done %v, attaching %v", done, attaching)
		}
	}
	state(false, false)
	finished := r.nets.SandboxCreating("u-1")
	state(false, true)
	r.write("ADD", "", 0o644)
	if err := r.attach("a"); err == nil || plan.KindOf(err) != plan.Network ||
		!strings.Contains(err.Error(), `attach network "a" as net1: plugin type="note" failed (add): injected`) {
		t.Errorf("%v", err)
	}
	state(false, true)
	finished()
	state(false, false)
	if status := r.nets.Status("u-1"); status != "" {
		t.Errorf("status %s", status)
	}
	r.restart()
	state(false, false)
	os.Remove(filepath.Join(r.dir, "ADD"))
	r.calls()
	if err := r.attach("a"); err != nil {
		t.Fatal(err)
	}
	if got := r.calls(); got != "DEL net1 s.json ADD net1 s.json " {
		t.Errorf("calls %q", got)
	}
	state(true, false)
	if err := r.nets.SetDefaultNetwork("s", "own", []string{"10.0.0.2"}); err != nil {
		t.Fatal(err)
	}
	r.restart()
	state(true, false)
	const want = `[{"name":"own","interface":"eth0","ips":["10.0.0.2"],"default":true,"dns":{}},` +
		`{"name":"ns/a","interface":"net1","ips":["10.1.0.5"],"dns":{}}]`
	if status := r.nets.Status("u-1"); status != want {
		t.Errorf("status %s", status)
	}
	reports := 0
	report := func(p Pod, annotation string) error {
		if reports++; p != (Pod{"ns", "p", "u-1"}) || annotation != want || reports == 1 {
			return os.ErrDeadlineExceeded
		}
		return nil
	}
	if !r.nets.ReportStatuses(report) || r.nets.ReportStatuses(report) || r.nets.ReportStatuses(report) ||
		reports != 2 {
		t.Errorf("got %d reports, want 2", reports)
	}
}

// TestHangingCHECKDelaysNoOtherPod also cancels Check, which then returns only completed checks.
func TestHangingCHECKDelaysNoOtherPod(t *testing.T) {
	t.Parallel()
	r := newFixture(t)
	for i := range 7 {
		r.attachSandbox(fmt.Sprint("s", i), "a")
	}
	r.restart()
	r.write("hangs-s0", "", 0o644)
	r.write("hangs-s1", "", 0o644)
	r.write("wrong-s4", "", 0o644)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	results := make(chan []CheckFailure, 1)
	go func() { results <- r.nets.Check(ctx) }()
	for end := time.Now().Add(pluginTimeout / 2); ; time.Sleep(10 * time.Millisecond) {
		text, _ := os.ReadFile(filepath.Join(r.dir, "checked"))
		if checked := strings.Fields(string(text)); len(checked) == 7 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("got CHECK calls %q, want 7", text)
		}
	}
	select {
	case failures := <-results:
		t.Fatalf("Check returned before the hanging plugins: %+v", failures)
	default:
	}
	cancel()
	for _, w := range <-results {
		if w.Pod.Name != "s4" {
			t.Errorf("failures %+v", w)
		}
	}
	for _, name := range []string{"hangs-s0", "hangs-s1"} {
		if err := os.Remove(filepath.Join(r.dir, name)); err != nil {
			t.Error(err)
		}
	}
	for _, w := range r.nets.Check(t.Context()) {
		if w.Pod.Name != "s4" { // the first check may have been interrupted
			t.Errorf("failures %+v", w)
		}
	}
}

// TestCheckIgnoresDetachingSandboxes: a sandbox that is being detached has no failures.
func TestCheckIgnoresDetachingSandboxes(t *testing.T) {
	t.Parallel()
	r := newFixture(t)
	r.attachSandbox("s", "a,b")
	r.write("DEL", "", 0o644)
	if err := r.nets.Detach(t.Context(), "s"); err == nil {
		t.Fatal("Detach succeeded")
	}
	r.write("wrong-s", "", 0o644)
	if failures := r.nets.Check(t.Context()); len(failures) > 0 {
		t.Errorf("failures %+v", failures)
	}
	for _, name := range []string{"DEL", "wrong-s"} {
		if err := os.Remove(filepath.Join(r.dir, name)); err != nil {
			t.Error(err)
		}
	}
	r.attachSandbox("s", "a,b") // detaches the previous networks first
	r.write("wrong-s", "", 0o644)
	if failures := r.nets.Check(t.Context()); len(failures) != 1 ||
		!strings.Contains(failures[0].Message, `network "a" on net1: `) ||
		!strings.Contains(failures[0].Message, `network "b" on net2: `) {
		t.Errorf("failures %+v", failures)
	}
}

func TestUnreadableEntriesAreReported(t *testing.T) { // S3
	t.Parallel()
	r := newFixture(t)
	r.write("state/bad.json", "{", 0o600)
	r.write("state/other.json", `{"version":1,"sandbox":"s"}`, 0o600)
	n, err := New(r.nets.opts)
	if err == nil || !strings.Contains(err.Error(), "bad.json") || !strings.Contains(err.Error(), "other.json") ||
		n == nil {
		t.Errorf("%v", err)
	}
}

func TestResolveErrors(t *testing.T) {
	t.Parallel()
	r := newFixture(t)
	for annotation, want := range map[string]string{
		"c":                                 `network "c" not found in any *.conflist of ` + r.dir + "/conf",
		`[{"name":"b","ips":["10.1.0.9"]}]`: `network "b": no plugin has the capability ips`,
		"a@eth0":                            "annotation k8s.v1.cni.cncf.io/networks: ",
	} {
		if _, err := r.nets.Resolve(podWith(annotation)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", annotation, err)
		}
	}
	r.write("conf/30-bad.conflist", "{", 0o644)
	if _, err := r.nets.Resolve(podWith("c")); err == nil || !strings.Contains(err.Error(), "30-bad.conflist") {
		t.Errorf("%v", err)
	}
	if w, err := r.nets.Resolve(podWith("")); err != nil || len(w) > 0 {
		t.Errorf("%v, %v", w, err)
	}
}
