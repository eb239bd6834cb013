package nodeservices

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"

	"berth/services"
	"berth/services/enablement"
	"berth/services/localaddress"
)

// TestProxyIsRemovedOnlyIfStarted runs several configurations one after another with the same store.
func TestProxyIsRemovedOnlyIfStarted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stored := map[string][]byte{}
		var calls []string
		run := func(proxy string) {
			s := New(Options{
				ProxySetting: proxy, DNSSetting: enablement.Off, Standalone: true, Store: services.NewStore(),
				RunProxy: func(ctx context.Context) error {
					calls = append(calls, "run")
					<-ctx.Done()
					return nil
				},
				RunAnnouncer: func(ctx context.Context) error {
					<-ctx.Done()
					return nil
				},
				RemoveProxy:     func() error { calls = append(calls, "remove"); return nil },
				Addresses:       localaddress.Addresses{File: filepath.Join(t.TempDir(), "addresses")},
				Stored:          maps.Clone(stored),
				EndpointsNeeded: func() { calls = append(calls, "endpoints") },
				Put: func(key string, value []byte) {
					stored[key] = value
					maps.DeleteFunc(stored, func(_ string, v []byte) bool { return v == nil })
				},
				Log: slog.New(slog.DiscardHandler),
			})
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() { ended <- s.Run(ctx) }()
			synctest.Wait()
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		for _, setting := range []string{
			enablement.Off, enablement.Auto, enablement.Auto, enablement.Off, enablement.Off,
		} {
			run(setting)
		}
		want := []string{"endpoints", "run", "endpoints", "run", "remove"}
		if !slices.Equal(calls, want) {
			t.Errorf("got %v, want %v", calls, want)
		}
	})
}

func TestClusterDNSOfPods(t *testing.T) {
	t.Parallel()
	service, fallback := netip.MustParseAddr("10.43.0.10"), netip.MustParseAddr("10.43.9.9")
	known := services.NewStore()
	known.SetService(&services.Service{Name: services.Name{Namespace: "kube-system", Name: "kube-dns"},
		ClusterIPs: []netip.Addr{service}})
	for _, c := range []struct {
		name       string
		options    Options
		decided    *enablement.Decision
		want       []netip.Addr
		wantDomain string
	}{
		{"configured for another DNS server", Options{DNSSetting: enablement.Off, ClusterDNS: []netip.Addr{service}},
			nil, []netip.Addr{service}, ""},
		{"nothing configured", Options{DNSSetting: enablement.Off}, nil, nil, ""},
		{"Service of the cluster", Options{DNSSetting: enablement.Auto}, nil, []netip.Addr{service}, "cluster.local"},
		{"own domain", Options{DNSSetting: enablement.On, ClusterDomain: "example.org"}, nil, []netip.Addr{service},
			"example.org"},
		{"another control plane", Options{DNSSetting: enablement.Auto}, &enablement.Decision{}, nil, ""},
		{"DNS of another control plane, without a domain", Options{DNSSetting: enablement.Auto,
			ClusterDNS: []netip.Addr{service}}, &enablement.Decision{}, []netip.Addr{service}, ""},
		{"standalone", Options{DNSSetting: enablement.Auto, Standalone: true, StandaloneDNS: fallback,
			Store: services.NewStore()}, &enablement.Decision{DNS: true}, []netip.Addr{fallback}, "cluster.local"},
	} {
		if c.options.Store == nil {
			c.options.Store = known
		}
		s := New(c.options)
		s.decision.Store(c.decided)
		if got := s.ClusterDNS(); !slices.Equal(got, c.want) {
			t.Errorf("%s: got addresses %v, want %v", c.name, got, c.want)
		}
		if got := s.ClusterDomain(); got != c.wantDomain {
			t.Errorf("%s: got domain %q, want %q", c.name, got, c.wantDomain)
		}
	}
}
