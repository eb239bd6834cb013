package cni

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
)

// What a sandbox's network leaves behind when the runtime is cut off while it
// makes it or takes it away: an attachment that libcni remembers, an address that
// host-local holds, masquerading rules, a pinned network namespace. The runtime
// runs the plugins, so that whether a sandbox is still somebody's is for others
// to say: see Survey.

// Kind is a kind of leak.
type Kind string

const (
	Attachment  Kind = "attachment" // libcni remembers it, with all that is needed to take it away
	Address     Kind = "address"    // host-local holds it for a container of which nothing else is remembered
	Rules       Kind = "rules"      // of a container of which nothing else is left
	PinnedNetNS Kind = "netns"      // a network namespace kept by a mount
	Chain       Kind = "chain"      // of rules for one container, without any
)

// Leak is what one container's network has left.
type Leak struct {
	Kind      Kind
	ID        string // of the container; empty for a Pin or a Chain
	Chain     string // its name
	NetNS     string // path of the pin; empty: not known
	Addresses []string
	// OwnedByBerth says that berth made the container: its annotations are in what
	// libcni remembers.
	OwnedByBerth bool

	ifName         string
	network        string
	restoreProgram string   // that changes the rules of a Chain's family
	loopbackFiles  []string // what libcni remembers of its loopback
	cached         *attachment
}

// LeakQuery says what Leaks looks at.
type LeakQuery struct {
	Known    func(id string) bool // containers that somebody answers for, as far as is known without asking
	PinKnown func(path string) bool
	// FilterUnknown returns those of the IDs that nobody answers for. It is asked only
	// when something is there that is not Known.
	FilterUnknown     func(ctx context.Context, ids []string) ([]string, error)
	AnnotationPrefix  string // beginning of the names of berth's annotations
	NetNSDir          string // directory where the runtime pins namespaces
	ExclusiveNetNSDir bool   // no other runtime does so there
	// NetNSInUse is the set of network namespaces, by the kernel's number, in which a
	// process lives; nil: as /proc shows it.
	NetNSInUse func() map[uint64]bool
	Deep       bool // rules and pins too; runs iptables-save and reads /proc
}

// addresses is where host-local keeps them if its configuration names no place.
const addresses = "/var/lib/cni/networks"

// Leaks lists what the network of containers that nobody answers for has left.
// What is being made just now may be among it: the caller looks twice. What
// libcni remembers says whose it is; of what it does not remember nothing is
// left alive, because it does so from the end of ADD to the end of DEL.
func (n *Network) Leaks(ctx context.Context, s LeakQuery) ([]Leak, error) {
	stores := n.stores()
	conf := stores.network
	found := map[string]*Leak{}
	of := func(id string) *Leak {
		if found[id] == nil {
			found[id] = &Leak{ID: id, Kind: Rules, network: conf, ifName: "eth0"}
		}
		return found[id]
	}
	for _, dir := range stores.addresses {
		held, err := heldAddresses(filepath.Join(dir, conf))
		if err != nil {
			return nil, fmt.Errorf("list the addresses in use: %w", err)
		}
		for _, a := range held {
			if !s.Known(a.id) {
				l := of(a.id)
				l.Kind, l.ifName, l.Addresses = Address, a.ifName, append(l.Addresses, a.file)
			}
		}
	}
	var rules []string
	if s.Deep {
		rules = tables(ctx)
		for _, id := range ruled(rules, conf) {
			if !s.Known(id) {
				of(id)
			}
		}
	}
	cached, err := n.attachments(s.Known)
	if err != nil {
		return nil, fmt.Errorf("list what libcni remembers: %w", err)
	}
	for _, a := range cached {
		if !a.marked(s.AnnotationPrefix) || !a.here(conf, s) { // another's, and so is all that bears its ID
			delete(found, a.ContainerID)
			continue
		}
		if _, more := found[a.ContainerID]; a.NetworkName == loopbackNetwork && !more && !s.ExclusiveNetNSDir && a.pinned() {
			continue // says nothing by itself
		}
		l := of(a.ContainerID)
		l.Kind, l.OwnedByBerth = Attachment, true
		if a.NetworkName == loopbackNetwork {
			l.loopbackFiles = append(l.loopbackFiles, a.file)
			continue
		}
		l.cached, l.network, l.ifName, l.NetNS = &a, a.NetworkName, a.IfName, a.netns()
	}
	out, err := unanswered(ctx, found, s)
	if err != nil || !s.Deep {
		return out, err
	}
	pins, err := n.pins(s)
	if slices.ContainsFunc(stores.plugins, makesChains) {
		out = append(out, emptyChains(rules)...)
	}
	return append(out, pins...), err
}

// unanswered keeps the leaks of containers that nobody answers for and in whose
// namespace nothing runs.
func unanswered(ctx context.Context, found map[string]*Leak, s LeakQuery) (out []Leak, err error) {
	ids := make([]string, 0, len(found))
	for id := range found {
		ids = append(ids, id)
	}
	if len(ids) == 0 {
		return nil, nil
	}
	if ids, err = s.FilterUnknown(ctx, ids); err != nil {
		return nil, err
	}
	var lived map[uint64]bool
	for _, id := range ids {
		l := *found[id]
		if l.NetNS != "" {
			if lived == nil {
				lived = s.lived()
			}
			if ino, ok := namespaceAt(l.NetNS); ok && lived[ino] {
				continue
			}
		}
		out = append(out, l)
	}
	return out, nil
}

// stores is what the configuration that counts says of where things are kept.
type stores struct {
	network   string   // its name; empty: the configuration is bad
	plugins   []string // their types
	addresses []string // directories of host-local
}

