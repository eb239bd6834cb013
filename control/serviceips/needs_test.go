package serviceips

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// service returns a Service of a type with changes.
func service(kind corev1.ServiceType, change ...func(*corev1.ServiceSpec)) *corev1.Service {
	s := &corev1.Service{}
	s.Spec.Type = kind
	for _, f := range change {
		f(&s.Spec)
	}
	return s
}

func addresses(all ...string) func(*corev1.ServiceSpec) {
	return func(s *corev1.ServiceSpec) { s.ClusterIPs, s.ClusterIP = all, all[0] }
}

func families(all ...corev1.IPFamily) func(*corev1.ServiceSpec) {
	return func(s *corev1.ServiceSpec) { s.IPFamilies = all }
}

func policy(p corev1.IPFamilyPolicy) func(*corev1.ServiceSpec) {
	return func(s *corev1.ServiceSpec) { s.IPFamilyPolicy = &p }
}

func nodePorts(all ...int32) func(*corev1.ServiceSpec) {
	return func(s *corev1.ServiceSpec) {
		for _, n := range all {
			s.Ports = append(s.Ports, corev1.ServicePort{NodePort: n})
		}
	}
}

func TestHeldKeys(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		of   *corev1.Service
		want []claimKey
	}{
		{"one address", service(corev1.ServiceTypeClusterIP, addresses("10.43.0.7")),
			[]claimKey{"addresses/10.43.0.7"}},
		{"dual-stack, in canonical form", service(corev1.ServiceTypeClusterIP, addresses("10.43.0.7", "FD00:0:0::7")),
			[]claimKey{"addresses/10.43.0.7", "addresses/fd00::7"}},
		{"headless service", service(corev1.ServiceTypeClusterIP, addresses(corev1.ClusterIPNone)), nil},
		{"invalid address", service(corev1.ServiceTypeClusterIP, addresses("10.43.0")), nil},
		{"node ports of a ClusterIP service are ignored",
			service(corev1.ServiceTypeClusterIP, addresses("10.43.0.7"), nodePorts(30001)),
			[]claimKey{"addresses/10.43.0.7"}},
		{"port shared by protocols", service(corev1.ServiceTypeNodePort, addresses("10.43.0.7"),
			nodePorts(30001, 0, 30001, 30002)), []claimKey{"addresses/10.43.0.7", "ports/30001", "ports/30002"}},
		{"health check node port", service(corev1.ServiceTypeLoadBalancer, addresses("10.43.0.7"),
			func(s *corev1.ServiceSpec) {
				s.HealthCheckNodePort = 30009
			}), []claimKey{"addresses/10.43.0.7", "ports/30009"}},
		{"elsewhere", service(corev1.ServiceTypeExternalName, addresses("10.43.0.7"), nodePorts(30001)), nil},
	} {
		if got := heldKeys(c.of); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

func TestSetFamilies(t *testing.T) {
	t.Parallel()
	const four, six = corev1.IPv4Protocol, corev1.IPv6Protocol
	const single, prefer, require = corev1.IPFamilyPolicySingleStack, corev1.IPFamilyPolicyPreferDualStack,
		corev1.IPFamilyPolicyRequireDualStack
	selecting := func(s *corev1.ServiceSpec) { s.Selector = map[string]string{"a": "b"} }
	dual := []corev1.IPFamily{four, six}
	for _, c := range []struct {
		name    string
		of      *corev1.Service
		cluster []corev1.IPFamily
		want    []corev1.IPFamily
		policy  corev1.IPFamilyPolicy
		wantErr string
	}{
		{name: "default family of the cluster", of: service(corev1.ServiceTypeClusterIP),
			cluster: []corev1.IPFamily{six, four}, want: []corev1.IPFamily{six}, policy: single},
		{name: "family of the requested address", of: service(corev1.ServiceTypeClusterIP, addresses("fd00::7")),
			cluster: dual, want: []corev1.IPFamily{six}, policy: single},
		{name: "PreferDualStack on a dual-stack cluster", of: service(corev1.ServiceTypeClusterIP, policy(prefer)),
			cluster: dual, want: dual, policy: prefer},
		{name: "PreferDualStack on a single-stack cluster", of: service(corev1.ServiceTypeClusterIP, policy(prefer)),
			cluster: dual[:1], want: dual[:1], policy: prefer},
		{name: "requested order of families", of: service(corev1.ServiceTypeNodePort, policy(require), families(six)),
			cluster: dual, want: []corev1.IPFamily{six, four}, policy: require},
		{name: "two families need a policy", of: service(corev1.ServiceTypeClusterIP, families(six, four)),
			cluster: dual, wantErr: "when multiple IP families are specified"},
		{name: "address of a family that the cluster does not have",
			of: service(corev1.ServiceTypeClusterIP, addresses("fd00::7")), cluster: dual[:1],
			wantErr: "spec.clusterIPs[0]: Invalid value"},
		{name: "family twice", of: service(corev1.ServiceTypeClusterIP, families(four, four)), cluster: dual,
			wantErr: "spec.ipFamilies[1]: Duplicate value"},
		{name: "RequireDualStack on a single-stack cluster", of: service(corev1.ServiceTypeClusterIP, policy(require)),
			cluster: dual[:1], wantErr: "not configured for dual-stack"},
		{name: "family that the cluster does not have", of: service(corev1.ServiceTypeClusterIP, families(six)),
			cluster: dual[:1], wantErr: "not configured on this cluster"},
		{name: "SingleStack with two families",
			of: service(corev1.ServiceTypeClusterIP, policy(single), families(four, six)), cluster: dual,
			wantErr: "must be 'RequireDualStack' or 'PreferDualStack'"},
		{name: "address of another family than requested",
			of: service(corev1.ServiceTypeClusterIP, families(four), addresses("fd00::7")), cluster: dual,
			wantErr: "expected an IPv4 value as indicated by `ipFamilies[0]`"},
		{name: "headless without selector has both families on any cluster",
			of: service(corev1.ServiceTypeClusterIP, addresses(corev1.ClusterIPNone)), cluster: dual[:1], want: dual,
			policy: require},
		{name: "headless with selector has the families of the cluster",
			of: service(corev1.ServiceTypeClusterIP, addresses(corev1.ClusterIPNone), selecting), cluster: dual[:1],
			want: dual[:1], policy: single},
		{name: "ExternalName has no families", of: service(corev1.ServiceTypeExternalName, policy(require),
			families(six)),
			cluster: dual},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			errs := setFamilies(c.of, nil, c.cluster)
			if c.wantErr != "" {
				if err := errs.ToAggregate(); err == nil || !strings.Contains(err.Error(), c.wantErr) {
					t.Errorf("got error %v, want %q", err, c.wantErr)
				}
				return
			}
			if len(errs) > 0 {
				t.Fatal(errs)
			}
			if !slices.Equal(c.of.Spec.IPFamilies, c.want) {
				t.Errorf("families %q, want %q", c.of.Spec.IPFamilies, c.want)
			}
			if p := c.of.Spec.IPFamilyPolicy; (p == nil) != (c.policy == "") || p != nil && *p != c.policy {
				t.Errorf("policy %v, want %q", p, c.policy)
			}
		})
	}
}

