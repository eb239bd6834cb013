package crash

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/nodeapi"
	"berth/test/hosts"
	"berth/test/images"
)

const (
	kubeletUID = "8e1b8b3e-0000-4000-8000-000000000015" // has a directory, a sandbox and a container
	idleUID    = "8e1b8b3e-0000-4000-8000-000000000016" // has only a directory, as while its image is pulled
	programUID = "8e1b8b3e-0000-4000-8000-000000000017" // a cgroup with a process of an unknown program
	orphanUID  = "8e1b8b3e-0000-4000-8000-000000000018" // an orphaned pod of berth without a sandbox
)

// TestScenario18_ForeignPodsAreNotTouched has pods of a kubelet, of another berth with other directories and
// of an unknown program on the host. berth starts with an empty store, after SIGKILL with a lost store, and
// after SIGKILL. Each time it deletes its own orphaned pods, and nothing of the foreign pods changes.
func TestScenario18_ForeignPodsAreNotTouched(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.DividedVersions(t.Name()) {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			n := start(t, options{host: hosts.Options{Version: v}, noStart: true})
			n.startAgent(hosts.AgentOptions{Name: "other"})
			n.putPod(n.simple("other"))
			n.awaitRunning("other")
			other := n.agent
			n.client.Close()
			n.foreignPods(t, other)
		})
	}
}

func (n *node) foreignPods(t *testing.T, other *hosts.Agent) {
	t.Helper()
	n.startAgent(hosts.AgentOptions{}) // makes the directories and their mounts
	n.must("stop berth", n.agent.Stop(t.Context()))
	n.must("empty the store", os.Remove(filepath.Join(n.agent.StateDir, "berth.db")))
	root, logs := n.agent.RootDir, n.agent.LogsDir
	f := &foreignWorld{node: n, other: other, dirs: []string{
		filepath.Join(root, "pods", kubeletUID), filepath.Join(root, "pods", idleUID),
		filepath.Join(logs, "default_kubelet_"+kubeletUID), filepath.Join(logs, "default_idle_"+idleUID),
		filepath.Join(other.RootDir, "pods"), other.LogsDir,
	}}
	f.startKubeletPod(root, logs)
	pid, err := n.host.StartInCgroup("kubepods/burstable/pod"+programUID, "sleep", "1000000")
	n.must("start a program below kubepods", err)
	f.pids = append(f.pids, pid)
	before := f.state()

	n.launch()
	n.putPod(n.simple("own"))
	n.awaitRunning("own")
	f.compare("start with an empty store", before)
	f.checkReport()

	for _, restart := range []struct {
		name      string
		loseStore bool
	}{{"SIGKILL and a lost store", true}, {"SIGKILL", false}} {
		n.putPod(n.simple("own"))
		n.awaitRunning("own")
		n.kill()
		n.removeManifest("own")
		if restart.loseStore {
			n.must("remove the store", os.Remove(filepath.Join(n.agent.StateDir, "berth.db")))
		}
		f.leaveOrphan(root)
		n.launch()
		n.waitFor("orphaned pods of berth to be deleted", func() bool {
			return len(n.sandboxes("own")) == 0 && !exists(filepath.Join(root, "pods", orphanUID)) &&
				!slices.ContainsFunc(f.cgroups(), func(c string) bool { return strings.Contains(c, orphanUID) })
		})
		f.compare(restart.name, before)
	}
	n.must("stop berth", n.agent.Stop(t.Context()))
	f.compare("stop", before)
	f.removeAll()
}

// foreignWorld is what other owners have on the host.
type foreignWorld struct {
	*node
	other   *hosts.Agent
	dirs    []string // of other owners
	mounted []string
	pids    []int
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// startKubeletPod creates pods as the kubelet does: directories with an emptyDir, a mounted Secret and logs,
// and for one of them a cgroup, a sandbox and a running container.
func (f *foreignWorld) startKubeletPod(root, logs string) {
	f.Helper()
	for name, uid := range map[string]string{"kubelet": kubeletUID, "idle": idleUID} {
		dir := filepath.Join(root, "pods", uid)
		secret := filepath.Join(dir, "volumes/kubernetes.io~secret/token")
		for path, text := range map[string]string{
			filepath.Join(dir, "volumes/kubernetes.io~empty-dir/data/file"):         "data of " + name,
			filepath.Join(dir, "plugins/kubernetes.io~empty-dir/wrapped_ca/ready"):  "",
			filepath.Join(dir, "containers/main/0a1b2c3d"):                          "",
			filepath.Join(dir, "etc-hosts"):                                         "127.0.0.1 localhost\n",
			filepath.Join(logs, "default_"+name+"_"+uid, "main", "0.log"):           "",
			filepath.Join(logs, "default_"+name+"_"+uid, "main", "0.log.2026.gz"):   "",
			filepath.Join(dir, "volumes/kubernetes.io~csi/claim/vol_data.json"):     "{}",
			filepath.Join(dir, "volume-subpaths/data/main/0/file-of-a-subpath"):     "x",
			filepath.Join(dir, "volumes/kubernetes.io~configmap/conf/..data/a.txt"): "a",
		} {
			f.must("make the directory of "+path, os.MkdirAll(filepath.Dir(path), 0o750))
			f.must("write "+path, os.WriteFile(path, []byte(text), 0o600))
		}
		f.must("make the directory of a secret", os.MkdirAll(secret, 0o750))
		f.must("mount a secret", unix.Mount("tmpfs", secret, "tmpfs", 0, "size=1m"))
		f.must("write a secret", os.WriteFile(filepath.Join(secret, "token"), []byte(name), 0o600))
		f.mounted = append(f.mounted, secret)
	}
	labels := map[string]string{
		"io.kubernetes.pod.name": "kubelet", "io.kubernetes.pod.namespace": "default",
		"io.kubernetes.pod.uid": kubeletUID,
	}
	sandbox := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: "kubelet", Namespace: "default", Uid: kubeletUID},
		LogDirectory: filepath.Join(logs, "default_kubelet_"+kubeletUID), Labels: labels,
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent: f.host.CgroupRoot + "/kubepods/besteffort/pod" + kubeletUID,
		},
	}
	sb, err := f.host.Runtime.RunPodSandbox(f.Context(), &runtimeapi.RunPodSandboxRequest{Config: sandbox})
	f.must("run a sandbox", err)
	labels = maps.Clone(labels)
	labels["io.kubernetes.container.name"] = "main"
	c, err := f.host.Runtime.CreateContainer(f.Context(), &runtimeapi.CreateContainerRequest{
		PodSandboxId: sb.PodSandboxId, SandboxConfig: sandbox,
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "main"}, Labels: labels, LogPath: "main/0.log",
			Image: &runtimeapi.ImageSpec{Image: images.TestboxRef}, Args: []string{"sleep"},
			Mounts: []*runtimeapi.Mount{{
				ContainerPath: "/data",
				HostPath:      filepath.Join(root, "pods", kubeletUID, "volumes/kubernetes.io~empty-dir/data"),
			}},
			Linux: &runtimeapi.LinuxContainerConfig{},
		},
	})
	f.must("create a container", err)
	_, err = f.host.Runtime.StartContainer(f.Context(), &runtimeapi.StartContainerRequest{ContainerId: c.ContainerId})
	f.must("start a container", err)
	f.must("start a container", f.host.WaitRuncInit(f.Context()))
}

