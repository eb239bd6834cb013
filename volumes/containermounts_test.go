package volumes

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
)

var sandbox = plan.Sandbox{IPs: []string{"10.1.2.3", "fd00::3"}}

func TestContainerMounts(t *testing.T) {
	t.Parallel()
	v := newVolumes(t)
	v.RecursiveReadOnly = func(*corev1.Pod) bool { return true }
	pod := newPod(emptyDirVol("disk", corev1.EmptyDirVolumeSource{}), hostPathVol("host", "/srv", ""), secretVol("key"))
	c := &pod.Spec.Containers[0]
	c.VolumeMounts = []corev1.VolumeMount{
		{Name: "disk", MountPath: "data"},
		{
			Name:              "host",
			MountPath:         "/srv",
			ReadOnly:          true,
			RecursiveReadOnly: new(corev1.RecursiveReadOnlyIfPossible),
			MountPropagation:  new(corev1.MountPropagationHostToContainer),
		},
		{Name: "key", MountPath: "/key", MountPropagation: new(corev1.MountPropagationNone)},
	}
	if _, err := v.ContainerMounts(t.Context(), pod, c, 2, nil, sandbox); err == nil ||
		!strings.Contains(err.Error(), "not set up") {
		t.Errorf("got %v before the volumes are set up, want an error", err)
	}
	for _, vol := range pod.Spec.Volumes {
		mustMount(t, v, pod, vol.Name, "", objectsWith(nil))
	}
	got, err := v.ContainerMounts(t.Context(), pod, c, 2, nil, sandbox)
	must(t, err)
	want := []plan.Mount{
		{HostPath: v.volumeDir(pod.UID, emptyDir, "disk"), ContainerPath: "/data", SELinuxRelabel: true},
		{
			HostPath:          "/srv",
			ContainerPath:     "/srv",
			ReadOnly:          true,
			RecursiveReadOnly: true,
			Propagation:       corev1.MountPropagationHostToContainer,
		},
		{HostPath: v.volumeDir(pod.UID, secret, "key"), ContainerPath: "/key", ReadOnly: true, SELinuxRelabel: true},
		{HostPath: v.podDir(pod.UID) + "/etc-hosts", ContainerPath: "/etc/hosts", SELinuxRelabel: true},
		{HostPath: v.podDir(pod.UID) + "/containers/app/2", ContainerPath: "/dev/termination-log",
			SELinuxRelabel: true},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if _, err := os.Stat(filepath.Join(v.LogDir(pod), "app")); err != nil {
		t.Errorf("no log directory was created: %v", err)
	}

	for name, change := range map[string]func(m *corev1.VolumeMount){
		"Enabled where the runtime cannot": func(m *corev1.VolumeMount) {
			m.ReadOnly, m.RecursiveReadOnly = true, new(corev1.RecursiveReadOnlyEnabled)
		},
		"recursively read-only, but not read-only": func(m *corev1.VolumeMount) {
			m.RecursiveReadOnly = new(corev1.RecursiveReadOnlyIfPossible)
		},
		"a mount of a volume that there is not": func(m *corev1.VolumeMount) { m.Name = "none" },
	} {
		v.RecursiveReadOnly = nil
		c := c.DeepCopy()
		change(&c.VolumeMounts[0])
		if _, err := v.ContainerMounts(t.Context(), pod, c, 2, nil, sandbox); err == nil ||
			!strings.Contains(err.Error(), `of container "app"`) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestHostsFile(t *testing.T) {
	t.Parallel()
	aliases := []corev1.HostAlias{
		{IP: "10.9.9.9", Hostnames: []string{"db", "db.local"}},
		{IP: "10.9.9.8", Hostnames: []string{"cache"}},
	}
	const head = "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n" +
		"fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n"
	const tail = "\n# Entries added by HostAliases.\n10.9.9.9\tdb\tdb.local\n10.9.9.8\tcache\n"
	for name, tc := range map[string]struct{ got, want string }{
		"one line per pod IP": {string(podHosts(sandbox.IPs, "web", "", nil)),
			head + "10.1.2.3\tweb\nfd00::3\tweb\n"},
		"the fully qualified name " +
			"comes first": {string(podHosts([]string{"10.1.2.3"}, "web", "sub.shop.svc.cluster.local", nil)),
			head + "10.1.2.3\tweb.sub.shop.svc.cluster.local\tweb\n"},
		"aliases come last": {string(podHosts([]string{"10.1.2.3"}, "web", "", aliases)),
			head + "10.1.2.3\tweb\n" + tail},
		"the host network has the host's file": {string(hostNetworkHosts([]byte("127.0.0.1 localhost\n"), nil)),
			"# Kubernetes-managed hosts file (host network).\n127.0.0.1 localhost\n"},
		"aliases are added to the host's": {string(hostNetworkHosts([]byte("127.0.0.1 localhost"), aliases)),
			"# Kubernetes-managed hosts file (host network).\n127.0.0.1 localhost\n" + tail},
	} {
		if diff := cmp.Diff(tc.want, tc.got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestHostsMount(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), newPod(emptyDirVol("disk", corev1.EmptyDirVolumeSource{}))
	pod, c := withMounts(pod)
	mustMount(t, v, pod, "disk", "", nil)
	ask := func(sb plan.Sandbox) []plan.Mount {
		t.Helper()
		m, err := v.ContainerMounts(t.Context(), pod, c, 0, nil, sb)
		must(t, err)
		return m
	}
	path := ask(sandbox)[0].HostPath
	before, err := os.Stat(path)
	must(t, err)
	if !strings.HasSuffix(read(t, path), "10.1.2.3\tweb\nfd00::3\tweb\n") || before.Mode() != 0o644 {
		t.Errorf("got content %q, mode %v", read(t, path), before.Mode())
	}
	// New, shorter content is written to the same file, because the file is mounted.
	ask(plan.Sandbox{IPs: []string{"10.1.2.4"}})
	after, err := os.Stat(path)
	must(t, err)
	if !os.SameFile(before, after) || !strings.HasSuffix(read(t, path), "10.1.2.4\tweb\n") {
		t.Errorf("got content %q", read(t, path))
	}
	if m := ask(plan.Sandbox{}); len(m) != 0 {
		t.Errorf("got mounts %+v without a pod IP", m)
	}
	c.VolumeMounts = []corev1.VolumeMount{{Name: "disk", MountPath: "/etc/hosts/"}}
	if m := ask(sandbox); len(m) != 1 || m[0].HostPath != v.volumeDir(pod.UID, emptyDir, "disk") {
		t.Errorf("got mounts %+v of a container with its own /etc/hosts mount", m)
	}
	c.VolumeMounts = nil
	pod.Spec.HostNetwork = true
	if ask(plan.Sandbox{}); read(t, path) != hostsHeaderHost {
		t.Errorf("got %q on a host without a hosts file", read(t, path))
	}
	must(t, os.WriteFile(v.HostsFile, []byte("192.0.2.1 node-1\n"), 0o644))
	if ask(plan.Sandbox{}); read(t, path) != hostsHeaderHost+"192.0.2.1 node-1\n" {
		t.Errorf("got %q, want the content of the host's file", read(t, path))
	}
}

func TestTerminationFile(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), newPod()
	var paths []string
	for attempt := range uint32(4) {
		path, err := v.terminationFile(pod.UID, "app", attempt)
		must(t, err)
		must(t, os.WriteFile(path, []byte("bye"), 0o600))
		if mode(t, path) != 0o666 {
			t.Errorf("mode %v", mode(t, path))
		}
		paths = append(paths, path)
	}
	wantMissing(t, paths[0])
	wantMissing(t, paths[1])
	if read(t, paths[2]) != "bye" {
		t.Error("the termination message of the previous instance was removed")
	}
	path, err := v.terminationFile(pod.UID, "app", 3)
	if err != nil || read(t, path) != "" {
		t.Errorf("got content %q, %v after a retried start, want none", read(t, path), err)
	}
}
