package nodeconfig

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

const head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
const berthHead = "apiVersion: berth.dev/v1alpha1\nkind: BerthConfiguration\n"

func parse(t *testing.T, in string, args ...string) (*Config, []string, error) {
	t.Helper()
	fs := pflag.NewFlagSet("run", pflag.ContinueOnError)
	var f Flags
	f.AddTo(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	f.Config = "node.yaml"
	return Parse([]byte(in), &f)
}

func TestDefaultsAreStandalone(t *testing.T) {
	c, warnings, err := parse(t, "", "--hostname-override=N1")
	if err != nil || len(warnings) > 0 {
		t.Fatalf("%v, warnings %q", err, warnings)
	}
	any4 := netip.MustParseAddr("0.0.0.0")
	want := &Config{
		ConfigFile: "node.yaml",
		NodeName:   "n1", CertDir: DefaultCertDir, RootDir: DefaultRootDir, StateDir: DefaultStateDir,
		Socket:     DefaultSocket,
		PodLogsDir: "/var/log/pods", FileCheckFrequency: 20 * time.Second,
		RuntimeEndpoint: DefaultRuntimeEndpoint, ImageEndpoint: DefaultRuntimeEndpoint, LogFormat: "text",
		MaxParallelStarts: 10, StartPressure: 90, DeadContainers: DeadContainers{MaxPerContainer: 1},
		Pods: Pods{Max: 110, PidsLimit: -1, CrashLoopMax: 5 * time.Minute, OOMScoreAdj: -999},
		Images: Images{PullQPS: 5, PullBurst: 10, MaxParallel: 5, MinimumGCAge: 2 * time.Minute,
			ArchiveDir: "/var/lib/berth/images", HighThresholdPercent: 85, LowThresholdPercent: 80,
			GCPeriod: 5 * time.Minute, VerificationPolicy: "NeverVerifyPreloadedImages"},
		Logs:    Logs{MaxSize: 10 << 20, MaxFiles: 5, MaxWorkers: 1, MonitorInterval: 10 * time.Second},
		Cgroups: Cgroups{CPUCFSQuota: true, CPUCFSPeriod: 100 * time.Millisecond, EnforcePods: true},
		Network: Network{
			ResolvConf:         "/etc/resolv.conf",
			FallbackResolvConf: SystemdResolvConf,
			CNIConfDir:         DefaultCNIConfDir,
			CNIBinDirs:         []string{"/opt/cni/bin", "/usr/lib/cni"},
			ServiceProxy:       Auto, ClusterDNSServer: Auto, NetworkPolicy: Off,
			ServiceCIDR: netip.MustParsePrefix(DefaultServiceCIDR),
		},
		Healthz: ListenAddress{netip.MustParseAddr("127.0.0.1"), 10248},
		Server: Server{
			ListenAddress:     ListenAddress{any4, 10250},
			Enabled:           true,
			DebuggingHandlers: true,
			Webhook:           true,
			WebhookTTL:        2 * time.Minute,
			AuthorizedTTL:     5 * time.Minute,
			UnauthorizedTTL:   30 * time.Second,
			StreamIdleTimeout: 4 * time.Hour,
			SystemLogHandler:  true,
			Profiling:         true,
			DebugFlags:        true,
		},
		Node: Node{Register: true, StatusUpdateFrequency: 10 * time.Second, StatusReportFrequency: 5 * time.Minute,
			StatusMaxImages: 50, LeaseDuration: 40 * time.Second, RotateCertificates: true,
			APIQPS: 50, APIBurst: 100, EventQPS: 50, EventBurst: 100},
		Reserved: Reserved{System: corev1.ResourceList{}, Kube: corev1.ResourceList{}},
		Eviction: Eviction{
			PressureTransitionPeriod: 5 * time.Minute,
			LocalStorageIsolation:    true,
			Thresholds: []Threshold{
				{
					Signal:  "imagefs.available",
					Hard:    true,
					Percent: 15,
				}, {Signal: "imagefs.inodesFree", Hard: true, Percent: 5},
				{Signal: "memory.available", Hard: true, Quantity: quantity("100Mi")},
				{
					Signal:  "nodefs.available",
					Hard:    true,
					Percent: 10,
				}, {Signal: "nodefs.inodesFree", Hard: true, Percent: 5}},
		},
	}
	if k := c.Kubelet; k == nil || k.MaxPods != 110 || k.Port != 10250 {
		t.Errorf("unexpected effective configuration %+v", k)
	}
	c.Kubelet = nil
	if d := cmp.Diff(want, c, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
		cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); d != "" {
		t.Error(d)
	}
	if !c.Standalone() {
		t.Error("not standalone")
	}
}

func quantity(s string) *resource.Quantity {
	q := resource.MustParse(s)
	return &q
}

func TestFlagsOverrideFile(t *testing.T) {
	in := head + `
staticPodPath: /etc/manifests
containerRuntimeEndpoint: /run/a.sock
logging: {verbosity: 2, format: json}
maxParallelImagePulls: 3
kubeReserved: {cpu: 100m, memory: 1Gi}
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local.
allowedUnsafeSysctls: [net.core.somaxconn, "kernel.msg*"]
crashLoopBackOff: {maxContainerRestartPeriod: 30s}
---
` + berthHead + `
nodeName: fromfile
stateDir: /a
nodeLabels: {a: b}
cniPodCIDRs: [10.85.0.0/16, "fd00::/48"]
`
	c, warnings, err := parse(t, in, "--state-dir=/b", "--pod-manifest-path=/m", "--v=6", "--node-ip=10.0.0.1,fd00::1",
		"--register-with-taints=a=b:NoSchedule,c:NoExecute", "--kubeconfig=/k")
	if err != nil {
		t.Fatal(err)
	}
	if len(warnings) > 0 {
		t.Errorf("warnings %q", warnings)
	}
	for _, v := range []struct{ name, got, want string }{
		{"node name", c.NodeName, "fromfile"}, {"state dir", c.StateDir, "/b"}, {"manifests", c.StaticPodPath, "/m"},
		{"runtime", c.RuntimeEndpoint, "unix:///run/a.sock"}, {"images", c.ImageEndpoint, "unix:///run/a.sock"},
		{"domain", c.Network.ClusterDomain, "cluster.local"}, {"label", c.NodeLabels["a"], "b"},
		{"log", c.LogFormat, "json"},
		{"range", c.Network.CNIPodCIDRs[1].String(), "fd00::/48"}, {"address", c.NodeIPs[1].String(), "fd00::1"},
		{"taint", string(c.Node.Taints[1].Effect), "NoExecute"}, {"reserved", c.Reserved.Kube.Memory().String(), "1Gi"},
	} {
		if v.got != v.want {
			t.Errorf("%s: %s, want %s", v.name, v.got, v.want)
		}
	}
	if c.Verbosity != 6 || c.Images.MaxParallel != 3 || c.Pods.CrashLoopMax != 30*time.Second || c.Standalone() {
		t.Errorf("got %+v", c)
	}
}

func TestErrorsNameLineAndField(t *testing.T) { // N3
	tests := []struct{ name, in, want string }{
		{"an unknown field", head + "maxPod: 1", "node.yaml:3: maxPod: unknown field"},
		{
			"a duplicate field",
			head + "maxPods: 1\nmaxPods: 2",
			"node.yaml:4: maxPods: duplicate field, first on line 3",
		},
		{"a wrong type", head + "maxPods: many", "node.yaml:3: maxPods: must be a whole number with 32 bits, is text"},
		{
			"an invalid duration",
			head + "fileCheckFrequency: often",
			"node.yaml:3: fileCheckFrequency: is not a valid duration (such as 30s, 5m, 1h30m)",
		},
		{
			"a negative duration",
			head + "imageMinimumGCAge: -1s",
			"node.yaml:3: imageMinimumGCAge: -1s must not be negative",
		},
		{"invalid YAML", "a: [b", "not valid YAML"},
		{
			"an old version",
			"apiVersion: kubelet.config.k8s.io/v1alpha1\nkind: KubeletConfiguration",
			"node.yaml:1: apiVersion: must be kubelet.config.k8s.io/v1beta1",
		},
		{"another kind", "apiVersion: v1\nkind: Pod", "node.yaml:1: kind: must be KubeletConfiguration"},
		{
			"the same kind twice",
			head + "---\n" + head,
			"node.yaml:4: kind: KubeletConfiguration is duplicated in this file",
		},
		{
			"an unknown field of BerthConfiguration",
			berthHead + "nodename: a",
			"node.yaml:3: nodename: unknown field, did you mean nodeName?",
		},
		{"a port beyond the range", head + "port: 70000", "node.yaml:3: port: 70000 must be from 1 to 65535"},
		{
			"two servers on one port",
			head + "healthzPort: 10250",
			"node.yaml:3: healthzPort: 10250 is already the port of the server",
		},
		{
			"a percentage beyond 100",
			head + "imageGCHighThresholdPercent: 101",
			"node.yaml:3: imageGCHighThresholdPercent: 101 must be from 0 to 100",
		},
		{
			"low threshold not below the high one",
			head + "imageGCLowThresholdPercent: 90",
			"node.yaml:3: imageGCLowThresholdPercent: 90 must be less than imageGCHighThresholdPercent, 85",
		},
		{
			"an unknown signal",
			head + "evictionHard:\n  memory.free: 1Gi",
			"node.yaml:4: evictionHard[memory.free]: unknown signal",
		},
		{
			"an invalid threshold",
			head + "evictionHard: {memory.available: 101%}",
			`node.yaml:3: evictionHard[memory.available]: "101%" must be from 0% to 100%`,
		},
		{"a threshold that is not a number", head + "evictionHard: {memory.available: NaN%}",
			"must be from 0% to 100%"},
		{
			"a soft threshold without grace",
			head + "evictionSoft: {memory.available: 1Gi}",
			"node.yaml:3: evictionSoft[memory.available]: requires an evictionSoftGracePeriod",
		},
		{
			"a zero grace period",
			head + "evictionSoft: {memory.available: 1Gi}\nevictionSoftGracePeriod: {memory.available: soon}",
			"node.yaml:4: evictionSoftGracePeriod[memory.available]:",
		},
		{
			"an unknown source",
			berthHead + "memoryPressureSources: free",
			`node.yaml:3: memoryPressureSources: "free" must be one of both, workingSet`,
		},
		{
			"a minimum reclaim of an unknown signal",
			head + "evictionMinimumReclaim: {disk: 1Gi}",
			"node.yaml:3: evictionMinimumReclaim[disk]: unknown signal",
		},
		{
			"serial and parallel pulls",
			head + "serializeImagePulls: true\nmaxParallelImagePulls: 2",
			"node.yaml:4: maxParallelImagePulls: 2 conflicts with serializeImagePulls: true",
		},
		{"no parallel pulls", head + "maxParallelImagePulls: 0",
			"node.yaml:3: maxParallelImagePulls: 0 must be from 1"},
		{
			"an unknown verification",
			head + "imagePullCredentialsVerificationPolicy: Sometimes",
			`node.yaml:3: imagePullCredentialsVerificationPolicy: "Sometimes" must be one of NeverVerify, ` +
				`NeverVerifyPreloadedImages, `,
		},
		{
			"an allowlist without the policy",
			head + "preloadedImagesVerificationAllowlist: [reg.io/a]",
			"node.yaml:3: preloadedImagesVerificationAllowlist: requires",
		},
		{
			"an allowlist with a short name",
			head + "imagePullCredentialsVerificationPolicy: " +
				"NeverVerifyAllowlistedImages\npreloadedImagesVerificationAllowlist: [reg.io/a, nginx]",
			`node.yaml:4: preloadedImagesVerificationAllowlist[1]: "nginx" is not a full name without tag and ` +
				`digest, such as docker.io/library/nginx`,
		},
		{
			"a relative path",
			head + "staticPodPath: manifests",
			`node.yaml:3: staticPodPath: "manifests" must be an absolute path`,
		},
		{
			"a runtime over TCP",
			head + "containerRuntimeEndpoint: tcp://1.2.3.4:5",
			"node.yaml:3: containerRuntimeEndpoint: \"tcp://1.2.3.4:5\" must begin with unix://",
		},
		{
			"an invalid cgroup driver",
			head + "cgroupDriver: cgroups",
			`node.yaml:3: cgroupDriver: "cgroups" must be one of cgroupfs, systemd`,
		},
		{
			"an invalid address",
			head + "clusterDNS:\n- dns.local",
			`node.yaml:3: clusterDNS: "dns.local" is not an IP address`,
		},
		{"one log file", head + "containerLogMaxFiles: 1", "node.yaml:3: containerLogMaxFiles: 1 must be from 2"},
		{
			"no log worker",
			head + "containerLogMaxWorkers: 0",
			"node.yaml:3: containerLogMaxWorkers: 0 must be from 1 to 2147483647",
		},
		{
			"an invalid log size",
			head + "containerLogMaxSize: big",
			`node.yaml:3: containerLogMaxSize: "big" is not a quantity`,
		},
		{
			"a negative reserve",
			head + "systemReserved:\n  memory: -1Gi",
			"node.yaml:4: systemReserved.memory: -1Gi must not be negative",
		},
		{
			"an unknown reserve",
			head + "systemReserved:\n  disk: 1Gi",
			"node.yaml:4: systemReserved.disk: must be one of",
		},
		{
			"a back-off beyond five minutes",
			head + "crashLoopBackOff: {maxContainerRestartPeriod: 6m}",
			"must be from 1s to 5m",
		},
		{
			"a sysctl that is not namespaced",
			head + "allowedUnsafeSysctls: [vm.overcommit_memory]",
			"would affect the whole node",
		},
		{
			"a critical grace period above the total",
			head + "shutdownGracePeriod: 10s\nshutdownGracePeriodCriticalPods: 20s",
			"node.yaml:4: shutdownGracePeriodCriticalPods: 20s must not be more",
		},
		{
			"an insecure cipher suite",
			head + "tlsCipherSuites: [TLS_RSA_WITH_RC4_128_SHA]",
			"tlsCipherSuites[0]: TLS_RSA_WITH_RC4_128_SHA is insecure",
		},
		{"an insecure TLS version", head + "tlsMinVersion: VersionTLS10", "VersionTLS10 is insecure"},
		{"a key without a certificate", head + "tlsPrivateKeyFile: /k", "must be set together with tlsPrivateKeyFile"},
		{
			"an invalid taint",
			head + "registerWithTaints: [{key: a, effect: Never}]",
			`node.yaml:3: registerWithTaints[0]: effect "Never" must be`,
		},
		{"a negative lease duration", head + "nodeLeaseDurationSeconds: -1",
			"nodeLeaseDurationSeconds: -1 must be from 1"},
		{
			"a CIDR with host bits",
			berthHead + "cniPodCIDRs: [10.85.0.1/16]",
			"10.85.0.1/16 has host bits set; the CIDR is 10.85.0.0/16",
		},
		{
			"two CIDRs of one family",
			berthHead + "cniPodCIDRs: [10.85.0.0/16, 10.86.0.0/16]",
			"must be one CIDR, or two of different families",
		},
		{"an invalid node name", berthHead + "nodeName: a_b", `node.yaml:3: nodeName: "a_b"`},
		{"an invalid label", berthHead + "nodeLabels: {a: b c}", `node.yaml:3: nodeLabels: value of "a"`},
		{
			"a socket with a long path",
			berthHead + "socket: /" + strings.Repeat("a", 107),
			"the path of a socket may have at most 107 bytes",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, _, err := parse(t, tt.in, "--root-dir=/r")
			if _, ok := errors.AsType[Errors](err); !ok || c != nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
		})
	}
}

