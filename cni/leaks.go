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

// If the runtime is interrupted while it sets up or tears down the network of a sandbox, it can
// leave behind: an attachment in libcni's cache, an address allocated by host-local, masquerading
// rules, and a pinned network namespace. Because the runtime runs the plugins, the caller decides
// whether a sandbox still exists: see LeakQuery.

// Kind is the kind of a leak.
type Kind string

const (
	Attachment  Kind = "attachment" // entry in libcni's cache with everything that DEL needs
	Address     Kind = "address"    // allocated by host-local for a container without a cache entry
	Rules       Kind = "rules"      // NAT rules of a container without any other resources
	PinnedNetNS Kind = "netns"      // network namespace pinned by a bind mount
	Chain       Kind = "chain"      // per-container chain without rules
)

// Leak is what is left of the network of one container.
type Leak struct {
	Kind      Kind
	ID        string // container ID; empty for PinnedNetNS and Chain
	Chain     string // name of the chain
	NetNS     string // path of the pinned namespace; empty if unknown
	Addresses []string
	// OwnedByBerth is true if libcni's cache contains berth's pod annotations.
	OwnedByBerth bool

	ifName         string
	network        string
	restoreProgram string   // iptables-restore program of a Chain's address family
	loopbackFiles  []string // libcni's cache files of the loopback attachment
	cached         *attachment
}

// LeakQuery is the input of Leaks.
type LeakQuery struct {
	Known    func(id string) bool // reports whether a container is known without a runtime call
	PinKnown func(path string) bool
	// FilterUnknown returns the IDs that the runtime does not know. It is called only if there are
	// resources of containers that are not Known.
	FilterUnknown    func(ctx context.Context, ids []string) ([]string, error)
	AnnotationPrefix string // prefix of berth's annotations
	// OwnsPod reports whether an attachment with the annotation is that of a pod of this berth: another
	// one has the same annotations. Nil: it is.
	OwnsPod           func(uid string) bool
	NetNSDir          string // directory in which the runtime pins namespaces
	ExclusiveNetNSDir bool   // no other runtime uses NetNSDir
	// NetNSInUse returns the inode numbers of the network namespaces that contain a process. Nil:
	// they are read from /proc.
	NetNSInUse func() map[uint64]bool
	Deep       bool // include rules and pinned namespaces; runs iptables-save and reads /proc
}

// defaultIPAMDir is host-local's default data directory.
const defaultIPAMDir = "/var/lib/cni/networks"

// Leaks lists the network resources of containers that no longer exist. The result may include
// containers that are being created at this moment, so the caller must check twice. libcni's cache
// identifies the owner: its entries exist from the end of ADD to the end of DEL.
func (n *Network) Leaks(ctx context.Context, s LeakQuery) ([]Leak, error) {
	stores := n.confStores()
	conf := stores.network
	found := map[string]*Leak{}
	of := func(id string) *Leak {
		if found[id] == nil {
			found[id] = &Leak{ID: id, Kind: Rules, network: conf, ifName: "eth0"}
		}
		return found[id]
	}
	for _, dir := range stores.ipamDirs {
		allocated, err := allocatedAddresses(filepath.Join(dir, conf))
		if err != nil {
			return nil, fmt.Errorf("list allocated addresses: %w", err)
		}
		for _, a := range allocated {
			if !s.Known(a.id) {
				l := of(a.id)
				l.Kind, l.ifName, l.Addresses = Address, a.ifName, append(l.Addresses, a.file)
			}
		}
	}
	var rules []string
	if s.Deep {
		rules = natTables(ctx)
		for _, id := range containersWithRules(rules, conf) {
			if !s.Known(id) {
				of(id)
			}
		}
	}
	cached, err := n.attachments(s.Known)
	if err != nil {
		return nil, fmt.Errorf("list libcni cache: %w", err)
	}
	for _, a := range cached {
		if !a.hasAnnotation(s.AnnotationPrefix) || !a.ownPod(s) ||
			!a.ownRuntime(conf, s) { // it belongs to another owner, and so does everything else with this ID
			delete(found, a.ContainerID)
			continue
		}
		if _, more := found[a.ContainerID]; a.NetworkName == loopbackNetwork && !more && !s.ExclusiveNetNSDir &&
			a.netnsExists() {
			continue // a loopback alone does not identify the owner
		}
		l := of(a.ContainerID)
		l.Kind, l.OwnedByBerth = Attachment, true
		if a.NetworkName == loopbackNetwork {
			l.loopbackFiles = append(l.loopbackFiles, a.file)
			continue
		}
		l.cached, l.network, l.ifName, l.NetNS = &a, a.NetworkName, a.IfName, a.netns()
	}
	out, err := filterLeaks(ctx, found, s)
	if err != nil || !s.Deep {
		return out, err
	}
	pins, err := n.pinLeaks(s)
	if slices.ContainsFunc(stores.plugins, createsChains) {
		out = append(out, emptyChains(rules)...)
	}
	return append(out, pins...), err
}

