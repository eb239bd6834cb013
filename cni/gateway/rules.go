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
	tableName = "berth"
	chainName = "postrouting"
	podsName  = "pods"   // set: addresses of this node's pods
	inName    = "inside" // set: addresses of all nodes' pods
	// written is the rule's comment; a rule of another version is replaced.
	written = "berth: masquerade what pods send outside (1)"
)

// family is what differs between IPv4 and IPv6.
type family struct {
	is       func(netip.Addr) bool
	table    nftables.TableFamily
	key      nftables.SetDatatype
	src, dst uint32 // where a packet's header has the addresses
	bytes    uint32
	// A multicast address begins so.
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

// masquerades reads what berth's rules say. broken: they are there, and not as
// they were written.
func (k kernel) masquerades() (m routes.Masquerade, broken bool, err error) {
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
			broken = true
			continue
		}
		m.Local, m.Cluster = append(m.Local, own...), append(m.Cluster, inside...)
	}
	return m, broken, nil
}

// read is what the table says; not ok: something of it is missing or another's.
func (f family) read(c *nftables.Conn, t *nftables.Table) (own, inside []routes.AddressRange, ok bool) {
	rules, err := c.GetRules(t, &nftables.Chain{Name: chainName, Table: t})
	if err != nil || len(rules) != 1 {
		return nil, nil, false
	}
	if said, _ := userdata.GetString(rules[0].UserData, userdata.TypeComment); said != written {
		return nil, nil, false
	}
	for name, into := range map[string]*[]routes.AddressRange{podsName: &own, inName: &inside} {
		elements, err := c.GetSetElements(&nftables.Set{Name: name, Table: t})
		if err != nil {
			return nil, nil, false
		}
		*into = spans(elements)
	}
	return own, inside, true
}

// spans turns an interval set's elements, a first address and one past the last,
// back.
func spans(elements []nftables.SetElement) (out []routes.AddressRange) {
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

// elements are spans as an interval set has them.
func elements(all []routes.AddressRange) (out []nftables.SetElement) {
	for _, s := range all {
		out = append(out, nftables.SetElement{Key: s.First.AsSlice()})
		if end := s.Last.Next(); end.IsValid() {
			out = append(out, nftables.SetElement{Key: end.AsSlice(), IntervalEnd: true})
		}
	}
	return out
}

// masquerade replaces all of berth's rules in one step.
func (k kernel) masquerade(m routes.Masquerade) error {
	c, err := k.conn()
	if err != nil {
		return err
	}
	for _, f := range families {
		t := &nftables.Table{Name: tableName, Family: f.table}
		c.AddTable(t) // so that there is one to delete
		c.DelTable(t)
		if own := f.of(m.Local); len(own) > 0 {
			if err := f.write(c, t, own, f.of(m.Cluster)); err != nil {
				return fmt.Errorf("masquerading: %w", err)
			}
		}
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("write the masquerading to nftables: %w", err)
	}
	return nil
}

func (f family) of(all []routes.AddressRange) (out []routes.AddressRange) {
	for _, s := range all {
		if f.is(s.First) {
			out = append(out, s)
		}
	}
	return out
}

func (f family) write(c *nftables.Conn, t *nftables.Table, own, inside []routes.AddressRange) error {
	c.AddTable(t)
	// IDs of their own in the batch, for the library's come from a counter that
	// it does not guard.
	pods := &nftables.Set{Table: t, Name: podsName, ID: 2*f.bytes + 1, KeyType: f.key, Interval: true}
	in := &nftables.Set{Table: t, Name: inName, ID: 2*f.bytes + 2, KeyType: f.key, Interval: true}
	if err := c.AddSet(pods, elements(own)); err != nil {
		return err
	}
	if err := c.AddSet(in, elements(inside)); err != nil {
		return err
	}
	chain := c.AddChain(&nftables.Chain{
		Name: chainName, Table: t, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource,
	})
	header := func(offset, length uint32) expr.Any {
		return &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length}
	}
	c.AddRule(&nftables.Rule{
		Table: t, Chain: chain, UserData: userdata.AppendString(nil, userdata.TypeComment, written),
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
