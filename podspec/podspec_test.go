package podspec

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

func TestIsCritical(t *testing.T) {
	static := map[string]string{"kubernetes.io/config.source": "file"}
	for _, row := range []struct {
		sentence    string
		spec        string
		annotations map[string]string
		joined      bool // critical on a node that has joined a server
		standalone  bool
		priority    int32
	}{
		{"pod of an API server", "{}", map[string]string{"kubernetes.io/config.source": "api"}, false, false, 0},
		{"pod without annotations", "{}", nil, false, false, 0},
		{"static pod, on a joined node only", "{}", static, true, false, 0},
		{"mirror pod, on a joined node only", "{}", map[string]string{corev1.MirrorPodAnnotationKey: "x"}, true, false,
			0},
		{"system priority", "priority: 2000000000", nil, true, true, 2000000000},
		{"highest user priority", "priority: 1000000000", nil, false, false, 1000000000},
		{"unresolved class system-node-critical", "priorityClassName: system-node-critical", static, true, true,
			2000001000},
		{"unresolved class system-cluster-critical", "priorityClassName: system-cluster-critical", static, true, true,
			2000000000},
		{"unresolved other class", "priorityClassName: high", nil, false, false, 0},
		{"a resolved priority takes precedence over the class",
			"{priorityClassName: system-node-critical, priority: 5}", nil, false, false, 5},
	} {
		t.Run(row.sentence, func(t *testing.T) {
			pod := podOf(t, row.spec)
			pod.Annotations = row.annotations
			if got := IsCritical(pod, false); got != row.joined {
				t.Errorf("joined: %v", got)
			}
			if got := IsCritical(pod, true); got != row.standalone {
				t.Errorf("standalone: %v", got)
			}
			if got := Priority(pod); got != row.priority {
				t.Errorf("priority: %d", got)
			}
		})
	}
}

func TestGracePeriod(t *testing.T) {
	n := func(v int64) *int64 { return &v }
	for _, row := range []struct {
		sentence       string
		spec, deletion *int64
		want           time.Duration
	}{
		{"default is 30 seconds", nil, nil, 30 * time.Second},
		{"spec", n(5), nil, 5 * time.Second},
		{"the deletion takes precedence", n(5), n(7), 7 * time.Second},
		{"zero is immediate", n(5), n(0), 0},
		{"negative values are one second", n(-3), nil, time.Second},
		{"the maximum does not overflow", n(math.MaxInt64), nil,
			time.Duration(math.MaxInt64/int64(time.Second)) * time.Second},
	} {
		t.Run(row.sentence, func(t *testing.T) {
			pod := &corev1.Pod{Spec: corev1.PodSpec{TerminationGracePeriodSeconds: row.spec}}
			pod.DeletionGracePeriodSeconds = row.deletion
			if got := GracePeriod(pod); got != row.want {
				t.Errorf("got %s, want %s", got, row.want)
			}
		})
	}
}

func TestReferences(t *testing.T) {
	pod := podOf(t, `
imagePullSecrets: [{name: pull}, {name: vol-secret}, {}]
volumes:
- {name: a, configMap: {name: vol-map, optional: true}}
- {name: b, secret: {secretName: vol-secret}}
- name: c
  projected:
    sources: [{configMap: {name: proj-map}}, {secret: {name: proj-secret, optional: true}}, {downwardAPI: {}}]
- {name: d}
initContainers:
- {name: i, image: x, envFrom: [{configMapRef: {name: from-map, optional: true}}, {secretRef: {name: from-secret}}]}
containers:
- name: m
  image: x
  envFrom: [{configMapRef: {name: from-map}}]
  env:
  - {name: a, valueFrom: {configMapKeyRef: {name: key-map, key: k, optional: true}}}
  - {name: b, valueFrom: {secretKeyRef: {name: key-secret, key: k}}}
  - {name: c, value: x}
ephemeralContainers:
- {name: e, image: x, env: [{name: a, valueFrom: {secretKeyRef: {name: debug, key: k, optional: true}}}]}
`)
	want := []ObjectRef{
		{"ConfigMap", "vol-map", true}, {"Secret", "vol-secret", false},
		{"ConfigMap", "proj-map", false}, {"Secret", "proj-secret", true},
		{"ConfigMap", "from-map", false}, {"Secret", "from-secret", false},
		{"ConfigMap", "key-map", true}, {"Secret", "key-secret", false},
		{"Secret", "debug", true}, {"Secret", "pull", true},
	}
	if diff := cmp.Diff(want, References(pod)); diff != "" {
		t.Errorf("want (-) got (+):\n%s", diff)
	}
	if refs := References(&corev1.Pod{}); len(refs) != 0 {
		t.Errorf("a pod without references has %v", refs)
	}
	for source, want := range map[string][2][]ObjectRef{
		"file": {{{KindServices, LinkedFileServices, true}}, nil},
		"api":  {{{KindServices, LinkedServices, false}}, {{KindServices, KubernetesServiceOnly, false}}},
	} {
		pod := &corev1.Pod{}
		pod.Annotations = map[string]string{"kubernetes.io/config.source": source}
		for i, links := range []*bool{nil, new(bool)} {
			pod.Spec.EnableServiceLinks = links
			if diff := cmp.Diff(want[i], References(pod)); diff != "" {
				t.Errorf("%s, links %v: want (-) got (+):\n%s", source, links == nil, diff)
			}
		}
	}
}

