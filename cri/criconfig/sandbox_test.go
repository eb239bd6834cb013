package criconfig

import (
	"berth/podspec"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
)

func TestRuntimeHandler(t *testing.T) {
	for _, row := range []struct {
		sentence string
		class    *string
		want     string
		err      string
	}{
		{"no class is the default handler", nil, "", ""},
		{"an empty class is the default handler", new(""), "", ""},
		{"a class gives its handler", new("virtual"), "kata", ""},
		{"an unknown class is named", new("nowhere"), "", `RuntimeClass "nowhere" not found`},
	} {
		t.Run(row.sentence, func(t *testing.T) {
			pod := makePod(func(p *corev1.Pod, _ *corev1.Container) { p.Spec.RuntimeClassName = row.class })
			got, err := RuntimeHandler(testNode(), pod)
			if row.err != "" {
				expectError(t, err, plan.Other, row.err)
				return
			}
			if err != nil || got != row.want {
				t.Fatalf("got %q, %v; want %q", got, err, row.want)
			}
		})
	}
}

func TestParseResolvConf(t *testing.T) {
	for _, row := range []struct {
		sentence, text string
		want           ResolvConf
	}{
		{"nothing says nothing", "", ResolvConf{}},
		{"name servers add up", "nameserver 192.0.2.1\nnameserver fd00::1\n",
			ResolvConf{Nameservers: []string{"192.0.2.1", "fd00::1"}}},
		{"the last search line counts", "search a b\nsearch c\n", ResolvConf{Searches: []string{"c"}}},
		{"domain is a search of one", "domain a\n", ResolvConf{Searches: []string{"a"}}},
		{"a search domain loses its last dot, the root does not", "search a.b. .\n",
			ResolvConf{Searches: []string{"a.b", "."}}},
		{"options add up", "options ndots:2 rotate\noptions edns0",
			ResolvConf{Options: []string{"ndots:2", "rotate", "edns0"}}},
		{"comments, blanks and unknown lines are skipped", "# a\n; b\n\nsortlist x\n\tnameserver\t1.1.1.1 # c\r\n",
			ResolvConf{Nameservers: []string{"1.1.1.1"}}},
		{"a line without its value is skipped", "nameserver\ndomain\n", ResolvConf{}},
	} {
		t.Run(row.sentence, func(t *testing.T) {
			if diff := cmp.Diff(row.want, ParseResolvConf(row.text)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestDNS(t *testing.T) {
	many := make([]string, 40)
	for i := range many {
		many[i] = strings.Repeat("s", i+1)
	}
	policy := func(p corev1.DNSPolicy) func(*corev1.Pod, *corev1.Container) {
		return func(pod *corev1.Pod, _ *corev1.Container) { pod.Spec.DNSPolicy = p }
	}
	hostNetwork := func(pod *corev1.Pod, _ *corev1.Container) { pod.Spec.HostNetwork = true }
	config := func(c corev1.PodDNSConfig) func(*corev1.Pod, *corev1.Container) {
		return func(pod *corev1.Pod, _ *corev1.Container) { pod.Spec.DNSConfig = &c }
	}
	host := ResolvConf{Nameservers: []string{"192.0.2.53"}, Searches: []string{"example.org"}, Options: []string{"edns0"}}
	cluster := ResolvConf{Nameservers: []string{"10.96.0.10"}, Options: []string{"ndots:5"},
		Searches: []string{"shop.svc.cluster.local", "svc.cluster.local", "cluster.local", "example.org"}}
	for _, row := range []struct {
		sentence string
		pod      *corev1.Pod
		bare     bool // the node has no cluster DNS
		want     ResolvConf
		warns    string
		silent   []string // the host names no servers, and has these addresses
	}{
		{"ClusterFirst asks the cluster", makePod(policy(corev1.DNSClusterFirst)), false, cluster, "", nil},
		{"no policy is ClusterFirst", makePod(), false, cluster, "", nil},
		{"ClusterFirst on the host network asks the host", makePod(policy(corev1.DNSClusterFirst), hostNetwork), false,
			host, "", nil},
		{"ClusterFirstWithHostNet asks the cluster on the host network",
			makePod(policy(corev1.DNSClusterFirstWithHostNet), hostNetwork), false, cluster, "", nil},
		{"Default asks the host", makePod(policy(corev1.DNSDefault)), false, host, "", nil},
		{"without cluster DNS ClusterFirst falls back to the host", makePod(policy(corev1.DNSClusterFirst)), true, host,
			"MissingClusterDNS", nil},
		{"without cluster DNS Default warns of nothing", makePod(policy(corev1.DNSDefault)), true, host, "", nil},
		{"None is the pod's own word", makePod(policy(corev1.DNSNone),
			config(corev1.PodDNSConfig{Nameservers: []string{"1.1.1.1"}})), false,
			ResolvConf{Nameservers: []string{"1.1.1.1"}}, "", nil},
		{"the pod's options go over the policy's", makePod(config(corev1.PodDNSConfig{Options: []corev1.PodDNSConfigOption{
			{Name: "ndots", Value: new("2")}, {Name: "rotate"}, {Name: ""}}})), false,
			ResolvConf{Nameservers: cluster.Nameservers, Searches: cluster.Searches,
				Options: []string{"ndots:2", "rotate"}}, "", nil},
		{"what is said twice is there once", makePod(policy(corev1.DNSDefault), config(corev1.PodDNSConfig{
			Nameservers: []string{"192.0.2.53"}, Searches: []string{"example.org"}})), false, host, "", nil},
		{"only three name servers fit", makePod(policy(corev1.DNSNone),
			config(corev1.PodDNSConfig{Nameservers: []string{"1", "2", "3", "4"}})), false,
			ResolvConf{Nameservers: []string{"1", "2", "3"}}, "only the first 3", nil},
		{"only 32 search domains fit", makePod(policy(corev1.DNSNone), config(corev1.PodDNSConfig{Searches: many})), false,
			ResolvConf{Searches: many[:32]}, "only the first 32", nil},
		{"search domains fit into 2048 characters", makePod(policy(corev1.DNSNone), config(corev1.PodDNSConfig{
			Searches: []string{strings.Repeat("a", 1024), strings.Repeat("b", 1023), "c"}})), false,
			ResolvConf{Searches: []string{strings.Repeat("a", 1024), strings.Repeat("b", 1023)}}, "2048 characters", nil},
		{"a host without any leaves pods their own loopback", makePod(policy(corev1.DNSDefault)), false,
			ResolvConf{Nameservers: []string{"127.0.0.1"}, Searches: []string{"."}}, "", []string{"192.0.2.1", "192.0.2.2"}},
		{"of its own families", makePod(policy(corev1.DNSDefault)), false,
			ResolvConf{Nameservers: []string{"::1", "127.0.0.1"}, Searches: []string{"."}}, "", []string{"2001:db8::1",
				"192.0.2.1"}},
		{"also where ClusterFirst falls back, and before the pod's own",
			makePod(config(corev1.PodDNSConfig{Nameservers: []string{"1.1.1.1"}})), true,
			ResolvConf{Nameservers: []string{"127.0.0.1", "1.1.1.1"}, Searches: []string{"."}}, "MissingClusterDNS", []string{}},
		{"None has its own word alone", makePod(policy(corev1.DNSNone),
			config(corev1.PodDNSConfig{Nameservers: []string{"1.1.1.1"}})), false, ResolvConf{Nameservers: []string{"1.1.1.1"}}, "", []string{}},
		{"and the cluster's has no search domains of it", makePod(), false,
			ResolvConf{Nameservers: cluster.Nameservers, Searches: cluster.Searches[:3],
				Options: cluster.Options}, "", []string{}},
	} {
		t.Run(row.sentence, func(t *testing.T) {
			node := testNode()
			if row.bare {
				node.ClusterDNS = nil
			}
			if row.silent != nil {
				node.HostResolvConf, node.HostIPs = ResolvConf{}, row.silent
			}
			got, warnings := DNS(node, row.pod)
			if diff := cmp.Diff(row.want, got); diff != "" {
				t.Error(diff)
			}
			if said := strings.Trim(fmt.Sprint(warnings), "[]"); (row.warns == "") != (said == "") ||
				!strings.Contains(said, row.warns) {
				t.Errorf("warnings %q, want %q", said, row.warns)
			}
		})
	}
}

func TestHostname(t *testing.T) {
	type change = func(*corev1.Pod, *corev1.Container)
	long := strings.Repeat("a", 61) + "--b"
	for _, row := range []struct {
		sentence string
		change   change
		want     string
		err      string
	}{
		{"the pod's name is the host name", func(*corev1.Pod, *corev1.Container) {}, "web", ""},
		{"spec.hostname goes before the name", func(p *corev1.Pod, _ *corev1.Container) { p.Spec.Hostname = "www" }, "www",
			""},
		{"hostnameOverride goes before both", func(p *corev1.Pod, _ *corev1.Container) {
			p.Spec.Hostname, p.Spec.HostnameOverride = "www", new("exact")
		}, "exact", ""},
		{"a long name is cut and does not end in a dash", func(p *corev1.Pod, _ *corev1.Container) { p.Name = long },
			long[:61], ""},
		{"a subdomain alone changes nothing", func(p *corev1.Pod, _ *corev1.Container) { p.Spec.Subdomain = "s" }, "web", ""},
		{"setHostnameAsFQDN adds the domain", func(p *corev1.Pod, _ *corev1.Container) {
			p.Spec.Subdomain, p.Spec.SetHostnameAsFQDN = "s", new(true)
		}, "web.s.shop.svc.cluster.local", ""},
		{"setHostnameAsFQDN without a domain is the short name", func(p *corev1.Pod,
			_ *corev1.Container) {
			p.Spec.SetHostnameAsFQDN = new(true)
		}, "web", ""},
		{"a domain name too long for the kernel is an error", func(p *corev1.Pod, _ *corev1.Container) {
			p.Spec.Subdomain, p.Spec.SetHostnameAsFQDN = strings.Repeat("s", 50), new(true)
		}, "", "at most 64"},
		{"the host network has the host's name", func(p *corev1.Pod, _ *corev1.Container) { p.Spec.HostNetwork = true }, "",
			""},
	} {
		t.Run(row.sentence, func(t *testing.T) {
			config, err := Sandbox(testNode(), makePod(row.change), testSandboxSetup())
			if row.err != "" {
				expectError(t, err, plan.Invalid, row.err)
				return
			}
			if err != nil || config.Hostname != row.want {
				t.Fatalf("got %q, %v; want %q", config.GetHostname(), err, row.want)
			}
		})
	}
}

func TestSandboxErrors(t *testing.T) {
	for _, row := range []struct {
		sentence string
		change   func(*corev1.Pod, *corev1.Container)
		node     func(*Node)
		kind     plan.Kind
		err      string
	}{
		{"a process namespace cannot be the host's and shared", func(p *corev1.Pod, _ *corev1.Container) {
			p.Spec.HostPID, p.Spec.ShareProcessNamespace = true, new(true)
		}, nil, plan.Invalid, "spec.shareProcessNamespace"},
		{"own users exclude the host's network", func(p *corev1.Pod, _ *corev1.Container) {
			p.Spec.HostUsers, p.Spec.HostNetwork = new(false), true
		}, nil, plan.Invalid, "spec.hostUsers"},
		{"own users need a runtime that can", func(p *corev1.Pod, _ *corev1.Container) {
			p.Spec.HostUsers, p.Spec.RuntimeClassName = new(false), new("virtual")
		}, nil, plan.Unsupported, `runtime handler "kata" does not support user namespaces`},
		{"own users need host IDs", func(p *corev1.Pod, _ *corev1.Container) { p.Spec.HostUsers = new(false) },
			func(n *Node) { n.UserIDs = nil }, plan.Unsupported, "no range of host IDs"},
		{"own users wait while all host IDs are taken", func(p *corev1.Pod,
			_ *corev1.Container) {
			p.Spec.HostUsers = new(false)
		},
			func(n *Node) {
				n.UserIDs = func(string) (IDRange, error) { return IDRange{}, errors.New("all are taken") }
			}, plan.Other, "spec.hostUsers: all are taken"},
		{"Strict groups need a runtime that knows them", func(p *corev1.Pod, _ *corev1.Container) {
			p.Spec.SecurityContext = &corev1.PodSecurityContext{SupplementalGroupsPolicy: new(
				corev1.SupplementalGroupsPolicyStrict)}
		}, func(n *Node) { n.SupplementalGroupsPolicy = false }, plan.Unsupported, "supplementalGroupsPolicy"},
		{"an unknown protocol is named", func(_ *corev1.Pod, c *corev1.Container) {
			c.Ports = []corev1.ContainerPort{{ContainerPort: 1, Protocol: "ICMP"}}
		}, nil, plan.Invalid, `unknown protocol "ICMP"`},
		{"a sysctl set to two values is named", func(p *corev1.Pod, _ *corev1.Container) {
			p.Spec.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: "a.b", Value: "1"},
				{Name: "a/b", Value: "2"}}}
		}, nil, plan.Invalid, `"a.b" is set twice`},
		{"text that no wire takes is an error that names its field", func(p *corev1.Pod, _ *corev1.Container) {
			p.Annotations = map[string]string{"a": "\xff"}
		}, nil, plan.Invalid, "annotations: text is not valid UTF-8"},
	} {
		t.Run(row.sentence, func(t *testing.T) {
			node := testNode()
			if row.node != nil {
				row.node(&node)
			}
			_, err := Sandbox(node, makePod(row.change), testSandboxSetup())
			expectError(t, err, row.kind, row.err)
		})
	}
}

func TestSandboxAndContainerAgreeOnNamespaces(t *testing.T) { // C6
	for i := range 1 << 5 {
		bit := func(n int) bool { return i>>n&1 == 1 }
		pod := makePod(func(p *corev1.Pod, _ *corev1.Container) {
			p.Spec.HostNetwork, p.Spec.HostPID, p.Spec.HostIPC = bit(0), bit(1), bit(2)
			p.Spec.ShareProcessNamespace, p.Spec.HostUsers = new(bit(3)), new(!bit(4))
		})
		sandbox, errSandbox := Sandbox(testNode(), pod, testSandboxSetup())
		app, errApp := Container(testNode(), pod, &pod.Spec.Containers[0], testContainerSetup())
		if (errSandbox == nil) != (errApp == nil) {
			t.Fatalf("%05b: sandbox says %v, container says %v", i, errSandbox, errApp)
		}
		a := sandbox.GetLinux().GetSecurityContext().GetNamespaceOptions()
		b := app.GetLinux().GetSecurityContext().GetNamespaceOptions()
		if a.String() != b.String() {
			t.Fatalf("%05b: sandbox has %v, container has %v", i, a, b)
		}
	}
}

func TestPortMappings(t *testing.T) {
	pod := makePod(func(p *corev1.Pod, c *corev1.Container) {
		c.Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 8080},
			{ContainerPort: 80, HostPort: 8080, Protocol: "TCP"}}
		p.Spec.InitContainers = []corev1.Container{
			{Name: "init", Ports: []corev1.ContainerPort{{ContainerPort: 1, HostPort: 1}}},
			{Name: "side", RestartPolicy: new(corev1.ContainerRestartPolicyAlways),
				Ports: []corev1.ContainerPort{{ContainerPort: 53, HostPort: 53, Protocol: "UDP"}}},
		}
	})
	config, err := Sandbox(testNode(), pod, testSandboxSetup())
	if err != nil {
		t.Fatal(err)
	}
	var got []int32
	for _, p := range config.PortMappings {
		got = append(got, p.HostPort)
	}
	if !slices.Equal(got, []int32{53, 8080}) {
		t.Errorf("host ports %v", got)
	}
}

