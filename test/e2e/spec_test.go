package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"berth/cri/criconfig"
	"berth/internal/nodeconfig"
)

// lineSet returns the lines of a log as a set.
func lineSet(log string) map[string]bool {
	set := map[string]bool{}
	for line := range strings.Lines(log) {
		set[strings.TrimSuffix(line, "\n")] = true
	}
	return set
}

// hasLines checks that a log has all lines.
func (s *Namespace) hasLines(log string, want ...string) {
	s.t.Helper()
	all := lineSet(log)
	for _, w := range want {
		if !all[w] {
			s.t.Errorf("log does not have line %q:\n%s", w, tail(log, 4000))
		}
	}
}

// procField returns the value of a field in the format of /proc/self/status.
func procField(log, name string) string {
	for line := range strings.Lines(log) {
		if v, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

func TestEnvironment(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		s.Put("objects", configMap("cm", "A: from-map, B: map-b")+"---\n"+
			secretOf("sec", "S: from-secret, odd.key-1: odd"))
		s.Put("pod", podYAML("env", "labels: {app: x}\nannotations: {n: note}", `
			serviceAccountName: robot
			automountServiceAccountToken: false
			containers:
			- name: c
			  image: berth/testbox:1
			  args: [env, ",", print, "$(PLAIN)-$(MISSING)-$$(PLAIN)", ",", args, ",", print, --end--, ",", sleep]
			  resources: {requests: {cpu: 100m, memory: 32Mi}, limits: {memory: 64Mi}}
			  envFrom:
			  - {configMapRef: {name: cm}}
			  - {prefix: P_, secretRef: {name: sec}}
			  - {configMapRef: {name: none, optional: true}}
			  env:
			  - {name: PLAIN, value: plain}
			  - {name: TWICE, value: "$(PLAIN)/$(A)/$(LATER)/$$(PLAIN)"}
			  - {name: LATER, value: late}
			  - {name: B, value: own-b}
			  - {name: KEY, valueFrom: {secretKeyRef: {name: sec, key: S}}}
			  - {name: OPT, valueFrom: {secretKeyRef: {name: sec, key: none, optional: true}}}
			  - {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
			  - {name: SPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
			  - {name: POD_UID, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}
			  - {name: LABEL, valueFrom: {fieldRef: {fieldPath: "metadata.labels['app']"}}}
			  - {name: NOTE, valueFrom: {fieldRef: {fieldPath: "metadata.annotations['n']"}}}
			  - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
			  - {name: ACCOUNT, valueFrom: {fieldRef: {fieldPath: spec.serviceAccountName}}}
			  - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
			  - {name: HOST_IP, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}
			  - {name: CPU, valueFrom: {resourceFieldRef: {resource: requests.cpu, divisor: 1m}}}
			  - {name: MEM, valueFrom: {resourceFieldRef: {resource: limits.memory, divisor: 1Mi}}}
			  - {name: ALL_CPU, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}
		`))
		p := s.Running("env")
		log := s.WaitOutput("env", "c")
		s.hasLines(log, "A=from-map", "B=own-b", "P_S=from-secret", "P_odd.key-1=odd", "PLAIN=plain",
			"TWICE=plain/from-map/$(LATER)/$(PLAIN)", "LATER=late", "KEY=from-secret",
			"POD=env", "SPACE="+s.ns, "POD_UID="+string(p.UID), "LABEL=x", "NOTE=note", "NODE="+s.Host.Name,
			"ACCOUNT=robot",
			"POD_IP="+p.Status.PodIP, "HOST_IP="+s.Host.Gateway.String(), "CPU=100", "MEM=64", "HOSTNAME=env",
			"plain-$(MISSING)-$(PLAIN)")
		if strings.Contains(log, "\nOPT=") {
			t.Error("variable of a missing optional key is set")
		}
		if strings.Contains(log, "\nALL_CPU=0\n") || !strings.Contains(log, "\nALL_CPU=") {
			t.Error("a missing CPU limit does not default to the node's CPUs")
		}
	})
}

func TestCommandAndArgsOverrideImage(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		s.Pod("words", `
			restartPolicy: Never
			containers:
			- {name: both, image: berth/testbox:1, command: [/bin/testbox, print, "cmd $(X)"],
			   args: [and, args], workingDir: /tmp, env: [{name: X, value: x}]}
			- {name: dir, image: berth/testbox:1, args: [pwd], workingDir: /home/app}
			- {name: no-program, image: berth/testbox:1, command: [/no/such/program]}
		`)
		p := s.Phase("words", corev1.PodFailed)
		if got := s.log("words", "both", false); got != "cmd x and args\n" {
			t.Errorf("both: %q", got)
		}
		if got := s.log("words", "dir", false); got != "/home/app\n" {
			t.Errorf("dir: %q", got)
		}
		x := status(p, "no-program")
		if x.State.Terminated == nil || x.State.Terminated.ExitCode != 128 && x.State.Terminated.ExitCode != 127 ||
			!strings.Contains(x.State.Terminated.Message, "/no/such/program") {
			t.Errorf("no-program: %+v", x.State)
		}
		s.Event("words", "Failed: ")
	})
}

