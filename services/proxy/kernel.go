package proxy

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"berth/services/proxy/ruleset"
)

// kernel applies the desired state to the tables of the proxy. It is not safe for concurrent use.
type kernel struct {
	socket *socket
	// What the tables have, IPv4 and IPv6. It is valid after load or replace.
	chains [2]map[string]bool
}

// batchSize limits a transaction that need not be atomic as a whole.
const batchSize = 512 << 10

func openKernel(ns netns.NsHandle) (*kernel, error) {
	s, err := openSocket(ns)
	if err != nil {
		return nil, err
	}
	k := &kernel{socket: s}
	k.forget()
	return k, nil
}

func (k *kernel) close() { k.socket.Close() }

// forget resets what is known of the tables to nothing.
func (k *kernel) forget() {
	for i := range k.chains {
		k.chains[i] = map[string]bool{}
	}
}

// generation returns the number of the last change of any table.
func (k *kernel) generation() (n uint32, err error) {
	err = k.socket.query(unix.NFT_MSG_GETGEN, 0, unix.NFPROTO_UNSPEC, nil, func(attr uint16, value []byte) {
		if attr == nftaGenID && len(value) == 4 {
			n = be32(value)
		}
	})
	return n, err
}

func be32(b []byte) uint32 {
	return uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
}

// tables is the state of the structure of the tables.
type tables int

const (
	tablesMissing tables = iota
	// tablesDamaged are incomplete, changed, or those of another version.
	tablesDamaged
	tablesIntact
)

// load reads the structure of the tables. Elements of Services are not read.
func (k *kernel) load() (tables, error) {
	k.forget()
	missing, intact := 0, 0
	for i, f := range families() {
		counts, version, err := k.rules(f)
		switch {
		case err != nil:
			return tablesDamaged, err
		case len(counts) == 0:
			missing++
		case version == structureVersion && k.complete(f, i, counts):
			intact++
		}
	}
	const all = 2
	switch {
	case missing == all:
		return tablesMissing, nil
	case intact == all:
		return tablesIntact, nil
	}
	return tablesDamaged, nil
}

// rules counts the rules of each chain of the table.
func (k *kernel) rules(f family) (counts map[string]int, version string, err error) {
	counts = map[string]int{}
	chain := ""
	err = k.socket.query(unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, f.number,
		func(b *batch) { b.text(unix.NFTA_RULE_TABLE, tableName) },
		func(attr uint16, value []byte) {
			switch attr {
			case unix.NFTA_RULE_CHAIN:
				chain = text(value)
				counts[chain]++
			case unix.NFTA_RULE_USERDATA:
				if chain == servicesChain && len(value) > 2 && version == "" {
					version = text(value[2:])
				}
			}
		})
	return counts, version, err
}

// text returns a string without its zero byte.
func text(b []byte) string {
	if n := len(b); n > 0 && b[n-1] == 0 {
		b = b[:n-1]
	}
	return string(b)
}

// complete reports whether all chains have their number of rules, and notes the chains.
func (k *kernel) complete(f family, i int, counts map[string]int) bool {
	want := map[string]int{}
	for _, r := range f.baseRules() {
		want[r.chain]++
	}
	for chain := range counts {
		k.chains[i][chain] = true
		if t, ok := ruleset.ParseChain(chain); ok && want[chain] == 0 {
			for _, r := range f.targetRules(t) {
				if r.chain == chain {
					want[chain]++
				}
			}
		}
	}
	for chain, n := range want {
		if counts[chain] != n {
			return false
		}
	}
	return true
}

