package control

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"berth/control/admission"
	"berth/control/audit"
	"berth/control/authn"
	"berth/control/loadbalancer"
	"berth/control/pki"
	"berth/control/serviceips"
	"berth/control/storage"
)

// Config is the configuration of a server. Default returns the defaults.
type Config struct {
	// DataDir contains the store, the certificates and admin.kubeconfig.
	DataDir string
	// Listen is the address and port of the API, for example "[::]:6443". Port 0 selects a free
	// port.
	Listen string
	// TLSSANs are additional DNS names and IP addresses for the server certificate.
	TLSSANs []string
	// Etcd is an external etcd cluster. Without endpoints the server runs an embedded etcd.
	Etcd storage.ClientConfig
	// EncryptionConfig is a file of kind EncryptionConfiguration. If empty, the server creates one.
	EncryptionConfig string
	// EncryptionConfigReload applies changes of EncryptionConfig while the server runs.
	EncryptionConfigReload bool
	// ClusterCIDRs are the CIDRs for pods. Each node gets a part (/24, IPv6 /64) as its
	// spec.podCIDR. Empty: nodes get no pod CIDR.
	ClusterCIDRs []netip.Prefix
	// NodeMonitorGracePeriod is the time without a heartbeat until a node counts as unreachable. A
	// node renews its lease every quarter of the lease duration: every 10 s of 40 s.
	NodeMonitorGracePeriod time.Duration
	// OwnCertificateDuration is the validity of the server's own certificates and of the
	// administrator's. ClusterSigningDuration is the maximum validity of those that it signs for
	// nodes and other requests. All are renewed before they expire.
	OwnCertificateDuration, ClusterSigningDuration time.Duration
	// NodeReturnPeriod is the time after the expiry of its certificate in which a node can still
	// renew it with the same key. 0: the node has to join again.
	NodeReturnPeriod time.Duration
	// EventTTL is the time after which events are deleted.
	EventTTL time.Duration
	// OpenAPITTL is how long the OpenAPI documents stay in memory after the last request.
	OpenAPITTL time.Duration
	// EtcdCompactionInterval is the interval of etcd compaction: older revisions are not available
	// to watches and paged lists. EtcdDefragmentationInterval is the interval at which the embedded
	// store is checked for unused space.
	EtcdCompactionInterval, EtcdDefragmentationInterval time.Duration
	// EtcdQuotaBytes limits the size of the embedded store. Writes are rejected above it. 0 is the
	// recommended maximum of etcd.
	EtcdQuotaBytes int64
	// ServiceRepairInterval is the interval at which claims of addresses and ports are compared
	// with Services. It must be longer than any request. Shorter values are for tests only.
	ServiceRepairInterval time.Duration
	// ServiceCIDRs are the CIDRs for Services: one, or one per IP family of which the first is the
	// default. They must not overlap ClusterCIDRs.
	ServiceCIDRs []netip.Prefix
	// ServiceNodePorts is the port range for Services of type NodePort.
	ServiceNodePorts serviceips.PortRange
	// LoadBalancerPool has the addresses for Services of type LoadBalancer, which nodes announce on
	// their networks. If empty, these Services get the addresses of nodes.
	LoadBalancerPool loadbalancer.Pool
	// AdvertiseAddress is the address by which pods and other servers reach this one. If it is not
	// valid, the listen address is used, or the address of the default route.
	AdvertiseAddress netip.Addr
	// Controllers selects the controllers to run, in the syntax of kube-controller-manager: "*"
	// enables all controllers, "foo" enables the controller foo, "-foo" disables it. The first
	// entry that names a controller wins. ControllerNames returns the known names.
	Controllers []string
	// ServiceAccountIssuer is the issuer of service account tokens, a URL, and the audience of
	// tokens for the API server.
	ServiceAccountIssuer string
	// ServiceAccountJWKSURI is the URL of the public keys in the OIDC configuration of the issuer. If empty, it is
	// a path of the issuer.
	ServiceAccountJWKSURI string
	// Authentication selects further sources of identities.
	Authentication authn.Options
	// MaxTokenExpiration is the maximum validity of a service account token, regardless of the
	// request. 0 means no limit.
	MaxTokenExpiration time.Duration
	// ExtendTokenExpiration extends the validity of tokens injected into pods to a year, for
	// clients that read their token only once. Nodes still renew these tokens every hour.
	ExtendTokenExpiration bool
	// MaxRequestsInFlight and MaxMutatingRequestsInFlight are upstream's limits of concurrent requests. Only
	// their sum counts: API Priority and Fairness divides it among the priority levels.
	MaxRequestsInFlight, MaxMutatingRequestsInFlight int
	// Audit configures the audit log. Relative paths are below DataDir.
	Audit audit.Options
	// EnabledAdmissionPlugins and DisabledAdmissionPlugins name admission plugins to enable that do not run by
	// default, and to disable, see admission.Names.
	EnabledAdmissionPlugins, DisabledAdmissionPlugins []string
	// AdmissionConfigFile is a file of kind AdmissionConfiguration. If empty, plugins have their defaults.
	AdmissionConfigFile string
	// UI serves the web page below /ui/.
	UI bool
	// Version is the version of this program, for logs and /version.
	Version string
	Log     *slog.Logger
	// UnsafeNoFsync disables fsync in the embedded store. For tests only.
	UnsafeNoFsync bool
}

