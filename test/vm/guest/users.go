package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// later are the pods of the last checks. In mapped a user who is not root works
// with volumes of each kind; rooted is root in there and no client out here.
var later = map[string]string{
	"mapped": "  hostUsers: false\n  securityContext: {runAsUser: 1000, runAsGroup: 1000, fsGroup: 2000}\n  containers:\n  - name: c\n" + box +
		"    volumeMounts:\n    - {name: data, mountPath: /data}\n    - {name: memory, mountPath: /memory}\n" +
		"    - {name: words, mountPath: /words}\n    - {name: secrets, mountPath: /secrets}\n    - {name: host, mountPath: /host}\n    - {name: made, mountPath: /made}\n" +
		"  volumes:\n  - {name: data, emptyDir: {}}\n  - {name: memory, emptyDir: {medium: Memory}}\n" +
		"  - {name: words, configMap: {name: words}}\n  - {name: secrets, secret: {secretName: secrets, defaultMode: 0440}}\n" +
		"  - {name: host, hostPath: {path: /etc/berth}}\n  - {name: made, hostPath: {path: /srv/made, type: DirectoryOrCreate}}\n" +
		"---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: words}\ndata: {word: good}\n" +
		"---\napiVersion: v1\nkind: Secret\nmetadata: {name: secrets}\nstringData: {word: better}\n",
	"rooted": "  hostUsers: false\n  containers:\n  - name: c\n    image: busybox:1.36\n    command: [sh, -c, 'until [ -e /end ]; do sleep 0.2; done; exit 3']\n",
	"armed":  armed,
	"busy":   fmt.Sprintf(busy, "200m", "200m", "64Mi"),
}

// inside runs a command in the container c of a pod.
func inside(t *testing.T, name, line string) string {
	t.Helper()
	return output(t, "berth", "exec", name, "-c", "c", "--", "sh", "-c", line)
}

// users are those of pods with hostUsers: false: others on the host than in the
// pod, others in each pod, the same for as long as the pod lives.
func users(t *testing.T) {
	mapped, rooted := running(t, "mapped"), running(t, "rooted")
	first := hostID(t, "mapped")
	if other := hostID(t, "rooted"); other == first {
		t.Errorf("both pods have the IDs from %d on", other)
	}
	if got := strings.Fields(status(t, mapped, "Uid")); len(got) < 2 || got[1] != fmt.Sprint(first+1000) {
		t.Errorf("user 1000 is %v on the host, want %d", got, first+1000)
	}
	if got := strings.Fields(status(t, rooted, "Gid")); len(got) < 2 || got[1] != fmt.Sprint(hostID(t, "rooted")) {
		t.Errorf("group 0 is %v on the host", got)
	}
	volumesOfUsers(t, mapped)
	// Another container in the same pod has the same users.
	before, id := hostID(t, "rooted"), id(rooted)
	inside(t, "rooted", "touch /end")
	pod(t, "rooted", "restarted", func(p *corev1.Pod) bool {
		c := container(p, "c")
		return c.RestartCount == 1 && c.State.Running != nil && !strings.HasSuffix(c.ContainerID, id) && c.LastTerminationState.Terminated.ExitCode == 3
	})
	if after := hostID(t, "rooted"); after != before {
		t.Errorf("the container had the IDs from %d on, and has those from %d on", before, after)
	}
}

// hostID is the host's ID of user and group 0 in a pod.
func hostID(t *testing.T, name string) int {
	t.Helper()
	var ids [2]int
	for i, file := range []string{"uid_map", "gid_map"} {
		var inThere, count int
		text := inside(t, name, "cat /proc/self/"+file)
		if _, err := fmt.Sscan(text, &inThere, &ids[i], &count); err != nil || inThere != 0 || count != 65536 || ids[i] < 65536 || ids[i]%65536 != 0 {
			t.Errorf("%s of %s: %q", file, name, text)
		}
	}
	if ids[0] != ids[1] {
		t.Errorf("%s: user 0 is %d, group 0 is %d", name, ids[0], ids[1])
	}
	return ids[0]
}

// status reads a line of the status of a pod's process.
func status(t *testing.T, p *corev1.Pod, name string) string {
	t.Helper()
	pid, _, _ := strings.Cut(file("kubepods/besteffort/pod"+string(p.UID)+"/"+id(p), "cgroup.procs"), "\n")
	for line := range strings.Lines(readFile(t, "/proc/"+pid+"/status")) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return value
		}
	}
	return ""
}

// volumesOfUsers have the owners in the pod that they have on the host.
func volumesOfUsers(t *testing.T, p *corev1.Pod) {
	for path, want := range map[string]string{
		"/data": "0:2000 2777", "/memory": "0:2000 2777", "/words/..data/word": "0:2000 644", "/secrets/..data/word": "0:2000 440",
		"/host/config.yaml": "0:0 644", "/etc/hosts": "0:0 644", "/made": "0:0 755",
	} {
		if got := inside(t, "mapped", "stat -c '%u:%g %a' "+path); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
	if got := inside(t, "mapped", "cat /words/word /secrets/word"); got != "goodbetter" {
		t.Errorf("read %q", got)
	}
	if got := inside(t, "mapped", "echo ends > /dev/termination-log; for d in /data /memory; do echo mine > $d/x; stat -c %u:%g $d/x; done"); got != "1000:2000\n1000:2000" {
		t.Errorf("written as %q", got)
	}
	if got := inside(t, "mapped", "touch /host/x 2>&1 || true"); !strings.Contains(got, "Permission denied") {
		t.Errorf("user 1000 writes to the host's folder: %q", got)
	}
	kinds := filepath.Join("/var/lib/kubelet/pods", string(p.UID), "volumes")
	if got := output(t, "stat", "-c", "%u:%g", filepath.Join(kinds, "kubernetes.io~empty-dir/data/x")); got != "1000:2000" {
		t.Errorf("on the host the file is %s's: a pod that had no users of its own could not read it", got)
	}
	if _, err := os.Stat(filepath.Join("/var/lib/kubelet/pods", string(p.UID), "userns")); err != nil {
		t.Error(err)
	}
}