// elements calls f with each element of a set. The values are valid during the call only.
func (k *kernel) elements(of family, set string, f func(key, end, value []byte)) error {
	return k.socket.query(unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP, of.number,
		func(b *batch) {
			b.text(unix.NFTA_SET_ELEM_LIST_TABLE, tableName)
			b.text(unix.NFTA_SET_ELEM_LIST_SET, set)
		},
		func(attr uint16, list []byte) {
			if attr != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
				return
			}
			eachAttr(list, func(_ uint16, element []byte) {
				var key, end, value []byte
				eachAttr(element, func(attr uint16, nested []byte) {
					switch attr {
					case unix.NFTA_SET_ELEM_KEY:
						key = dataOf(nested)
					case nftaSetElemKeyEnd:
						end = dataOf(nested)
					case unix.NFTA_SET_ELEM_DATA:
						value = dataOf(nested)
					}
				})
				f(key, end, value)
			})
		})
}

// dataOf returns the value of a nested attribute, or the chain of a verdict.
func dataOf(nested []byte) (out []byte) {
	eachAttr(nested, func(attr uint16, value []byte) {
		switch attr {
		case unix.NFTA_DATA_VALUE:
			out = value
		case unix.NFTA_DATA_VERDICT:
			eachAttr(value, func(attr uint16, value []byte) {
				if attr == unix.NFTA_VERDICT_CHAIN {
					out = []byte(text(value))
				}
			})
		}
	})
	return out
}

// replace writes complete tables. If there are tables, it replaces them in one transaction, in which
// no packet is without rules. Clients lose their session affinity.
func (k *kernel) replace(s *ruleset.State, exists bool) error {
	k.forget()
	b := newBatch()
	for _, f := range families() {
		b.deleteTable(f)
		if err := b.structure(f); err != nil {
			return err
		}
		k.nodeRanges(b, f, s.Node())
	}
	if err := k.addTargets(b, s); err != nil {
		return err
	}
	for _, f := range families() {
		for e := range s.All(f.ipv6) {
			b.element(unix.NFT_MSG_NEWSETELEM, &e)
			if exists || len(b.buf) < batchSize {
				continue
			}
			if err := k.socket.commit(b); err != nil {
				return err
			}
			b = newBatch()
		}
	}
	return k.socket.commit(b)
}

// nodeRanges writes the ranges of local pods.
func (k *kernel) nodeRanges(b *batch, f family, node *ruleset.Node) {
	b.ranges(f, localPodsSet, node.LocalPods(f.ipv6))
	b.ranges(f, unmasqueradedSet, node.Unmasqueraded(f.ipv6))
}

// setNode writes what depends on the node alone.
func (k *kernel) setNode(node *ruleset.Node) error {
	b := newBatch()
	for _, f := range families() {
		k.nodeRanges(b, f, node)
	}
	return k.socket.commit(b)
}

// missingTargets counts the targets whose chains have no rules. load has noted the chains that have some.
func (k *kernel) missingTargets(s *ruleset.State) (n int) {
	for i, f := range families() {
		for chain := range s.Chains(f.ipv6) {
			if !k.chains[i][chain] {
				n++
			}
		}
	}
	return n
}

// addTargets creates the chains of targets that have none yet.
func (k *kernel) addTargets(b *batch, s *ruleset.State) error {
	for i, f := range families() {
		for chain := range s.Chains(f.ipv6) {
			if k.chains[i][chain] {
				continue
			}
			if t, ok := ruleset.ParseChain(chain); ok {
				if err := b.target(f, t, k.chains[i]); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// apply writes a change in one transaction.
func (k *kernel) apply(c ruleset.Change, s *ruleset.State) error {
	b := newBatch()
	if err := k.addTargets(b, s); err != nil {
		return err
	}
	for i := range c.Delete {
		b.element(unix.NFT_MSG_DELSETELEM, &c.Delete[i])
	}
	for i := range c.Add {
		b.element(unix.NFT_MSG_NEWSETELEM, &c.Add[i])
	}
	return k.socket.commit(b)
}

// remove deletes the tables.
func (k *kernel) remove() error {
	k.forget()
	var errs []error
	for _, f := range families() {
		b := newBatch()
		b.deleteTable(f)
		if err := k.socket.commit(b); err != nil {
			errs = append(errs, fmt.Errorf("delete table: %w", err))
		}
	}
	return errors.Join(errs...)
}