func TestErrorsNameFlag(t *testing.T) {
	for arg, want := range map[string]string{
		"--node-ip=a":                            "--node-ip: \"a\" is not an IP address",
		"--hostname-override=-":                  "--hostname-override: ",
		"--container-runtime-endpoint=x":         "--container-runtime-endpoint: ",
		"--register-with-taints=a":               "--register-with-taints: must be key=value:Effect",
		"--register-with-taints=a=b:Go":          "--register-with-taints: effect",
		"--v=-1":                                 "--v: must be from 0 to 10",
		"--cni-pod-cidr=10.0.0.0":                "--cni-pod-cidr: ",
		"--kubeconfig=k":                         "--kubeconfig: \"k\" must be an absolute path",
		"--node-labels=a/b/c=d":                  "--node-labels: key",
		"--state-dir=" + "x":                     "--state-dir: ",
		"--pod-manifest-path=./m":                "--pod-manifest-path: ",
		"--socket=s":                             "--socket: ",
		"--node-ip=10.0.0.1,10.0.0.2":            "--node-ip: must be one address",
		"--node-ip=224.0.0.1":                    "--node-ip: 224.0.0.1 is a multicast address",
		"--cert-dir=c":                           "--cert-dir: ",
		"--bootstrap-kubeconfig=b":               "--bootstrap-kubeconfig: ",
		"--root-dir=r":                           "--root-dir: ",
		"--register-with-taints=a_/b:NoSchedule": "--register-with-taints: key",
	} {
		_, _, err := parse(t, "", arg)
		if err == nil || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "imageServiceEndpoint") {
			t.Errorf("%s: %v, want %s", arg, err, want)
		}
	}
}

