package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"

	"berth/services/dns/dnstest"
)

// dnsClients is the number of clients that send queries at the same time.
const dnsClients = 50

// dnsTimeout is when a query counts as lost.
const dnsTimeout = 5 * time.Second

// dnsQueries returns packed queries as pods send them: the addresses of Services in both families, names that
// the search path makes and that do not exist, some ports and some reverse names.
func dnsQueries(objects dnstest.Objects) (out [][]byte) {
	add := func(name string, types ...uint16) {
		for _, qtype := range types {
			m := &dns.Msg{}
			m.SetQuestion(name, qtype)
			if packed, err := m.Pack(); err == nil {
				out = append(out, packed)
			}
		}
	}
	for i := range objects.Services {
		svc := &objects.Services[i]
		if svc.Spec.Type == corev1.ServiceTypeExternalName {
			continue
		}
		name := svc.Name + "." + svc.Namespace
		add(name+".svc.cluster.local.", dns.TypeA, dns.TypeAAAA)
		add(name+".vacant.svc.cluster.local.", dns.TypeA)
		if i%5 == 0 {
			add("_http._tcp."+name+".svc.cluster.local.", dns.TypeSRV)
		}
		if ip := svc.Spec.ClusterIP; i%5 == 1 && ip != corev1.ClusterIPNone {
			if reverse, err := dns.ReverseAddr(ip); err == nil {
				add(reverse, dns.TypePTR)
			}
		}
	}
	rand.New(rand.NewPCG(1, 1)).Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

// dnsLoad sends queries over UDP at dnsRate and returns how long each answer took. A slow answer counts for the
// next query of its client too: that one counts from the time at which it was due. The lateness of timers
// does not count.
func dnsLoad(ctx context.Context, server string, queries [][]byte) ([]time.Duration, error) {
	var all sync.WaitGroup
	took := make([][]time.Duration, dnsClients)
	errs := make([]error, dnsClients)
	interval := time.Second * dnsClients / dnsRate
	began := time.Now().Add(100 * time.Millisecond)
	for i := range dnsClients {
		all.Go(func() {
			first := began.Add(interval * time.Duration(i) / dnsClients)
			took[i], errs[i] = dnsClient(ctx, server, queries, i, first, interval)
		})
	}
	all.Wait()
	var out []time.Duration
	for _, t := range took {
		out = append(out, t...)
	}
	return out, errors.Join(errs...)
}

// dnsClient sends one query in each interval.
func dnsClient(ctx context.Context, server string, queries [][]byte, client int, due time.Time,
	interval time.Duration) (took []time.Duration, err error) {
	conn, err := net.Dial("udp", server)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	buf := make([]byte, dns.MaxMsgSize)
	query := make([]byte, dns.MinMsgSize)
	for n := range int(dnsTime / interval) {
		started := due
		if wait := time.Until(due); wait > 0 {
			if err := pause(ctx, wait); err != nil {
				return nil, err
			}
			started = time.Now()
		}
		packed := append(query[:0], queries[(n*dnsClients+client)%len(queries)]...)
		packed[0], packed[1] = byte(n>>8), byte(n)
		if _, err := conn.Write(packed); err != nil {
			return nil, err
		}
		if err := conn.SetReadDeadline(time.Now().Add(dnsTimeout)); err != nil {
			return nil, err
		}
		for {
			length, err := conn.Read(buf)
			if err != nil {
				return nil, fmt.Errorf("query %d: %w", n, err)
			}
			if length > 3 && buf[0] == packed[0] && buf[1] == packed[1] {
				if rcode := int(buf[3] & 15); rcode != dns.RcodeSuccess && rcode != dns.RcodeNameError {
					return nil, fmt.Errorf("query %d: %s", n, dns.RcodeToString[rcode])
				}
				break
			}
		}
		took = append(took, time.Since(started))
		due = due.Add(interval)
	}
	return took, nil
}
