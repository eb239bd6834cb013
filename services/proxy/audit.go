package proxy

import (
	"hash/maphash"

	"golang.org/x/sys/unix"

	"berth/services/proxy/ruleset"
)

// repair compares the elements of the kernel with the desired ones and corrects the differences in one
// transaction. It returns their number and the UDP frontends among them.
//
// The tables must be intact. Elements are compared by hashes: a list of all elements would need
// several times the memory.
func (k *kernel) repair(s *ruleset.State) (differences int, stale []ruleset.Key, err error) {
	b := newBatch()
	if err := k.addTargets(b, s); err != nil {
		return 0, nil, err
	}
	var remove, add []ruleset.Element
	for _, f := range families() {
		more, missing, err := k.compare(f, s)
		if err != nil {
			return 0, nil, err
		}
		remove, add = append(remove, more...), append(add, missing...)
	}
	for i := range remove {
		b.element(unix.NFT_MSG_DELSETELEM, &remove[i])
		stale = appendUDP(stale, &remove[i])
	}
	for i := range add {
		b.element(unix.NFT_MSG_NEWSETELEM, &add[i])
		stale = appendUDP(stale, &add[i])
	}
	return len(remove) + len(add), stale, k.socket.commit(b)
}

// compare returns the elements of the kernel that are not desired, and the desired ones that it lacks.
func (k *kernel) compare(f family, s *ruleset.State) (remove, add []ruleset.Element, err error) {
	// The hash of the key and that of the value. The lowest bit of the latter is set when the kernel
	// has the element: a dump may have it twice.
	const found = 1
	seed := maphash.MakeSeed()
	var h maphash.Hash
	h.SetSeed(seed)
	hash := func(set ruleset.Set, key, end []byte) uint64 {
		h.Reset()
		_ = h.WriteByte(byte(set))
		_, _ = h.Write(key)
		_, _ = h.Write(end)
		return h.Sum64()
	}
	id := func(e *ruleset.Element) uint64 { return hash(e.Set, []byte(e.Key), []byte(e.End)) }
	desired := map[uint64]uint64{}
	for e := range s.All(f.ipv6) {
		desired[id(&e)] = maphash.String(seed, e.Value) &^ found
	}
	missing := len(desired)
	removed := map[uint64]bool{}
	for set := range ruleset.NumSets {
		err := k.elements(f, set.Name(), func(key, end, value []byte) {
			at := hash(set, key, end)
			want, ok := desired[at]
			switch {
			case ok && want == maphash.Bytes(seed, value)&^found:
				desired[at] = want | found
				missing--
			case ok && want == maphash.Bytes(seed, value)|found: // twice
			case !removed[at]:
				removed[at] = true
				remove = append(remove, ruleset.Element{Set: set, IPv6: f.ipv6, Key: string(key), End: string(end)})
			}
		})
		if err != nil {
			return nil, nil, err
		}
	}
	if missing == 0 {
		return remove, nil, nil
	}
	for e := range s.All(f.ipv6) {
		if desired[id(&e)]&found == 0 {
			add = append(add, e)
		}
	}
	return remove, add, nil
}

// appendUDP appends the UDP frontend of an element.
func appendUDP(keys []ruleset.Key, e *ruleset.Element) []ruleset.Key {
	if e.Set == ruleset.ClusterIPSet || e.Set == ruleset.HairpinSet {
		return keys
	}
	if key, ok := ruleset.ParseKey([]byte(e.Key), e.IPv6); ok && key.Protocol == ruleset.UDP {
		return append(keys, key)
	}
	return keys
}

// collect removes the chains that no frontend leads to. Before Linux 6.2 it fails shortly after the
// last element of a map that leads to a chain was removed.
func (k *kernel) collect(s *ruleset.State) error {
	b := newBatch()
	for i, f := range families() {
		used := map[string]bool{}
		for _, r := range f.baseRules() {
			used[r.chain] = true
		}
		for chain := range s.Chains(f.ipv6) {
			if t, ok := ruleset.ParseChain(chain); ok {
				for _, r := range f.targetRules(t) {
					used[r.chain] = true
				}
			}
		}
		var unused []string
		for chain := range k.chains[i] {
			if !used[chain] {
				b.flushChain(f, chain)
				unused = append(unused, chain)
			}
		}
		for _, chain := range unused {
			b.deleteChain(f, chain)
			delete(k.chains[i], chain)
		}
	}
	return k.socket.commit(b)
}