func TestHostPorts(t *testing.T) {
	pod := podOf(t, `
initContainers:
- {name: i, image: x, ports: [{containerPort: 1, hostPort: 1}]}
- {name: s, image: x, restartPolicy: Always, ports: [{containerPort: 2, hostPort: 2, hostIP: "0:0::1", protocol: UDP}]}
containers:
- name: m
  image: x
  ports:
  - {containerPort: 3}
  - {containerPort: 4, hostPort: 4, hostIP: 0.0.0.0}
  - {containerPort: 5, hostPort: 5, hostIP: "::ffff:10.0.0.1"}
`)
	want := []HostPort{{"::1", "UDP", 2}, {"", "TCP", 4}, {"10.0.0.1", "TCP", 5}}
	if diff := cmp.Diff(want, HostPorts(pod)); diff != "" {
		t.Errorf("want (-) got (+):\n%s", diff)
	}
}

func TestHostPortConflicts(t *testing.T) {
	for _, row := range []struct {
		sentence string
		a, b     HostPort
		want     bool
	}{
		{"the same port", HostPort{"", "TCP", 80}, HostPort{"", "TCP", 80}, true},
		{"another number", HostPort{"", "TCP", 80}, HostPort{"", "TCP", 81}, false},
		{"another protocol", HostPort{"", "TCP", 80}, HostPort{"", "UDP", 80}, false},
		{"two addresses", HostPort{"10.0.0.1", "TCP", 80}, HostPort{"10.0.0.2", "TCP", 80}, false},
		{"every address covers one", HostPort{"", "TCP", 80}, HostPort{"10.0.0.1", "TCP", 80}, true},
		{"every address covers an IPv6 one", HostPort{"", "TCP", 80}, HostPort{"::1", "TCP", 80}, true},
		{"every IPv6 address covers an IPv6 one", HostPort{"::", "TCP", 80}, HostPort{"fd00::1", "TCP", 80}, true},
		{"every IPv6 address covers no IPv4 one", HostPort{"::", "TCP", 80}, HostPort{"10.0.0.1", "TCP", 80}, false},
	} {
		t.Run(row.sentence, func(t *testing.T) {
			if row.a.Conflicts(row.b) != row.want || row.b.Conflicts(row.a) != row.want {
				t.Errorf("want %v either way", row.want)
			}
		})
	}
}

func TestExpand(t *testing.T) {
	vars := map[string]string{"A": "1", "B": "$(A)", "x-y": "z", "": "nothing"}
	lookup := func(name string) (string, bool) { v, ok := vars[name]; return v, ok }
	for _, row := range []struct{ sentence, in, want string }{
		{"plain text stays", "a b", "a b"},
		{"a variable is replaced", "<$(A)>", "<1>"},
		{"two in a row", "$(A)$(A)", "11"},
		{"a name may hold any character", "$(x-y)", "z"},
		{"values are not expanded recursively", "$(B)", "$(A)"},
		{"an unknown name is unchanged", "$(C)", "$(C)"},
		{"two dollars are one, and what follows is text", "$$(A)", "$(A)"},
		{"three dollars are one and a variable", "$$$(A)", "$1"},
		{"a lone dollar stays", "a$", "a$"},
		{"a dollar before a letter stays", "$A", "$A"},
		{"an open parenthesis stays", "$(A", "$(A"},
		{"after an open parenthesis nothing is closed", "$( $A", "$( $A"},
		{"four dollars are two", "$$$$", "$$"},
		{"a dollar before a letter beyond ASCII stays", "$é", "$é"},
		{"an empty name is a name", "$()", "nothing"},
	} {
		t.Run(row.sentence, func(t *testing.T) {
			if got := Expand(row.in, lookup); got != row.want {
				t.Errorf("%q: got %q, want %q", row.in, got, row.want)
			}
		})
	}
}

