package enablement

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	"berth/services"
)

// Values of a setting.
const (
	Auto = "auto"
	On   = "on"
	Off  = "off"
)

// Control planes, as remembered.
const (
	BerthControl = "berth-control"
	Other        = "other"
)

// VersionSuffix ends the version of berth-control.
const VersionSuffix = "+berth"

const (
	firstAnswer   = 2 * time.Second // wait for the API server before the remembered control plane counts
	retryInterval = 2 * time.Second
)

// Decision says what runs.
type Decision struct{ Proxy, DNS bool }

// Decide returns what runs with the given settings. controlPlane is empty for a standalone node.
func Decide(proxy, dns, controlPlane string) Decision {
	auto := controlPlane == "" || controlPlane == BerthControl
	on := func(setting string) bool { return setting == On || setting == Auto && auto }
	return Decision{Proxy: on(proxy), DNS: on(dns)}
}

// Options configures Wait.
type Options struct {
	Proxy, DNS string // Auto, On or Off
	Standalone bool
	// ServerVersion returns the version of the API server. It returns within the deadline of ctx.
	ServerVersion func(ctx context.Context) (string, error)
	// Remembered is the control plane that an earlier process has found; empty: none. Remember stores
	// it.
	Remembered string
	Remember   func(controlPlane string)
	Log        *slog.Logger
}

// Wait returns what runs as soon as it is known. Without an answer of the API server the remembered
// control plane counts. It returns the error of ctx if ctx ends before.
func Wait(ctx context.Context, o Options) (Decision, error) {
	if o.Standalone || o.Proxy != Auto && o.DNS != Auto {
		return Decide(o.Proxy, o.DNS, ""), nil
	}
	deadline := time.Now().Add(firstAnswer)
	for {
		if at, ok := o.ask(ctx); ok {
			if at != o.Remembered {
				o.Remember(at)
			}
			return Decide(o.Proxy, o.DNS, at), nil
		}
		if o.Remembered != "" && !time.Now().Before(deadline) {
			o.Log.Info("API server not reachable, using the last known control plane", "controlPlane", o.Remembered)
			return Decide(o.Proxy, o.DNS, o.Remembered), nil
		}
		select {
		case <-ctx.Done():
			return Decision{}, ctx.Err()
		case <-time.After(retryInterval):
		}
	}
}

// Ask returns what the present answer of the API server leads to. It returns false without an answer.
func Ask(ctx context.Context, o Options) (d Decision, answered bool) {
	if o.Proxy != Auto && o.DNS != Auto {
		return Decide(o.Proxy, o.DNS, ""), true
	}
	at, answered := o.ask(ctx)
	return Decide(o.Proxy, o.DNS, at), answered
}

// ask returns the control plane, if the API server answers.
func (o Options) ask(ctx context.Context) (controlPlane string, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, firstAnswer)
	defer cancel()
	version, err := o.ServerVersion(ctx)
	switch {
	case err != nil:
		o.Log.Debug("version of the API server could not be read", "err", err)
		return "", false
	case strings.HasSuffix(version, VersionSuffix):
		return BerthControl, true
	}
	return Other, true
}

// DefaultDomain is the cluster domain if the configuration has none and the DNS server runs.
const DefaultDomain = "cluster.local"

// dnsService is the Service whose cluster IPs are the addresses of the cluster's DNS.
var dnsService = services.Name{Namespace: "kube-system", Name: "kube-dns"}

// DNSAddresses returns the addresses on which the DNS server of the node answers: the configured ones,
// otherwise the cluster IPs of the Service kube-system/kube-dns, otherwise the default of a standalone
// node, which is not valid on others. It returns none while they are unknown.
func DNSAddresses(configured []netip.Addr, standalone netip.Addr, store *services.Store) []netip.Addr {
	if len(configured) > 0 {
		return configured
	}
	if svc, _ := store.Service(dnsService); svc != nil && len(svc.ClusterIPs) > 0 {
		return svc.ClusterIPs
	}
	if standalone.IsValid() {
		return []netip.Addr{standalone}
	}
	return nil
}

// FollowDNSAddresses calls changed with the addresses of DNSAddresses, first when they are known and
// then on each change, until ctx ends.
func FollowDNSAddresses(ctx context.Context, configured []netip.Addr, standalone netip.Addr, store *services.Store,
	changed func([]netip.Addr),
) {
	sub := store.Subscribe()
	defer sub.Close()
	var last []netip.Addr
	for {
		if now := DNSAddresses(configured, standalone, store); len(now) > 0 && !slices.Equal(now, last) {
			changed(now)
			last = slices.Clone(now)
		}
		select {
		case <-ctx.Done():
			return
		case <-sub.Changed():
			sub.Take()
		}
	}
}
