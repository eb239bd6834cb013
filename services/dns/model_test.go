package dns

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/miekg/dns"

	"berth/services"
)

// change is a change of a store.
type change func(*services.Store)

// randomChanges returns changes of a few Services and EndpointSlices that depend on each other: aliases of
// Services that come and go, addresses that several Services have.
func randomChanges(r *rand.Rand, count int) []change {
	names := []string{"a", "b", "c", "d"}
	address := func() netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(r.IntN(8))}) }
	one := func() change {
		name := named(names[r.IntN(len(names))])
		switch r.IntN(7) {
		case 0:
			svc := &services.Service{Name: name, Type: corev1.ServiceTypeExternalName,
				ExternalName: names[r.IntN(len(names))] + ".ns.svc.cluster.local"}
			return func(s *services.Store) { s.SetService(svc) }
		case 1:
			svc := &services.Service{Name: name, Type: corev1.ServiceTypeClusterIP, ClusterIPs: []netip.Addr{address()}}
			return func(s *services.Store) { s.SetService(svc) }
		case 2:
			svc := &services.Service{Name: name, Type: corev1.ServiceTypeClusterIP, Headless: true,
				PublishNotReady: r.IntN(2) == 0}
			return func(s *services.Store) { s.SetService(svc) }
		case 3:
			return func(s *services.Store) { s.DeleteService(name) }
		case 4, 5:
			slice := &services.Slice{Service: name, Name: fmt.Sprint(name.Name, r.IntN(2))}
			for range r.IntN(3) {
				slice.Endpoints = append(slice.Endpoints, services.Endpoint{Address: address(), Ready: r.IntN(3) > 0})
			}
			return func(s *services.Store) { s.SetSlice(slice) }
		}
		key := services.SliceKey{Namespace: name.Namespace, Name: fmt.Sprint(name.Name, r.IntN(2))}
		return func(s *services.Store) { s.DeleteSlice(key) }
	}
	changes := []change{
		func(s *services.Store) { s.ReplaceServices(nil) }, func(s *services.Store) { s.ReplaceSlices(nil) },
	}
	for len(changes) < count {
		changes = append(changes, one())
	}
	r.Shuffle(20, func(i, j int) { changes[i], changes[j] = changes[j], changes[i] }) // synced at some time
	return changes
}

// observation is an answer with the numbers of the changes that had ended before its question and that
// had started when it was given.
type observation struct {
	q       dns.Question
	ended   int64
	started int64
	answer  string
}

// TestModel asks while the store changes, and checks D1 and D2: each answer is one that the store of some
// moment between question and answer gives.
func TestModel(t *testing.T) {
	t.Parallel()
	questions := []dns.Question{}
	for _, name := range []string{"a.ns.svc.cluster.local.", "b.ns.svc.cluster.local.",
		"10-0-0-1.c.ns.svc.cluster.local.", "d.ns.svc.cluster.local."} {
		for _, qtype := range []uint16{dns.TypeA, dns.TypeSRV} {
			questions = append(questions, dns.Question{Name: name, Qtype: qtype, Qclass: dns.ClassINET})
		}
	}
	for i := range 4 {
		questions = append(questions,
			dns.Question{Name: fmt.Sprintf("%d.0.0.10.in-addr.arpa.", i), Qtype: dns.TypePTR, Qclass: dns.ClassINET})
	}
	for seed := range uint64(6) {
		r := rand.New(rand.NewPCG(seed, 1))
		changes := randomChanges(r, 1500)
		store := services.NewStore()
		reverse := NewReverse(store)
		zone := testZone(store)
		var started, ended, asked atomic.Int64
		var all sync.WaitGroup
		seen := make([][]observation, 3)
		for i := range seen {
			r := rand.New(rand.NewPCG(seed, uint64(i)+2))
			all.Go(func() {
				for ended.Load() < int64(len(changes)) {
					o := observation{q: questions[r.IntN(len(questions))], ended: ended.Load()}
					o.answer = render(o.q, answerOn(zone, reverse, o.q))
					o.started = started.Load()
					asked.Add(1)
					seen[i] = append(seen[i], o)
				}
			})
		}
		for i, c := range changes {
			for asked.Load() < int64(i) { // otherwise few answers would meet a change
				runtime.Gosched()
			}
			started.Store(int64(i) + 1)
			c(store)
			ended.Store(int64(i) + 1)
		}
		all.Wait()
		reverse.Close()
		checkModel(t, seed, changes, seen)
	}
}

