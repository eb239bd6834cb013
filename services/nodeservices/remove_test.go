package nodeservices

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"berth/services"
	"berth/services/localaddress"
	"berth/services/policy"
	"berth/services/proxy"
)

// tables returns the names of all tables of the namespace of the thread.
func tables(t *testing.T) (names []string) {
	t.Helper()
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	all, err := c.ListTables()
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range all {
		names = append(names, x.Name)
	}
	slices.Sort(names)
	return names
}

// TestRemoveLeavesCleanHost leaves rules of Services and policies and an address, as an agent does that
// ends, beside those of another program, and removes them.
func TestRemoveLeavesCleanHost(t *testing.T) {
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine of the test
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		t.Fatal(err)
	}
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	c.AddTable(&nftables.Table{Name: "kube-proxy", Family: nftables.TableFamilyIPv4})
	c.AddTable(&nftables.Table{Name: policy.TableName, Family: nftables.TableFamilyINet})
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	runProxy(t, ns)
	addresses := localaddress.Addresses{File: filepath.Join(t.TempDir(), localaddress.FileName)}
	if err := addresses.Set([]netip.Addr{netip.MustParseAddr("10.43.0.10")}); err != nil {
		t.Fatal(err)
	}
	if got := tables(t); len(got) != 4 {
		t.Fatalf("got tables %v", got)
	}

	stored := map[string][]byte{keyProxy: []byte("on"), keyPolicy: []byte("on"), keyControlPlane: []byte("other")}
	o := RemoveOptions{
		Put: func(key string, value []byte) {
			stored[key] = value
			maps.DeleteFunc(stored, func(_ string, v []byte) bool { return v == nil })
		},
		RemoveProxy: func() error { return proxy.Remove(0) }, Addresses: addresses, Log: slog.New(slog.DiscardHandler),
	}
	for range 2 { // it is repeatable
		o.Stored = maps.Clone(stored)
		if err := Remove(o); err != nil {
			t.Fatal(err)
		}
		if got := tables(t); !slices.Equal(got, []string{"kube-proxy"}) {
			t.Errorf("got tables %v", got)
		}
		left, err := netlink.AddrList(lo, netlink.FAMILY_ALL)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range left {
			if !a.IP.IsLoopback() {
				t.Errorf("address %s is left", a.IPNet)
			}
		}
		if len(stored) != 1 {
			t.Errorf("got stored values %v", stored)
		}
	}
}

// runProxy writes the rules of a Service, and ends.
func runProxy(t *testing.T, ns netns.NsHandle) {
	t.Helper()
	store := services.NewStore()
	store.ReplaceServices(nil)
	store.ReplaceSlices(nil)
	p := proxy.New(proxy.Options{Store: store, NetNS: ns, Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan error)
	go func() { ended <- p.Run(ctx) }()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !p.Status().Synced && ctx.Err() == nil {
		<-tick.C
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if s := p.Status(); !s.Synced {
		t.Fatalf("rules not written: %s", s.Err)
	}
}
