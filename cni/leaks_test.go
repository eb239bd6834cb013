package cni

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func hexID(c string) string { return strings.Repeat(c, 64) }

// leakHost is a fake host with a network, host-local's data and libcni's cache.
type leakHost struct {
	*testing.T
	dir     string
	network *Network
}

func newLeakHost(t *testing.T) *leakHost {
	h := &leakHost{T: t, dir: t.TempDir()}
	h.file(
		"net.d/10-x.conflist",
		fmt.Sprintf(
			`{"cniVersion":"1.0.0","name":"x","plugins":[`+
				`{"type":"nothing","ipam":{"type":"host-local","dataDir":%q}}]}`,
			h.path("addresses"),
		),
	)
	n, err := New(Options{ConfDir: h.path("net.d"), BinDirs: []string{h.path("bin")}, CacheDir: h.path("cache")})
	if err != nil {
		t.Fatal(err)
	}
	h.network = n
	return h
}

func (h *leakHost) path(rel string) string { return filepath.Join(h.dir, rel) }

func (h *leakHost) file(rel, text string) {
	h.Helper()
	if err := os.MkdirAll(filepath.Dir(h.path(rel)), 0o700); err != nil {
		h.Fatal(err)
	}
	if err := os.WriteFile(h.path(rel), []byte(text), 0o600); err != nil {
		h.Fatal(err)
	}
}

// bind pins the namespace of the test at a path.
func (h *leakHost) bind(rel string) {
	h.Helper()
	h.file(rel, "")
	if err := unix.Mount("/proc/self/ns/net", h.path(rel), "", unix.MS_BIND, ""); err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() {
		if err := unix.Unmount(h.path(rel), unix.MNT_DETACH); err != nil {
			h.Error(err)
		}
	})
}

func (h *leakHost) there(rel string) bool {
	_, err := os.Stat(h.path(rel))
	return err == nil
}

// remember writes an entry of libcni's cache.
func (h *leakHost) remember(network, id, ifName, annotation, netns string) {
	h.Helper()
	text, err := json.Marshal(map[string]any{
		"kind": "cniCacheV1", "containerId": id, "ifName": ifName, "networkName": network, "netns": netns,
		"cniArgs":        [][2]string{{"K8S_POD_NAME", "p"}, {"K8S_POD_UID", "uid-" + id}},
		"capabilityArgs": map[string]any{"io.kubernetes.cri.pod-annotations": map[string]string{annotation: "x"}},
	})
	if err != nil {
		h.Fatal(err)
	}
	h.file("cache/results/"+network+"-"+id+"-"+ifName, string(text))
}

func (h *leakHost) leaks(s LeakQuery) map[string]Leak {
	h.Helper()
	if s.Known == nil {
		s.Known = func(string) bool { return false }
	}
	if s.FilterUnknown == nil {
		s.FilterUnknown = func(_ context.Context, ids []string) ([]string, error) { return ids, nil }
	}
	s.PinKnown, s.AnnotationPrefix, s.NetNSDir = func(string) bool { return false }, "berth.dev/", h.path("netns")
	found, err := h.network.Leaks(h.Context(), s)
	if err != nil {
		h.Fatal(err)
	}
	out := map[string]Leak{}
	for _, l := range found {
		if l.Kind == Chain {
			continue // other users of plugins on this machine
		}
		key := l.ID
		if l.Kind == PinnedNetNS {
			key = l.NetNS
		}
		out[key] = l
	}
	return out
}

