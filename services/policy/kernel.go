package policy

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"berth/services/policy/rules"
)

// TableName is the name of the nftables table of family inet that berth owns.
const TableName = "berth-policy"

// bufferSize is the size of the socket's buffers. The kernel acknowledges each message of a
// transaction, and drops acknowledgements that do not fit.
const bufferSize = 32 << 20

// priorities are those of the base chains: after the translation of destination addresses, before
// other filters.
var priorities = map[string]nftables.ChainPriority{
	rules.Egress.String():  *nftables.ChainPriorityFilter - 2,
	rules.Ingress.String(): *nftables.ChainPriorityFilter - 1,
}

// kernel accesses the table in a network namespace.
type kernel struct{ ns netns.NsHandle }

func (k kernel) conn(options ...nftables.ConnOption) (*nftables.Conn, error) {
	options = append(options, nftables.WithSockOptions(func(c *netlink.Conn) error {
		return errors.Join(c.SetReadBuffer(bufferSize), c.SetWriteBuffer(bufferSize))
	}))
	if k.ns.IsOpen() {
		options = append(options, nftables.WithNetNSFd(int(k.ns)))
	}
	c, err := nftables.New(options...)
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	return c, nil
}

func table() *nftables.Table {
	return &nftables.Table{Name: TableName, Family: nftables.TableFamilyINet}
}

// transaction collects the messages of a transaction.
type transaction struct {
	*nftables.Conn
	t    *nftables.Table
	sets uint32
	errs []error
}

// apply applies a transaction. It takes effect as a whole or not at all. counts are the initial
// values of counters of a replaced table.
func (k kernel) apply(tx *rules.Transaction, counts map[string]expr.Counter) error {
	c, err := k.conn()
	if err != nil {
		return err
	}
	w := &transaction{Conn: c, t: table()}
	if tx.Remove || tx.Replace != nil {
		w.AddTable(w.t) // deleting a missing table would fail
		w.DelTable(w.t)
	}
	if tx.Replace != nil {
		w.AddTable(w.t)
		tx = whole(tx.Replace)
	}
	w.add(tx, counts)
	w.delete(tx)
	if err := errors.Join(w.errs...); err != nil {
		return err
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("write nftables table %s: %w", TableName, err)
	}
	return nil
}

// whole returns a transaction that adds a ruleset to an empty table.
func whole(r *rules.Ruleset) *rules.Transaction {
	tx := &rules.Transaction{}
	for name := range r.Counters {
		tx.AddCounters = append(tx.AddCounters, name)
	}
	for _, s := range r.Sets {
		tx.AddSets = append(tx.AddSets, s)
	}
	for _, c := range r.Chains {
		tx.AddChains = append(tx.AddChains, c)
	}
	return tx
}

// add adds objects before what refers to them.
func (w *transaction) add(tx *rules.Transaction, counts map[string]expr.Counter) {
	for _, name := range tx.AddCounters {
		w.AddObj(&nftables.CounterObj{Table: w.t, Name: name, Bytes: counts[name].Bytes, Packets: counts[name].Packets})
	}
	for _, s := range tx.AddSets {
		w.sets++
		w.errs = append(w.errs, w.AddSet(nftSet(w.t, s, w.sets), nil))
		if s.Type != rules.VerdictMap {
			w.addElements(s)
		}
	}
	for _, c := range tx.AddChains {
		chain := &nftables.Chain{Table: w.t, Name: c.Name}
		if c.Base {
			priority, accept := priorities[c.Name], nftables.ChainPolicyAccept
			chain.Type, chain.Hooknum, chain.Priority = nftables.ChainTypeFilter, nftables.ChainHookForward, &priority
			chain.Policy = &accept
		}
		w.AddChain(chain)
	}
	for _, c := range tx.ReplaceRules {
		w.FlushChain(&nftables.Chain{Table: w.t, Name: c.Name})
	}
	for _, c := range slices.Concat(tx.AddChains, tx.ReplaceRules) {
		for i := range c.Rules {
			w.AddRule(&nftables.Rule{Table: w.t, Chain: &nftables.Chain{Table: w.t, Name: c.Name},
				Exprs: nftRule(&c.Rules[i]), UserData: userData(&c.Rules[i])})
		}
	}
	for _, s := range tx.DeleteElements {
		for _, list := range nftElements(s, true) {
			w.errs = append(w.errs, w.SetDeleteElements(nftSet(w.t, s, 0), list))
		}
	}
	for _, s := range tx.AddSets {
		if s.Type == rules.VerdictMap {
			w.addElements(s)
		}
	}
	for _, s := range tx.AddElements {
		w.addElements(s)
	}
}

func (w *transaction) addElements(s *rules.Set) {
	for _, list := range nftElements(s, false) {
		if len(list) > 0 {
			w.errs = append(w.errs, w.SetAddElements(nftSet(w.t, s, 0), list))
		}
	}
}