func TestContainerHash(t *testing.T) {
	c := &corev1.Container{Name: "a", Image: "x:1"}
	// Stored in annotations of running containers: another value would restart all of them.
	if got, want := ContainerHash(c), "fe9786fcf0d523e1"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	same := c.DeepCopy()
	same.Args, same.Env = []string{"x"}, []corev1.EnvVar{{Name: "a"}}
	if ContainerHash(same) != ContainerHash(c) {
		t.Error("arguments change the hash")
	}
	for _, other := range []corev1.Container{{Name: "a", Image: "x:2"}, {Name: "b", Image: "x:1"},
		{Name: "ax", Image: ":1"}} {
		if ContainerHash(&other) == ContainerHash(c) {
			t.Errorf("%v has the same hash", other)
		}
	}
}

func TestSysctlNames(t *testing.T) {
	for _, row := range []struct{ sentence, in, name, namespace string }{
		{"dots stay", "net.ipv4.tcp_syncookies", "net.ipv4.tcp_syncookies", NetworkNamespace},
		{"slashes become dots, and dots slashes", "net/ipv4/conf/eth0.1/rp_filter", "net.ipv4.conf.eth0/1.rp_filter",
			NetworkNamespace},
		{"semaphores are of the IPC namespace", "kernel.sem", "kernel.sem", IPCNamespace},
		{"shared memory too", "kernel.shmmax", "kernel.shmmax", IPCNamespace},
		{"message queues too", "fs.mqueue.msg_max", "fs.mqueue.msg_max", IPCNamespace},
		{"swappiness is the host's", "vm.swappiness", "vm.swappiness", ""},
		{"a name without parts is the host's", "net", "net", ""},
	} {
		t.Run(row.sentence, func(t *testing.T) {
			if name := SysctlName(row.in); name != row.name || SysctlNamespace(name) != row.namespace {
				t.Errorf("got %q in %q", name, SysctlNamespace(name))
			}
		})
	}
}

