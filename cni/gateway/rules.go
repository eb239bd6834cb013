package gateway

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"

	"berth/cni/routes"
)

const (
	tableName      = "berth"
	chainName      = "postrouting"
	podsSetName    = "pods"   // set of this node's pod addresses
	clusterSetName = "inside" // set of all nodes' pod addresses
	// ruleComment identifies the version of the rule. A rule with another comment is replaced.
	ruleComment = "berth: masquerade what pods send outside (1)"
)

// family describes the differences between IPv4 and IPv6.
type family struct {
	is       func(netip.Addr) bool
	table    nftables.TableFamily
	key      nftables.SetDatatype
	src, dst uint32 // offsets of the addresses in the header
	bytes    uint32
	// Mask and value of the first byte of a multicast address.
	mask, multicast byte
}

var families = []family{
	{netip.Addr.Is4, nftables.TableFamilyIPv4, nftables.TypeIPAddr, 12, 16, 4, 0xf0, 0xe0},
	{netip.Addr.Is6, nftables.TableFamilyIPv6, nftables.TypeIP6Addr, 8, 24, 16, 0xff, 0xff},
}

func (k kernel) conn() (*nftables.Conn, error) {
	var opts []nftables.ConnOption
	if k.ns.IsOpen() {
		opts = append(opts, nftables.WithNetNSFd(int(k.ns)))
	}
	c, err := nftables.New(opts...)
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	return c, nil
}

// masquerades reads berth's rules. damaged reports that they exist but differ from what was
// written.
func (k kernel) masquerades() (m routes.Masquerade, damaged bool, err error) {
	c, err := k.conn()
	if err != nil {
		return m, false, err
	}
	for _, f := range families {
		tables, err := c.ListTablesOfFamily(f.table)
		if err != nil {
			return m, false, fmt.Errorf("list nftables: %w", err)
		}
		i := slices.IndexFunc(tables, func(t *nftables.Table) bool { return t.Name == tableName })
		if i < 0 {
			continue
		}
		own, inside, ok := f.read(c, tables[i])
		if !ok {
			damaged = true
			continue
		}
		m.Local, m.Cluster = append(m.Local, own...), append(m.Cluster, inside...)
	}
	return m, damaged, nil
}

// read reads a table. It returns false if a part of it is missing or was changed.
func (f family) read(c *nftables.Conn, t *nftables.Table) (own, inside []routes.AddressRange, ok bool) {
	rules, err := c.GetRules(t, &nftables.Chain{Name: chainName, Table: t})
	if err != nil || len(rules) != 1 {
		return nil, nil, false
	}
	if comment, _ := userdata.GetString(rules[0].UserData, userdata.TypeComment); comment != ruleComment {
		return nil, nil, false
	}
	for name, into := range map[string]*[]routes.AddressRange{podsSetName: &own, clusterSetName: &inside} {
		elements, err := c.GetSetElements(&nftables.Set{Name: name, Table: t})
		if err != nil {
			return nil, nil, false
		}
		*into = rangesOf(elements)
	}
	return own, inside, true
}

// rangesOf converts the elements of an interval set, which are the first address and the one after
// the last.
func rangesOf(elements []nftables.SetElement) (out []routes.AddressRange) {
	slices.SortFunc(elements, func(a, b nftables.SetElement) int { return bytes.Compare(a.Key, b.Key) })
	for _, e := range elements {
		a, ok := netip.AddrFromSlice(e.Key)
		n := len(out)
		switch {
		case !ok:
		case !e.IntervalEnd:
			out = append(out, routes.AddressRange{First: a})
		case n > 0 && !out[n-1].Last.IsValid():
			out[n-1].Last = a.Prev()
		}
	}
	return out
}

// elementsOf converts address ranges to the elements of an interval set.
func elementsOf(all []routes.AddressRange) (out []nftables.SetElement) {
	for _, s := range all {
		out = append(out, nftables.SetElement{Key: s.First.AsSlice()})
		if end := s.Last.Next(); end.IsValid() {
			out = append(out, nftables.SetElement{Key: end.AsSlice(), IntervalEnd: true})
		}
	}
	return out
}

// masquerade replaces all rules in one transaction.
func (k kernel) masquerade(m routes.Masquerade) error {
	c, err := k.conn()
	if err != nil {
		return err
	}
	for _, f := range families {
		t := &nftables.Table{Name: tableName, Family: f.table}
		c.AddTable(t) // deleting a missing table would fail
		c.DelTable(t)
		if own := f.filter(m.Local); len(own) > 0 {
			if err := f.write(c, t, own, f.filter(m.Cluster)); err != nil {
				return fmt.Errorf("masquerade: %w", err)
			}
		}
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("write nftables rules: %w", err)
	}
	return nil
}

func (f family) filter(all []routes.AddressRange) (out []routes.AddressRange) {
	for _, s := range all {
		if f.is(s.First) {
			out = append(out, s)
		}
	}
	return out
}

func (f family) write(c *nftables.Conn, t *nftables.Table, own, inside []routes.AddressRange) error {
	c.AddTable(t)
	// Set explicit IDs: the library assigns them from a global counter without locking.
	pods := &nftables.Set{Table: t, Name: podsSetName, ID: 2*f.bytes + 1, KeyType: f.key, Interval: true}
	in := &nftables.Set{Table: t, Name: clusterSetName, ID: 2*f.bytes + 2, KeyType: f.key, Interval: true}
	if err := c.AddSet(pods, elementsOf(own)); err != nil {
		return err
	}
	if err := c.AddSet(in, elementsOf(inside)); err != nil {
		return err
	}
	chain := c.AddChain(&nftables.Chain{
		Name:     chainName,
		Table:    t,
		Type:     nftables.ChainTypeNAT,
		Hooknum:  nftables.ChainHookPostrouting,
		Priority: nftables.ChainPriorityNATSource,
	})
	header := func(offset, length uint32) expr.Any {
		return &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length}
	}
	c.AddRule(&nftables.Rule{
		Table: t, Chain: chain, UserData: userdata.AppendString(nil, userdata.TypeComment, ruleComment),
		Exprs: []expr.Any{
			header(f.src, f.bytes),
			&expr.Lookup{SourceRegister: 1, SetName: pods.Name, SetID: pods.ID},
			header(f.dst, f.bytes),
			&expr.Lookup{SourceRegister: 1, SetName: in.Name, SetID: in.ID, Invert: true},
			header(f.dst, 1),
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{f.mask}, Xor: []byte{0}},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{f.multicast}},
			&expr.Counter{},
			&expr.Masq{FullyRandom: true},
		},
	})
	return nil
}
