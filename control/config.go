package control

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"berth/control/pki"
	"berth/control/serviceips"
	"berth/control/storage"
)

// Config is all that can be said of a server. Zero values take the defaults of
// Default.
type Config struct {
	// DataDir holds the store, the certificates and admin.kubeconfig.
	DataDir string
	// Listen is the address and port of the API, "[::]:6443"; port 0 takes a free one.
	Listen string
	// Names are further DNS names and IP addresses that clients use for the server.
	Names []string
	// Etcd is an etcd cluster to keep objects in; with no endpoints the server
	// runs its own.
	Etcd storage.Servers
	// EncryptionConfig is a file of kind EncryptionConfiguration in place of the
	// one that the server makes.
	EncryptionConfig string
	// PodRanges are the addresses of pods: each node gets a part of them (/24, IPv6
	// /64) as its spec.podCIDR. Empty: nodes get none.
	PodRanges []netip.Prefix
	// NodeGrace is how long a node may be silent before it is held for lost. A node
	// says that it is there each quarter of its lease's duration: 10 s of 40 s.
	NodeGrace time.Duration
	// OwnCertificates is how long the server's own certificates are good, the
	// administrator's among them; NodeCertificates at most those that it signs for
	// nodes and others that ask. All are renewed in time.
	OwnCertificates, NodeCertificates time.Duration
	// NodeReturn is how long after the end of its certificate a node that was off may
	// still ask for another with its key. 0: it has to join anew.
	NodeReturn time.Duration
	// EventTTL is how long events are kept.
	EventTTL time.Duration
	// CompactEvery is how long the past of every object can be read and watches be
	// resumed; DefragmentEvery how often what that has freed is looked at, to be given
	// back to the file system once it is much.
	CompactEvery, DefragmentEvery time.Duration
	// StoreLimit is how many bytes the server's own store may hold for writes to be
	// taken; 0 is what is good for etcd.
	StoreLimit int64
	// RepairEvery is how often claims of addresses and ports are compared with
	// services. It must be longer than any request lives, so shorter is for tests only.
	RepairEvery time.Duration
	// ServiceRanges are the addresses of services: one range, or one of each family
	// of which the first is the usual one. They must not meet PodRanges.
	ServiceRanges []netip.Prefix
	// NodePorts are the ports of nodes that services can have.
	NodePorts serviceips.Ports
	// ServicesRouted says that something routes services' addresses on the nodes.
	ServicesRouted bool
	// AdvertiseAddress is where pods and other servers reach this one. Not valid: the
	// address that it listens on, or the one of this host's way out.
	AdvertiseAddress netip.Addr
	// Off names the parts that shall not run, because something else does their
	// work; see Parts.
	Off []string
	// Issuer is the URL that service account tokens name as their maker, and the
	// audience of those for the server itself.
	Issuer string
	// LongestToken is the most that a service account token is good for, whatever is
	// asked; 0 is no limit.
	LongestToken time.Duration
	// ExtendTokens makes the tokens that pods get by themselves good for a year, for
	// clients that read theirs once; nodes renew them hourly all the same.
	ExtendTokens bool
	// AdmissionOff names admission plugins that shall not run; see admit.Names.
	AdmissionOff []string
	// Version of this program, for logs and /version.
	Version string
	Log     *slog.Logger
	// UnsafeStore lets the own store skip fsync. For tests only.
	UnsafeStore bool
}

// Default is a config with all defaults.
func Default() Config {
	return Config{
		DataDir: "/var/lib/berth-control", Listen: "[::]:6443", Issuer: "https://kubernetes.default.svc.cluster.local", Version: "devel", Log: slog.Default(),
		PodRanges: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")}, NodeGrace: 40 * time.Second,
		ServiceRanges:   []netip.Prefix{netip.MustParsePrefix("10.43.0.0/16")},
		NodePorts:       serviceips.Ports{First: 30000, Last: 32767},
		OwnCertificates: pki.IssuedFor, NodeCertificates: pki.IssuedFor, NodeReturn: pki.IssuedFor,
		EventTTL: time.Hour, CompactEvery: 5 * time.Minute, DefragmentEvery: 10 * time.Minute, RepairEvery: 3 * time.Minute,
		ExtendTokens: true,
	}
}

// Check names the field that is wrong.
func (c *Config) Check() error {
	if c.DataDir == "" {
		return fmt.Errorf("data-dir: must be given")
	}
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		return fmt.Errorf("listen: %q is not ADDRESS:PORT: %w", c.Listen, err)
	}
	if (c.Etcd.CertFile == "") != (c.Etcd.KeyFile == "") {
		return fmt.Errorf("etcd-certfile and etcd-keyfile: one needs the other")
	}
	if len(c.Etcd.Endpoints) == 0 && (c.Etcd.CAFile != "" || c.Etcd.CertFile != "") {
		return fmt.Errorf("etcd-cafile and etcd-certfile: there are no etcd-servers to use them for")
	}
	if c.NodeGrace < time.Second {
		return fmt.Errorf("node-monitor-grace-period: %s is too short: must be 1s or more", c.NodeGrace)
	}
	if err := c.checkCertificates(); err != nil {
		return err
	}
	if c.LongestToken < 0 || c.LongestToken > 0 && c.LongestToken < shortestLife {
		return fmt.Errorf("service-account-max-token-expiration: %s is too short: must be %s or more, or 0 for no limit", c.LongestToken, shortestLife)
	}
	if c.EventTTL < time.Second {
		return fmt.Errorf("event-ttl: %s is too short: must be 1s or more", c.EventTTL)
	}
	if c.CompactEvery < time.Second || c.DefragmentEvery < time.Second {
		return fmt.Errorf("etcd-compaction-interval and etcd-defragmentation-interval: must be 1s or more")
	}
	if err := c.checkServices(); err != nil {
		return err
	}
	for _, name := range c.Off {
		if !slices.Contains(PartNames(), name) {
			return fmt.Errorf("off: there is no part %q; there are %v", name, PartNames())
		}
	}
	return nil
}

// shortestLife of a certificate lets it be renewed in time on a busy machine.
const shortestLife = 10 * time.Second

func (c *Config) checkCertificates() error {
	if c.OwnCertificates < shortestLife {
		return fmt.Errorf("own-certificate-duration: %s is too short: must be %s or more", c.OwnCertificates, shortestLife)
	}
	if c.NodeCertificates < shortestLife {
		return fmt.Errorf("cluster-signing-duration: %s is too short: must be %s or more", c.NodeCertificates, shortestLife)
	}
	if c.NodeReturn < 0 {
		return fmt.Errorf("node-return-period: %s: must not be negative", c.NodeReturn)
	}
	return nil
}

func (c *Config) path(elem ...string) string {
	return filepath.Join(append([]string{c.DataDir}, elem...)...)
}

// AdminKubeconfig is the file with which the administrator reaches the server.
func (c *Config) AdminKubeconfig() string { return c.path("admin.kubeconfig") }