func TestSandboxResources(t *testing.T) {
	always := new(corev1.ContainerRestartPolicyAlways)
	of := func(pairs ...string) corev1.ResourceRequirements {
		return corev1.ResourceRequirements{Requests: resources(pairs...), Limits: resources(pairs...)}
	}
	for _, row := range []struct {
		sentence string
		change   func(*corev1.Pod, *corev1.Container)
		memory   int64
		quota    int64
	}{
		{"mains and sidecars run at once", func(p *corev1.Pod, c *corev1.Container) {
			c.Resources = of("cpu", "1", "memory", "100")
			p.Spec.InitContainers = []corev1.Container{{Name: "s", RestartPolicy: always,
				Resources: of("cpu", "1", "memory", "50")}}
		}, 150, 200000},
		{"a big init container runs beside the sidecars before it", func(p *corev1.Pod, c *corev1.Container) {
			c.Resources = of("cpu", "1", "memory", "100")
			p.Spec.InitContainers = []corev1.Container{
				{Name: "s", RestartPolicy: always, Resources: of("cpu", "1", "memory", "50")},
				{Name: "i", Resources: of("cpu", "3", "memory", "500")}}
		}, 550, 400000},
		{"one container without a limit leaves the pod without one", func(p *corev1.Pod, c *corev1.Container) {
			c.Resources = of("cpu", "1")
			p.Spec.InitContainers = []corev1.Container{{Name: "i", Resources: of("cpu", "3")}}
		}, 0, 300000},
		{"the pod's own limit counts", func(p *corev1.Pod, _ *corev1.Container) {
			p.Spec.Resources = new(of("cpu", "2",
				"memory", "300"))
		}, 300, 200000},
	} {
		t.Run(row.sentence, func(t *testing.T) {
			config, err := Sandbox(testNode(), makePod(row.change), testSandboxSetup())
			if err != nil {
				t.Fatal(err)
			}
			got := config.Linux.Resources
			if got.MemoryLimitInBytes != row.memory || got.CpuQuota != row.quota {
				t.Errorf("memory %d, quota %d; want %d, %d", got.MemoryLimitInBytes, got.CpuQuota, row.memory, row.quota)
			}
		})
	}
}