func TestFieldClasses(t *testing.T) { // N2
	_, warnings, err := parse(t, head+"volumePluginDir: /x\nport: 10251\n")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"node.yaml:3: volumePluginDir is ignored: FlexVolume plugins are not supported",
	}
	if d := cmp.Diff(want, warnings); d != "" {
		t.Error(d)
	}
	_, warnings, err = parse(
		t,
		head+"cpuManagerPolicy: none\nreadOnlyPort: 0\nmemorySwap: {swapBehavior: NoSwap}\nuserNamespaces: "+
			"{idsPerPod: 65536}\nstaticPodURL: null\n",
	)
	if err != nil || len(warnings) > 0 {
		t.Errorf("neutral values of rejected fields: %v, %q", err, warnings)
	}
	c, warnings, err := parse(t, head+"clusterDNS: [10.0.0.1, 10.0.0.2, 10.0.0.3, 10.0.0.4]\n")
	if err != nil || len(c.Network.ClusterDNS) != 3 || len(warnings) != 1 ||
		!strings.Contains(warnings[0], "node.yaml:3: clusterDNS has 4 addresses") {
		t.Errorf("more name servers than resolvers support: %v, %q", err, warnings)
	}
	_, _, err = parse(
		t,
		head+"cpuManagerPolicy: static\nreadOnlyPort: 10255\nqosReserved: {memory: 50%}\nauthentication: {anonymous: "+
			"{enabled: true}}\n",
	)
	for _, want := range []string{
		"node.yaml:3: cpuManagerPolicy: is not supported: berth does not assign exclusive CPUs",
		"node.yaml:4: readOnlyPort: is not supported: the port without authentication is not supported (accepted: 0)",
		"node.yaml:5: qosReserved: is not supported",
		"node.yaml:6: authentication.anonymous.enabled: is not supported: anonymous requests are not supported " +
			"(accepted: false)",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestMemoryAndSwap(t *testing.T) {
	for _, row := range []struct {
		name, text    string
		factor        float64
		reserve, swap bool
		message       string // warning or error; empty: neither
	}{
		{"the defaults are no throttling, no reservation and no swap", "", 0, false, false, ""},
		{"swap is opt-in", "memorySwap: {swapBehavior: LimitedSwap}", 0, false, true, ""},
		{"NoSwap is valid", "memorySwap: {swapBehavior: NoSwap}", 0, false, false, ""},
		{"other swap behaviors are invalid", "memorySwap: {swapBehavior: UnlimitedSwap}", 0, false, false,
			`node.yaml:3: memorySwap.swapBehavior: "UnlimitedSwap" must be one of`},
		{"a throttling factor is used", "memoryThrottlingFactor: 0.9", 0.9, false, false, ""},
		{"the throttling factor is greater than 0", "memoryThrottlingFactor: 0", 0, false, false,
			"node.yaml:3: memoryThrottlingFactor: 0 must be more than 0 and at most 1"},
		{"the throttling factor is at most 1", "memoryThrottlingFactor: 1.5", 0, false, false,
			"node.yaml:3: memoryThrottlingFactor: 1.5 must be"},
		{"TieredReservation reserves memory", "memoryReservationPolicy: TieredReservation", 0, true, false, ""},
		{"None reserves nothing", "memoryReservationPolicy: None", 0, false, false, ""},
		{"other reservation policies are invalid", "memoryReservationPolicy: All", 0, false, false,
			`node.yaml:3: memoryReservationPolicy: "All" must be one of`},
		{"the gate disables both", "featureGates: {MemoryQoS: false}\nmemoryThrottlingFactor: " +
			"0.5\nmemoryReservationPolicy: TieredReservation", 0, false, false, ""},
		{"the gate enables both", "featureGates: {MemoryQoS: true}\nmemoryThrottlingFactor: " +
			"0.5\nmemoryReservationPolicy: TieredReservation", 0.5, true, false, ""},
		{"the gate alone has no effect and causes a warning", "featureGates: {MemoryQoS: true}", 0, false, false,
			"node.yaml:3: featureGates MemoryQoS has no effect alone"},
		{"other gates cause a warning", "featureGates: {Sidecar: true}", 0, false, false,
			"node.yaml:3: featureGates Sidecar is ignored"},
	} {
		c, warnings, err := parse(t, head+row.text+"\n")
		if err != nil {
			warnings = append(warnings, err.Error())
		}
		if got := strings.Join(warnings, "; "); row.message == "" && got != "" || !strings.Contains(got, row.message) {
			t.Errorf("%s: got %q, want %q", row.name, got, row.message)
		}
		if c != nil &&
			(c.Cgroups.MemoryThrottlingFactor != row.factor || c.Cgroups.TieredMemoryReservation != row.reserve ||
				c.Cgroups.LimitedSwap != row.swap) {
			t.Errorf("%s: %+v", row.name, c.Cgroups)
		}
	}
}

func TestTaintsWithoutRegistration(t *testing.T) {
	for _, server := range []string{"", "---\n" + berthHead + "kubeconfig: /k\n"} {
		c, warnings, err := parse(
			t,
			head+"registerNode: false\nregisterWithTaints: [{key: a, effect: NoSchedule}]\n"+server,
		)
		if err != nil || len(warnings) > 0 {
			t.Errorf("standalone %v: %v, %q", server == "", err, warnings)
		} else if c.Node.Register || len(c.Node.Taints) != 1 {
			t.Errorf("got %+v", c.Node)
		}
	}
}

func TestEvictionSettings(t *testing.T) {
	tests := []struct{ name, in, want string }{
		{
			"setting one threshold drops the other defaults",
			"evictionHard: {memory.available: 5%}",
			"memory.available 5% hard",
		},
		{"merged defaults", "evictionHard: {memory.available: 5%}\nmergeDefaultEvictionSettings: true",
			"imagefs.available 15% hard, imagefs.inodesFree 5% hard, memory.available 5% hard, nodefs.available 10% " +
				"hard, nodefs.inodesFree 5% hard"},
		{"no thresholds", "evictionHard: {}", ""},
		{
			"zero disables a signal",
			"evictionHard: {memory.available: 0%, nodefs.available: \"0\", pid.available: \"100\"}",
			"pid.available 100 hard",
		},
		{
			"soft threshold with grace period and minimum reclaim",
			"evictionHard: {}\nevictionSoft: {memory.available: 1Gi}\nevictionSoftGracePeriod: {memory.available: " +
				"90s}\nevictionMinimumReclaim: {memory.available: 100Mi}",
			"memory.available 1Gi soft 1m30s reclaim 100Mi",
		},
		{
			"hard and soft threshold for one signal",
			"evictionHard: {memory.available: 1Gi}\nevictionSoft: {memory.available: 2Gi}\nevictionSoftGracePeriod: " +
				"{memory.available: 1s}",
			"memory.available 1Gi hard, memory.available 2Gi soft 1s",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, _, err := parse(t, head+tt.in)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, th := range c.Eviction.Thresholds {
				got = append(got, describe(th))
			}
			if s := strings.Join(got, ", "); s != tt.want {
				t.Errorf("got  %s\nwant %s", s, tt.want)
			}
		})
	}
}

