package cni

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	defaultFile = "10-berth.conflist"
	markerKey   = "berth" // marks a file that berth has written
)

// defaultNetwork describes the default network.
type defaultNetwork struct {
	name            string // network name; host-local uses it as directory
	bridge          string
	dataDir         string // of host-local; empty: its default
	cidrs           []netip.Prefix
	masq            bool // the bridge plugin masquerades traffic that leaves the node
	limitsBandwidth bool // include the bandwidth plugin
}

// WriteDefault writes 10-berth.conflist: a bridge cni0 as the gateway of the pods, which
// masquerades traffic that leaves the node if masq is set, addresses from the node's pod CIDRs
// (IPv4, IPv6 or both), and host ports. Without masq another component has to do the masquerading.
//
// It writes nothing if the file already has this content, or if another configuration sorts before
// it. A file of this name that berth did not write is left unchanged and reported as an error.
//
// The bandwidth plugin is included if it is installed. It has no effect on pods that do not request
// a limit.
func WriteDefault(confDir string, binDirs []string, cidrs []netip.Prefix, masq bool) error {
	_, _, err := findPlugin(bandwidth, binDirs)
	return writeNetwork(
		confDir,
		defaultNetwork{name: "berth", bridge: "cni0", cidrs: cidrs, masq: masq, limitsBandwidth: err == nil},
	)
}

// ParsePodCIDRs parses the pod CIDRs of a node.
func ParsePodCIDRs(cidrs []string) (out []netip.Prefix, err error) {
	for _, text := range cidrs {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

// IsForeign reports whether berth did not write the effective configuration, so that another
// component manages the pod network.
func IsForeign(confDir string) bool {
	file, err := firstConfFile(confDir)
	if err != nil {
		return false // no configuration
	}
	text, err := readConfFile(file)
	return filepath.Base(file) != defaultFile || err == nil && !writtenByBerth(text)
}

func writeNetwork(confDir string, d defaultNetwork) error {
	if err := checkCIDRs(d.cidrs); err != nil {
		return err
	}
	file := filepath.Join(confDir, defaultFile)
	if counts, err := firstConfFile(confDir); err == nil && counts < file {
		return nil
	}
	want, err := d.conflist()
	if err != nil {
		return err
	}
	have, err := readConfFile(file)
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return fmt.Errorf("%s: %w", file, withoutPath(err))
	case bytes.Equal(have, want):
		return os.Chmod(file, confMode) // earlier releases wrote it with mode 0644
	case !writtenByBerth(have):
		return fmt.Errorf("%s was not written by berth and is not overwritten: move it away, or unset cniPodCIDRs",
			file)
	}
	if err := os.MkdirAll(confDir, 0o755); err != nil {
		return err
	}
	return replaceFile(file, want)
}

func writtenByBerth(text []byte) bool {
	var raw map[string]json.RawMessage
	return json.Unmarshal(text, &raw) == nil && raw[markerKey] != nil
}

// confMode is the mode of the configuration. Only the runtime and the agent read it.
const confMode = 0o600

// replaceFile replaces a file atomically and durably.
func replaceFile(file string, text []byte) error {
	// Runtimes ignore files with this name. A crash leaves at most this file, and the next call
	// overwrites it.
	next := filepath.Join(filepath.Dir(file), "."+filepath.Base(file)+".new")
	f, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, confMode)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(next, file)
	}
	if err != nil {
		return errors.Join(err, os.Remove(next))
	}
	dir, err := os.Open(filepath.Dir(file))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func checkCIDRs(cidrs []netip.Prefix) error {
	if len(cidrs) == 0 {
		return errors.New("cniPodCIDRs: must not be empty")
	}
	var four, six int
	for i, p := range cidrs {
		at := fmt.Sprintf("cniPodCIDRs[%d]", i)
		a := p.Addr()
		switch {
		case !p.IsValid() || a.Is4In6():
			return fmt.Errorf("%s: not an address range", at)
		case p.Masked() != p:
			return fmt.Errorf("%s: %s has host bits set; use %s", at, p, p.Masked())
		case p.Bits() < 8 || p.Bits() > a.BitLen()-2:
			return fmt.Errorf("%s: %s: the prefix must have 8 to %d bits", at, p, a.BitLen()-2)
		case a.IsMulticast() || a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsUnspecified():
			return fmt.Errorf("%s: %s is not usable for hosts", at, p)
		case a.Is4():
			four++
		default:
			six++
		}
	}
	if four > 1 || six > 1 {
		return errors.New("cniPodCIDRs: at most one IPv4 and one IPv6 range is allowed")
	}
	return nil
}

