package cgroups

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestNames(t *testing.T) {
	for _, row := range []struct {
		what        string
		root        string
		systemd     bool
		class       corev1.PodQOSClass
		dir, parent string
	}{
		{"a Guaranteed pod lies in kubepods itself", "", false, corev1.PodQOSGuaranteed, "kubepods/poda-1",
			"/kubepods/poda-1"},
		{"a Burstable pod lies in its tier", "/", false, corev1.PodQOSBurstable, "kubepods/burstable/poda-1",
			"/kubepods/burstable/poda-1"},
		{"a BestEffort pod lies in its tier", "", false, corev1.PodQOSBestEffort, "kubepods/besteffort/poda-1",
			"/kubepods/besteffort/poda-1"},
		{"a root comes before everything", "/x/y", false, corev1.PodQOSGuaranteed, "x/y/kubepods/poda-1",
			"/x/y/kubepods/poda-1"},
		{
			"slices name those above them", "", true, corev1.PodQOSBurstable,
			"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-poda_1.slice",
			"kubepods-burstable-poda_1.slice",
		},
		{
			"a root becomes a slice", "/my-node", true, corev1.PodQOSGuaranteed,
			"my_node.slice/my_node-kubepods.slice/my_node-kubepods-poda_1.slice", "my_node-kubepods-poda_1.slice",
		},
		{
			"a root may be given as a slice", "/a.slice/a-b.slice", true, corev1.PodQOSGuaranteed,
			"a.slice/a-b.slice/a-b-kubepods.slice/a-b-kubepods-poda_1.slice", "a-b-kubepods-poda_1.slice",
		},
	} {
		t.Run(row.what, func(t *testing.T) {
			t.Parallel()
			l, err := newLayout(row.root, row.systemd)
			if err != nil {
				t.Fatal(err)
			}
			names := l.pod(tierOf(row.class), "a-1")
			if got := l.dir(names); got != row.dir {
				t.Errorf("dir %q, want %q", got, row.dir)
			}
			if got := l.parent(names); got != row.parent {
				t.Errorf("parent %q, want %q", got, row.parent)
			}
		})
	}
}

func TestUIDOfDirectory(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		what    string
		systemd bool
		tier    string
		dir     string
		uid     types.UID
		ok      bool
	}{
		{"a pod's directory", false, "", "podab-1", "ab-1", true},
		{"a tier is no pod", false, "", "burstable", "", false},
		{"pod alone is not a UID", false, "", "pod", "", false},
		{"a pod's slice", true, burstable, "kubepods-burstable-podab_1.slice", "ab-1", true},
		{"a slice of another tier", true, burstable, "kubepods-podab_1.slice", "", false},
		{"a scope is no pod", true, "", "kubepods-podab_1.scope", "", false},
	} {
		l, _ := newLayout("", row.systemd)
		if uid, ok := l.uid(row.tier, row.dir); ok != row.ok || ok && uid != row.uid {
			t.Errorf("%s: %q, %t", row.what, uid, ok)
		}
	}
}

func TestBadOptions(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		what string
		o    Options
		want string
	}{
		{"a root may not climb", Options{Root: "/a/../b"}, `cgroup root "/a/../b": ".." is not a valid cgroup name`},
		{"a root has plain names", Options{Root: "/a b"}, `cgroup root "/a b": "a b" is not a valid cgroup name`},
		{"drivers are known", Options{Driver: "docker"}, `cgroup driver "docker": must be cgroupfs or systemd`},
		{
			"systemd must be there", Options{Driver: "systemd"},
			"cgroup driver systemd: this host was not booted with systemd; use cgroupfs, also in the runtime's " +
				"configuration",
		},
		{"the kernel takes no longer period", Options{CPUPeriod: 2e9}, "CPU period 2s: must be 1ms to 1s"},
	} {
		if _, err := newCgroups(machine{}, row.o); err == nil || err.Error() != row.want {
			t.Errorf("%s: %v", row.what, err)
		}
	}
}

func TestMounts(t *testing.T) {
	t.Parallel()
	got := parseMounts(`31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
33 31 0:30 / /sys/fs/cgroup/sys\040temd rw - cgroup cgroup rw,xattr,release_agent=/x,name=systemd
34 31 0:29 / /other rw - cgroup cgroup rw,cpu,cpuacct
35 31 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate
broken
`)
	type seen struct {
		mount, controllers string
		unified            bool
	}
	var have []seen
	for _, h := range got {
		have = append(have, seen{h.mount, joined(h.controllers), h.unified})
	}
	want := []seen{
		{"/sys/fs/cgroup/cpu,cpuacct", "cpu-cpuacct", false},
		{"/sys/fs/cgroup/sys temd", "name=systemd", false},
		{"/sys/fs/cgroup/unified", "", true},
	}
	if !slices.Equal(have, want) {
		t.Errorf("%v, want %v", have, want)
	}
}

func TestOwnsPodCgroupsAndDescendants(t *testing.T) {
	for _, row := range []struct {
		root, cgroup string
		systemd, own bool
	}{
		{"", "/kubepods/poda-1/c", false, true},
		{"", "/kubepods/burstable/poda-1", false, true},
		{"/x", "/x/kubepods/besteffort/poda-1/c", false, true},
		{"/x", "/kubepods/besteffort/poda-1/c", false, false},
		{"", "/kubepods/burstable", false, false},
		{"", "/kubepodsandmore/poda-1", false, false},
		{"", "/kubepods/../foreign/poda-1", false, false},
		{"", "/kubepods/other/poda-1", false, false},
		{"", "", false, false},
		{"", "kubepods-burstable-poda_1.slice:cri-containerd:c", true, true},
		{"", "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-poda_1.slice/cri-containerd-c.scope", true,
			true},
		{"/x", "/kubepods.slice/kubepods-poda_1.slice", true, false},
		{"", "/system.slice/containerd.service", true, false},
	} {
		l, err := newLayout(row.root, row.systemd)
		if err != nil {
			t.Fatal(err)
		}
		if _, got := l.podOf(row.cgroup); got != row.own {
			t.Errorf("root %q: %q: %v", row.root, row.cgroup, got)
		}
	}
}
