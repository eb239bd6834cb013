package proxy

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"berth/services/proxy/ruleset"
)

// maxAffinityClients limits the memory of session affinity. Beyond it, clients have none.
const maxAffinityClients = 1 << 18

// setSpec describes a set or map.
type setSpec struct {
	name      string
	flags     uint32
	key, data []uint32 // nft types
	verdict   bool
	size      uint32
}

// sets returns all sets of a table.
func (f family) sets() []setSpec {
	key := []uint32{f.addrType, typeInetProto, typeInetService}
	with := func(more ...uint32) []uint32 { return slices.Concat(key, more) }
	endpoint := []uint32{f.addrType, typeInetService}
	withIndex, withHandle := with(typeMark), with(typeClassID)
	const isMap, isInterval = unix.NFT_SET_MAP, unix.NFT_SET_INTERVAL
	return []setSpec{
		{name: ruleset.FrontendMap.Name(), flags: isMap, key: key, verdict: true},
		{name: ruleset.MasqueradeMap.Name(), flags: isMap, key: key, verdict: true},
		{name: ruleset.EndpointMap.Name(), flags: isMap, key: withIndex, data: endpoint},
		{name: ruleset.LocalEndpointMap.Name(), flags: isMap, key: withIndex, data: endpoint},
		{name: ruleset.HandleMap.Name(), flags: isMap, key: withIndex, data: []uint32{typeClassID}},
		{name: ruleset.LocalHandleMap.Name(), flags: isMap, key: withIndex, data: []uint32{typeClassID}},
		{name: ruleset.AffinityMap.Name(), flags: isMap, key: withHandle, data: endpoint},
		{name: ruleset.LocalAffinityMap.Name(), flags: isMap, key: withHandle, data: endpoint},
		{name: ruleset.SourceSet.Name(), flags: isInterval | nftSetConcat, key: with(f.addrType)},
		{name: ruleset.ClusterIPSet.Name(), key: []uint32{f.addrType}},
		{name: ruleset.HairpinSet.Name(), key: []uint32{f.addrType, f.addrType}},
		{name: affinityMap, flags: isMap | unix.NFT_SET_EVAL | unix.NFT_SET_TIMEOUT, key: with(f.addrType),
			data: []uint32{typeClassID}, size: maxAffinityClients},
		{name: localPodsSet, flags: isInterval, key: []uint32{f.addrType}},
		{name: unmasqueradedSet, flags: isInterval, key: []uint32{f.addrType}},
	}
}

// nfAccept is the policy of chains.
const nfAccept = 1

// nftSetConcat marks intervals of several fields.
const nftSetConcat = 0x80

// typeBytes returns the length of a value of an nft type.
func typeBytes(t uint32) uint32 {
	switch t {
	case typeIPv6Addr:
		return 16
	case typeInetProto:
		return 1
	case typeInetService:
		return 2
	}
	return 4
}

// concatenated returns the number and the length of a concatenation of types.
func concatenated(types []uint32) (number, length uint32) {
	for _, t := range types {
		number = number<<6 | t
		length += (typeBytes(t) + 3) &^ 3
	}
	return number, length
}

// set creates a set.
func (b *batch) set(f family, s setSpec, id uint32) {
	b.nft(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE|unix.NLM_F_EXCL, f.number)
	b.text(unix.NFTA_SET_TABLE, tableName)
	b.text(unix.NFTA_SET_NAME, s.name)
	b.number(unix.NFTA_SET_ID, id)
	b.number(unix.NFTA_SET_FLAGS, s.flags)
	number, length := concatenated(s.key)
	b.number(unix.NFTA_SET_KEY_TYPE, number)
	b.number(unix.NFTA_SET_KEY_LEN, length)
	switch {
	case s.verdict:
		b.number(unix.NFTA_SET_DATA_TYPE, unix.NFT_DATA_VERDICT)
		b.number(unix.NFTA_SET_DATA_LEN, 16)
	case len(s.data) > 0:
		number, length := concatenated(s.data)
		b.number(unix.NFTA_SET_DATA_TYPE, number)
		b.number(unix.NFTA_SET_DATA_LEN, length)
	}
	if s.size > 0 || s.flags&nftSetConcat != 0 {
		desc := b.open(unix.NFTA_SET_DESC)
		if s.size > 0 {
			b.number(unix.NFTA_SET_DESC_SIZE, s.size)
		}
		if s.flags&nftSetConcat != 0 {
			fields := b.open(nftaSetDescConcat)
			for _, t := range s.key {
				field := b.open(unix.NFTA_LIST_ELEM)
				b.number(nftaSetFieldLen, typeBytes(t))
				b.close(field)
			}
			b.close(fields)
		}
		b.close(desc)
	}
	byteOrder := func(kind byte, order uint32) { // nft reads it to print values
		b.attr(unix.NFTA_SET_USERDATA, append([]byte{kind, 4}, binary.NativeEndian.AppendUint32(nil, order)...))
	}
	switch {
	case s.flags&unix.NFT_SET_INTERVAL != 0:
		byteOrder(udataKeyByteOrder, bigEndian)
	case len(s.data) == 1:
		byteOrder(udataDataByteOrder, hostEndian)
	}
}