// The structure of the file, with the field names of the plugins.
type (
	conflist struct {
		CNIVersion string `json:"cniVersion"`
		Name       string `json:"name"`
		Berth      string `json:"berth"`
		Plugins    []any  `json:"plugins"`
	}
	bridgePlugin struct {
		Type         string `json:"type"`
		Bridge       string `json:"bridge"`
		IsGateway    bool   `json:"isGateway"`
		ForceAddress bool   `json:"forceAddress"` // a changed CIDR replaces the address of the bridge
		IPMasq       bool   `json:"ipMasq"`
		HairpinMode  bool   `json:"hairpinMode"` // a pod reaches itself through its host port
		IPAM         ipam   `json:"ipam"`
	}
	ipam struct {
		Type    string     `json:"type"`
		DataDir string     `json:"dataDir,omitempty"`
		Ranges  [][]subnet `json:"ranges"`
		Routes  []route    `json:"routes"`
	}
	subnet struct {
		Subnet netip.Prefix `json:"subnet"`
	}
	route struct {
		Dst string `json:"dst"`
	}
	bandwidthPlugin struct {
		Type         string          `json:"type"`
		Capabilities map[string]bool `json:"capabilities"`
	}
	portmapPlugin struct {
		Type         string          `json:"type"`
		Capabilities map[string]bool `json:"capabilities"`
		SNAT         bool            `json:"snat"`
	}
)

func (d defaultNetwork) conflist() ([]byte, error) {
	addresses := ipam{Type: "host-local", DataDir: d.dataDir}
	for _, p := range d.cidrs {
		everywhere := "0.0.0.0/0"
		if p.Addr().Is6() {
			everywhere = "::/0"
		}
		addresses.Ranges = append(addresses.Ranges, []subnet{{p}})
		addresses.Routes = append(addresses.Routes, route{everywhere})
	}
	plugins := []any{
		bridgePlugin{
			Type: "bridge", Bridge: d.bridge, IsGateway: true, ForceAddress: true,
			IPMasq: d.masq, HairpinMode: true, IPAM: addresses,
		},
		portmapPlugin{Type: "portmap", Capabilities: map[string]bool{"portMappings": true}, SNAT: true},
	}
	if d.limitsBandwidth {
		plugins = append(plugins, bandwidthPlugin{Type: bandwidth, Capabilities: map[string]bool{bandwidth: true}})
	}
	text, err := json.MarshalIndent(conflist{
		CNIVersion: "1.0.0", Name: d.name,
		Berth: "written by berth, which replaces it; to keep your own, remove this key or use a file that " +
			"sorts first",
		Plugins: plugins,
	}, "", "  ")
	return append(text, '\n'), err
}

const (
	defaultName   = "berth"
	defaultBridge = "cni0"
)

// RemoveDefault removes what WriteDefault has created: the bridge, host-local's data of the
// network, and last the file, so that a failed removal is repeated by the next call. It does
// nothing if berth did not write the file. No pod may be running.
func RemoveDefault(confDir string) error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	defer h.Close()
	return removeDefault(h, confDir, defaultIPAMDir)
}

func removeDefault(h *netlink.Handle, confDir, ipamDir string) error {
	file := filepath.Join(confDir, defaultFile)
	text, err := readConfFile(file)
	if errors.Is(err, os.ErrNotExist) || err == nil && !writtenByBerth(text) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", file, withoutPath(err))
	}
	if err := removeBridge(h); err != nil {
		return fmt.Errorf("delete bridge %s: %w", defaultBridge, err)
	}
	if err := os.RemoveAll(filepath.Join(ipamDir, defaultName)); err != nil {
		return err
	}
	return os.Remove(file)
}

func removeBridge(h *netlink.Handle) error {
	link, err := h.LinkByName(defaultBridge)
	if _, none := errors.AsType[netlink.LinkNotFoundError](err); none {
		return nil
	}
	if err != nil {
		return err
	}
	return h.LinkDel(link)
}