// Default returns a configuration with all defaults.
func Default() Config {
	return Config{
		DataDir: "/var/lib/berth-control", Listen: "[::]:6443",
		ServiceAccountIssuer: "https://kubernetes.default.svc.cluster.local", Version: "devel", Log: slog.Default(),
		ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")}, NodeMonitorGracePeriod: 40 * time.Second,
		ServiceCIDRs:           []netip.Prefix{netip.MustParsePrefix("10.43.0.0/16")},
		ServiceNodePorts:       serviceips.PortRange{First: 30000, Last: 32767},
		OwnCertificateDuration: pki.DefaultCertificateDuration, ClusterSigningDuration: pki.DefaultCertificateDuration,
		NodeReturnPeriod: 7 * 24 * time.Hour,
		EventTTL:         time.Hour, OpenAPITTL: 30 * time.Second, EtcdCompactionInterval: 5 * time.Minute,
		EtcdDefragmentationInterval: 10 * time.Minute,
		ServiceRepairInterval:       3 * time.Minute,
		ExtendTokenExpiration:       true, Controllers: []string{allControllers},
		MaxRequestsInFlight: 400, MaxMutatingRequestsInFlight: 200,
		Audit: audit.DefaultOptions(), Authentication: authn.DefaultOptions(), UI: true,
	}
}

