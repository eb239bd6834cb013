package cni

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
)

// Options says where the network configuration and its plugins lie.
type Options struct {
	ConfDir string   // need not exist yet
	BinDirs []string // looked at in order
	// CacheDir is where libcni remembers attachments; empty: /var/lib/cni.
	CacheDir string
}

// Network is the node's pod network as it is configured. Its methods may be
// called at the same time.
type Network struct {
	opts    Options
	running atomic.Int32 // calls of Run that keep state fresh
	state   atomic.Pointer[state]

	mu    sync.Mutex
	asked map[string]asked // by the plugin's file
}

// state is an answer of Ready.
type state struct {
	ok         bool
	why        string
	name       string // of the network
	unshapedBy string // the file whose network does not limit bandwidth; empty: it does, or there is none
}

// Report says what was looked at and what to do where something is wrong.
type Report struct{ Items []Item }

// Item is one thing that was looked at.
type Item struct {
	Name   string // configuration, or plugin and its name
	OK     bool
	Detail string // what was found
	Remedy string // what to do about it; empty when OK
}

// New looks at the configuration. That it is bad or not there yet is no error.
func New(o Options) (*Network, error) {
	if o.ConfDir == "" {
		return nil, errors.New("cniConfDir: is missing")
	}
	if len(o.BinDirs) == 0 {
		return nil, errors.New("cniBinDirs: is missing")
	}
	n := &Network{opts: o, asked: map[string]asked{}}
	n.look()
	return n, nil
}

// Ready tells whether a pod can get a network, and if not why.
func (n *Network) Ready() (ok bool, why string) {
	if n.running.Load() == 0 {
		n.look()
	}
	s := n.state.Load()
	return s.ok, s.why
}

// Name is that of the network; empty: there is none.
func (n *Network) Name() string {
	if n.running.Load() == 0 {
		n.look()
	}
	return n.state.Load().name
}

// BandwidthUnsupportedReason says why the network does not limit the bandwidth of pods that ask
// for it; empty: it does.
func (n *Network) BandwidthUnsupportedReason() string {
	if n.running.Load() == 0 {
		n.look()
	}
	return unshaped(n.state.Load().unshapedBy)
}

func unshaped(file string) string {
	if file == "" {
		return ""
	}
	return "no plugin in " + file + " has the capability " + bandwidth
}

// bandwidth is the capability of plugins that limit it, and the name of the
// plugin that everybody has for that.
const bandwidth = "bandwidth"

// look renews the answer of Ready and reports whether it is another.
func (n *Network) look() bool {
	conf, err := load(n.opts.ConfDir)
	now := state{ok: true, name: conf.name}
	for _, plugin := range conf.plugins {
		if err == nil {
			_, _, err = locate(plugin, n.opts.BinDirs)
		}
	}
	if err != nil {
		now = state{why: err.Error()}
	} else if !conf.shapes {
		now.unshapedBy = conf.file
	}
	before := n.state.Swap(&now)
	return before == nil || *before != now
}

// Check looks at the configuration and each of its plugins, and asks those for
// their versions.
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
		r.Items = append(r.Items, n.checkPlugin(ctx, network{}, loopback)) // of whatever version
	}
	shapes := "pods' annotations " + bandwidthKeys + " have effect"
	if !conf.shapes {
		shapes = "pods' annotations " + bandwidthKeys + " have no effect: " + unshaped(conf.file)
	}
	r.Items = append(r.Items, Item{Name: bandwidth, OK: true, Detail: shapes})
	return r
}

const bandwidthKeys = "kubernetes.io/ingress-bandwidth and egress-bandwidth"

// remedy says what helps against a configuration that cannot be used. A file of
// somebody else is never written over.
func (n *Network) remedy() string {
	if file, err := first(n.opts.ConfDir); err == nil {
		return "mend " + file + ", or remove it"
	}
	return "set cniPodCIDRs to have one written, or install a network add-on that writes one to " + n.opts.ConfDir
}

// loopback is what runtimes call for every sandbox beside the plugins that are
// configured: without it containerd starts no pod.
const loopback = "loopback"