func (n *Network) stores() (out stores) {
	file, err := first(n.opts.ConfDir)
	if err != nil {
		return out
	}
	text, err := read(file)
	if err != nil {
		return out
	}
	understood, err := parse(file, text)
	if err != nil {
		return out
	}
	type plugin struct {
		IPAM struct{ Type, DataDir string }
	}
	var conf struct {
		Plugins []plugin
		plugin
	}
	if json.Unmarshal(text, &conf) != nil {
		return out
	}
	for _, p := range append(conf.Plugins, conf.plugin) {
		if p.IPAM.Type == "host-local" {
			out.addresses = append(out.addresses, cmp.Or(p.IPAM.DataDir, addresses))
		}
	}
	slices.Sort(out.addresses)
	out.network, out.plugins, out.addresses = understood.name, understood.plugins, slices.Compact(out.addresses)
	return out
}

// makesChains reports whether a plugin makes chains of rules for containers.
func makesChains(plugin string) bool {
	return plugin == "bridge" || plugin == "ptp" || plugin == "portmap"
}

// held is an address that host-local has given out.
type held struct{ file, id, ifName string }

// heldAddresses reads host-local's store of a network: a file per address, in it
// the container's ID and the interface, a line each.
func heldAddresses(dir string) (out []held, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if e.IsDir() || e.Name() == "lock" || strings.HasPrefix(e.Name(), "last_reserved_ip") {
			continue
		}
		file := filepath.Join(dir, e.Name())
		if h, ok := readHeld(file); ok {
			out = append(out, h)
		}
	}
	return out, nil
}

func readHeld(file string) (held, bool) {
	text, err := os.ReadFile(file)
	f := strings.Fields(string(text))
	if err != nil || len(f) == 0 || !isID(f[0]) {
		return held{}, false
	}
	h := held{file: file, id: f[0], ifName: "eth0"}
	if len(f) > 1 {
		h.ifName = f[1]
	}
	return h, true
}

// isID reports whether a container's ID is one that a CRI runtime makes.
func isID(id string) bool { return len(id) == 64 && strings.Trim(id, "0123456789abcdef") == "" }

// loopbackNetwork is the network of sandboxes' loopbacks, as containerd calls it.
const loopbackNetwork = "cni-loopback"

// attachment is what libcni remembers of one, in its own words.
type attachment struct {
	Kind           string
	ContainerID    string `json:"containerId"`
	Config         []byte
	IfName         string
	NetworkName    string
	NetNS          string         `json:"netns"`
	CNIArgs        [][2]string    `json:"cniArgs"`
	CapabilityArgs map[string]any `json:"capabilityArgs"`
	Result         struct {
		Interfaces []struct{ Name, Sandbox string }
	}

	file string
}

// attachments reads what libcni remembers of containers that are not known by
// the name of the file: NETWORK-ID-INTERFACE.
func (n *Network) attachments(known func(string) bool) (out []attachment, err error) {
	dir := filepath.Join(n.cache(), "results")
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		parts := strings.Split(e.Name(), "-")
		at := slices.IndexFunc(parts, isID)
		if at < 1 || known(parts[at]) {
			continue
		}
		a := attachment{file: filepath.Join(dir, e.Name())}
		text, err := os.ReadFile(a.file)
		if err == nil && json.Unmarshal(text, &a) == nil && a.ContainerID == parts[at] && a.NetworkName != "" && a.IfName != "" {
			out = append(out, a)
		}
	}
	// Loopbacks last: they are joined to what else there is of their container.
	slices.SortStableFunc(out, func(a, b attachment) int {
		switch lo, other := a.NetworkName == loopbackNetwork, b.NetworkName == loopbackNetwork; {
		case lo == other:
			return 0
		case lo:
			return 1
		}
		return -1
	})
	return out, nil
}

// here reports whether an attachment was made by this node's runtime and not by
// another of the machine, which may have an agent of its own: by where its
// namespace was pinned, and by the network where several pin in one place.
func (a attachment) here(network string, s LeakQuery) bool {
	at := a.netns()
	if at == "" {
		return a.NetworkName == network
	}
	if unaliased(filepath.Dir(at)) != unaliased(s.NetNSDir) {
		return false
	}
	return s.ExclusiveNetNSDir || a.NetworkName == network || a.NetworkName == loopbackNetwork || !a.pinned()
}

// pinned reports whether the namespace that was attached is still there.
func (a attachment) pinned() bool {
	_, ok := namespaceAt(a.netns())
	return ok
}

// unaliased is a path below /run whatever name it was given.
func unaliased(path string) string {
	if rest, ok := strings.CutPrefix(filepath.Clean(path), "/var/run/"); ok {
		return "/run/" + rest
	}
	return filepath.Clean(path)
}

func (n *Network) cache() string {
	if n.opts.CacheDir != "" {
		return n.opts.CacheDir
	}
	return libcni.CacheDir
}

// marked reports whether the pod's annotations, which containerd hands to the
// plugins, hold one of berth's.
func (a attachment) marked(mark string) bool {
	annotations, _ := a.CapabilityArgs["io.kubernetes.cri.pod-annotations"].(map[string]any)
	for name := range annotations {
		if mark != "" && strings.HasPrefix(name, mark) {
			return true
		}
	}
	return false
}

// netns is the namespace that was attached; empty: not remembered.
func (a attachment) netns() string {
	if a.NetNS != "" {
		return a.NetNS
	}
	for _, i := range a.Result.Interfaces {
		if i.Sandbox != "" {
			return i.Sandbox
		}
	}
	return ""
}
