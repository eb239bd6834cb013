package check

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"berth/internal/nodeconfig"
	"berth/internal/nodeconfig/nodeconfigtest"
	"berth/nodeapi"
)

// fakeKernel is a kernel with all recommended settings except the given ones. An empty value is a
// missing setting.
func fakeKernel(t *testing.T, k kernel, changed map[string]string) map[string]nodeapi.CheckItem {
	t.Helper()
	k.root = t.TempDir()
	files := map[string]string{
		"proc/cgroups": "#subsys_name\thierarchy\tnum_cgroups\tenabled\n" +
			"cpu\t1\t2\t1\ncpuset\t2\t1\t1\nmemory\t3\t1\t1\npids\t4\t1\t1\n",
		"sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory hugetlb pids\n",
	}
	for _, w := range append([]sysctl{sysctlIPv6Forwarding}, sysctls...) {
		files["proc/sys/"+strings.ReplaceAll(w.name, ".", "/")] = fmt.Sprintln(w.value)
	}
	maps.Copy(files, changed)
	for name, text := range files {
		if text == "" {
			continue
		}
		file := filepath.Join(k.root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o444); err != nil {
			t.Fatal(err)
		}
	}
	var r nodeapi.CheckReport
	k.check(Adder(&r))
	failed := map[string]nodeapi.CheckItem{}
	for _, it := range r.Items {
		if !it.OK {
			failed[it.Name] = it
		}
	}
	if r.Failed() {
		t.Errorf("a kernel setting is an essential check: %+v", failed)
	}
	return failed
}

func TestCheckReportsKernelSettings(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name                                string
		k                                   kernel
		file, value, item, detail, inRemedy string // no item: no failure
	}{
		{name: "all set", k: kernel{v2: true, ipv6: true}},
		{name: "all set on v1"},
		{
			"overcommit", kernel{v2: true}, "proc/sys/vm/overcommit_memory", "0\n", "sysctl vm.overcommit_memory",
			"is 0",
			"sysctl -w vm.overcommit_memory=1",
		},
		{
			"panic on OOM", kernel{v2: true}, "proc/sys/vm/panic_on_oom", "2\n", "sysctl vm.panic_on_oom", "is 2",
			"sysctl -w vm.panic_on_oom=0",
		},
		{
			"panic", kernel{v2: true}, "proc/sys/kernel/panic", "0\n", "sysctl kernel.panic", "is 0",
			"sysctl -w kernel.panic=1,",
		},
		{"oops", kernel{v2: true}, "proc/sys/kernel/panic_on_oops", "0\n", "sysctl kernel.panic_on_oops", "is 0", "=1"},
		{
			"keys", kernel{v2: true}, "proc/sys/kernel/keys/root_maxkeys", "200\n", "sysctl kernel.keys.root_maxkeys",
			"is 200",
			"=1000000",
		},
		{
			"bytes of keys", kernel{v2: true}, "proc/sys/kernel/keys/root_maxbytes", "20000\n",
			"sysctl kernel.keys.root_maxbytes", "is 20000", "=25000000",
		},
		{"more is as good", kernel{v2: true}, "proc/sys/fs/inotify/max_user_watches", "1048576\n", "", "", ""},
		{
			"watches", kernel{v2: true}, "proc/sys/fs/inotify/max_user_watches", "8192\n",
			"sysctl fs.inotify.max_user_watches",
			"is 8192", "=65536",
		},
		{
			"instances", kernel{v2: true}, "proc/sys/fs/inotify/max_user_instances", "128\n",
			"sysctl fs.inotify.max_user_instances", "is 128", "=512",
		},
		{"forwarding", kernel{v2: true}, "proc/sys/net/ipv4/ip_forward", "0\n", "sysctl net.ipv4.ip_forward", "is 0",
			"=1"},
		{
			"bridges", kernel{v2: true}, "proc/sys/net/bridge/bridge-nf-call-iptables", "0\n",
			"sysctl net.bridge.bridge-nf-call-iptables", "is 0", "=1",
		},
		{
			"no bridges", kernel{v2: true}, "proc/sys/net/bridge/bridge-nf-call-iptables", "",
			"sysctl net.bridge.bridge-nf-call-iptables", "not available in the running kernel", "modprobe br_netfilter",
		},
		{"IPv6 without a range", kernel{v2: true}, "proc/sys/net/ipv6/conf/all/forwarding", "0\n", "", "", ""},
		{
			"IPv6 with a range", kernel{v2: true, ipv6: true}, "proc/sys/net/ipv6/conf/all/forwarding", "0\n",
			"sysctl net.ipv6.conf.all.forwarding", "is 0", "=1",
		},
		{"no number", kernel{v2: true}, "proc/sys/kernel/panic", "x\n", "sysctl kernel.panic", "invalid syntax", "=1,"},
		{
			"controllers of v2", kernel{v2: true}, "sys/fs/cgroup/cgroup.controllers", "cpuset cpu\n",
			"cgroup controllers",
			"memory, pids missing", "cgroup_enable=",
		},
		{
			"no controllers of v2", kernel{v2: true}, "sys/fs/cgroup/cgroup.controllers", "", "cgroup controllers",
			"no such file", "Delegate=yes",
		},
		{
			"controllers of v1", kernel{}, "proc/cgroups",
			"#subsys_name\thierarchy\tnum_cgroups\tenabled\n" +
				"cpu\t1\t2\t1\ncpuset\t2\t1\t1\nmemory\t0\t1\t0\npids\t4\t1\t1\n",
			"cgroup controllers", "memory missing", "cgroup_enable=",
		},
	} {
		changed := map[string]string{}
		if row.file != "" {
			changed[row.file] = row.value
		}
		failed := fakeKernel(t, row.k, changed)
		it := failed[row.item]
		if want := min(len(row.item), 1); len(failed) != want {
			t.Errorf("%s: got failed checks %+v", row.name, failed)
		} else if want == 1 && (!strings.Contains(it.Detail, row.detail) ||
			!strings.Contains(it.Remedy, row.inRemedy)) {
			t.Errorf("%s: %+v, want %q and %q", row.name, it, row.detail, row.inRemedy)
		}
	}
}