// hostNamespace returns the kernel's identifier of a host namespace. The agent and its containerd are
// in the namespaces of the test process.
func hostNamespace(t *testing.T, kind string) string {
	t.Helper()
	target, err := os.Readlink("/proc/self/ns/" + kind)
	if err != nil {
		t.Fatal(err)
	}
	return kind + " " + target
}

func TestHostAndPodNamespaces(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		port := 21000 + s.Host.Number*20
		s.Pod("host", fmt.Sprintf("hostNetwork: true\nhostPID: true\nhostIPC: true\ncontainers:\n"+
			box("c", "", "namespaces", "hostname", end, "serve %d"), port))
		p := s.Running("host")
		log := s.WaitOutput("host", "c")
		s.hasLines(log, hostNamespace(t, "net"), hostNamespace(t, "pid"), hostNamespace(t, "ipc"))
		if p.Status.PodIP != s.Host.Gateway.String() || p.Status.HostIP != p.Status.PodIP {
			t.Errorf("got pod IP %s and host IP %s", p.Status.PodIP, p.Status.HostIP)
		}
		s.waitHTTP(fmt.Sprintf("http://127.0.0.1:%d/", port))

		s.Pod("own", "containers:\n"+box("a", "", "namespaces", end, "sleep")+box("b", "", "namespaces", end, "sleep"))
		a, b := s.WaitOutput("own", "a"), s.WaitOutput("own", "b")
		for _, kind := range []string{"net", "ipc", "uts", "pid", "mnt"} {
			if lineSet(a)[hostNamespace(t, kind)] {
				t.Errorf("pod is in the host's %s namespace", kind)
			}
			idA, idB := "", ""
			for line := range lineSet(a) {
				if strings.HasPrefix(line, kind+" ") {
					idA = line
				}
			}
			for line := range lineSet(b) {
				if strings.HasPrefix(line, kind+" ") {
					idB = line
				}
			}
			if shared := kind == "net" || kind == "ipc" || kind == "uts"; idA == "" || (idA == idB) != shared {
				t.Errorf("%s namespaces of the two containers: %s and %s", kind, idA, idB)
			}
		}

		s.Pod("shared", "shareProcessNamespace: true\ncontainers:\n"+box("a", "", "sleep")+
			sh("b", "", "until ps | grep -q 'testbox sleep'; do sleep 0.05; done; ps; echo --end--; sleep 1000"))
		s.contains("ps", s.WaitOutput("shared", "b"), "/pause", "testbox sleep")
	})
}

func TestHostPortReachesPod(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		port := 21001 + s.Host.Number*20
		s.Pod("port", fmt.Sprintf("containers:\n"+box("c", "ports: [{containerPort: 8080, hostPort: %d}]", "serve"),
			port))
		s.Running("port")
		if got := s.waitHTTP(fmt.Sprintf("http://%s:%d/", s.Host.Gateway, port)); got != "port\n" {
			t.Errorf("got response %q", got)
		}
		// A second pod with the same host port waits, reports the reason, and starts when the port is free.
		s.Pod("port2", fmt.Sprintf("containers:\n"+box("c", "ports: [{containerPort: 8080, hostPort: %d}]", "serve"),
			port))
		s.waitExplanation("port2", "port", strconv.Itoa(port))
		if p := s.Get("port2"); p.Status.Phase != corev1.PodPending {
			t.Errorf("port2: got phase %s, want Pending", p.Status.Phase)
		}
		s.Remove("port")
		s.Running("port2")
		if got := s.waitHTTP(fmt.Sprintf("http://%s:%d/", s.Host.Gateway, port)); got != "port2\n" {
			t.Errorf("got response %q", got)
		}
	})
}

