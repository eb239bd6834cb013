package check

import (
	"os"
	"path/filepath"
	"testing"

	"berth/cri"
)

func TestOwnerOfForeignPod(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pod  ForeignPod
		runs bool
		want string
	}{
		{ForeignPod{HasDir: true}, false, "unknown name: probable owner: kubelet; pod directory"},
		{ForeignPod{Name: "default/web", HasDir: true, Sandboxes: 1, Creator: cri.CreatorKubelet,
			Programs: []string{"pause", "nginx", "nginx"}}, true,
			"default/web: probable owner: kubelet, which is running; pod directory, 1 sandboxes, 3 processes " +
				"(nginx, pause)"},
		{ForeignPod{Name: "default/web", Sandboxes: 2, Creator: cri.CreatorBerth}, true,
			"default/web: probable owner: another berth; 2 sandboxes"},
		{ForeignPod{Programs: []string{"sleep"}}, true,
			"unknown name: probable owner: unknown program; 1 processes (sleep)"},
		{ForeignPod{Name: "x/y", Sandboxes: 1, Creator: cri.CreatorUnknown}, false,
			"x/y: probable owner: unknown program; 1 sandboxes"},
	} {
		if got := c.pod.Message(c.runs); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}

func TestKubeletProcessIsFound(t *testing.T) {
	t.Parallel()
	proc := t.TempDir()
	for pid, comm := range map[string]string{"1": "systemd", "12": "kubelet-wrapper", "self": "kubelet"} {
		dir := filepath.Join(proc, pid)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "comm"), []byte(comm+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if kubeletRuns(proc) {
		t.Error("found a kubelet where none runs")
	}
	if err := os.WriteFile(filepath.Join(proc, "12", "comm"), []byte("kubelet\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if !kubeletRuns(proc) || programName(proc, "1") != "systemd" || programName(proc, "2") != "exited" {
		t.Error("the running kubelet was not found")
	}
}
