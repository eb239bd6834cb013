package criconfig

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
	"berth/podspec"
)

func TestRuntimeHandler(t *testing.T) {
	for _, row := range []struct {
		name  string
		class *string
		want  string
		err   string
	}{
		{"no class is the default handler", nil, "", ""},
		{"an empty class is the default handler", new(""), "", ""},
		{"a class selects its handler", new("virtual"), "kata", ""},
		{"an unknown class is rejected", new("nowhere"), "", `RuntimeClass "nowhere" not found`},
	} {
		t.Run(row.name, func(t *testing.T) {
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
		name, text string
		want       ResolvConf
	}{
		{"empty", "", ResolvConf{}},
		{"nameservers accumulate", "nameserver 192.0.2.1\nnameserver fd00::1\n",
			ResolvConf{Nameservers: []string{"192.0.2.1", "fd00::1"}}},
		{"the last search line wins", "search a b\nsearch c\n", ResolvConf{Searches: []string{"c"}}},
		{"domain is a single search domain", "domain a\n", ResolvConf{Searches: []string{"a"}}},
		{"the trailing dot of a search domain is removed, except for the root", "search a.b. .\n",
			ResolvConf{Searches: []string{"a.b", "."}}},
		{"options accumulate", "options ndots:2 rotate\noptions edns0",
			ResolvConf{Options: []string{"ndots:2", "rotate", "edns0"}}},
		{"comments, blanks and unknown lines are skipped", "# a\n; b\n\nsortlist x\n\tnameserver\t1.1.1.1 # c\r\n",
			ResolvConf{Nameservers: []string{"1.1.1.1"}}},
		{"a line without a value is skipped", "nameserver\ndomain\n", ResolvConf{}},
	} {
		t.Run(row.name, func(t *testing.T) {
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
	host := ResolvConf{Nameservers: []string{"192.0.2.53"}, Searches: []string{"example.org"},
		Options: []string{"edns0"}}
	cluster := ResolvConf{Nameservers: []string{"10.96.0.10"}, Options: []string{"ndots:5"},
		Searches: []string{"shop.svc.cluster.local", "svc.cluster.local", "cluster.local", "example.org"}}
	for _, row := range []struct {
		name   string
		pod    *corev1.Pod
		bare   bool // the node has no cluster DNS
		want   ResolvConf
		warns  string
		silent []string // addresses of a host without nameservers
	}{
		{"ClusterFirst uses the cluster DNS", makePod(policy(corev1.DNSClusterFirst)), false, cluster, "", nil},
		{"no policy is ClusterFirst", makePod(), false, cluster, "", nil},
		{"ClusterFirst on the host network uses the host's DNS", makePod(policy(corev1.DNSClusterFirst), hostNetwork),
			false,
			host, "", nil},
		{"ClusterFirstWithHostNet uses the cluster DNS on the host network",
			makePod(policy(corev1.DNSClusterFirstWithHostNet), hostNetwork), false, cluster, "", nil},
		{"Default uses the host's DNS", makePod(policy(corev1.DNSDefault)), false, host, "", nil},
		{"without cluster DNS ClusterFirst falls back to the host", makePod(policy(corev1.DNSClusterFirst)), true, host,
			"MissingClusterDNS", nil},
		{"without cluster DNS Default has no warning", makePod(policy(corev1.DNSDefault)), true, host, "", nil},
		{"None uses only dnsConfig", makePod(policy(corev1.DNSNone),
			config(corev1.PodDNSConfig{Nameservers: []string{"1.1.1.1"}})), false,
			ResolvConf{Nameservers: []string{"1.1.1.1"}}, "", nil},
		{"dnsConfig options override those of the policy",
			makePod(config(corev1.PodDNSConfig{Options: []corev1.PodDNSConfigOption{
				{Name: "ndots", Value: new("2")}, {Name: "rotate"}, {Name: ""}}})), false,
			ResolvConf{Nameservers: cluster.Nameservers, Searches: cluster.Searches,
				Options: []string{"ndots:2", "rotate"}}, "", nil},
		{"duplicates are removed", makePod(policy(corev1.DNSDefault), config(corev1.PodDNSConfig{
			Nameservers: []string{"192.0.2.53"}, Searches: []string{"example.org"}})), false, host, "", nil},
		{"at most three nameservers", makePod(policy(corev1.DNSNone),
			config(corev1.PodDNSConfig{Nameservers: []string{"1", "2", "3", "4"}})), false,
			ResolvConf{Nameservers: []string{"1", "2", "3"}}, "only the first 3", nil},
		{"at most 32 search domains", makePod(policy(corev1.DNSNone), config(corev1.PodDNSConfig{Searches: many})),
			false,
			ResolvConf{Searches: many[:32]}, "only the first 32", nil},
		{"search domains have at most 2048 characters", makePod(policy(corev1.DNSNone), config(corev1.PodDNSConfig{
			Searches: []string{strings.Repeat("a", 1024), strings.Repeat("b", 1023), "c"}})), false,
			ResolvConf{Searches: []string{strings.Repeat("a", 1024), strings.Repeat("b", 1023)}}, "2048 characters",
			nil},
		{"a host without nameservers leaves the pod's loopback address", makePod(policy(corev1.DNSDefault)), false,
			ResolvConf{Nameservers: []string{"127.0.0.1"}, Searches: []string{"."}}, "",
			[]string{"192.0.2.1", "192.0.2.2"}},
		{"loopback addresses of the host's IP families", makePod(policy(corev1.DNSDefault)), false,
			ResolvConf{Nameservers: []string{"::1", "127.0.0.1"}, Searches: []string{"."}}, "", []string{"2001:db8::1",
				"192.0.2.1"}},
		{"loopback before dnsConfig if ClusterFirst falls back",
			makePod(config(corev1.PodDNSConfig{Nameservers: []string{"1.1.1.1"}})), true,
			ResolvConf{Nameservers: []string{"127.0.0.1", "1.1.1.1"}, Searches: []string{"."}}, "MissingClusterDNS",
			[]string{}},
		{"None ignores the host without nameservers", makePod(policy(corev1.DNSNone),
			config(corev1.PodDNSConfig{Nameservers: []string{"1.1.1.1"}})), false,
			ResolvConf{Nameservers: []string{"1.1.1.1"}}, "", []string{}},
		{"cluster DNS without search domains of the host", makePod(), false,
			ResolvConf{Nameservers: cluster.Nameservers, Searches: cluster.Searches[:3],
				Options: cluster.Options}, "", []string{}},
	} {
		t.Run(row.name, func(t *testing.T) {
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
			if text := strings.Trim(fmt.Sprint(warnings), "[]"); (row.warns == "") != (text == "") ||
				!strings.Contains(text, row.warns) {
				t.Errorf("warnings %q, want %q", text, row.warns)
			}
		})
	}
}

func TestHostname(t *testing.T) {
	type change = func(*corev1.Pod, *corev1.Container)
	long := strings.Repeat("a", 61) + "--b"
	for _, row := range []struct {
		name   string
		change change
		want   string
		err    string
	}{
		{"the pod's name is the host name", func(*corev1.Pod, *corev1.Container) {}, "web", ""},
		{"spec.hostname overrides the name", func(p *corev1.Pod, _ *corev1.Container) {
			p.Spec.Hostname = "www"
		}, "www",
			""},
		{"hostnameOverride overrides both", func(p *corev1.Pod, _ *corev1.Container) {
			p.Spec.Hostname, p.Spec.HostnameOverride = "www", new("exact")
		}, "exact", ""},
		{"a long name is truncated and does not end with a dash", func(p *corev1.Pod, _ *corev1.Container) {
			p.Name = long
		},
			long[:61], ""},
		{"a subdomain alone changes nothing", func(p *corev1.Pod, _ *corev1.Container) {
			p.Spec.Subdomain = "s"
		}, "web", ""},
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
		{"the host network uses the host's name", func(p *corev1.Pod, _ *corev1.Container) {
			p.Spec.HostNetwork = true
		}, "",
			""},
	} {
		t.Run(row.name, func(t *testing.T) {
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
		name   string
		change func(*corev1.Pod, *corev1.Container)
		node   func(*Node)
		kind   plan.ErrorKind
		err    string
	}{
		{"hostPID excludes shareProcessNamespace", func(p *corev1.Pod, _ *corev1.Container) {
			p.Spec.HostPID, p.Spec.ShareProcessNamespace = true, new(true)
		}, nil, plan.Invalid, "spec.shareProcessNamespace"},
		{"user namespaces exclude the host network", func(p *corev1.Pod, _ *corev1.Container) {
			p.Spec.HostUsers, p.Spec.HostNetwork = new(false), true
		}, nil, plan.Invalid, "spec.hostUsers"},
		{"user namespaces need support by the runtime", func(p *corev1.Pod, _ *corev1.Container) {
			p.Spec.HostUsers, p.Spec.RuntimeClassName = new(false), new("virtual")
		}, nil, plan.Unsupported, `runtime handler "kata" does not support user namespaces`},
		{"user namespaces need host IDs", func(p *corev1.Pod, _ *corev1.Container) { p.Spec.HostUsers = new(false) },
			func(n *Node) { n.UserIDs = nil }, plan.Unsupported, "no range of host IDs"},
		{"user namespaces wait for free host IDs", func(p *corev1.Pod,
			_ *corev1.Container) {
			p.Spec.HostUsers = new(false)
		},
			func(n *Node) {
				n.UserIDs = func(string) (IDRange, error) { return IDRange{}, errors.New("all are in use") }
			}, plan.Other, "spec.hostUsers: all are in use"},
		{"Strict needs support by the runtime", func(p *corev1.Pod, _ *corev1.Container) {
			p.Spec.SecurityContext = &corev1.PodSecurityContext{SupplementalGroupsPolicy: new(
				corev1.SupplementalGroupsPolicyStrict)}
		}, func(n *Node) { n.SupplementalGroupsPolicy = false }, plan.Unsupported, "supplementalGroupsPolicy"},
		{"an unknown protocol is rejected", func(_ *corev1.Pod, c *corev1.Container) {
			c.Ports = []corev1.ContainerPort{{ContainerPort: 1, Protocol: "ICMP"}}
		}, nil, plan.Invalid, `unknown protocol "ICMP"`},
		{"a sysctl with two values is rejected", func(p *corev1.Pod, _ *corev1.Container) {
			p.Spec.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: "a.b", Value: "1"},
				{Name: "a/b", Value: "2"}}}
		}, nil, plan.Invalid, `"a.b" is set twice`},
		{"the error for invalid UTF-8 names the field", func(p *corev1.Pod, _ *corev1.Container) {
			p.Annotations = map[string]string{"a": "\xff"}
		}, nil, plan.Invalid, "annotations: text is not valid UTF-8"},
	} {
		t.Run(row.name, func(t *testing.T) {
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
		c.Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 8080, HostIP: "127.0.0.1"},
			{ContainerPort: 80, HostPort: 8080, HostIP: "127.0.0.1", Protocol: "TCP"}}
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
	if ip := config.PortMappings[len(config.PortMappings)-1].HostIp; ip != "127.0.0.1" {
		t.Errorf("hostIP of port 8080: got %q", ip)
	}
}

func TestSandboxResources(t *testing.T) {
	always := new(corev1.ContainerRestartPolicyAlways)
	of := func(pairs ...string) corev1.ResourceRequirements {
		return corev1.ResourceRequirements{Requests: resources(pairs...), Limits: resources(pairs...)}
	}
	for _, row := range []struct {
		name   string
		change func(*corev1.Pod, *corev1.Container)
		memory int64
		quota  int64
	}{
		{"main containers and sidecars run concurrently", func(p *corev1.Pod, c *corev1.Container) {
			c.Resources = of("cpu", "1", "memory", "100")
			p.Spec.InitContainers = []corev1.Container{{Name: "s", RestartPolicy: always,
				Resources: of("cpu", "1", "memory", "50")}}
		}, 150, 200000},
		{"a large init container runs with the sidecars before it", func(p *corev1.Pod, c *corev1.Container) {
			c.Resources = of("cpu", "1", "memory", "100")
			p.Spec.InitContainers = []corev1.Container{
				{Name: "s", RestartPolicy: always, Resources: of("cpu", "1", "memory", "50")},
				{Name: "i", Resources: of("cpu", "3", "memory", "500")}}
		}, 550, 400000},
		{"a container without a limit makes the pod unlimited", func(p *corev1.Pod, c *corev1.Container) {
			c.Resources = of("cpu", "1")
			p.Spec.InitContainers = []corev1.Container{{Name: "i", Resources: of("cpu", "3")}}
		}, 0, 300000},
		{"the pod's limit takes precedence", func(p *corev1.Pod, _ *corev1.Container) {
			p.Spec.Resources = new(of("cpu", "2",
				"memory", "300"))
		}, 300, 200000},
	} {
		t.Run(row.name, func(t *testing.T) {
			config, err := Sandbox(testNode(), makePod(row.change), testSandboxSetup())
			if err != nil {
				t.Fatal(err)
			}
			got := config.Linux.Resources
			if got.MemoryLimitInBytes != row.memory || got.CpuQuota != row.quota {
				t.Errorf("memory %d, quota %d; want %d, %d", got.MemoryLimitInBytes, got.CpuQuota, row.memory,
					row.quota)
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
		t.Fatalf("namespace options with a shared namespace: %v", o)
	}
}

// TestStandaloneNodeDNSWarnings: ClusterFirst is the default, so on a standalone node only pods that
// explicitly request the cluster DNS get a warning.
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
		name string
		pod  *corev1.Pod
		node Node
		want string
	}{
		{"it is limited", limited, Node{}, ""},
		{"no annotation", &corev1.Pod{}, Node{NoBandwidthReason: "no plugin"}, ""},
		{"the network has no plugin for it", limited, Node{NoBandwidthReason: "no plugin"}, "no plugin"},
		{"the host network is not limited", onHost, Node{}, "host's network"},
	} {
		got := BandwidthWarnings(row.node, row.pod)
		if (len(got) == 0) != (row.want == "") || len(got) > 0 && !strings.Contains(got[0].String(), row.want) {
			t.Errorf("%s: %v", row.name, got)
		}
	}
}