func TestLeaksFindsOrphanedResourcesOfBerth(t *testing.T) {
	t.Parallel()
	h := newLeakHost(t)
	ours, foreign, bare, listed, known := hexID("a"), hexID("b"), hexID("c"), hexID("d"), hexID("e")
	otherBerth := hexID("1")
	for i, id := range []string{ours, foreign, bare, listed, known} {
		h.file(fmt.Sprintf("addresses/x/10.0.0.%d", i), id+"\r\neth0")
	}
	h.file("addresses/x/last_reserved_ip.0", "10.0.0.4")
	h.file("addresses/x/lock", "")
	h.file("addresses/x/10.0.0.9", "not an ID\r\neth0")
	h.file("addresses/other/10.9.0.1", hexID("f")+"\r\neth0")
	h.remember("x", ours, "eth0", "berth.dev/pod", h.path("netns/cni-gone"))
	h.remember("cni-loopback", ours, "lo", "berth.dev/pod", h.path("netns/cni-gone"))
	h.remember("x", foreign, "eth0", "someone.else/pod", h.path("netns/cni-gone"))
	h.remember("x", otherBerth, "eth0", "berth.dev/pod", h.path("netns/cni-gone"))
	h.file("addresses/x/10.0.0.6", otherBerth+"\r\neth0")
	calls := 0
	found := h.leaks(LeakQuery{
		Known:   func(id string) bool { return id == known },
		OwnsPod: func(uid string) bool { return uid != "uid-"+otherBerth },
		FilterUnknown: func(_ context.Context, ids []string) ([]string, error) {
			calls++
			return slices.DeleteFunc(ids, func(id string) bool { return id == listed }), nil
		},
	})
	if len(found) != 2 || calls != 1 {
		t.Fatalf("%d runtime calls, found %+v", calls, found)
	}
	if l := found[ours]; l.Kind != Attachment || !l.OwnedByBerth || len(l.loopbackFiles) != 1 ||
		len(l.Addresses) != 1 ||
		l.ifName != "eth0" {
		t.Errorf("leak of berth: %+v", l)
	}
	if l := found[bare]; l.Kind != Address || l.OwnedByBerth || len(l.Addresses) != 1 {
		t.Errorf("an address without other resources: %+v", l)
	}
}

func TestLeaksOfKnownContainersNeedNoRuntimeCall(t *testing.T) {
	t.Parallel()
	h := newLeakHost(t)
	h.file("addresses/x/10.0.0.1", hexID("a")+"\r\neth0")
	h.remember("x", hexID("a"), "eth0", "berth.dev/pod", "")
	found := h.leaks(LeakQuery{
		Known: func(string) bool { return true },
		FilterUnknown: func(context.Context, []string) ([]string, error) {
			t.Error("unexpected runtime call")
			return nil, nil
		},
	})
	if len(found) != 0 {
		t.Errorf("%+v", found)
	}
}

func TestLeaksSkipsNamespaceInUse(t *testing.T) {
	t.Parallel()
	h := newLeakHost(t)
	h.remember("x", hexID("a"), "eth0", "berth.dev/pod", h.path("netns/cni-lived"))
	h.bind("netns/cni-lived")
	if found := h.leaks(LeakQuery{}); len(found) != 0 {
		t.Errorf("%+v", found)
	}
}

func TestLeaksSkipsOtherRuntimes(t *testing.T) {
	t.Parallel()
	h := newLeakHost(t)
	h.bind("netns/cni-there")
	for i, row := range []struct {
		name, network, netns string
		own, leak            bool
	}{
		{"pinned elsewhere", "x", "/elsewhere/netns/cni-gone", true, false},
		{"pinned in a place of ours alone", "other", h.path("netns/cni-there"), true, true},
		{"another network, in a place that several share", "other", h.path("netns/cni-there"), false, false},
		{"another network, without its namespace", "other", h.path("netns/cni-gone"), false, true},
		{"a loopback alone, in a place that several share", "cni-loopback", h.path("netns/cni-there"), false, false},
		{"a loopback alone, without its namespace", "cni-loopback", h.path("netns/cni-gone"), false, true},
		{"pinned nowhere, of our network", "x", "", false, true},
		{"pinned nowhere, of another", "other", "", false, false},
	} {
		id := hexID(fmt.Sprint(i))
		h.remember(row.network, id, "eth0", "berth.dev/pod", row.netns)
		found := h.leaks(LeakQuery{
			ExclusiveNetNSDir: row.own, Known: func(other string) bool { return other != id },
			NetNSInUse: func() map[uint64]bool { return nil }, // as if it did not contain the test process
		})
		if _, leak := found[id]; leak != row.leak {
			t.Errorf("%s: %v", row.name, leak)
		}
	}
}

