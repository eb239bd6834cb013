package serviceips

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// PortRange is an inclusive range of ports.
type PortRange struct{ First, Last int32 }

func (p PortRange) String() string { return fmt.Sprintf("%d-%d", p.First, p.Last) }

// MarshalText returns FIRST-LAST.
func (p PortRange) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText parses FIRST-LAST.
func (p *PortRange) UnmarshalText(text []byte) error {
	first, last, ok := strings.Cut(string(text), "-")
	a, err := strconv.ParseUint(first, 10, 16)
	b, lastErr := strconv.ParseUint(last, 10, 16)
	if !ok || err != nil || lastErr != nil || a == 0 || a > b {
		return fmt.Errorf("%q is not a port range such as 30000-32767", text)
	}
	p.First, p.Last = int32(a), int32(b)
	return nil
}

// Ranges are the ranges from which addresses and ports are allocated.
type Ranges struct {
	// Addresses has one CIDR per IP family. The first one is the default family.
	Addresses []netip.Prefix
	Ports     PortRange
}

func (r Ranges) families() (out []corev1.IPFamily) {
	for _, p := range r.Addresses {
		out = append(out, family(p.Addr()))
	}
	return out
}

func (r Ranges) rangeFor(f corev1.IPFamily) (netip.Prefix, bool) {
	for _, p := range r.Addresses {
		if family(p.Addr()) == f {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

// KubernetesServiceIP returns the address of default/kubernetes: the first of the range.
func (r Ranges) KubernetesServiceIP() netip.Addr { return r.Addresses[0].Masked().Addr().Next() }

// dnsServiceOffset is the offset of the address of kube-system/kube-dns in a range, as kubeadm
// chooses it.
const dnsServiceOffset = 10

// DNSServiceIP returns the address of kube-system/kube-dns: the tenth of the range, or the second of
// a range that is smaller.
func (r Ranges) DNSServiceIP() netip.Addr {
	ip := r.KubernetesServiceIP()
	if usableAddresses(r.Addresses[0]) <= dnsServiceOffset {
		return ip.Next()
	}
	for range dnsServiceOffset - 1 {
		ip = ip.Next()
	}
	return ip
}

// usableAddresses returns the number of addresses that can be allocated, limited to about a
// million. Offset 0 is the network address, the last offset of an IPv4 range the broadcast address.
func usableAddresses(p netip.Prefix) int64 {
	host := min(p.Addr().BitLen()-p.Bits(), 20)
	n := int64(1)<<host - 1
	if p.Addr().Is4() && host > 1 {
		n--
	}
	return n
}

// addressAt returns the address at an offset.
func addressAt(p netip.Prefix, offset int64) netip.Addr {
	sum := new(big.Int).Add(new(big.Int).SetBytes(p.Masked().Addr().AsSlice()), big.NewInt(offset))
	a, _ := netip.AddrFromSlice(sum.FillBytes(make([]byte, p.Addr().BitLen()/8)))
	return a
}

// staticBandSize is the offset where dynamic allocation starts. The addresses below it are
// preferred for static assignment, as in Kubernetes.
func staticBandSize(size int64) int64 {
	const least, most, part = 16, 256, 16
	if size < least {
		return 1
	}
	return min(max(least, size/part), most)
}

// allocator allocates the addresses and ports of one request.
type allocator struct {
	claims  claimStore
	ranges  Ranges
	owner   types.UID
	service string
	dryRun  bool    // check only, claim nothing
	claimed []claim // claimed by this request
}

// claim claims one key.
func (a *allocator) claim(ctx context.Context, n claimKey) error {
	if a.dryRun {
		have, err := a.claims.get(ctx, n)
		if err == nil && have != nil && have.owner != a.owner {
			return errAllocated
		}
		return err
	}
	c, err := a.claims.acquire(ctx, n, a.owner, a.service)
	if err == nil {
		a.claimed = append(a.claimed, c)
	}
	return err
}

const randomAttempts = 4

// claimFree claims a free key for one of the numbers 0 to size-1, from low on first. It tries
// random numbers first, which are usually free, and then lists all claims.
func (a *allocator) claimFree(ctx context.Context, low, size int64, named func(int64) claimKey) (int64, error) {
	if low >= size {
		low = 0
	}
	for range randomAttempts {
		n := low + rand.Int64N(size-low)
		if err := a.claim(ctx, named(n)); !errors.Is(err, errAllocated) {
			return n, err
		}
	}
	claims, err := a.claims.list(ctx)
	if err != nil {
		return 0, err
	}
	for i := range size {
		n := (low + i) % size
		if _, claimed := claims[named(n)]; claimed {
			continue
		}
		if err := a.claim(ctx, named(n)); !errors.Is(err, errAllocated) {
			return n, err
		}
	}
	return 0, errFull
}

var errFull = errors.New("range is full")

// allocateAddresses allocates the cluster IPs that the service does not have yet.
func (a *allocator) allocateAddresses(ctx context.Context, s, old *corev1.Service) error {
	if !needsAddress(s) || headless(s) {
		return nil
	}
	path := field.NewPath("spec", "clusterIPs")
	for i, f := range s.Spec.IPFamilies {
		cidr, ok := a.ranges.rangeFor(f)
		if i < len(s.Spec.ClusterIPs) && s.Spec.ClusterIPs[i] != "" {
			text := s.Spec.ClusterIPs[i]
			want, err := netip.ParseAddr(text)
			if err != nil || old != nil && holdsKey(old, addressKey(want)) {
				continue // validation rejects invalid addresses
			}
			if !ok || !cidr.Contains(want) || want == cidr.Masked().Addr() {
				return invalid(s, field.Invalid(path, s.Spec.ClusterIPs, fmt.Sprintf(
					"failed to allocate IP %s: the provided IP (%s) is not in the valid range. The range of "+
						"valid IPs is %s",
					text,
					text,
					cidr,
				)))
			}
			switch err := a.claim(ctx, addressKey(want)); {
			case errors.Is(err, errAllocated):
				return invalid(
					s,
					field.Invalid(
						path,
						s.Spec.ClusterIPs,
						fmt.Sprintf("failed to allocate IP %s: provided IP is already allocated", text),
					),
				)
			case err != nil:
				return err
			}
			continue
		}
		// The first address is reserved for default/kubernetes.
		size := usableAddresses(cidr) - 1
		number := func(n int64) netip.Addr { return addressAt(cidr, n+2) }
		n, err := a.claimFree(ctx, staticBandSize(size), size, func(n int64) claimKey { return addressKey(number(n)) })
		if err != nil {
			return apierrors.NewInternalError(fmt.Errorf("failed to allocate a serviceIP: %w", err))
		}
		s.Spec.ClusterIPs = append(s.Spec.ClusterIPs[:min(i, len(s.Spec.ClusterIPs))], number(n).String())
	}
	if len(s.Spec.ClusterIPs) > 0 {
		s.Spec.ClusterIP = s.Spec.ClusterIPs[0]
	}
	return nil
}

// allocatePorts allocates node ports. Ports of a service with the same number and different
// protocols share one.
func (a *allocator) allocatePorts(ctx context.Context, s, old *corev1.Service) error {
	if !mayHaveNodePorts(s) {
		return nil
	}
	path := field.NewPath("spec", "ports")
	claimed := map[int32]bool{}
	for i, p := range s.Spec.Ports {
		if p.NodePort == 0 || claimed[p.NodePort] {
			continue
		}
		if err := a.claimPort(ctx, s, old, path.Index(i).Child("nodePort"), p.NodePort); err != nil {
			return err
		}
		claimed[p.NodePort] = true
	}
	for i := range s.Spec.Ports {
		if p := &s.Spec.Ports[i]; p.NodePort == 0 && allocatesNodePorts(s) {
			n, err := a.claimFreePort(ctx, s.Spec.Ports[:i], p)
			if err != nil {
				return err
			}
			p.NodePort = n
		}
	}
	if !needsHealthCheckNodePort(s) {
		return nil
	}
	if n := s.Spec.HealthCheckNodePort; n != 0 {
		return a.claimPort(ctx, s, old, field.NewPath("spec", "healthCheckNodePort"), n)
	}
	n, err := a.claimFreePort(ctx, nil, nil)
	s.Spec.HealthCheckNodePort = n
	return err
}

// claimPort claims the node port that a service specifies.
func (a *allocator) claimPort(ctx context.Context, s, old *corev1.Service, at *field.Path, n int32) error {
	if old != nil && holdsKey(old, portKey(n)) {
		return nil
	}
	if n < a.ranges.Ports.First || n > a.ranges.Ports.Last {
		return invalid(
			s,
			field.Invalid(
				at,
				n,
				fmt.Sprintf("provided port is not in the valid range. The range of valid ports is %s", a.ranges.Ports),
			),
		)
	}
	err := a.claim(ctx, portKey(n))
	if errors.Is(err, errAllocated) {
		return invalid(s, field.Invalid(at, n, "provided port is already allocated"))
	}
	return err
}

// claimFreePort claims a free node port. A port with the same number and another protocol shares
// its node port.
func (a *allocator) claimFreePort(
	ctx context.Context,
	before []corev1.ServicePort,
	p *corev1.ServicePort,
) (int32, error) {
	for _, other := range before {
		if other.Port == p.Port && other.Protocol != p.Protocol && other.NodePort != 0 {
			return other.NodePort, nil
		}
	}
	size := int64(a.ranges.Ports.Last-a.ranges.Ports.First) + 1
	number := func(n int64) int32 { return a.ranges.Ports.First + int32(n) }
	n, err := a.claimFree(ctx, min(staticBandSize(size), 128), size, func(n int64) claimKey {
		return portKey(number(n))
	})
	if err != nil {
		return 0, apierrors.NewInternalError(fmt.Errorf("failed to allocate a nodePort: %w", err))
	}
	return number(n), nil
}

func holdsKey(s *corev1.Service, n claimKey) bool {
	return slices.Contains(heldKeys(s), n)
}

func invalid(s *corev1.Service, err *field.Error) error {
	return apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Service").GroupKind(), s.Name, field.ErrorList{err})
}