// filterLeaks returns the leaks of containers that the runtime does not know and whose network
// namespace contains no process.
func filterLeaks(ctx context.Context, found map[string]*Leak, s LeakQuery) (out []Leak, err error) {
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
	var inUse map[uint64]bool
	for _, id := range ids {
		l := *found[id]
		if l.NetNS != "" {
			if inUse == nil {
				inUse = s.netNSInUse()
			}
			if ino, ok := namespaceAt(l.NetNS); ok && inUse[ino] {
				continue
			}
		}
		out = append(out, l)
	}
	return out, nil
}

// confStores is what the effective configuration says about the plugins' storage.
type confStores struct {
	network  string   // name of the network; empty if the configuration is invalid
	plugins  []string // plugin types
	ipamDirs []string // data directories of host-local
}

func (n *Network) confStores() (out confStores) {
	file, err := firstConfFile(n.opts.ConfDir)
	if err != nil {
		return out
	}
	text, err := readConfFile(file)
	if err != nil {
		return out
	}
	parsed, err := parse(file, text)
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
			out.ipamDirs = append(out.ipamDirs, cmp.Or(p.IPAM.DataDir, defaultIPAMDir))
		}
	}
	slices.Sort(out.ipamDirs)
	out.network, out.plugins, out.ipamDirs = parsed.name, parsed.plugins, slices.Compact(out.ipamDirs)
	return out
}

// createsChains reports whether a plugin creates iptables chains for containers.
func createsChains(plugin string) bool {
	return plugin == "bridge" || plugin == "ptp" || plugin == "portmap"
}

// allocatedAddress is an address that host-local has allocated.
type allocatedAddress struct{ file, id, ifName string }

// allocatedAddresses reads host-local's data directory of a network. It contains a file for each
// address with the container ID and the interface name on separate lines.
func allocatedAddresses(dir string) (out []allocatedAddress, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if e.IsDir() || e.Name() == "lock" || strings.HasPrefix(e.Name(), "last_reserved_ip") {
			continue
		}
		file := filepath.Join(dir, e.Name())
		if h, ok := readAllocatedAddress(file); ok {
			out = append(out, h)
		}
	}
	return out, nil
}

func readAllocatedAddress(file string) (allocatedAddress, bool) {
	text, err := os.ReadFile(file)
	f := strings.Fields(string(text))
	if err != nil || len(f) == 0 || !isID(f[0]) {
		return allocatedAddress{}, false
	}
	h := allocatedAddress{file: file, id: f[0], ifName: "eth0"}
	if len(f) > 1 {
		h.ifName = f[1]
	}
	return h, true
}

// isID reports whether a container ID has the format that CRI runtimes use.
func isID(id string) bool { return len(id) == 64 && strings.Trim(id, "0123456789abcdef") == "" }

// loopbackNetwork is containerd's name for the loopback network of sandboxes.
const loopbackNetwork = "cni-loopback"

// attachment is an entry of libcni's cache, with libcni's field names.
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

// attachments reads libcni's cache entries of containers that are not known. The file name is
// NETWORK-ID-INTERFACE.
func (n *Network) attachments(known func(string) bool) (out []attachment, err error) {
	dir := filepath.Join(n.cacheDir(), "results")
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
		if err == nil && json.Unmarshal(text, &a) == nil && a.ContainerID == parts[at] && a.NetworkName != "" &&
			a.IfName != "" {
			out = append(out, a)
		}
	}
	// Sort loopbacks last: they are added to the other resources of their container.
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

// ownRuntime reports whether the runtime of this node created an attachment. Another runtime on the
// same machine may belong to another agent. The directory of the pinned namespace tells them apart,
// and the network if several runtimes share the directory.
func (a attachment) ownRuntime(network string, s LeakQuery) bool {
	at := a.netns()
	if at == "" {
		return a.NetworkName == network
	}
	if canonicalPath(filepath.Dir(at)) != canonicalPath(s.NetNSDir) {
		return false
	}
	return s.ExclusiveNetNSDir || a.NetworkName == network || a.NetworkName == loopbackNetwork || !a.netnsExists()
}

// ownPod reports whether the attachment is that of a pod of this berth. The runtime passes the UID of
// the pod to the plugins.
func (a attachment) ownPod(s LeakQuery) bool {
	for _, arg := range a.CNIArgs {
		if arg[0] == "K8S_POD_UID" && s.OwnsPod != nil {
			return s.OwnsPod(arg[1])
		}
	}
	return true
}

// netnsExists reports whether the attached namespace still exists.
func (a attachment) netnsExists() bool {
	_, ok := namespaceAt(a.netns())
	return ok
}

// canonicalPath maps /var/run to /run.
func canonicalPath(path string) string {
	if rest, ok := strings.CutPrefix(filepath.Clean(path), "/var/run/"); ok {
		return "/run/" + rest
	}
	return filepath.Clean(path)
}

func (n *Network) cacheDir() string {
	if n.opts.CacheDir != "" {
		return n.opts.CacheDir
	}
	return libcni.CacheDir
}

// hasAnnotation reports whether the pod annotations, which containerd passes to the plugins,
// contain one with the prefix.
func (a attachment) hasAnnotation(mark string) bool {
	annotations, _ := a.CapabilityArgs["io.kubernetes.cri.pod-annotations"].(map[string]any)
	for name := range annotations {
		if mark != "" && strings.HasPrefix(name, mark) {
			return true
		}
	}
	return false
}

// netns returns the path of the attached namespace. It is empty if the cache does not contain it.
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
