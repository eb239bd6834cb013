package localaddress

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// inNamespace runs the rest of the test in a network namespace of its own.
func inNamespace(t *testing.T) netlink.Link {
	t.Helper()
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
	return lo
}

func addrs(texts ...string) (out []netip.Addr) {
	for _, text := range texts {
		out = append(out, netip.MustParseAddr(text))
	}
	return out
}

// requireAddresses checks the addresses of the loopback interface besides 127.0.0.1 and ::1.
func requireAddresses(t *testing.T, lo netlink.Link, want ...string) {
	t.Helper()
	present, err := addressesOf(lo)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for a := range present {
		if !a.IsLoopback() {
			got = append(got, a.String())
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestSet(t *testing.T) {
	lo := inNamespace(t)
	if err := netlink.AddrAdd(lo, hostAddress(netip.MustParseAddr("192.0.2.1"))); err != nil {
		t.Fatal(err)
	}
	a := Addresses{File: filepath.Join(t.TempDir(), "state", FileName)}
	set := func(texts ...string) {
		t.Helper()
		if err := a.Set(addrs(texts...)); err != nil {
			t.Fatal(err)
		}
	}
	set("10.43.0.10", "fd00:43::a", "192.0.2.1")
	set("10.43.0.10", "fd00:43::a", "192.0.2.1")
	requireAddresses(t, lo, "10.43.0.10", "fd00:43::a", "192.0.2.1")
	set("10.43.0.11", "192.0.2.1")
	requireAddresses(t, lo, "10.43.0.11", "192.0.2.1")
	if err := netlink.AddrDel(lo, hostAddress(netip.MustParseAddr("10.43.0.11"))); err != nil {
		t.Fatal(err)
	}
	set("10.43.0.11", "192.0.2.1") // removed by another program
	requireAddresses(t, lo, "10.43.0.11", "192.0.2.1")
	if err := a.Remove(); err != nil {
		t.Fatal(err)
	}
	requireAddresses(t, lo, "192.0.2.1") // it was there before
	if _, err := os.Stat(a.File); err == nil {
		t.Error("the file is left")
	}
}

// TestCrashBetweenFileAndKernel: an address that the file lists is removed even if the process that
// wrote it did not add it, or died after it.
func TestCrashBetweenFileAndKernel(t *testing.T) {
	lo := inNamespace(t)
	a := Addresses{File: filepath.Join(t.TempDir(), FileName)}
	if err := a.write(addrs("10.43.0.10", "10.43.0.11")); err != nil {
		t.Fatal(err)
	}
	if err := netlink.AddrAdd(lo, hostAddress(netip.MustParseAddr("10.43.0.11"))); err != nil {
		t.Fatal(err)
	}
	if err := a.Remove(); err != nil {
		t.Fatal(err)
	}
	requireAddresses(t, lo)
}

func TestDamagedFile(t *testing.T) {
	inNamespace(t)
	a := Addresses{File: filepath.Join(t.TempDir(), FileName)}
	if err := os.WriteFile(a.File, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := a.Set(addrs("10.43.0.10")); err == nil {
		t.Error("a damaged file is not reported")
	}
}

// TestKeep removes addresses of both families as another program does.
func TestKeep(t *testing.T) {
	lo := inNamespace(t)
	ns, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	a := Addresses{File: filepath.Join(t.TempDir(), FileName)}
	want := addrs("10.43.0.10", "fd00:43::a")
	if err := a.Set(want); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	restored, ended := make(chan []netip.Addr, 10), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := netns.Set(ns)
		if err == nil {
			a.Keep(ctx, want, func(missing []netip.Addr, err error) {
				if err != nil {
					t.Error(err)
				}
				restored <- missing
			})
		}
		ended <- err
	}()
	for _, x := range want {
		if err := netlink.AddrDel(lo, hostAddress(x)); err != nil {
			t.Fatal(err)
		}
		select {
		case missing := <-restored:
			if !slices.Equal(missing, []netip.Addr{x}) {
				t.Errorf("got %v, want %s", missing, x)
			}
		case <-time.After(time.Minute):
			t.Fatal("the address was not added again")
		}
		requireAddresses(t, lo, "10.43.0.10", "fd00:43::a")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := a.Remove(); err != nil {
		t.Error(err)
	}
	requireAddresses(t, lo)
}