func TestLeaksFindsAttachmentsOfRemovedNetwork(t *testing.T) {
	t.Parallel()
	h := newLeakHost(t)
	h.remember("renamed-net", hexID("a"), "eth0", "berth.dev/pod", h.path("netns/cni-gone"))
	if l := h.leaks(LeakQuery{})[hexID("a")]; l.network != "renamed-net" || l.Kind != Attachment {
		t.Errorf("%+v", l)
	}
	if err := os.RemoveAll(h.path("net.d")); err != nil {
		t.Fatal(err)
	}
	if l := h.leaks(LeakQuery{})[hexID("a")]; l.network != "renamed-net" {
		t.Errorf("without a network configuration: %+v", l)
	}
}

func TestLeaksFindsPinnedNamespaces(t *testing.T) {
	t.Parallel()
	h := newLeakHost(t)
	for _, name := range []string{"cni-free", "cni-named", "mine"} {
		h.file("netns/"+name, "")
	}
	h.remember("y", hexID("b"), "eth0", "someone.else/pod", "/elsewhere/netns/cni-named")
	found := h.leaks(LeakQuery{Deep: true})
	if len(found) != 1 || found[h.path("netns/cni-free")].Kind != PinnedNetNS {
		t.Errorf("%+v", found)
	}
	if err := h.network.Release(t.Context(), found[h.path("netns/cni-free")]); err != nil ||
		h.there("netns/cni-free") ||
		!h.there("netns/cni-named") || !h.there("netns/mine") {
		t.Errorf("release: %v", err)
	}
}

func TestReleaseDeletesResourcesOfOneContainer(t *testing.T) {
	t.Parallel()
	h := newLeakHost(t)
	a, b := hexID("a"), hexID("b")
	h.file("addresses/x/10.0.0.1", a+"\r\neth0")
	h.file("addresses/x/10.0.0.2", b+"\r\neth0")
	for _, id := range []string{a, b} {
		h.remember("x", id, "eth0", "berth.dev/pod", h.path("netns/cni-gone"))
		h.remember("cni-loopback", id, "lo", "berth.dev/pod", h.path("netns/cni-gone"))
	}
	l := h.leaks(LeakQuery{})[a]
	h.file("addresses/x/10.0.0.3", b+"\r\neth0")
	l.Addresses = append(l.Addresses, h.path("addresses/x/10.0.0.3")) // now allocated to another container
	for range 2 {
		if err := h.network.Release(t.Context(), l); err != nil { // its plugin does not exist
			t.Fatal(err)
		}
	}
	for rel, want := range map[string]bool{
		"addresses/x/10.0.0.1": false, "addresses/x/10.0.0.2": true, "addresses/x/10.0.0.3": true,
		"cache/results/x-" + a + "-eth0": false, "cache/results/cni-loopback-" + a + "-lo": false,
		"cache/results/x-" + b + "-eth0": true, "cache/results/cni-loopback-" + b + "-lo": true,
	} {
		if h.there(rel) != want {
			t.Errorf("%s: exists %v", rel, !want)
		}
	}
}

// saved is the output of iptables-save with rules of three containers.
func saved(network, a, b string) string {
	comment := func(id string) string {
		return fmt.Sprintf(`-m comment --comment "name: \"%s\" id: \"%s\""`, network, id)
	}
	const chainA, chainB, dnatA = "CNI-aaaaaaaaaaaaaaaaaaaaaaaa", "CNI-bbbbbbbbbbbbbbbbbbbbbbbb",
		"CNI-DN-aaaaaaaaaaaaaaaaaaaaa"
	return strings.Join([]string{
		"*nat",
		":POSTROUTING ACCEPT [0:0]",
		":" + chainA + " - [0:0]",
		":" + chainB + " - [0:0]",
		":" + dnatA + " - [0:0]",
		"-A POSTROUTING -s 10.0.0.1/32 " + comment(a) + " -j " + chainA,
		"-A POSTROUTING -s 10.0.0.2/32 " + comment(b) + " -j " + chainB,
		"-A " + chainA + " -d 10.0.0.0/24 " + comment(a) + " -j ACCEPT",
		"-A " + chainA + " ! -d 224.0.0.0/4 " + comment(a) + " -j MASQUERADE",
		"-A " + chainB + " ! -d 224.0.0.0/4 " + comment(b) + " -j MASQUERADE",
		strings.Replace(
			"-A CNI-HOSTPORT-DNAT -p tcp "+comment(a)+" -m multiport --dports 80 -j "+dnatA,
			`"name`,
			`"dnat name`,
			1,
		),
		"-A " + dnatA + " -p tcp -j DNAT --to-destination 10.0.0.1:80",
		"-A POSTROUTING -s 10.0.0.3/32 -j MASQUERADE",
		"COMMIT",
		"",
	}, "\n")
}

