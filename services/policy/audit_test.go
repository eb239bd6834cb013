package policy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/types"

	"berth/services/policy/selection"
)

// TestForeignChangesAreRepaired: another program removes the table, a rule or an element. Foreign
// tables are not touched.
func TestForeignChangesAreRepaired(t *testing.T) {
	t.Parallel()
	n := newTestNode(t)
	c, err := kernel{n.ns}.conn()
	n.must(err)
	foreign := c.AddTable(&nftables.Table{Name: "foreign", Family: nftables.TableFamilyINet})
	chain := c.AddChain(&nftables.Chain{Name: "c", Table: foreign})
	c.AddRule(&nftables.Rule{Table: foreign, Chain: chain, Exprs: []expr.Any{&expr.Counter{}}})
	n.must(c.Flush())
	s := newStore()
	log := &testLog{}
	e := New(Options{Store: s, NetNS: n.ns, Log: slog.New(slog.NewTextHandler(log, nil))})
	pod4, _ := n.setLocalPod(s, testPod("n1", 2, "a"), 2)
	n.setPolicy(s, "n1", "deny", denyIngress)
	n.must(e.Sync())
	handles := n.handles()
	for _, damage := range []struct {
		name string
		do   func()
	}{
		{"elements", func() { c.FlushSet(&nftables.Set{Table: table(), Name: "ingress4"}) }},
		{"rules", func() { c.FlushChain(&nftables.Chain{Table: table(), Name: "ingress"}) }},
		{"table", func() { c.DelTable(table()) }},
		{"additional chain", func() { c.AddChain(&nftables.Chain{Table: table(), Name: "x"}) }},
	} {
		damage.do()
		n.must(c.Flush())
		e.Trigger()
		n.must(e.Sync())
		if difference, err := e.kernel.differs(s.take(true).whole); difference != "" || err != nil {
			t.Errorf("%s: not repaired: %s, error %v", damage.name, difference, err)
		}
	}
	n.expect("after repairs", outside4, pod4, selection.TCP, 80, false)
	if !log.has("network policy rules changed by another program") || testutil.ToFloat64(e.metrics.repairs) != 4 {
		t.Errorf("got %v repairs, want 4", testutil.ToFloat64(e.metrics.repairs))
	}

	// While Run is subscribed, a removed table is restored at once.
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	n.setPolicy(s, "n2", "deny", denyIngress)
	s.SetLocalPod(testPod("n1", 3, "b"), podAddresses(3))
	n.must(e.WaitInstalled(t.Context(), "uid-b-3"))
	c.DelTable(table())
	n.must(c.Flush())
	waitFor(t, "table is restored", func() bool { exists, err := e.kernel.exists(); return exists && err == nil })
	stop()
	n.must(<-done)
	rules, err := c.GetRules(foreign, chain)
	if err != nil || len(rules) != 1 || !slices.Contains(handles, rules[0].Handle) {
		t.Errorf("foreign table: got rules %v, error %v", rules, err)
	}
}

// TestForeignTransactionsDoNotDisturbAudits: the rules are not written again while another program
// changes its tables.
func TestForeignTransactionsDoNotDisturbAudits(t *testing.T) {
	t.Parallel()
	ns, err := newNamespace()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ns.Close() }()
	n := &testNode{host: &host{t: t, ns: ns}}
	s := newStore()
	for i := range 200 {
		s.SetLocalPod(testPod("n1", i, "a"), podAddresses(i))
	}
	n.setPolicy(s, "n1", "deny", denyAll)
	e := n.enforcer(s)
	n.must(e.Sync())
	handles := n.handles()
	stop, stopped := make(chan struct{}), make(chan error, 1)
	go func() {
		c, err := kernel{ns}.conn()
		for number := 0; err == nil; number++ {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
			}
			foreign := c.AddTable(&nftables.Table{
				Name: fmt.Sprintf("foreign-%d", number%7), Family: nftables.TableFamilyINet})
			for i := range number % 5 {
				c.AddChain(&nftables.Chain{Name: fmt.Sprintf("c%d", i), Table: foreign})
			}
			if number%2 == 1 {
				c.DelTable(foreign)
			}
			err = c.Flush()
		}
		stopped <- err
	}()
	for range 20 {
		e.Trigger()
		n.must(e.Sync())
	}
	close(stop)
	n.must(<-stopped)
	if got := testutil.ToFloat64(e.metrics.repairs); got != 0 || len(handles) == 0 {
		t.Errorf("rules were written again %v times", got)
	}
}

// TestFailedTransactionIsRepaired: after a transaction that the kernel refuses, the status has the
// error, and the next sync replaces the table.
func TestFailedTransactionIsRepaired(t *testing.T) {
	t.Parallel()
	n := newTestNode(t)
	s := newStore()
	log := &testLog{}
	e := New(Options{Store: s, NetNS: n.ns, Log: slog.New(slog.NewTextHandler(log, nil))})
	pod4, _ := n.setLocalPod(s, testPod("n1", 2, "a"), 2)
	n.setPolicy(s, "n1", "deny", denyIngress)
	n.setPolicy(s, "n2", "other", denyIngress)
	n.must(e.Sync())
	c, err := kernel{n.ns}.conn()
	n.must(err)
	chain := c.AddChain(&nftables.Chain{Name: "foreign", Table: table()})
	for name := range s.take(true).whole.Chains {
		if strings.HasPrefix(name, "ingress4-pod-") {
			c.AddRule(&nftables.Rule{Table: table(), Chain: chain,
				Exprs: []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: name}}})
		}
	}
	n.must(c.Flush())
	s.DeletePolicy(types.NamespacedName{Namespace: "n1", Name: "deny"})
	s.SetLocalPod(testPod("n1", 3, "b"), podAddresses(3))
	if err := e.Sync(); err == nil || e.Status().Err == "" || !log.has("network policy rules update failed") {
		t.Fatalf("deletion of a chain in use: got error %v, status %+v", err, e.Status())
	}
	n.expect("after the failure", outside4, pod4, selection.TCP, 80, false)
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := e.WaitInstalled(canceled, "uid-b-3"); !errors.Is(err, context.Canceled) {
		t.Errorf("P4: pod without rules: got error %v", err)
	}
	n.must(e.Sync())
	n.must(e.WaitInstalled(t.Context(), "uid-b-3"))
	n.expect("after the repair", outside4, pod4, selection.TCP, 80, true)
	if got := e.Status(); got.Err != "" || testutil.ToFloat64(e.metrics.failures) != 1 {
		t.Errorf("unexpected status %+v, %v failures", got, testutil.ToFloat64(e.metrics.failures))
	}
}