func TestSetTargetContainer(t *testing.T) {
	pod := makePod(func(p *corev1.Pod, _ *corev1.Container) {
		p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{TargetContainerName: "app",
			EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug"}}}
	})
	if got := TargetContainer(pod, "debug"); got != "app" {
		t.Fatalf("target %q", got)
	}
	config := appOf(t, testNode(), pod, testContainerSetup())
	SetTargetContainer(config, "id-1")
	o := config.Linux.SecurityContext.NamespaceOptions
	if o.Pid != runtimeapi.NamespaceMode_TARGET || o.TargetId != "id-1" {
		t.Fatalf("options %v", o)
	}
	pod.Spec.ShareProcessNamespace = new(true)
	config = appOf(t, testNode(), pod, testContainerSetup())
	SetTargetContainer(config, "id-1")
	if o := config.Linux.SecurityContext.NamespaceOptions; o.Pid != runtimeapi.NamespaceMode_POD || o.TargetId != "" {
		t.Fatalf("a shared namespace has no target: %v", o)
	}
}

// A pod on a node without a cluster has policy ClusterFirst without having said
// so; only one that asks for the cluster by name is told that there is none.
func TestStandaloneNodeDNSWarnings(t *testing.T) {
	t.Parallel()
	node := testNode()
	node.ClusterDNS, node.Standalone = nil, true
	for policy, want := range map[corev1.DNSPolicy]int{"": 0, corev1.DNSClusterFirst: 0,
		corev1.DNSClusterFirstWithHostNet: 1} {
		pod := makePod(func(p *corev1.Pod, _ *corev1.Container) { p.Spec.DNSPolicy = policy })
		if _, warnings := DNS(node, pod); len(warnings) != want {
			t.Errorf("%s: warnings %v", policy, warnings)
		}
	}
}

func TestBandwidthWarnings(t *testing.T) {
	t.Parallel()
	limited := &corev1.Pod{}
	limited.Annotations = map[string]string{podspec.EgressBandwidth: "10M"}
	onHost := limited.DeepCopy()
	onHost.Spec.HostNetwork = true
	for _, row := range []struct {
		what string
		pod  *corev1.Pod
		node Node
		want string
	}{
		{"it is", limited, Node{}, ""},
		{"nobody asks", &corev1.Pod{}, Node{NoBandwidthReason: "no plugin"}, ""},
		{"the network has no plugin for it", limited, Node{NoBandwidthReason: "no plugin"}, "no plugin"},
		{"the host's network has no limits", onHost, Node{}, "host's network"},
	} {
		got := BandwidthWarnings(row.node, row.pod)
		if (len(got) == 0) != (row.want == "") || len(got) > 0 && !strings.Contains(got[0].String(), row.want) {
			t.Errorf("%s: %v", row.what, got)
		}
	}
}