func TestUsersGroupsAndCapabilities(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		const steps = "id"
		s.Pod("users", `
			securityContext: {runAsUser: 1100, runAsGroup: 1200, fsGroup: 1300, supplementalGroups: [1400, 1500]}
			containers:
			`+box("pod", "", steps, "status", end, "sleep")+`
			`+box("own", "securityContext: {runAsUser: 2100, runAsGroup: 2200}", steps, end, "sleep")+`
			`+box("caps", "securityContext: {runAsUser: 0, capabilities: {add: [NET_ADMIN], drop: [CHOWN, KILL]}}",
			"status", end, "sleep")+`
			`+box("none", "securityContext: {runAsUser: 0, capabilities: {drop: [ALL]}, "+
			"allowPrivilegeEscalation: false, readOnlyRootFilesystem: true}",
			"status", "mounts", end, "write /x y")+`
			`+box("all", "securityContext: {runAsUser: 0, privileged: true}", "status", "ls /dev", end, "sleep"))
		s.contains("pod", s.WaitOutput("users", "pod"), "uid=1100 gid=1200 groups=1200 1300 1400 1500")
		s.contains("own", s.WaitOutput("users", "own"), "uid=2100 gid=2200 groups=1300 1400 1500 2200")
		if s.supports("the user of a container in its status") {
			p := s.Wait("users", "reporting the user of its containers", func(p *corev1.Pod) bool {
				return status(p, "pod").User != nil && status(p, "own").User != nil
			})
			want := corev1.LinuxContainerUser{UID: 1100, GID: 1200, SupplementalGroups: []int64{1200, 1300, 1400, 1500}}
			if got := status(p, "pod").User.Linux; got == nil || !reflect.DeepEqual(*got, want) {
				t.Errorf("user in the status: got %+v, want %+v", got, want)
			}
			if got := status(p, "own").User.Linux; got == nil || got.UID != 2100 || got.GID != 2200 {
				t.Errorf("user in the status: got %+v, want 2100:2200", got)
			}
		}
		const netAdmin, chown, kill = 1 << 12, 1 << 0, 1 << 5
		caps := func(container string) uint64 {
			t.Helper()
			n, err := strconv.ParseUint(procField(s.WaitOutput("users", container), "CapEff"), 16, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		if c := caps("caps"); c&netAdmin == 0 || c&(chown|kill) != 0 {
			t.Errorf("with NET_ADMIN, without CHOWN and KILL: got capabilities %x", c)
		}
		if c := caps("none"); c != 0 {
			t.Errorf("drop ALL: got capabilities %x, want 0", c)
		}
		if c := caps("all"); c&netAdmin == 0 || c&(1<<21) == 0 {
			t.Errorf("privileged: got capabilities %x", c)
		}
		none := s.WaitOutput("users", "none")
		if procField(none, "NoNewPrivs") != "1" || procField(s.WaitOutput("users", "pod"), "NoNewPrivs") != "0" {
			t.Error("NoNewPrivs does not follow allowPrivilegeEscalation")
		}
		s.contains("a write to a read-only root", s.WaitLog("users", "none", "/x"), "read-only file system")
		s.contains("devices of a privileged container", s.WaitOutput("users", "all"), "loop-control")

		s.Pod("root", "securityContext: {runAsNonRoot: true}\ncontainers:\n"+box("c", "", "sleep"))
		p := s.Waiting("root", "c", "CreateContainerConfigError")
		s.contains("the message", status(p, "c").State.Waiting.Message, "runAsNonRoot")
		s.Pod("named", "securityContext: {runAsNonRoot: true}\ncontainers:\n"+strings.Replace(box("c", "", "sleep"),
			"testbox:1", "testbox:named", 1))
		p = s.Waiting("named", "c", "CreateContainerConfigError")
		s.contains("the message", status(p, "c").State.Waiting.Message, "runAsNonRoot", "app")
		s.Pod("user", "securityContext: {runAsNonRoot: true}\ncontainers:\n"+
			strings.Replace(box("c", "", "id", end, "sleep"), "testbox:1", "testbox:user", 1))
		s.contains("user", s.WaitOutput("user", "c"), "uid=1000")
	})
}