// FuzzSetFamilies checks that setFamilies is idempotent.
func FuzzSetFamilies(f *testing.F) {
	f.Add("", "", "", byte(0), true)
	f.Add("fd00::7", "10.0.0.1", "IPv6", byte(2), true)
	f.Add("None", "", "", byte(1), false)
	f.Add("10.0.0.1", "10.0.0.2", "IPv4", byte(3), true)
	f.Fuzz(func(t *testing.T, first, second, named string, p byte, selects bool) {
		s := service(corev1.ServiceTypeClusterIP)
		for _, a := range []string{first, second} {
			if a != "" {
				s.Spec.ClusterIPs = append(s.Spec.ClusterIPs, a)
			}
		}
		if len(s.Spec.ClusterIPs) > 0 {
			s.Spec.ClusterIP = s.Spec.ClusterIPs[0]
		}
		if named == string(corev1.IPv4Protocol) || named == string(corev1.IPv6Protocol) {
			s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPFamily(named)}
		}
		all := []corev1.IPFamilyPolicy{
			corev1.IPFamilyPolicySingleStack,
			corev1.IPFamilyPolicyPreferDualStack,
			corev1.IPFamilyPolicyRequireDualStack,
		}
		if int(p) < len(all) {
			s.Spec.IPFamilyPolicy = &all[p]
		}
		if selects {
			s.Spec.Selector = map[string]string{"a": "b"}
		}
		cluster := []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
		if len(setFamilies(s, nil, cluster)) > 0 {
			return
		}
		settled := s.DeepCopy()
		if err := setFamilies(s, nil, cluster); len(err) > 0 ||
			!slices.Equal(s.Spec.IPFamilies, settled.Spec.IPFamilies) ||
			*s.Spec.IPFamilyPolicy != *settled.Spec.IPFamilyPolicy {
			t.Errorf("setFamilies is not idempotent: got %v, want %v, error %v", s.Spec, settled.Spec, err)
		}
	})
}

