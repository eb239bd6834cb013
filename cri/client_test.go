package cri

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
	"berth/cri/criconfig"
)

func TestLogLinkNameKeepsContainerID(t *testing.T) {
	id := strings.Repeat("a", 64)
	name := logLinks{}.name(strings.Repeat("n", 63), strings.Repeat("p", 253), strings.Repeat("c", 63), id)
	if len(name) > maxFileName || !strings.HasSuffix(name, "-"+id+".log") || !strings.HasPrefix(name, "pp") {
		t.Errorf("%d bytes: %s", len(name), name)
	}
}

func TestLogLinkIsNotReplaced(t *testing.T) {
	l := logLinks{dir: filepath.Join(t.TempDir(), "made", "when", "needed")}
	for range 2 {
		if err := l.make("ns", "pod", "c", "id", "/log"); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.make("ns", "pod", "c", "id", "/other"); err == nil {
		t.Error("a link to another file was replaced")
	}
	if err := l.make("ns", "pod", "c", "id2", "/log2"); err != nil {
		t.Fatal(err)
	}
	if err := l.remove("id"); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(l.dir)
	if err != nil || len(left) != 1 || left[0].Name() != "pod_ns_c-id2.log" {
		t.Errorf("remaining links: %v %v", left, err)
	}
	if err := l.remove("id"); err != nil {
		t.Error(err)
	}
	if err := l.remove(""); err != nil {
		t.Error(err)
	}
}

func TestTerminationMessage(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	message, long, empty := file("message", "bye \xff!"), file("long", strings.Repeat("x", 5000)+"end"),
		file("empty", "")
	log := file("log", "2026-01-02T15:04:05Z stdout F one\n2026-01-02T15:04:05Z stderr P tw\n2026-01-02T15:04:05Z "+
		"stderr F o\n")
	pipe, link := filepath.Join(dir, "pipe"), filepath.Join(dir, "link")
	if err := syscall.Mkfifo(pipe, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(message, link); err != nil {
		t.Fatal(err)
	}
	const fallback = corev1.TerminationMessageFallbackToLogsOnError
	for _, row := range []struct {
		name, host string
		policy     corev1.TerminationMessagePolicy
		code       int32
		runtime    string
		want       string
	}{
		{"the file, without invalid UTF-8", message, "", 0, "", "bye !"},
		{"the end of a long file", long, "", 0, "", strings.Repeat("x", 4093) + "end"},
		{"the message of the runtime comes first", message, "", 1, "StartError", "StartError: bye !"},
		{"nothing", empty, "", 1, "", ""},
		{"an empty file falls back to the log", empty, fallback, 1, "", "one\ntwo\n"},
		{"a file falls back to nothing", message, fallback, 1, "", "bye !"},
		{"success does not fall back to the log", empty, fallback, 0, "", ""},
		{"a missing file falls back to the log", filepath.Join(dir, "none"), fallback, 2, "", "one\ntwo\n"},
		{"a pipe is not read", pipe, "", 1, "", ""},
		{"a link is not followed", link, "", 1, "", ""},
	} {
		s := &runtimeapi.ContainerStatus{
			ExitCode: row.code, Message: row.runtime, LogPath: log,
			Mounts: []*runtimeapi.Mount{{ContainerPath: "/other", HostPath: message},
				{ContainerPath: "/dev/termination-log", HostPath: row.host}},
		}
		own := criconfig.ContainerLabels{TerminationMessagePath: "/dev/termination-log",
			TerminationMessagePolicy: row.policy}
		if got := terminationMessage(t.Context(), s, own); got != row.want {
			t.Errorf("%s: %q, want %q", row.name, got, row.want)
		}
	}
}

func TestWholeSecondsRoundsUp(t *testing.T) {
	for d, want := range map[time.Duration]int64{-time.Second: 0, 0: 0, 1: 1, time.Second: 1, time.Second + 1: 2,
		30 * time.Second: 30} {
		if got := wholeSeconds(d); got != want {
			t.Errorf("%v: %d, want %d", d, got, want)
		}
	}
}

func TestNetnsCacheRetain(t *testing.T) {
	var n netnsCache
	n.retain(nil)
	n.set("a", "/a")
	n.set("b", "")
	n.retain(map[string]bool{"b": true})
	if _, known := n.get("a"); known {
		t.Error("deleted sandbox is still cached")
	}
	if path, known := n.get("b"); !known || path != "" {
		t.Errorf("retained sandbox: %q %v", path, known)
	}
}

func FuzzParseNetNS(f *testing.F) {
	f.Add(`{"runtimeSpec":{"linux":{"namespaces":[{"type":"pid"},{"type":"network","path":"/var/run/netns/cni-1"}]}}}`)
	f.Add(`{"runtimeSpec":{"linux":{"namespaces":[{"type":"pid"}]}}}`)
	f.Add(`{"runtimeSpec":null}`)
	f.Add(`{"runtimeSpec":{"linux":{"namespaces":[null,{"type":1}]}}}`)
	f.Add(``)
	f.Fuzz(func(t *testing.T, info string) {
		if path, ok := parseNetNS(map[string]string{"info": info}); path != "" && !ok {
			t.Errorf("got path %q without ok", path)
		}
	})
}

// FuzzParseEvent parses arbitrary events.
func FuzzParseEvent(f *testing.F) {
	for _, e := range []*runtimeapi.ContainerEventResponse{
		{},
		{ContainerId: "a", PodSandboxStatus: &runtimeapi.PodSandboxStatus{Labels: ownerSelector()}},
		{PodSandboxStatus: &runtimeapi.PodSandboxStatus{
			Labels: map[string]string{criconfig.OwnerLabel: criconfig.OwnerVersion, labelPodUID: "u",
				"io.kubernetes.pod.name": "p", "io.kubernetes.pod.namespace": "n"},
			Network: &runtimeapi.PodSandboxNetworkStatus{Ip: "10.0.0.1", AdditionalIps: []*runtimeapi.PodIP{{}}},
		}, ContainersStatuses: []*runtimeapi.ContainerStatus{{State: 7, CreatedAt: -1,
			Labels: map[string]string{criconfig.OwnerLabel: criconfig.OwnerVersion}}}},
	} {
		b, err := proto.Marshal(e)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var resp runtimeapi.ContainerEventResponse
		if proto.Unmarshal(b, &resp) != nil {
			return
		}
		for _, s := range resp.ContainersStatuses { // read no files of this machine
			s.LogPath, s.Mounts = "", nil
		}
		e, ok := (&Client{}).parseEvent(t.Context(), &resp)
		if ok && e.UID == "" {
			t.Errorf("event without pod: %+v", e)
		}
		for _, c := range e.Containers {
			if c.Name == "" || c.State < plan.Created || c.State > plan.Unknown {
				t.Errorf("invalid container: %+v", c)
			}
		}
	})
}

func TestConfiguredDriver(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ name, text, want string }{
		{"the default runtime's option",
			`{"containerd":{"defaultRuntimeName":"runc","runtimes":{"runc":{"options":{"SystemdCgroup":true}}}}}`,
			"systemd"},
		{"disabled",
			`{"containerd":{"defaultRuntimeName":"runc","runtimes":{"runc":{"options":{"SystemdCgroup":false}}}}}`,
			"cgroupfs"},
		{"option of another runtime",
			`{"containerd":{"defaultRuntimeName":"runc","runtimes":{"runc":{},` +
				`"kata":{"options":{"SystemdCgroup":true}}}}}`,
			""},
		{"unknown structure", `{"containerd":[]}`, ""},
		{"nothing", ``, ""},
	} {
		if got := configuredDriver([]byte(row.text)); got != row.want {
			t.Errorf("%s: %s, want %s", row.name, got, row.want)
		}
	}
}

