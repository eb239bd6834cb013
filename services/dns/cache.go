package dns

import (
	"container/list"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const (
	// maxTTL limits how long an answer of an upstream server is fresh, as "cache 30" of the usual
	// configuration of CoreDNS does.
	maxTTL = 30 * time.Second
	// failureTTL is how long a failure of an upstream server is repeated, see section 7 of RFC 2308.
	failureTTL = 5 * time.Second
	// maxStale is how long an expired answer is used while upstream servers fail, see RFC 8767.
	maxStale = 24 * time.Hour
	// staleTTL is the TTL in seconds of a record from an expired answer, as RFC 8767 recommends.
	staleTTL = 30
	// entryOverhead is an estimate of the memory of an entry beside its key and its message.
	entryOverhead = 256
)

// question is what the cache distinguishes: the name in lower case, the type, and the flags that change
// an answer.
type question struct {
	name   string
	qtype  uint16
	do, cd bool
}

// entry is an answer in the cache.
type entry struct {
	key     question
	message []byte // packed, without OPT record
	stored  time.Time
	expires time.Time // the end of its freshness
	// retry is when an expired answer is queried again, after a failure.
	retry    time.Time
	upstream string
	denial   bool
	failure  bool
}

func (e *entry) size() int { return len(e.key.name) + len(e.message) + entryOverhead }

// fresh reports whether the entry answers without querying an upstream server.
func (e *entry) fresh(now time.Time) bool { return now.Before(e.expires) }

// stale reports whether the entry is expired and may be used while upstream servers fail.
func (e *entry) stale(now time.Time) bool {
	return !e.failure && !e.fresh(now) && now.Before(e.expires.Add(maxStale))
}

// cache keeps the most recently used answers within a number of bytes. It is safe for concurrent use.
type cache struct {
	limit int

	mu      sync.Mutex
	entries map[question]*list.Element
	order   *list.List // of *entry, the most recently used first
	bytes   int
	denials int
	evicted func(denial bool)
}

func newCache(limit int, evicted func(denial bool)) *cache {
	return &cache{limit: limit, entries: map[question]*list.Element{}, order: list.New(), evicted: evicted}
}

// get returns the entry of a question, or nil. Entries are not modified.
func (c *cache) get(key question) *entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.entries[key]
	if at == nil {
		return nil
	}
	c.order.MoveToFront(at)
	return entryAt(at)
}

func entryAt(at *list.Element) *entry {
	e, _ := at.Value.(*entry) // all are
	return e
}

// put adds or replaces an entry and removes the ones that were not used for the longest time.
func (c *cache) put(e *entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at := c.entries[e.key]; at != nil {
		c.remove(at)
	}
	if e.size() > c.limit {
		return
	}
	c.entries[e.key] = c.order.PushFront(e)
	c.bytes += e.size()
	if e.denial {
		c.denials++
	}
	for c.bytes > c.limit {
		oldest := c.order.Back()
		c.remove(oldest)
		c.evicted(entryAt(oldest).denial)
	}
}

// remove removes an entry. The caller holds the lock.
func (c *cache) remove(at *list.Element) {
	e := entryAt(at)
	c.order.Remove(at)
	delete(c.entries, e.key)
	c.bytes -= e.size()
	if e.denial {
		c.denials--
	}
}

// count returns the number of entries with and without records.
func (c *cache) count() (success, denial int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.entries) - c.denials, c.denials
}

// newEntry returns the entry of an answer, or nil if the answer must not be cached.
func newEntry(key question, m *dns.Msg, upstream string, now time.Time) *entry {
	ttl, denial, ok := freshness(m)
	if !ok {
		return nil
	}
	packed, err := m.Pack()
	if err != nil {
		return nil
	}
	return &entry{key: key, message: packed, stored: now, expires: now.Add(ttl), upstream: upstream,
		denial: denial, failure: m.Rcode == dns.RcodeServerFailure}
}

// freshness returns how long an answer may be used and whether it denies the records. It returns false
// for an answer that must not be cached: RFC 2308 permits a denial only with a SOA record.
func freshness(m *dns.Msg) (ttl time.Duration, denial, ok bool) {
	if m.Rcode == dns.RcodeServerFailure {
		return failureTTL, true, true
	}
	if m.Truncated || m.Rcode != dns.RcodeSuccess && m.Rcode != dns.RcodeNameError {
		return 0, false, false
	}
	ttl = maxTTL
	least := func(seconds uint32) { ttl = min(ttl, time.Duration(seconds)*time.Second) }
	denial = m.Rcode == dns.RcodeNameError
	answers := false
	for _, rr := range m.Answer {
		least(rr.Header().Ttl)
		answers = answers || rr.Header().Rrtype == m.Question[0].Qtype || m.Question[0].Qtype == dns.TypeANY
	}
	if denial = denial || !answers; denial {
		for _, rr := range m.Ns {
			if soa, is := rr.(*dns.SOA); is {
				least(soa.Hdr.Ttl)
				least(soa.Minttl)
				return ttl, true, ttl > 0
			}
		}
		return 0, true, false
	}
	return ttl, false, ttl > 0
}

// answer returns the message of the entry with the TTLs that are left, or with staleTTL if the entry is
// expired.
func (e *entry) answer(now time.Time) (*dns.Msg, error) {
	m := &dns.Msg{}
	if err := m.Unpack(e.message); err != nil {
		return nil, err
	}
	left := uint32(max(0, e.expires.Sub(now)) / time.Second)
	if !e.fresh(now) {
		left = staleTTL
	}
	for _, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		for _, rr := range section {
			rr.Header().Ttl = left
		}
	}
	return m, nil
}