func FuzzPortRange(f *testing.F) {
	for _, s := range []string{"30000-32767", "1-1", "0-5", "5-4", "1-65536", "-", "1", "+1-2", "1-2-3", " 1-2",
		"1_0-20"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var p, again PortRange
		if p.UnmarshalText([]byte(text)) != nil {
			if p != (PortRange{}) {
				t.Errorf("%q is rejected but sets %s", text, p)
			}
			return
		}
		if p.First < 1 || p.Last < p.First || p.Last > 65535 {
			t.Fatalf("%q is %s", text, p)
		}
		if err := again.UnmarshalText([]byte(p.String())); err != nil || again != p {
			t.Errorf("%q is %s and then %s, %v", text, p, again, err)
		}
	})
}

// TestUsableAddresses checks that the network and broadcast addresses are not used.
func TestUsableAddresses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in          string
		first, last string
		n           int64
	}{
		{"10.43.0.0/16", "10.43.0.1", "10.43.255.254", 65534},
		{"10.43.0.0/30", "10.43.0.1", "10.43.0.2", 2},
		{"10.43.0.9/29", "10.43.0.9", "10.43.0.14", 6},
		{"10.0.0.0/8", "10.0.0.1", "10.15.255.254", 1<<20 - 2},
		{"fd00::/112", "fd00::1", "fd00::ffff", 65535},
		{"fd00::/64", "fd00::1", "fd00::f:ffff", 1<<20 - 1},
	} {
		p := netip.MustParsePrefix(c.in)
		n := usableAddresses(p)
		first, last := addressAt(p, 1), addressAt(p, n)
		if n != c.n || first.String() != c.first || last.String() != c.last || !p.Contains(last) {
			t.Errorf("%s: %d addresses from %s to %s", c.in, n, first, last)
		}
	}
	r := Ranges{Addresses: []netip.Prefix{netip.MustParsePrefix("10.43.0.5/16"), netip.MustParsePrefix("fd00::/112")}}
	if r.KubernetesServiceIP().String() != "10.43.0.1" ||
		!slices.Equal(r.families(), []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}) {
		t.Errorf("%s, %q", r.KubernetesServiceIP(), r.families())
	}
	if p, ok := r.rangeFor(corev1.IPv6Protocol); !ok || p.String() != "fd00::/112" {
		t.Errorf("of IPv6: %s, %v", p, ok)
	}
}

// TestStaticBandSize checks the sizes of KEP-3070.
func TestStaticBandSize(t *testing.T) {
	t.Parallel()
	for size, want := range map[int64]int64{2: 1, 15: 1, 16: 16, 254: 16, 2768: 173, 65533: 256, 1 << 20: 256} {
		if got := staticBandSize(size); got != want {
			t.Errorf("size %d: got %d, want %d", size, got, want)
		}
	}
}