// Validate checks the configuration. The error names the flag.
func (c *Config) Validate() error {
	if c.DataDir == "" {
		return fmt.Errorf("data-dir: required")
	}
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		return fmt.Errorf("bind-address and secure-port: %q is not ADDRESS:PORT: %w", c.Listen, err)
	}
	if (c.Etcd.CertFile == "") != (c.Etcd.KeyFile == "") {
		return fmt.Errorf("etcd-certfile and etcd-keyfile: must be set together")
	}
	if len(c.Etcd.Endpoints) == 0 && (c.Etcd.CAFile != "" || c.Etcd.CertFile != "") {
		return fmt.Errorf("etcd-cafile and etcd-certfile: require etcd-servers")
	}
	if c.NodeMonitorGracePeriod < time.Second {
		return fmt.Errorf("node-monitor-grace-period: %s is too short: must be 1s or more", c.NodeMonitorGracePeriod)
	}
	if err := c.checkCertificates(); err != nil {
		return err
	}
	if c.MaxTokenExpiration < 0 || c.MaxTokenExpiration > 0 && c.MaxTokenExpiration < minCertificateDuration {
		return fmt.Errorf(
			"service-account-max-token-expiration: %s is too short: must be %s or more, or 0 for no limit",
			c.MaxTokenExpiration,
			minCertificateDuration,
		)
	}
	if c.EventTTL < time.Second {
		return fmt.Errorf("event-ttl: %s is too short: must be 1s or more", c.EventTTL)
	}
	if c.EtcdCompactionInterval < time.Second || c.EtcdDefragmentationInterval < time.Second {
		return fmt.Errorf("etcd-compaction-interval and etcd-defragmentation-interval: must be 1s or more")
	}
	if err := c.services().Validate(c.ClusterCIDRs); err != nil {
		return err
	}
	if err := c.checkLoadBalancerPool(); err != nil {
		return err
	}
	if err := serviceips.ValidateAdvertiseAddress(c.AdvertiseAddress); err != nil {
		return err
	}
	if err := c.checkRequestLimits(); err != nil {
		return err
	}
	if err := c.Audit.Validate(); err != nil {
		return err
	}
	if err := c.checkAccess(); err != nil {
		return err
	}
	return validateControllers(c.Controllers, ControllerNames())
}

func (c *Config) checkLoadBalancerPool() error {
	if err := c.LoadBalancerPool.Validate(); err != nil {
		return fmt.Errorf("load-balancer-pool: %w", err)
	}
	for _, p := range slices.Concat(c.ServiceCIDRs, c.ClusterCIDRs) {
		if c.LoadBalancerPool.Overlaps(p) {
			return fmt.Errorf("load-balancer-pool: overlaps %s of service-cluster-ip-range or cluster-cidr", p)
		}
	}
	return nil
}

// minCertificateDuration leaves enough time to renew a certificate on a loaded machine.
const minCertificateDuration = 10 * time.Second

func (c *Config) checkCertificates() error {
	if c.OwnCertificateDuration < minCertificateDuration {
		return fmt.Errorf(
			"own-certificate-duration: %s is too short: must be %s or more",
			c.OwnCertificateDuration,
			minCertificateDuration,
		)
	}
	if c.ClusterSigningDuration < minCertificateDuration {
		return fmt.Errorf(
			"cluster-signing-duration: %s is too short: must be %s or more",
			c.ClusterSigningDuration,
			minCertificateDuration,
		)
	}
	if c.NodeReturnPeriod < 0 {
		return fmt.Errorf("node-return-period: %s: must not be negative", c.NodeReturnPeriod)
	}
	return nil
}

// checkAccess checks the settings of identities, admission and encryption.
func (c *Config) checkAccess() error {
	if c.EncryptionConfigReload && c.EncryptionConfig == "" {
		return fmt.Errorf("encryption-provider-config-automatic-reload: must be set with encryption-provider-config")
	}
	if err := c.Authentication.Validate(); err != nil {
		return err
	}
	return admission.ValidateNames(c.EnabledAdmissionPlugins, c.DisabledAdmissionPlugins)
}

// warnAccess logs settings of identities and admission that are ignored or incomplete.
func (c *Config) warnAccess() {
	for _, text := range c.Authentication.RequestHeader.Warnings() {
		c.Log.Warn("front proxy headers incomplete", "warning", text)
	}
	for _, text := range admission.Warnings(c.EnabledAdmissionPlugins, c.DisabledAdmissionPlugins) {
		c.Log.Warn("admission plugin not configurable", "warning", text)
	}
}

func (c *Config) path(elem ...string) string {
	return filepath.Join(append([]string{c.DataDir}, elem...)...)
}

// AdminKubeconfig returns the path of the administrator kubeconfig.
func (c *Config) AdminKubeconfig() string { return c.path("admin.kubeconfig") }

// SuperAdminKubeconfig returns the path of the kubeconfig for emergencies, which no role or binding limits.
func (c *Config) SuperAdminKubeconfig() string { return c.path("super-admin.kubeconfig") }