// delete deletes objects after what referred to them.
func (w *transaction) delete(tx *rules.Transaction) {
	for _, c := range tx.DeleteChains {
		w.FlushChain(&nftables.Chain{Table: w.t, Name: c.Name})
	}
	for _, c := range tx.DeleteChains {
		w.DelChain(&nftables.Chain{Table: w.t, Name: c.Name})
	}
	for _, s := range tx.DeleteSets {
		w.DelSet(&nftables.Set{Table: w.t, Name: s.Name})
	}
	for _, name := range tx.DeleteCounters {
		w.DeleteObject(&nftables.CounterObj{Table: w.t, Name: name})
	}
}

// exists reports whether the table exists.
func (k kernel) exists() (bool, error) {
	c, err := k.conn()
	if err != nil {
		return false, err
	}
	return tableExists(c)
}

func tableExists(c *nftables.Conn) (bool, error) {
	tables, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return false, fmt.Errorf("list nftables: %w", err)
	}
	return slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == TableName }), nil
}

// counters returns the counters of the table by name. It returns none if there is no table.
func (k kernel) counters() (map[string]expr.Counter, error) {
	c, err := k.conn()
	if err != nil {
		return nil, err
	}
	objects, err := c.GetObj(&nftables.CounterObj{Table: table()})
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("list nftables counters: %w", err)
	}
	out := make(map[string]expr.Counter, len(objects))
	for _, o := range objects {
		if counter, ok := o.(*nftables.CounterObj); ok {
			out[counter.Name] = expr.Counter{Bytes: counter.Bytes, Packets: counter.Packets}
		}
	}
	return out, nil
}

// differs compares the table with a ruleset, which is nil if there must be no table. It returns the
// first difference, or an empty text.
func (k kernel) differs(want *rules.Ruleset) (difference string, err error) {
	c, err := k.conn(nftables.AsLasting())
	if err != nil {
		return "", err
	}
	defer func() { _ = c.CloseLasting() }()
	exists, err := tableExists(c)
	switch {
	case err != nil:
		return "", err
	case exists != (want != nil):
		return fmt.Sprintf("table exists: %t", exists), nil
	case want == nil:
		return "", nil
	}
	for _, find := range []func(*nftables.Conn, *rules.Ruleset) (string, error){
		differentCounters, differentChains, differentSets,
	} {
		if difference, err = find(c, want); difference != "" || err != nil {
			return difference, err
		}
	}
	return "", nil
}

func differentCounters(c *nftables.Conn, want *rules.Ruleset) (string, error) {
	counters, err := c.GetObj(&nftables.CounterObj{Table: table()})
	if err != nil {
		return "", fmt.Errorf("list nftables counters: %w", err)
	}
	if len(counters) != len(want.Counters) {
		return fmt.Sprintf("%d counters instead of %d", len(counters), len(want.Counters)), nil
	}
	for _, o := range counters {
		counter, ok := o.(*nftables.CounterObj)
		if !ok {
			return "an object that is no counter", nil
		}
		if _, wanted := want.Counters[counter.Name]; !wanted {
			return "counter " + counter.Name, nil
		}
	}
	return "", nil
}

func differentChains(c *nftables.Conn, want *rules.Ruleset) (string, error) {
	all, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return "", fmt.Errorf("list nftables chains: %w", err)
	}
	number := 0
	for _, chain := range all {
		if chain.Table.Name != TableName {
			continue
		}
		number++
		wanted := want.Chains[chain.Name]
		if wanted == nil || wanted.Base != (chain.Hooknum != nil) {
			return "chain " + chain.Name, nil
		}
		got, err := c.GetRules(table(), chain)
		if err != nil {
			return "", fmt.Errorf("list nftables rules: %w", err)
		}
		same := slices.EqualFunc(got, wanted.Rules, func(g *nftables.Rule, w rules.Rule) bool {
			return bytes.Equal(g.UserData, userData(&w))
		})
		if !same {
			return "rules of chain " + chain.Name, nil
		}
	}
	if number != len(want.Chains) {
		return fmt.Sprintf("%d chains instead of %d", number, len(want.Chains)), nil
	}
	return "", nil
}

func differentSets(c *nftables.Conn, want *rules.Ruleset) (string, error) {
	all, err := c.GetSets(table())
	if err != nil {
		return "", fmt.Errorf("list nftables sets: %w", err)
	}
	if len(all) != len(want.Sets) {
		return fmt.Sprintf("%d sets instead of %d", len(all), len(want.Sets)), nil
	}
	for _, s := range all {
		wanted := want.Sets[s.Name]
		if wanted == nil {
			return "set " + s.Name, nil
		}
		elements, err := c.GetSetElements(&nftables.Set{Table: table(), Name: s.Name})
		if err != nil {
			return "", fmt.Errorf("list nftables elements: %w", err)
		}
		if !sameElements(elements, wanted) {
			return "elements of set " + s.Name, nil
		}
	}
	return "", nil
}
