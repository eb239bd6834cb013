package cni

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
)

// Options configures a Network.
type Options struct {
	ConfDir string   // may not exist yet
	BinDirs []string // searched in order
	// CacheDir is libcni's cache of attachments. Default: /var/lib/cni.
	CacheDir string
}

// Network is the CNI configuration of the node. It is safe for concurrent use.
type Network struct {
	opts      Options
	running   atomic.Int32 // number of Run calls that keep readiness up to date
	readiness atomic.Pointer[readiness]

	mu           sync.Mutex
	versionCache map[string]cachedVersions // by plugin path
}

// readiness is a result of Ready.
type readiness struct {
	ok              bool
	reason          string
	name            string // of the network
	noBandwidthFile string // configuration file without bandwidth capability; empty if supported or without network
}

// Report is the result of Check.
type Report struct{ Items []Item }

// Item is the result of one check.
type Item struct {
	Name   string // "configuration", or "plugin" and its name
	OK     bool
	Detail string // what the check found
	Remedy string // how to fix the problem; empty if OK
}

// New reads the configuration. A missing or invalid configuration is not an error.
func New(o Options) (*Network, error) {
	if o.ConfDir == "" {
		return nil, errors.New("cniConfDir: required")
	}
	if len(o.BinDirs) == 0 {
		return nil, errors.New("cniBinDirs: required")
	}
	n := &Network{opts: o, versionCache: map[string]cachedVersions{}}
	n.refresh()
	return n, nil
}

// Ready reports whether the network of pods can be set up, and if not, the reason.
func (n *Network) Ready() (ok bool, reason string) {
	if n.running.Load() == 0 {
		n.refresh()
	}
	s := n.readiness.Load()
	return s.ok, s.reason
}

// Name returns the name of the network. It is empty if there is none.
func (n *Network) Name() string {
	if n.running.Load() == 0 {
		n.refresh()
	}
	return n.readiness.Load().name
}

// BandwidthUnsupportedReason returns why the network does not limit the bandwidth of pods that
// request it. It is empty if the network supports bandwidth limits.
func (n *Network) BandwidthUnsupportedReason() string {
	if n.running.Load() == 0 {
		n.refresh()
	}
	return bandwidthUnsupported(n.readiness.Load().noBandwidthFile)
}

func bandwidthUnsupported(file string) string {
	if file == "" {
		return ""
	}
	return "no plugin in " + file + " has the capability " + bandwidth
}

// bandwidth is the capability of plugins that limit bandwidth. The reference plugin has the same
// name.
const bandwidth = "bandwidth"

// refresh updates the readiness and reports whether it has changed.
func (n *Network) refresh() bool {
	conf, err := load(n.opts.ConfDir)
	next := readiness{ok: true, name: conf.name}
	for _, plugin := range conf.plugins {
		if err == nil {
			_, _, err = findPlugin(plugin, n.opts.BinDirs)
		}
	}
	if err != nil {
		next = readiness{reason: err.Error()}
	} else if !conf.limitsBandwidth {
		next.noBandwidthFile = conf.file
	}
	prev := n.readiness.Swap(&next)
	return prev == nil || *prev != next
}

// Check validates the configuration, looks up each of its plugins and queries their versions.
func (n *Network) Check(ctx context.Context) Report {
	conf, err := load(n.opts.ConfDir)
	if err != nil {
		return Report{Items: []Item{{Name: "configuration", Detail: err.Error(), Remedy: n.remedy()}}}
	}
	detail := fmt.Sprintf("network %s of %s", conf.name, conf.file)
	r := Report{Items: []Item{{Name: "configuration", OK: true, Detail: detail}}}
	for _, plugin := range conf.plugins {
		r.Items = append(r.Items, n.checkPlugin(ctx, conf, plugin))
	}
	if !slices.Contains(conf.plugins, loopback) {
		r.Items = append(r.Items, n.checkPlugin(ctx, netConf{}, loopback)) // any version
	}
	shapes := "pod annotations " + bandwidthKeys + " are supported"
	if !conf.limitsBandwidth {
		shapes = "pod annotations " + bandwidthKeys + " are ignored: " + bandwidthUnsupported(conf.file)
	}
	r.Items = append(r.Items, Item{Name: bandwidth, OK: true, Detail: shapes})
	return r
}

const bandwidthKeys = "kubernetes.io/ingress-bandwidth and egress-bandwidth"

// remedy suggests how to fix an invalid configuration. berth never overwrites a file that it did
// not write.
func (n *Network) remedy() string {
	if file, err := firstConfFile(n.opts.ConfDir); err == nil {
		return "fix " + file + ", or remove it"
	}
	return "set cniPodCIDRs to let berth write one, or install a network add-on that writes one to " + n.opts.ConfDir
}

// loopback is the plugin that runtimes run for every sandbox in addition to the configured plugins.
// Without it containerd starts no pod.
const loopback = "loopback"