func TestSeccomp(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		s.Pod("calls", `
			containers:
			`+box("default", "securityContext: {seccompProfile: {type: RuntimeDefault}}", "status", end, "sleep")+`
			`+box("free", "securityContext: {seccompProfile: {type: Unconfined}}", "status", end, "sleep")+`
			`+sh("local", "securityContext: "+
			"{seccompProfile: {type: Localhost, localhostProfile: profiles/no-mkdir.json}}",
			"mkdir /tmp/x; grep Seccomp: /proc/self/status; echo --end--; sleep 1000"))
		if got := procField(s.WaitOutput("calls", "default"), "Seccomp"); got != "2" {
			t.Errorf("RuntimeDefault: Seccomp %q", got)
		}
		if got := procField(s.WaitOutput("calls", "free"), "Seccomp"); got != "0" {
			t.Errorf("Unconfined: Seccomp %q", got)
		}
		log := s.WaitOutput("calls", "local")
		s.contains("Localhost", log, "Operation not permitted")
		if procField(log, "Seccomp") != "2" {
			t.Errorf("Localhost: %s", log)
		}
		s.Pod("missing", "containers:\n"+
			box("c", "securityContext: {seccompProfile: {type: Localhost, localhostProfile: profiles/none.json}}",
				"sleep"))
		p := s.Wait("missing", "failing to create", func(p *corev1.Pod) bool {
			w := status(p, "c").State.Waiting
			return w != nil && strings.HasPrefix(w.Reason, "Create")
		})
		s.contains("the message", status(p, "c").State.Waiting.Message, "none.json")
	})
}

func TestSysctls(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		s.Pod("tuned", `
			securityContext: {sysctls: [{name: net.ipv4.ip_local_port_range, value: "40000 50000"},
			  {name: net.core.somaxconn, value: "321"}]}
			containers:
			`+box("c", "", "cat /proc/sys/net/ipv4/ip_local_port_range /proc/sys/net/core/somaxconn", end, "sleep"))
		s.hasLines(s.WaitOutput("tuned", "c"), "40000\t50000", "321")
		s.Pod("unsafe", "securityContext: {sysctls: [{name: kernel.msgmax, value: '1000'}]}\ncontainers:\n"+
			box("c", "", "sleep"))
		p := s.Phase("unsafe", corev1.PodFailed)
		if p.Status.Reason != "SysctlForbidden" || !strings.Contains(p.Status.Message, "kernel.msgmax") {
			t.Errorf("%s: %s", p.Status.Reason, p.Status.Message)
		}
	})
}

// TestEmptyResolvConfYieldsNoNameServers checks that with an empty resolvConf setting pods get no name
// server of the host, neither from berth nor from the runtime.
func TestEmptyResolvConfYieldsNoNameServers(t *testing.T) {
	forEachNewNode(t, nodeOptions{CNI: true, Config: map[string]any{"resolvConf": ""}},
		func(t *testing.T, s *Namespace) {
			s.Pod("dns-default", "dnsPolicy: Default\ncontainers:\n"+box("c", "", "resolv", end, "sleep"))
			s.Running("dns-default")
			log := s.WaitOutput("dns-default", "c")
			s.hasLines(log, "nameserver 127.0.0.1", "search .")
			if n := strings.Count(log, "nameserver"); n != 1 {
				t.Errorf("got %d name servers, want 1:\n%s", n, log)
			}
		})
}

func TestHostNamesHostsAndResolvConf(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		steps := []string{"hostname", "cat /etc/hosts", "resolv", end, "sleep"}
		s.Pod("names", `
			hostname: alias
			subdomain: sub
			hostAliases: [{ip: 10.9.8.7, hostnames: [one.example, two.example]}]
			containers:
			`+box("c", "", steps...))
		p := s.Running("names")
		log := s.WaitOutput("names", "c")
		s.hasLines(log, "alias", "nameserver 10.96.0.10", p.Status.PodIP+"\talias.sub."+s.ns+
			".svc.cluster.local\talias", "10.9.8.7\tone.example\ttwo.example")
		s.contains("hosts", log, "# Kubernetes-managed hosts file.", "127.0.0.1\tlocalhost")
		s.contains("resolv.conf", log, "search "+s.ns+".svc.cluster.local svc.cluster.local cluster.local",
			"options ndots:5")

		s.Pod("none", "dnsPolicy: None\ndnsConfig: {nameservers: [9.9.9.9], searches: [my.example], "+
			"options: [{name: ndots, value: '2'}, {name: edns0}]}\nsetHostnameAsFQDN: false\ncontainers:\n"+
			box("c", "", steps...))
		log = s.WaitOutput("none", "c")
		s.hasLines(log, "none", "nameserver 9.9.9.9", "search my.example")
		s.contains("resolv.conf", log, "ndots:2", "edns0")
		if strings.Contains(log, "10.96.0.10") {
			t.Errorf("dnsPolicy None has the cluster's name server:\n%s", log)
		}

		s.Pod("default", "dnsPolicy: Default\ncontainers:\n"+box("c", "", steps...))
		log = s.WaitOutput("default", "c")
		resolv := readFile(t, "/etc/resolv.conf")
		if !criconfig.ParseResolvConf(resolv).ReachableFromPod() && exists(nodeconfig.SystemdResolvConf) {
			resolv = readFile(t, nodeconfig.SystemdResolvConf)
		}
		for line := range strings.Lines(resolv) {
			if f := strings.Fields(line); len(f) == 2 && f[0] == "nameserver" {
				s.contains("the host's resolv.conf", log, f[1])
			}
		}
		if strings.Contains(log, "10.96.0.10") {
			t.Errorf("dnsPolicy Default has the cluster's name server:\n%s", log)
		}

		s.Pod("fqdn", "hostname: alias\nsubdomain: sub\nsetHostnameAsFQDN: true\ncontainers:\n"+box("c", "", steps...))
		s.hasLines(s.WaitOutput("fqdn", "c"), "alias.sub."+s.ns+".svc.cluster.local")
	})
}

