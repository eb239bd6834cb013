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
	// TLSSANs are further DNS names and IP addresses that clients use for the server.
	TLSSANs []string
	// Etcd is an etcd cluster to keep objects in; with no endpoints the server
	// runs its own.
	Etcd storage.ClientConfig
	// EncryptionConfig is a file of kind EncryptionConfiguration in place of the
	// one that the server makes.
	EncryptionConfig string
	// ClusterCIDRs are the addresses of pods: each node gets a part of them (/24, IPv6
	// /64) as its spec.podCIDR. Empty: nodes get none.
	ClusterCIDRs []netip.Prefix
	// NodeMonitorGracePeriod is how long a node may be silent before it is held for lost. A node
	// says that it is there each quarter of its lease's duration: 10 s of 40 s.
	NodeMonitorGracePeriod time.Duration
	// OwnCertificateDuration is how long the server's own certificates are good, the
	// administrator's among them; NodeCertificates at most those that it signs for
	// nodes and others that ask. All are renewed in time.
	OwnCertificateDuration, ClusterSigningDuration time.Duration
	// NodeReturnPeriod is how long after the end of its certificate a node that was off may
	// still ask for another with its key. 0: it has to join anew.
	NodeReturnPeriod time.Duration
	// EventTTL is how long events are kept.
	EventTTL time.Duration
	// EtcdCompactionInterval is how long the past of every object can be read and watches be
	// resumed; DefragmentEvery how often what that has freed is looked at, to be given
	// back to the file system once it is much.
	EtcdCompactionInterval, EtcdDefragmentationInterval time.Duration
	// EtcdQuotaBytes is how many bytes the server's own store may hold for writes to be
	// taken; 0 is what is good for etcd.
	EtcdQuotaBytes int64
	// ServiceRepairInterval is how often claims of addresses and ports are compared with
	// services. It must be longer than any request lives, so shorter is for tests only.
	ServiceRepairInterval time.Duration
	// ServiceCIDRs are the addresses of services: one range, or one of each family
	// of which the first is the usual one. They must not meet PodRanges.
	ServiceCIDRs []netip.Prefix
	// ServiceNodePorts are the ports of nodes that services can have.
	ServiceNodePorts serviceips.PortRange
	// ServicesRouted says that something routes services' addresses on the nodes.
	ServicesRouted bool
	// AdvertiseAddress is where pods and other servers reach this one. Not valid: the
	// address that it listens on, or the one of this host's way out.
	AdvertiseAddress netip.Addr
	// Off names the parts that shall not run, because something else does their
	// work; see Parts.
	Off []string
	// ServiceAccountIssuer is the URL that service account tokens name as their maker, and the
	// audience of those for the server itself.
	ServiceAccountIssuer string
	// MaxTokenExpiration is the most that a service account token is good for, whatever is
	// asked; 0 is no limit.
	MaxTokenExpiration time.Duration
	// ExtendTokenExpiration makes the tokens that pods get by themselves good for a year, for
	// clients that read theirs once; nodes renew them hourly all the same.
	ExtendTokenExpiration bool
	// DisabledAdmissionPlugins names admission plugins that shall not run; see admit.Names.
	DisabledAdmissionPlugins []string
	// Version of this program, for logs and /version.
	Version string
	Log     *slog.Logger
	// UnsafeNoFsync lets the own store skip fsync. For tests only.
	UnsafeNoFsync bool
}

// Default is a config with all defaults.
func Default() Config {
	return Config{
		DataDir: "/var/lib/berth-control", Listen: "[::]:6443", ServiceAccountIssuer: "https://kubernetes.default.svc.cluster.local", Version: "devel", Log: slog.Default(),
		ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")}, NodeMonitorGracePeriod: 40 * time.Second,
		ServiceCIDRs:           []netip.Prefix{netip.MustParsePrefix("10.43.0.0/16")},
		ServiceNodePorts:       serviceips.PortRange{First: 30000, Last: 32767},
		OwnCertificateDuration: pki.DefaultCertificateDuration, ClusterSigningDuration: pki.DefaultCertificateDuration, NodeReturnPeriod: pki.DefaultCertificateDuration,
		EventTTL: time.Hour, EtcdCompactionInterval: 5 * time.Minute, EtcdDefragmentationInterval: 10 * time.Minute, ServiceRepairInterval: 3 * time.Minute,
		ExtendTokenExpiration: true,
	}
}

// Validate names the field that is wrong.
func (c *Config) Validate() error {
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
	if c.NodeMonitorGracePeriod < time.Second {
		return fmt.Errorf("node-monitor-grace-period: %s is too short: must be 1s or more", c.NodeMonitorGracePeriod)
	}
	if err := c.checkCertificates(); err != nil {
		return err
	}
	if c.MaxTokenExpiration < 0 || c.MaxTokenExpiration > 0 && c.MaxTokenExpiration < minCertificateDuration {
		return fmt.Errorf("service-account-max-token-expiration: %s is too short: must be %s or more, or 0 for no limit", c.MaxTokenExpiration, minCertificateDuration)
	}
	if c.EventTTL < time.Second {
		return fmt.Errorf("event-ttl: %s is too short: must be 1s or more", c.EventTTL)
	}
	if c.EtcdCompactionInterval < time.Second || c.EtcdDefragmentationInterval < time.Second {
		return fmt.Errorf("etcd-compaction-interval and etcd-defragmentation-interval: must be 1s or more")
	}
	if err := c.checkServices(); err != nil {
		return err
	}
	for _, name := range c.Off {
		if !slices.Contains(ControllerNames(), name) {
			return fmt.Errorf("off: there is no part %q; there are %v", name, ControllerNames())
		}
	}
	return nil
}

// minCertificateDuration of a certificate lets it be renewed in time on a busy machine.
const minCertificateDuration = 10 * time.Second

func (c *Config) checkCertificates() error {
	if c.OwnCertificateDuration < minCertificateDuration {
		return fmt.Errorf("own-certificate-duration: %s is too short: must be %s or more", c.OwnCertificateDuration, minCertificateDuration)
	}
	if c.ClusterSigningDuration < minCertificateDuration {
		return fmt.Errorf("cluster-signing-duration: %s is too short: must be %s or more", c.ClusterSigningDuration, minCertificateDuration)
	}
	if c.NodeReturnPeriod < 0 {
		return fmt.Errorf("node-return-period: %s: must not be negative", c.NodeReturnPeriod)
	}
	return nil
}

func (c *Config) path(elem ...string) string {
	return filepath.Join(append([]string{c.DataDir}, elem...)...)
}

// AdminKubeconfig is the file with which the administrator reaches the server.
func (c *Config) AdminKubeconfig() string { return c.path("admin.kubeconfig") }