func TestSandboxImages(t *testing.T) {
	t.Parallel()
	if got := sandboxImages([]byte(`{"sandboxImage":"registry.k8s.io/pause:3.9"}`)); len(got) != 1 ||
		got[0] != "registry.k8s.io/pause:3.9" {
		t.Errorf("got %q", got)
	}
	for _, text := range []string{``, `[]`, `{}`, `{"sandboxImage":""}`} {
		if got := sandboxImages([]byte(text)); got != nil {
			t.Errorf("%s: got %q", text, got)
		}
	}
}

func TestStatusOfHandlers(t *testing.T) {
	t.Parallel()
	s := &Status{SupplementalGroupsPolicy: true, NoCDIReason: "old", Handlers: map[string]Features{
		"": {UserNamespaces: true}, "kata": {RecursiveReadOnlyMounts: true},
	}}
	var n criconfig.Node
	s.ApplyTo(&n)
	if len(n.Handlers) != 1 || n.Handlers["kata"] != "kata" || !n.Features[""].UserNamespaces ||
		!n.Features["kata"].RecursiveReadOnlyMounts || !n.SupplementalGroupsPolicy || n.NoCDIReason != "old" {
		t.Errorf("got %+v", n)
	}
	all := s.NodeHandlers()
	if len(all) != 2 || all[0].Name != "" || !*all[0].Features.UserNamespaces || all[1].Name != "kata" ||
		!*all[1].Features.RecursiveReadOnlyMounts {
		t.Errorf("got %+v", all)
	}
}