func TestResourcesAreAppliedToCgroups(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		s.Pod("guaranteed", "containers:\n"+box("c", "resources: {limits: {cpu: 300m, memory: 48Mi}}", "sleep"))
		s.Pod("burstable", "containers:\n"+box("c", "resources: {requests: {cpu: 200m, memory: 16Mi}}", "sleep")+
			box("d", "resources: {limits: {memory: 32Mi}}", "sleep"))
		s.Pod("besteffort", "containers:\n"+box("c", "", "sleep"))
		p := s.Running("guaranteed")
		if p.Status.QOSClass != corev1.PodQOSGuaranteed {
			t.Errorf("QoS %s", p.Status.QOSClass)
		}
		for _, container := range []string{"", "c"} {
			s.checkCgroup(p, container, "cpu", "cpu.cfs_quota_us", "30000")
			s.checkCgroup(p, container, "cpu", "cpu.cfs_period_us", "100000")
			s.checkCgroup(p, container, "cpu", "cpu.shares", "307")
			s.checkCgroup(p, container, "memory", "memory.limit_in_bytes", strconv.Itoa(48<<20))
		}
		guaranteed := s.podCgroup("memory", p)

		p = s.Running("burstable")
		if p.Status.QOSClass != corev1.PodQOSBurstable {
			t.Errorf("QoS %s", p.Status.QOSClass)
		}
		s.checkCgroup(p, "c", "cpu", "cpu.shares", "204")
		s.checkCgroup(p, "c", "cpu", "cpu.cfs_quota_us", "-1")
		s.checkCgroup(p, "d", "memory", "memory.limit_in_bytes", strconv.Itoa(32<<20))
		s.checkCgroup(p, "", "cpu", "cpu.shares", "204")

		p = s.Running("besteffort")
		s.checkCgroup(p, "c", "cpu", "cpu.shares", "2")
		s.checkCgroup(p, "", "cpu", "cpu.shares", "2")

		s.Remove("guaranteed")
		s.WaitDeleted("guaranteed")
		if exists(guaranteed) {
			t.Errorf("%s still exists", guaranteed)
		}
	})
}

func TestTTYAndStdin(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		s.Pod("tty", "containers:\n"+box("with", "tty: true, stdin: true", "tty", end, "sleep")+
			box("without", "", "tty", end, "sleep"))
		s.contains("with a tty", s.WaitOutput("tty", "with"), "tty ")
		if log := s.WaitOutput("tty", "with"); strings.Contains(log, "no tty") {
			t.Error(log)
		}
		s.contains("without", s.WaitOutput("tty", "without"), "no tty")
	})
}

func TestOOMScores(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		s.Pod("scores", "containers:\n"+box("c", "", "cat /proc/self/oom_score_adj", end, "sleep"))
		ownScore := strings.TrimSpace(readFile(t, "/proc/self/oom_score_adj"))
		log := s.WaitOutput("scores", "c")
		// An unprivileged runtime cannot set a score below its own.
		got, err := strconv.Atoi(strings.Fields(log)[0])
		minimum, err2 := strconv.Atoi(ownScore)
		if err != nil || err2 != nil || got < minimum || got > 1000 || got != 1000 && minimum < 1000 {
			t.Errorf("BestEffort: got score %q, score of the test process is %s", log, ownScore)
		}
	})
}

func TestPodCgroupPathsMatchKubelet(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		s.Pod("cgroups", "containers:\n"+box("c", "", "sleep"))
		p := s.Running("cgroups")
		for _, controller := range []string{"cpu", "memory", "pids"} {
			dir := s.podCgroup(controller, p)
			procs := readFile(t, filepath.Join(dir, strings.TrimPrefix(status(p, "c").ContainerID, "containerd://"),
				"cgroup.procs"))
			if strings.TrimSpace(procs) == "" {
				t.Errorf("no process of the container in %s", dir)
			}
		}
	})
}
