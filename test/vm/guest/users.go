package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// laterPods are the pods of the last checks. Pod mapped runs as a non-root user and has volumes of each
// type. Pod rooted runs as root in its user namespace.
var laterPods = map[string]string{
	"mapped": "  hostUsers: false\n  securityContext: {runAsUser: 1000, runAsGroup: 1000, fsGroup: 2000}\n  " +
		"containers:\n  - name: c\n" + sleepContainer +
		"    volumeMounts:\n    - {name: data, mountPath: /data}\n    - {name: memory, mountPath: /memory}\n" +
		"    - {name: words, mountPath: /words}\n    - {name: secrets, mountPath: /secrets}\n    - {name: host, " +
		"mountPath: /host}\n    - {name: made, mountPath: /made}\n" +
		"  volumes:\n  - {name: data, emptyDir: {}}\n  - {name: memory, emptyDir: {medium: Memory}}\n" +
		"  - {name: words, configMap: {name: words}}\n  - {name: secrets, secret: {secretName: secrets, " +
		"defaultMode: 0440}}\n" +
		"  - {name: host, hostPath: {path: /etc/berth}}\n  - {name: made, hostPath: {path: /srv/made, type: " +
		"DirectoryOrCreate}}\n" +
		"---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: words}\ndata: {word: good}\n" +
		"---\napiVersion: v1\nkind: Secret\nmetadata: {name: secrets}\nstringData: {word: better}\n",
	"rooted": "  hostUsers: false\n  containers:\n  - name: c\n    image: busybox:1.36\n    command: [sh, -c, 'until " +
		"[ -e /end ]; do sleep 0.2; done; exit 3']\n",
	"armed": apparmorPod,
	"busy":  fmt.Sprintf(busyPod, "200m", "200m", "64Mi"),
}

// execInPod runs a shell command in the container c of a pod.
func execInPod(t *testing.T, name, line string) string {
	t.Helper()
	return output(t, "berth", "exec", name, "-c", "c", "--", "sh", "-c", line)
}

// userNamespaces checks the ID mapping of pods with hostUsers: false: each pod has its own range of host
// IDs, which does not change while the pod exists.
func userNamespaces(t *testing.T) {
	mapped, rooted := waitRunning(t, "mapped"), waitRunning(t, "rooted")
	first := hostID(t, "mapped")
	if other := hostID(t, "rooted"); other == first {
		t.Errorf("both pods have the ID range that starts at %d", other)
	}
	if got := strings.Fields(processStatus(t, mapped, "Uid")); len(got) < 2 || got[1] != fmt.Sprint(first+1000) {
		t.Errorf("host ID of user 1000: got %v, want %d", got, first+1000)
	}
	if got := strings.Fields(processStatus(t, rooted, "Gid")); len(got) < 2 ||
		got[1] != fmt.Sprint(hostID(t, "rooted")) {
		t.Errorf("host ID of group 0: got %v, want the start of the range", got)
	}
	checkIDMappedVolumes(t, mapped)
	// A restarted container keeps the ID range.
	before, oldID := hostID(t, "rooted"), containerID(rooted)
	execInPod(t, "rooted", "touch /end")
	waitPod(t, "rooted", "restarted", func(p *corev1.Pod) bool {
		c := container(p, "c")
		return c.RestartCount == 1 && c.State.Running != nil && !strings.HasSuffix(c.ContainerID, oldID) &&
			c.LastTerminationState.Terminated.ExitCode == 3
	})
	if after := hostID(t, "rooted"); after != before {
		t.Errorf("start of the ID range after a container restart: got %d, want %d", after, before)
	}
}

// hostID returns the host ID of user 0 and group 0 of a pod.
func hostID(t *testing.T, name string) int {
	t.Helper()
	var ids [2]int
	for i, file := range []string{"uid_map", "gid_map"} {
		var inPod, count int
		text := execInPod(t, name, "cat /proc/self/"+file)
		if _, err := fmt.Sscan(text, &inPod, &ids[i], &count); err != nil || inPod != 0 || count != 65536 ||
			ids[i] < 65536 || ids[i]%65536 != 0 {
			t.Errorf("%s of %s: %q", file, name, text)
		}
	}
	if ids[0] != ids[1] {
		t.Errorf("%s: user 0 is %d, group 0 is %d", name, ids[0], ids[1])
	}
	return ids[0]
}

// processStatus returns a field of /proc/PID/status of a process of a pod.
func processStatus(t *testing.T, p *corev1.Pod, name string) string {
	t.Helper()
	pid, _, _ := strings.Cut(readCgroup("kubepods/besteffort/pod"+string(p.UID)+"/"+containerID(p), "cgroup.procs"),
		"\n")
	for line := range strings.Lines(readFile(t, "/proc/"+pid+"/status")) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return value
		}
	}
	return ""
}

// checkIDMappedVolumes checks that files of volumes have the same owners in the pod and on the host.
func checkIDMappedVolumes(t *testing.T, p *corev1.Pod) {
	for path, want := range map[string]string{
		"/data": "0:2000 2777", "/memory": "0:2000 2777", "/words/..data/word": "0:2000 644",
		"/secrets/..data/word": "0:2000 440",
		"/host/config.yaml":    "0:0 644", "/etc/hosts": "0:0 644", "/made": "0:0 755",
	} {
		if got := execInPod(t, "mapped", "stat -c '%u:%g %a' "+path); got != want {
			t.Errorf("owner and mode of %s: got %s, want %s", path, got, want)
		}
	}
	if got := execInPod(t, "mapped", "cat /words/word /secrets/word"); got != "goodbetter" {
		t.Errorf("content of configMap and secret volumes: got %q, want goodbetter", got)
	}
	const writeFiles = "echo ends > /dev/termination-log; " +
		"for d in /data /memory; do echo mine > $d/x; stat -c %u:%g $d/x; done"
	if got := execInPod(t, "mapped", writeFiles); got != "1000:2000\n1000:2000" {
		t.Errorf("owner of new files: got %q, want 1000:2000 twice", got)
	}
	if got := execInPod(t, "mapped", "touch /host/x 2>&1 || true"); !strings.Contains(got, "Permission denied") {
		t.Errorf("write to a hostPath volume as user 1000: got %q, want permission denied", got)
	}
	kinds := filepath.Join("/var/lib/kubelet/pods", string(p.UID), "volumes")
	if got := output(t, "stat", "-c", "%u:%g",
		filepath.Join(kinds, "kubernetes.io~empty-dir/data/x")); got != "1000:2000" {
		t.Errorf("owner of the file on the host: got %s, want 1000:2000", got)
	}
	if _, err := os.Stat(filepath.Join("/var/lib/kubelet/pods", string(p.UID), "userns")); err != nil {
		t.Error(err)
	}
}
