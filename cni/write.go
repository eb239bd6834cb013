package cni

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
)

const (
	defaultFile = "10-berth.conflist"
	marker      = "berth" // the key that says who wrote the file
)

// design is what a default network is made of.
type design struct {
	name    string // of the network: host-local keeps its addresses under it
	bridge  string
	dataDir string // of host-local; empty: its own default
	cidrs   []netip.Prefix
	masq    bool // the bridge plugin masquerades what leaves the node
	shapes  bool // with the plugin that limits bandwidth
}

// WriteDefault writes 10-berth.conflist: a bridge cni0 that is the pods'
// gateway and with masq masquerades what leaves the node, addresses from the node's own
// pod ranges (one of IPv4, one of IPv6, or both), and host ports. Without masq
// somebody else sees to the masquerading.
//
// It writes nothing if the file has that content already, and leaves the
// directory alone, without an error, where a configuration that sorts before
// the file counts. A file of that name that berth did not write is an error and
// stays as it is.
//
// Where the plugin that limits pods' bandwidth is installed it is part of the
// network: it does nothing for a pod that does not ask.
func WriteDefault(confDir string, binDirs []string, cidrs []netip.Prefix, masq bool) error {
	_, _, err := locate(bandwidth, binDirs)
	return writeDesign(confDir, design{name: "berth", bridge: "cni0", cidrs: cidrs, masq: masq, shapes: err == nil})
}

// IsForeign reports whether the configuration that counts is one that berth has not
// written: the pods' network is somebody else's.
func IsForeign(confDir string) bool {
	file, err := first(confDir)
	if err != nil {
		return false // there is none
	}
	text, err := read(file)
	return filepath.Base(file) != defaultFile || err == nil && !ours(text)
}

func writeDesign(confDir string, d design) error {
	if err := checkCIDRs(d.cidrs); err != nil {
		return err
	}
	file := filepath.Join(confDir, defaultFile)
	if counts, err := first(confDir); err == nil && counts < file {
		return nil
	}
	want, err := d.conflist()
	if err != nil {
		return err
	}
	have, err := read(file)
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return fmt.Errorf("%s: %w", file, bare(err))
	case bytes.Equal(have, want):
		return nil
	case !ours(have):
		return fmt.Errorf("%s was not written by berth and stays as it is: move it away, or do not set cniPodCIDRs", file)
	}
	if err := os.MkdirAll(confDir, 0o755); err != nil {
		return err
	}
	return replace(file, want)
}

func ours(text []byte) bool {
	var raw map[string]json.RawMessage
	return json.Unmarshal(text, &raw) == nil && raw[marker] != nil
}

// replace puts a file in place at once and lastingly.
func replace(file string, text []byte) error {
	// No runtime takes a file of this name for a configuration. A crash leaves
	// at most this one behind, and the next call reuses it.
	next := filepath.Join(filepath.Dir(file), "."+filepath.Base(file)+".new")
	f, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
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
		return errors.New("cniPodCIDRs: is empty")
	}
	var four, six int
	for i, p := range cidrs {
		at := fmt.Sprintf("cniPodCIDRs[%d]", i)
		a := p.Addr()
		switch {
		case !p.IsValid() || a.Is4In6():
			return fmt.Errorf("%s: is no range of addresses", at)
		case p.Masked() != p:
			return fmt.Errorf("%s: %s has bits beyond its prefix; %s is meant", at, p, p.Masked())
		case p.Bits() < 8 || p.Bits() > a.BitLen()-2:
			return fmt.Errorf("%s: %s: the prefix must have 8 to %d bits", at, p, a.BitLen()-2)
		case a.IsMulticast() || a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsUnspecified():
			return fmt.Errorf("%s: %s is not for hosts", at, p)
		case a.Is4():
			four++
		default:
			six++
		}
	}
	if four > 1 || six > 1 {
		return errors.New("cniPodCIDRs: at most one range of IPv4 and one of IPv6")
	}
	return nil
}

// The parts of the file, with the plugins' own field names.
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
		ForceAddress bool   `json:"forceAddress"` // another range gives the bridge another address
		IPMasq       bool   `json:"ipMasq"`
		HairpinMode  bool   `json:"hairpinMode"` // a pod reaches itself by its host port
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

func (d design) conflist() ([]byte, error) {
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
	if d.shapes {
		plugins = append(plugins, bandwidthPlugin{Type: bandwidth, Capabilities: map[string]bool{bandwidth: true}})
	}
	text, err := json.MarshalIndent(conflist{
		CNIVersion: "1.0.0", Name: d.name,
		Berth:   "written by berth, which replaces it; to keep your own, remove this key or use a file that sorts first",
		Plugins: plugins,
	}, "", "  ")
	return append(text, '\n'), err
}