func TestUnsupportedFields(t *testing.T) {
	for _, row := range []struct {
		sentence, spec string
		warned         []string
		rejected       []string
	}{
		{"a plain pod is supported", "{}", nil, nil},
		{"node-local volumes are supported", "volumes: [{name: a}, {name: b, hostPath: {path: /}}, {name: c, " +
			"configMap: {name: c}}, {name: d, secret: {secretName: s}}, {name: e, downwardAPI: {}}, {name: f, " +
			"projected: {sources: [{configMap: {name: c}}]}}]", nil, nil},
		{"tasks of an API server cause warnings", "{schedulingGates: [{name: a}], evictionResponders: [{name: " +
			"a.io/b}], automountServiceAccountToken: true}",
			[]string{"spec.schedulingGates: scheduling gates have no effect",
				"spec.evictionResponders: eviction responders have no effect",
				"spec.automountServiceAccountToken: not supported"}, nil},
		{"a readiness gate causes a warning", "readinessGates: [{conditionType: a.io/b}]",
			[]string{"spec.readinessGates: the pod is never ready"}, nil},
		{"an opt-out of the token causes no warning", "{automountServiceAccountToken: false}", nil, nil},
		{"scheduling preferences cause no warning", "{schedulerName: default-scheduler, tolerations: [{operator: " +
			"Exists}], affinity: {podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, " +
			"podAffinityTerm: {topologyKey: a}}]}}}", nil, nil},
		{"scheduling requirements cause warnings", "{schedulerName: x, topologySpreadConstraints: [{maxSkew: 1, " +
			"topologyKey: a, whenUnsatisfiable: DoNotSchedule}], affinity: {podAffinity: " +
			"{requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: a}]}, podAntiAffinity: " +
			"{requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: a}]}}}",
			[]string{"spec.schedulerName: has no effect on a standalone node",
				"spec.topologySpreadConstraints: has no effect",
				"spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution: has no effect",
				"spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution: has no effect"}, nil},
		{"an unknown priority class causes a warning", "priorityClassName: gold",
			[]string{"spec.priorityClassName: PriorityClass gold requires an API server: the priority is 0"}, nil},
		{"system priority classes are supported", "priorityClassName: system-node-critical", nil, nil},
		{"a resolved priority is supported", "{priorityClassName: gold, priority: 7}", nil, nil},
		{"disk limits are supported", "{volumes: [{name: a, emptyDir: {sizeLimit: 1Mi}}, {name: b, emptyDir: " +
			"{sizeLimit: 1Mi, medium: Memory}}, {name: c, emptyDir: {}}], initContainers: [{name: i, image: x, " +
			"resources: {limits: {ephemeral-storage: 1Mi}}}]}", nil, nil},
		{"ephemeral containers cause a warning", "ephemeralContainers: [{name: d, image: x}]",
			[]string{"spec.ephemeralContainers: an API server rejects them"}, nil},
		{"a hook removed from the API causes a warning",
			one("lifecycle: {postStart: {tcpSocket: {port: 1}}, preStop: {tcpSocket: {port: 1}}}"),
			[]string{"spec.containers[0].lifecycle.postStart.tcpSocket: the hook was removed",
				"spec.containers[0].lifecycle.preStop.tcpSocket: the hook was removed"}, nil},
		{"hooks and stop signals are supported", "{os: {name: linux}, " +
			one("lifecycle: {stopSignal: SIGUSR1, postStart: {sleep: {seconds: 1}}, preStop: {exec: {command: [a]}}}") +
			"}", nil, nil},
		{"probes are supported",
			one("livenessProbe: {exec: {command: [a]}}, readinessProbe: {exec: {command: [a]}}, startupProbe: {exec: " +
				"{command: [a]}}"), nil, nil},
		{"a claim is rejected", "volumes: [{name: a, persistentVolumeClaim: {claimName: c}}]", nil,
			[]string{"spec.volumes[0].persistentVolumeClaim: volumes of type persistentVolumeClaim"}},
		{"other volume types are rejected", "volumes: [{name: a, nfs: {server: s, path: /}}, {name: b, csi: {driver: " +
			"d}}, {name: c, image: {reference: x}}, {name: d, ephemeral: {volumeClaimTemplate: {spec: {}}}}]", nil,
			[]string{"spec.volumes[0].nfs: type nfs", "spec.volumes[1].csi: type csi",
				"spec.volumes[3].ephemeral: type ephemeral"}},
		{"credentials issued by a server are rejected",
			"volumes: [{name: a, projected: {sources: [{serviceAccountToken: {path: t}}, {clusterTrustBundle: {path: " +
				"b}}, {podCertificate: {signerName: s, keyType: k}}]}}]", nil,
			[]string{"spec.volumes[0].projected.sources[0].serviceAccountToken: tokens",
				"spec.volumes[0].projected.sources[1].clusterTrustBundle: bundles",
				"spec.volumes[0].projected.sources[2].podCertificate: certificates"}},
		{"devices are rejected", one("volumeDevices: [{name: a, devicePath: /x}]"), nil,
			[]string{"spec.containers[0].volumeDevices: block"}},
		{"mount options are rejected", one("volumeMounts: [{name: a, mountPath: /x, bindMountOptions: [noexec]}]"), nil,
			[]string{"spec.containers[0].volumeMounts[0].bindMountOptions: mount options"}},
		{"dynamic resources are rejected", "{resourceClaims: [{name: a, resourceClaimName: b}], " +
			one("resources: {claims: [{name: a}]}") + "}", nil, []string{"spec.resourceClaims: dynamic",
			"spec.containers[0].resources.claims: dynamic"}},
		{"restarting all containers is supported",
			one("restartPolicy: Never, restartPolicyRules: [{action: RestartAllContainers}, {action: Restart}]"), nil,
			nil},
		{"resize policies are supported", one("resizePolicy: [{resourceName: cpu, restartPolicy: NotRequired}]"), nil,
			nil},
		{"a service account causes a warning", "serviceAccountName: a", []string{"spec.serviceAccountName: token"},
			nil},
		{"Windows is rejected", "{os: {name: windows}, securityContext: {windowsOptions: {}}, " +
			one("securityContext: {windowsOptions: {}}") + "}", nil,
			[]string{"spec.os.name: Windows", "spec.securityContext.windowsOptions: Windows",
				"spec.containers[0].securityContext.windowsOptions: Windows"}},
	} {
		t.Run(row.sentence, func(t *testing.T) {
			warned, rejected := UnsupportedFields(podOf(t, row.spec))
			expectErrors(t, rejected, row.rejected)
			for _, w := range row.warned {
				path, text, _ := strings.Cut(w, ": ")
				i := slices.IndexFunc(
					warned,
					func(s string) bool { return strings.HasPrefix(s, path+": ") && strings.Contains(s, text) },
				)
				if i < 0 {
					t.Errorf("no warning %q in %q", w, warned)
					continue
				}
				warned = slices.Delete(warned, i, i+1)
			}
			if len(warned) > 0 {
				t.Errorf("unexpected warning: %q", warned)
			}
		})
	}
}