// leaveOrphan leaves the directory and the cgroup of a pod of berth, as after a crash before its sandbox.
func (f *foreignWorld) leaveOrphan(root string) {
	f.Helper()
	dir := filepath.Join(root, "pods", orphanUID)
	f.must("make the directory of an orphan", os.MkdirAll(filepath.Join(dir, "containers/main"), 0o750))
	f.must("mark the directory of an orphan", os.WriteFile(filepath.Join(dir, ".berth"), nil, 0o600))
	_, err := f.host.StartInCgroup("kubepods/pod"+orphanUID, "sleep", "1000000")
	f.must("start a process of an orphan", err)
}

// cgroups lists the cgroups of pods of the host.
func (f *foreignWorld) cgroups() []string {
	return slices.DeleteFunc(f.host.PodResources(), func(l string) bool { return !strings.HasPrefix(l, "cgroup ") })
}

// state returns everything of the other owners: the content of their files, their mounts, processes, cgroups,
// network resources and objects in the runtime.
func (f *foreignWorld) state() map[string]string {
	f.Helper()
	state := map[string]string{}
	for _, dir := range f.dirs {
		f.must("read "+dir, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				state[path] = "directory"
				return err
			}
			text, err := os.ReadFile(path)
			state[path] = fmt.Sprintf("%x", sha256.Sum256(text))
			return err
		}))
	}
	for _, r := range f.host.PodResources() { // with the PIDs of processes
		if problem, is := strings.CutPrefix(r, "error "); is {
			f.Fatalf("list the pods' resources on the host: %s", problem)
		}
		state["host: "+r] = "exists"
	}
	for id, what := range f.liveObjects("") {
		state["runtime: "+id] = what
	}
	for _, pid := range f.pids {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		f.must("read a process", err)
		state[fmt.Sprint("process: ", pid)] = string(stat)
	}
	return state
}

// compare checks that everything of the other owners is as it was.
func (f *foreignWorld) compare(when string, before map[string]string) {
	f.Helper()
	now := f.state()
	for what, was := range before {
		if is, ok := now[what]; !ok || is != was {
			f.Errorf("%s: %s: got %q, was %q", when, what, is, was)
		}
	}
	if len(f.mounted) != 2 || len(before) < 40 {
		f.Fatalf("the state before has only %d entries", len(before))
	}
	for what := range now {
		inside := func(dir string) bool { return strings.HasPrefix(what, dir+"/") }
		if _, was := before[what]; !was && slices.ContainsFunc(f.dirs, inside) {
			f.Errorf("%s: %s was created", when, what)
		}
	}
}

// checkReport checks that `berth check` lists the foreign pods with their probable owners.
func (f *foreignWorld) checkReport() {
	f.Helper()
	report, err := f.client.Check(f.Context())
	f.must("check", err)
	got := map[string]nodeapi.CheckItem{}
	for _, item := range report.Items {
		got[item.Name] = item
	}
	var otherUID string
	for _, s := range f.sandboxes("other") {
		otherUID = s.Metadata.Uid
	}
	for uid, owner := range map[string]string{
		kubeletUID: "kubelet", idleUID: "kubelet", programUID: "unknown program", otherUID: "another berth",
	} {
		if item, ok := got["foreign pod "+uid]; !ok || !strings.Contains(item.Detail, owner) {
			f.Errorf("check of foreign pod %s: got %+v, want owner %s", uid, item, owner)
		}
	}
}

// removeAll removes what the other owners have on the host. Stopping the host removes the rest.
func (f *foreignWorld) removeAll() {
	f.Helper()
	for _, dir := range f.mounted {
		f.must("unmount a secret", unix.Unmount(dir, 0))
	}
	f.must("stop the other berth", f.other.Stop(f.Context()))
}