// chain creates a chain without a hook, or leaves an existing one.
func (b *batch) chain(f family, name string) {
	b.nft(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, f.number)
	b.text(unix.NFTA_CHAIN_TABLE, tableName)
	b.text(unix.NFTA_CHAIN_NAME, name)
}

// natChain creates a chain for the first packet of each connection.
func (b *batch) natChain(f family, name string, hook uint32, priority int32) {
	b.chain(f, name)
	at := b.open(unix.NFTA_CHAIN_HOOK)
	b.number(unix.NFTA_HOOK_HOOKNUM, hook)
	b.number(unix.NFTA_HOOK_PRIORITY, uint32(priority))
	b.close(at)
	b.text(unix.NFTA_CHAIN_TYPE, "nat")
	b.number(unix.NFTA_CHAIN_POLICY, nfAccept)
}

// rule appends a rule to its chain.
func (b *batch) rule(f family, r rule) error {
	b.nft(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, f.number)
	b.text(unix.NFTA_RULE_TABLE, tableName)
	b.text(unix.NFTA_RULE_CHAIN, r.chain)
	if r.comment != "" {
		b.attr(unix.NFTA_RULE_USERDATA, userData(udataRuleComment, r.comment))
	}
	return b.expressions(f.number, r.exprs)
}

// flushChain removes the rules of a chain.
func (b *batch) flushChain(f family, name string) {
	b.nft(unix.NFT_MSG_DELRULE, 0, f.number)
	b.text(unix.NFTA_RULE_TABLE, tableName)
	b.text(unix.NFTA_RULE_CHAIN, name)
}

func (b *batch) deleteChain(f family, name string) {
	b.nft(unix.NFT_MSG_DELCHAIN, 0, f.number)
	b.text(unix.NFTA_CHAIN_TABLE, tableName)
	b.text(unix.NFTA_CHAIN_NAME, name)
}

func (b *batch) table(f family) {
	b.nft(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, f.number)
	b.text(unix.NFTA_TABLE_NAME, tableName)
}

// deleteTable deletes the table, whether it exists or not.
func (b *batch) deleteTable(f family) {
	b.table(f)
	b.nft(unix.NFT_MSG_DELTABLE, 0, f.number)
	b.text(unix.NFTA_TABLE_NAME, tableName)
}

// structure creates a table with its sets, chains and rules, without Services.
func (b *batch) structure(f family) error {
	b.table(f)
	for i, s := range f.sets() {
		b.set(f, s, uint32(i+1))
	}
	b.natChain(f, preroutingChain, unix.NF_INET_PRE_ROUTING, -100)
	b.natChain(f, outputChain, unix.NF_INET_LOCAL_OUT, -100)
	b.natChain(f, postroutingChain, unix.NF_INET_POST_ROUTING, 100)
	for _, name := range []string{
		servicesChain, rejectChain, masqueradeInternalChain, ruleset.MasqueradeExternal,
		ruleset.MasqueradeExternalLocal,
	} {
		b.chain(f, name)
	}
	for _, r := range f.baseRules() {
		if err := b.rule(f, r); err != nil {
			return err
		}
	}
	return nil
}

// target creates the chains of a target that do not exist.
func (b *batch) target(f family, t ruleset.Target, chains map[string]bool) error {
	rules := f.targetRules(t)
	created := map[string]bool{}
	for _, r := range rules {
		if !chains[r.chain] && !created[r.chain] {
			created[r.chain] = true
			b.chain(f, r.chain)
			b.flushChain(f, r.chain)
		}
	}
	for _, r := range rules {
		if !created[r.chain] {
			continue
		}
		chains[r.chain] = true
		if err := b.rule(f, r); err != nil {
			return err
		}
	}
	return nil
}

// ranges replaces the elements of an interval set.
func (b *batch) ranges(f family, set string, all []netip.Prefix) {
	b.nft(unix.NFT_MSG_DELSETELEM, 0, f.number)
	b.text(unix.NFTA_SET_ELEM_LIST_TABLE, tableName)
	b.text(unix.NFTA_SET_ELEM_LIST_SET, set)
	if len(all) == 0 {
		return
	}
	b.elements(unix.NFT_MSG_NEWSETELEM, f.number, set)
	for _, p := range all {
		at := b.open(unix.NFTA_LIST_ELEM)
		b.data(unix.NFTA_SET_ELEM_KEY, string(p.Addr().AsSlice()))
		b.close(at)
		if end := ruleset.LastAddr(p).Next(); end.IsValid() {
			at := b.open(unix.NFTA_LIST_ELEM)
			b.number(unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END)
			b.data(unix.NFTA_SET_ELEM_KEY, string(end.AsSlice()))
			b.close(at)
		}
	}
}
