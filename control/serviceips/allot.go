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

// Ports is a range of ports, both ends in it.
type Ports struct{ First, Last int32 }

func (p Ports) String() string { return fmt.Sprintf("%d-%d", p.First, p.Last) }

// MarshalText is String.
func (p Ports) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads FIRST-LAST.
func (p *Ports) UnmarshalText(text []byte) error {
	first, last, ok := strings.Cut(string(text), "-")
	a, err := strconv.ParseUint(first, 10, 16)
	b, also := strconv.ParseUint(last, 10, 16)
	if !ok || err != nil || also != nil || a == 0 || a > b {
		return fmt.Errorf("%q is no range of ports such as 30000-32767", text)
	}
	p.First, p.Last = int32(a), int32(b)
	return nil
}

// Ranges are what services can get.
type Ranges struct {
	// Addresses has one range or one of each family; the first is the usual one.
	Addresses []netip.Prefix
	Ports     Ports
}

func (r Ranges) families() (out []corev1.IPFamily) {
	for _, p := range r.Addresses {
		out = append(out, family(p.Addr()))
	}
	return out
}

func (r Ranges) of(f corev1.IPFamily) (netip.Prefix, bool) {
	for _, p := range r.Addresses {
		if family(p.Addr()) == f {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

// First is the address of the service default/kubernetes: the first of the range.
func (r Ranges) First() netip.Addr { return r.Addresses[0].Masked().Addr().Next() }

// usable is how many addresses of a range can be given; of a huge one no more
// than the first million. Offset 0 is the network's own, the last of IPv4 the
// broadcast address.
func usable(p netip.Prefix) int64 {
	host := min(p.Addr().BitLen()-p.Bits(), 20)
	n := int64(1)<<host - 1
	if p.Addr().Is4() && host > 1 {
		n--
	}
	return n
}

// at is the address of an offset.
func at(p netip.Prefix, offset int64) netip.Addr {
	sum := new(big.Int).Add(new(big.Int).SetBytes(p.Masked().Addr().AsSlice()), big.NewInt(offset))
	a, _ := netip.AddrFromSlice(sum.FillBytes(make([]byte, p.Addr().BitLen()/8)))
	return a
}

// band is where dynamic choice begins: below are addresses for users to name, as
// with Kubernetes.
func band(size int64) int64 {
	const least, most, part = 16, 256, 16
	if size < least {
		return 1
	}
	return min(max(least, size/part), most)
}

// allotment is what one request gets.
type allotment struct {
	claims  claims
	ranges  Ranges
	owner   types.UID
	service string
	dry     bool    // look, and claim nothing
	fresh   []claim // what was claimed
}

// take claims one name.
func (a *allotment) take(ctx context.Context, n name) error {
	if a.dry {
		have, err := a.claims.look(ctx, n)
		if err == nil && have != nil && have.owner != a.owner {
			return errTaken
		}
		return err
	}
	c, err := a.claims.take(ctx, n, a.owner, a.service)
	if err == nil {
		a.fresh = append(a.fresh, c)
	}
	return err
}

const guesses = 4

// choose claims a free name of the numbers 0 to size-1, from low on first. Most
// often a guess is free; when guesses are not, it looks which ones are.
func (a *allotment) choose(ctx context.Context, low, size int64, named func(int64) name) (int64, error) {
	if low >= size {
		low = 0
	}
	for range guesses {
		n := low + rand.Int64N(size-low)
		if err := a.take(ctx, named(n)); !errors.Is(err, errTaken) {
			return n, err
		}
	}
	taken, err := a.claims.all(ctx)
	if err != nil {
		return 0, err
	}
	for i := range size {
		n := (low + i) % size
		if _, is := taken[named(n)]; is {
			continue
		}
		if err := a.take(ctx, named(n)); !errors.Is(err, errTaken) {
			return n, err
		}
	}
	return 0, errFull
}

var errFull = errors.New("range is full")

// addresses gives a service those that it needs; had are those it has already.
func (a *allotment) addresses(ctx context.Context, s, old *corev1.Service) error {
	if !needsAddress(s) || headless(s) {
		return nil
	}
	path := field.NewPath("spec", "clusterIPs")
	for i, f := range s.Spec.IPFamilies {
		whole, ok := a.ranges.of(f)
		if i < len(s.Spec.ClusterIPs) && s.Spec.ClusterIPs[i] != "" {
			text := s.Spec.ClusterIPs[i]
			want, err := netip.ParseAddr(text)
			if err != nil || old != nil && holdsName(old, addressName(want)) {
				continue // the rules complain of what is no address
			}
			if !ok || !whole.Contains(want) || want == whole.Masked().Addr() {
				return refused(s, field.Invalid(path, s.Spec.ClusterIPs, fmt.Sprintf(
					"failed to allocate IP %s: the provided IP (%s) is not in the valid range. The range of valid IPs is %s", text, text, whole)))
			}
			switch err := a.take(ctx, addressName(want)); {
			case errors.Is(err, errTaken):
				return refused(s, field.Invalid(path, s.Spec.ClusterIPs, fmt.Sprintf("failed to allocate IP %s: provided IP is already allocated", text)))
			case err != nil:
				return err
			}
			continue
		}
		// The first address is for default/kubernetes.
		size := usable(whole) - 1
		number := func(n int64) netip.Addr { return at(whole, n+2) }
		n, err := a.choose(ctx, band(size), size, func(n int64) name { return addressName(number(n)) })
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

// ports gives a service the ports of the nodes that it needs. One number serves
// all protocols of a service.
func (a *allotment) ports(ctx context.Context, s, old *corev1.Service) error {
	if !needsPorts(s) {
		return nil
	}
	path := field.NewPath("spec", "ports")
	mine := map[int32]bool{}
	for i, p := range s.Spec.Ports {
		if p.NodePort == 0 || mine[p.NodePort] {
			continue
		}
		if err := a.port(ctx, s, old, path.Index(i).Child("nodePort"), p.NodePort); err != nil {
			return err
		}
		mine[p.NodePort] = true
	}
	for i := range s.Spec.Ports {
		if p := &s.Spec.Ports[i]; p.NodePort == 0 && givesPorts(s) {
			n, err := a.anyPort(ctx, s.Spec.Ports[:i], p)
			if err != nil {
				return err
			}
			p.NodePort = n
		}
	}
	if !needsHealthPort(s) {
		return nil
	}
	if n := s.Spec.HealthCheckNodePort; n != 0 {
		return a.port(ctx, s, old, field.NewPath("spec", "healthCheckNodePort"), n)
	}
	n, err := a.anyPort(ctx, nil, nil)
	s.Spec.HealthCheckNodePort = n
	return err
}

// port claims the port that a service names.
func (a *allotment) port(ctx context.Context, s, old *corev1.Service, at *field.Path, n int32) error {
	if old != nil && holdsName(old, portName(n)) {
		return nil
	}
	if n < a.ranges.Ports.First || n > a.ranges.Ports.Last {
		return refused(s, field.Invalid(at, n, fmt.Sprintf("provided port is not in the valid range. The range of valid ports is %s", a.ranges.Ports)))
	}
	err := a.take(ctx, portName(n))
	if errors.Is(err, errTaken) {
		return refused(s, field.Invalid(at, n, "provided port is already allocated"))
	}
	return err
}

// anyPort claims a free port. A port that serves the same number by another
// protocol shares that one's.
func (a *allotment) anyPort(ctx context.Context, before []corev1.ServicePort, p *corev1.ServicePort) (int32, error) {
	for _, other := range before {
		if other.Port == p.Port && other.Protocol != p.Protocol && other.NodePort != 0 {
			return other.NodePort, nil
		}
	}
	size := int64(a.ranges.Ports.Last-a.ranges.Ports.First) + 1
	number := func(n int64) int32 { return a.ranges.Ports.First + int32(n) }
	n, err := a.choose(ctx, min(band(size), 128), size, func(n int64) name { return portName(number(n)) })
	if err != nil {
		return 0, apierrors.NewInternalError(fmt.Errorf("failed to allocate a nodePort: %w", err))
	}
	return number(n), nil
}

func holdsName(s *corev1.Service, n name) bool {
	return slices.Contains(holds(s), n)
}

func refused(s *corev1.Service, err *field.Error) error {
	return apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Service").GroupKind(), s.Name, field.ErrorList{err})
}
