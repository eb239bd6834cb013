package proxy

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"berth/services"
	"berth/services/proxy/ruleset"
)

// manyServices returns n Services with five endpoints each.
func manyServices(n int) []ruleset.Update {
	out := make([]ruleset.Update, n)
	for i := range out {
		out[i] = manyService(i, 0)
	}
	return out
}

// manyService returns Service i. Its last endpoint depends on the version.
func manyService(i, version int) ruleset.Update {
	name := services.Name{Namespace: fmt.Sprint("namespace-", i%100), Name: fmt.Sprint("service-", i)}
	svc := &services.Service{
		Name: name, Type: corev1.ServiceTypeClusterIP,
		ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 43, byte(i >> 8), byte(i)})},
		Ports:      []services.Port{{Protocol: corev1.ProtocolTCP, Port: 80}},
	}
	slice := &services.Slice{
		Service: name, Name: name.Name, Ports: []services.EndpointPort{{Protocol: corev1.ProtocolTCP, Port: 8080}},
	}
	for e := range 5 {
		at := 5*i + e
		if e == 4 {
			at += version << 16
		}
		slice.Endpoints = append(slice.Endpoints, services.Endpoint{
			Address: netip.AddrFrom4([4]byte{10, 128 + byte(at>>16), byte(at >> 8), byte(at)}),
			Node:    fmt.Sprint("node-", i%100), Ready: true, Serving: true,
		})
	}
	return ruleset.Update{Name: name, Service: svc, Slices: []*services.Slice{slice}}
}

const many = 10_000

// newBenchKernel returns a namespace whose kernel has many Services.
func newBenchKernel(b *testing.B) (*kernel, *ruleset.State) {
	b.Helper()
	h := newHost(b, "node")
	k, err := openKernel(h.ns)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(k.close)
	node := testNode()
	s := ruleset.NewState(&node)
	s.Apply(manyServices(many))
	if err := k.replace(s, false); err != nil {
		b.Fatal(err)
	}
	return k, s
}

// BenchmarkOneEndpoint replaces one endpoint of 10,000 Services with five endpoints each.
func BenchmarkOneEndpoint(b *testing.B) {
	k, s := newBenchKernel(b)
	version := 0
	for b.Loop() {
		version++
		if err := k.apply(s.Apply([]ruleset.Update{manyService(version%many, 1+version%2)}), s); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkOneMoreEndpoint adds and removes an endpoint, which changes the chain of the Service.
func BenchmarkOneMoreEndpoint(b *testing.B) {
	k, s := newBenchKernel(b)
	version := 0
	for b.Loop() {
		version++
		u := manyService(7, 0)
		u.Slices[0].Endpoints = u.Slices[0].Endpoints[:4+version%2]
		if err := k.apply(s.Apply([]ruleset.Update{u}), s); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkFullSync writes the rules of 10,000 Services with five endpoints each to an empty kernel.
func BenchmarkFullSync(b *testing.B) {
	h := newHost(b, "node")
	k, err := openKernel(h.ns)
	if err != nil {
		b.Fatal(err)
	}
	defer k.close()
	all := manyServices(many)
	for b.Loop() {
		node := testNode()
		s := ruleset.NewState(&node)
		s.Apply(all)
		if err := k.replace(s, false); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkAudit compares the rules of 10,000 Services with the kernel.
func BenchmarkAudit(b *testing.B) {
	k, s := newBenchKernel(b)
	for b.Loop() {
		if tables, err := k.load(); err != nil || tables != tablesIntact {
			b.Fatal(tables, err)
		}
		if n, _, err := k.repair(s); err != nil || n != 0 {
			b.Fatal(n, err)
		}
	}
}

// BenchmarkStateMemory reports the memory of the desired state, without the Services themselves.
func BenchmarkStateMemory(b *testing.B) {
	all := manyServices(many)
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	for b.Loop() {
		node := testNode()
		before := heap()
		s := ruleset.NewState(&node)
		for i := 0; i < len(all); i += maxUpdates {
			s.Apply(all[i : i+maxUpdates])
		}
		b.ReportMetric(float64(heap()-before)/(1<<20), "MiB")
		runtime.KeepAlive(s)
	}
}