// answerOn answers a question from a store at its state.
func answerOn(zone *Zone, reverse *Reverse, q dns.Question) Answer {
	if q.Qtype == dns.TypePTR {
		return zone.AnswerPTR(q, reverseAddress(q.Name), reverse)
	}
	return zone.Answer(q, 0, 0)
}

// checkModel plays the changes again, one by one, and looks for each observed answer.
func checkModel(t *testing.T, seed uint64, changes []change, seen [][]observation) {
	t.Helper()
	store := services.NewStore()
	reverse := NewReverse(store)
	defer reverse.Close()
	zone := testZone(store)
	next := make([]int, len(seen))   // the first observation that may be open
	open := make([][]int, len(seen)) // observations without a matching state so far
	total, concurrent := 0, 0
	for state := int64(0); state <= int64(len(changes)); state++ {
		if state > 0 {
			changes[state-1](store)
		}
		for i := range seen {
			for ; next[i] < len(seen[i]) && seen[i][next[i]].ended <= state; next[i]++ {
				open[i] = append(open[i], next[i])
			}
			var rest []int
			for _, n := range open[i] {
				o := &seen[i][n]
				if render(o.q, answerOn(zone, reverse, o.q)) == o.answer {
					total++
					if o.started > o.ended {
						concurrent++
					}
					continue
				}
				if o.started <= state {
					t.Fatalf("seed %d: %s %d between changes %d and %d: no state gives the answer %s", seed, o.q.Name,
						o.q.Qtype, o.ended, o.started, o.answer)
				}
				rest = append(rest, n)
			}
			open[i] = rest
		}
	}
	t.Logf("seed %d: %d answers, %d of them during a change", seed, total, concurrent)
	if total == 0 {
		t.Error("nothing was observed")
	}
}

// FuzzServer: any message gets at most one answer, which is valid, has the ID of the query and keeps to
// the size limit. A message that is valid and no answer gets one.
func FuzzServer(f *testing.F) {
	store := testStore()
	s := NewServer(testOptions(store))
	f.Cleanup(s.Close)
	for _, m := range []*dns.Msg{queryFor("web.ns.svc.cluster.local", dns.TypeA),
		queryFor("_http._tcp.db.ns.svc.cluster.local", dns.TypeSRV), queryFor("10.0.96.10.in-addr.arpa", dns.TypePTR),
		queryFor("outside.ns.svc.cluster.local", dns.TypeAAAA), queryFor("cluster.local", dns.TypeNS),
		queryFor("example.org", dns.TypeTXT).SetEdns0(512, true)} {
		packed, err := m.Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(packed)
	}
	f.Fuzz(func(t *testing.T, packed []byte) {
		var answers [][]byte
		in := &incoming{client: netip.MustParseAddr("10.0.0.1"), proto: "udp", size: len(packed)}
		var all sync.WaitGroup
		s.answer(t.Context(), &all, in, packed, func(a []byte) { answers = append(answers, append([]byte(nil), a...)) })
		all.Wait()
		if len(packed) < 12 || packed[2]&0x80 != 0 {
			if len(answers) != 0 {
				t.Fatal("no query has an answer")
			}
			return
		}
		if len(answers) != 1 {
			t.Fatalf("%d answers", len(answers))
		}
		var a dns.Msg
		if err := a.Unpack(answers[0]); err != nil {
			t.Fatalf("invalid answer: %v\n%x", err, answers[0])
		}
		if len(answers[0]) > udpSize || !a.Response || a.Id != uint16(packed[0])<<8|uint16(packed[1]) {
			t.Fatalf("%d bytes: %v", len(answers[0]), a)
		}
		if in.edns == nil && len(answers[0]) > dns.MinMsgSize {
			t.Fatalf("%d bytes without EDNS", len(answers[0]))
		}
	})
}