func TestCheckReportsSeparateImageService(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	config := filepath.Join(dir, "node.yaml")
	for _, row := range []struct{ images, want string }{{"", ""},
		{"imageServiceEndpoint: unix://" + dir + "/images.sock\n", "images.sock"}} {
		text := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncgroupDriver: cgroupfs\n" +
			row.images
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := Local(
			t.Context(),
			LocalOptions{
				Flags: &nodeconfig.Flags{
					Config:           config,
					HostnameOverride: "n",
					StateDir:         dir + "/state",
					RootDir:          dir + "/root",
					RuntimeEndpoint:  "unix://" + dir + "/none.sock",
				},
			},
		)
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(r.Items, func(it nodeapi.CheckItem) bool { return it.Name == "image service" })
		switch {
		case (i >= 0) != (row.want != ""):
			t.Errorf("%q: %+v", row.images, r.Items)
		case i >= 0 && (r.Items[i].OK || !r.Items[i].Essential || !strings.Contains(r.Items[i].Detail, row.want) ||
			!strings.Contains(r.Items[i].Remedy, "imageServiceEndpoint")):
			t.Errorf("%+v", r.Items[i])
		}
	}
}

func TestIPv6PodCIDRRequiresForwarding(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]bool{"nodeIPs: [10.0.0.1]": false, "nodeIPs: [\"fd00::1\"]": true,
		"cniPodCIDRs: [10.85.0.0/24, \"fd00::/64\"]": true} {
		if got := usesIPv6(nodeconfigtest.Load(t, "apiVersion: berth.dev/v1alpha1\nkind: BerthConfiguration\n"+in+
			"\n")); got != want {
			t.Errorf("%s: %v", in, got)
		}
	}
}
