package enablement

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"berth/services"
)

func TestDecide(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		proxy, dns, controlPlane string
		want                     Decision
	}{
		{Auto, Auto, "", Decision{true, true}},
		{Auto, Auto, BerthControl, Decision{true, true}},
		{Auto, Auto, Other, Decision{false, false}},
		{On, Auto, Other, Decision{true, false}},
		{Auto, On, Other, Decision{false, true}},
		{Off, Off, BerthControl, Decision{false, false}},
		{Off, Auto, "", Decision{false, true}},
	} {
		if got := Decide(c.proxy, c.dns, c.controlPlane); got != c.want {
			t.Errorf("%s %s %q: got %v, want %v", c.proxy, c.dns, c.controlPlane, got, c.want)
		}
	}
}

func TestWait(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, remembered string
		version          string
		after            time.Duration // until the server answers; negative: never
		want             Decision
		stored           string
		takes            time.Duration
	}{
		{"berth-control", "", "v1.37.2+berth", 0, Decision{true, true}, BerthControl, 0},
		{"another control plane", "", "v1.37.2", 0, Decision{}, Other, 0},
		{"late answer", "", "v1.37.2+berth", 3 * time.Second, Decision{true, true}, BerthControl, 4 * time.Second},
		{"no answer, remembered", BerthControl, "", -1, Decision{true, true}, "", 2 * time.Second},
		{"no answer, another one remembered", Other, "", -1, Decision{}, "", 2 * time.Second},
		{"an answer replaces what is remembered", Other, "v1.37.2+berth", 0, Decision{true, true}, BerthControl, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			began, stored := time.Now(), ""
			got, err := Wait(t.Context(), Options{
				Proxy: Auto, DNS: Auto, Remembered: c.remembered, Remember: func(x string) { stored = x },
				Log: slog.New(slog.DiscardHandler),
				ServerVersion: func(context.Context) (string, error) {
					if c.after < 0 || time.Since(began) < c.after {
						return "", errors.New("unreachable")
					}
					return c.version, nil
				},
			})
			if err != nil || got != c.want || stored != c.stored || time.Since(began) != c.takes {
				t.Errorf("%s: got %v, %v, stored %q after %s", c.name, got, err, stored, time.Since(began))
			}
		})
	}
}

func TestFollowDNSAddresses(t *testing.T) {
	t.Parallel()
	addr := netip.MustParseAddr
	synctest.Test(t, func(t *testing.T) {
		store := services.NewStore()
		ctx, cancel := context.WithCancel(t.Context())
		var got [][]netip.Addr
		ended := make(chan struct{})
		go func() {
			FollowDNSAddresses(ctx, nil, netip.Addr{}, store, func(a []netip.Addr) { got = append(got, a) })
			close(ended)
		}()
		synctest.Wait()
		set := func(text string) {
			store.SetService(&services.Service{Name: dnsService, ClusterIPs: []netip.Addr{addr(text)}})
			synctest.Wait()
		}
		set("10.96.0.10")
		set("10.96.0.10")
		store.SetService(&services.Service{Name: services.Name{Namespace: "a", Name: "b"}})
		store.DeleteService(dnsService) // the last address remains in use
		set("10.96.0.11")
		cancel()
		<-ended
		want := [][]netip.Addr{{addr("10.96.0.10")}, {addr("10.96.0.11")}}
		if !slices.EqualFunc(got, want, slices.Equal) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
	empty := services.NewStore()
	if got := DNSAddresses(nil, addr("10.2.2.2"), empty); !slices.Equal(got, []netip.Addr{addr("10.2.2.2")}) {
		t.Errorf("standalone: got %v", got)
	}
	own := []netip.Addr{addr("10.1.1.1")}
	if got := DNSAddresses(own, addr("10.2.2.2"), empty); !slices.Equal(got, own) {
		t.Errorf("configured: got %v", got)
	}
}