func TestDeletionScript(t *testing.T) {
	t.Parallel()
	a, b := hexID("a"), hexID("b")
	text := deletionScript(saved("x", a, b), "x", a)
	if strings.Contains(text, b) || strings.Contains(text, "bbbb") || strings.Contains(text, "10.0.0.3") {
		t.Errorf("rules of another runtime were changed:\n%s", text)
	}
	for _, want := range []string{
		"-D POSTROUTING -s 10.0.0.1/32", "-D CNI-HOSTPORT-DNAT -p tcp",
		"-F CNI-aaaaaaaaaaaaaaaaaaaaaaaa\n", "-X CNI-aaaaaaaaaaaaaaaaaaaaaaaa\n", "-X CNI-DN-aaaaaaaaaaaaaaaaaaaaa\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("missing %q:\n%s", want, text)
		}
	}
	if at := strings.Index(text, "-X"); at < strings.LastIndex(text, "-D ") || at < strings.LastIndex(text, "-F ") {
		t.Errorf("a chain is deleted before the rules that jump to it:\n%s", text)
	}
	for what, got := range map[string]string{
		"another network":   deletionScript(saved("x", a, b), "y", a),
		"another container": deletionScript(saved("x", a, b), "x", hexID("c")), "no rules": deletionScript("", "x", a),
	} {
		if got != "" {
			t.Errorf("%s:\n%s", what, got)
		}
	}
}

func TestDeletionScriptKeepsSharedChain(t *testing.T) {
	t.Parallel()
	a, b := hexID("a"), hexID("b")
	shared := strings.ReplaceAll(saved("x", a, b), strings.Repeat("b", 24), strings.Repeat("a", 24))
	if text := deletionScript(shared, "x", a); strings.Contains(text, "-X CNI-aaaaaaaaaaaaaaaaaaaaaaaa\n") ||
		!strings.Contains(text, "-D POSTROUTING -s 10.0.0.1/32") {
		t.Errorf("\n%s", text)
	}
}

func TestContainerOfRule(t *testing.T) {
	t.Parallel()
	a := hexID("a")
	for line, want := range map[string]string{
		`-A POSTROUTING -m comment --comment "name: \"x\" id: \"` + a + `\"" -j Y`:       a,
		`-A CNI-X -m comment --comment "dnat name: \"x\" id: \"` + a + `\"" -j Y`:        a,
		`-A POSTROUTING -m comment --comment "name: \"x\" id: \"nerdctl-thing\"" -j Y`:   "",
		`-A POSTROUTING -m comment --comment "name: \"other\" id: \"` + a + `\"" -j Y`:   "",
		`:CNI-X - [0:0] name: \"x\" id: \"` + a + `\"`:                                   "",
		`-A POSTROUTING -m comment --comment "name: \"x\" id: \"` + a:                    "",
		`-A POSTROUTING -m comment --comment "name: \"x-y\" id: \"` + a + `\"" -j CNI-X`: "",
	} {
		if got := containerOfRule(line, "x"); got != want {
			t.Errorf("%s: %q", line, got)
		}
	}
}

func TestEmptyChainNames(t *testing.T) {
	t.Parallel()
	const text = ":CNI-000000000000000000000000 - [0:0]\n:CNI-111111111111111111111111 - " +
		"[0:0]\n:CNI-222222222222222222222222 - [0:0]\n" +
		":CNI-DN-00000000000000000000a - [0:0]\n:CNI-HOSTPORT-DNAT - [0:0]\n:MINE - [0:0]\n" +
		"-A POSTROUTING -s 10.0.0.1/32 -j CNI-111111111111111111111111\n-A CNI-222222222222222222222222 -j ACCEPT\n"
	if got := emptyChainNames(text); !slices.Equal(got, []string{"CNI-000000000000000000000000",
		"CNI-DN-00000000000000000000a"}) {
		t.Errorf("%q", got)
	}
}