func describe(th Threshold) string {
	s := th.Signal + " "
	if th.Quantity != nil {
		s += th.Quantity.String()
	} else {
		s += fmt.Sprint(th.Percent, "%")
	}
	if th.Hard {
		return s + " hard"
	}
	s += " soft " + th.Grace.String()
	if th.MinReclaim != nil {
		s += " reclaim " + th.MinReclaim.String()
	}
	return s
}

func TestKubeadmConfiguration(t *testing.T) {
	const in = `apiVersion: kubelet.config.k8s.io/v1beta1
authentication:
  anonymous:
    enabled: false
  webhook:
    cacheTTL: 0s
    enabled: true
  x509:
    clientCAFile: /etc/kubernetes/pki/ca.crt
authorization:
  mode: Webhook
  webhook:
    cacheAuthorizedTTL: 0s
    cacheUnauthorizedTTL: 0s
cgroupDriver: systemd
clusterDNS:
- 10.96.0.10
clusterDomain: cluster.local
containerRuntimeEndpoint: ""
cpuManagerReconcilePeriod: 0s
crashLoopBackOff: {}
evictionPressureTransitionPeriod: 0s
fileCheckFrequency: 0s
healthzBindAddress: 127.0.0.1
healthzPort: 10248
httpCheckFrequency: 0s
imageMaximumGCAge: 0s
imageMinimumGCAge: 0s
kind: KubeletConfiguration
logging:
  flushFrequency: 0
  options:
    json:
      infoBufferSize: "0"
    text:
      infoBufferSize: "0"
  verbosity: 0
memorySwap: {}
nodeStatusReportFrequency: 0s
nodeStatusUpdateFrequency: 0s
rotateCertificates: true
runtimeRequestTimeout: 0s
shutdownGracePeriod: 0s
shutdownGracePeriodCriticalPods: 0s
staticPodPath: /etc/kubernetes/manifests
streamingConnectionIdleTimeout: 0s
syncFrequency: 0s
volumeStatsAggPeriod: 0s
`
	c, warnings, err := parse(t, in)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range warnings {
		if !strings.Contains(w, "authentication.") && !strings.Contains(w, "authorization.") &&
			!strings.Contains(w, "rotateCertificates") {
			t.Errorf("warning for a zero value that kubeadm writes: %s", w)
		}
	}
	if c.Cgroups.Driver != "systemd" || c.StaticPodPath != "/etc/kubernetes/manifests" || c.Server.ClientCAFile == "" {
		t.Errorf("got %+v", c)
	}
}

func TestLoadFiles(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "node.yaml")
	if err := os.WriteFile(path, []byte(head+"maxPods: 7\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, _, err := Load(&Flags{Config: path, StateDir: "/s"})
	if err != nil || c.Pods.Max != 7 || c.StateDir != "/s" || c.RootDir != DefaultRootDir {
		t.Errorf("got %+v, %v", c, err)
	}
	if err := os.Truncate(path, 2<<20); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{path, dir, filepath.Join(dir, "none")} {
		if _, _, err := Load(&Flags{Config: bad}); err == nil || !strings.Contains(err.Error(), bad) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{head, berthHead, head + "---\n" + berthHead,
		head + "evictionHard: {memory.available: 1%}",
		head + "logging: {verbosity: 1, vmodule: [{filePattern: a, verbosity: 1}]}",
		head + "shutdownGracePeriodByPodPriority: [{priority: 1, shutdownGracePeriodSeconds: 2}]",
		berthHead + "maxParallelStarts: 0\nnodeIPs: ['::1']"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, _, err := Parse(data, &Flags{Config: "f", HostnameOverride: "n"})
		if (c == nil) == (err == nil) {
			t.Fatalf("config %v and error %v", c, err)
		}
	})
}

func TestDeprecatedLogLimitIsIgnored(t *testing.T) {
	for _, value := range []string{"64Ki", "1Ki", "much"} {
		_, warnings, err := parse(t, head+"---\n"+berthHead+"containerLogMaxBytesPerMinute: "+value+"\n")
		want := "node.yaml:6: containerLogMaxBytesPerMinute is deprecated and ignored"
		if err != nil || len(warnings) != 1 || !strings.HasPrefix(warnings[0], want) {
			t.Errorf("%s: got %v, %q, want %q", value, err, warnings, want)
		}
	}
}

func TestV2FieldsAreThoseConfigured(t *testing.T) {
	t.Parallel()
	if got := (Cgroups{}).V2Fields(); got != nil {
		t.Errorf("got %q", got)
	}
	all := Cgroups{MemoryThrottlingFactor: 0.9, TieredMemoryReservation: true, LimitedSwap: true}
	if got := strings.Join(all.V2Fields(), " "); got !=
		"memoryThrottlingFactor memoryReservationPolicy memorySwap.swapBehavior" {
		t.Errorf("got %s", got)
	}
}

func TestDiskReserveFollowsThresholds(t *testing.T) {
	t.Parallel()
	quantity := resource.MustParse("30Gi")
	for name, c := range map[string]struct {
		config Config
		want   int64 // of 100 GiB
	}{
		"nothing": {Config{Images: Images{HighThresholdPercent: 100}}, 0},
		"images":  {Config{Images: Images{HighThresholdPercent: 85}}, 15 << 30},
		"percent": {Config{Images: Images{HighThresholdPercent: 100}, Eviction: Eviction{Thresholds: []Threshold{
			{Signal: "memory.available", Quantity: &quantity}, {Signal: "nodefs.available", Percent: 10},
			{Signal: "imagefs.available", Percent: 20},
		}}}, 20 << 30},
		"quantity": {Config{Images: Images{HighThresholdPercent: 85}, Eviction: Eviction{Thresholds: []Threshold{
			{Signal: "nodefs.available", Quantity: &quantity},
		}}}, 30 << 30},
	} {
		if got := c.config.DiskReserve(100 << 30); got != c.want {
			t.Errorf("%s: got %d, want %d", name, got, c.want)
		}
	}
}
