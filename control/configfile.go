package control

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/control/loadbalancer"
	"berth/control/serviceips"
	"berth/internal/strictyaml"
)

// API version and kind of a configuration file.
const (
	ConfigFileAPIVersion = "berth.dev/v1alpha1"
	ConfigFileKind       = "ControlConfiguration"
)

// ConfigFile is a configuration file. Each field corresponds to a flag. A flag takes precedence.
type ConfigFile struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	DataDir     string     `json:"dataDir,omitempty"`
	BindAddress netip.Addr `json:"bindAddress,omitzero"`
	SecurePort  *uint16    `json:"securePort,omitempty"` // 0 selects a free port
	// Listen is the deprecated ADDRESS:PORT. BindAddress and SecurePort take precedence.
	Listen  string   `json:"listen,omitempty"`
	TLSSANs []string `json:"tlsSANs,omitempty"`
	// Controllers as in Config.Controllers.
	Controllers []string `json:"controllers,omitempty"`
	// Names is the deprecated name of TLSSANs.
	Names []string `json:"names,omitempty"`
	// Off lists controllers to disable. Deprecated in favor of Controllers.
	Off []string `json:"off,omitempty"`
	// PodRanges are CIDRs such as 10.42.0.0/16, one per IP family. [] is none.
	PodRanges []netip.Prefix `json:"podRanges,omitempty"`

	// NodeMonitorGracePeriod is a duration such as 40s.
	NodeMonitorGracePeriod metav1.Duration `json:"nodeMonitorGracePeriod,omitzero"`
	// Durations such as 1h or 5m.
	EventTTL                    metav1.Duration `json:"eventTTL,omitzero"`
	EtcdCompactionInterval      metav1.Duration `json:"etcdCompactionInterval,omitzero"`
	EtcdDefragmentationInterval metav1.Duration `json:"etcdDefragmentationInterval,omitzero"`

	// Validity of certificates, and the period for renewal after expiry, such as 8760h.
	OwnCertificateDuration metav1.Duration  `json:"ownCertificateDuration,omitzero"`
	ClusterSigningDuration metav1.Duration  `json:"clusterSigningDuration,omitzero"`
	NodeReturnPeriod       *metav1.Duration `json:"nodeReturnPeriod,omitempty"`

	// ServiceRanges are CIDRs such as 10.43.0.0/16, one or one per IP family.
	ServiceRanges    []netip.Prefix       `json:"serviceRanges,omitempty"`
	NodePorts        serviceips.PortRange `json:"nodePorts,omitzero"` // such as "30000-32767"
	ServicesRouted   *bool                `json:"servicesRouted,omitempty"`
	AdvertiseAddress netip.Addr           `json:"advertiseAddress,omitzero"`
	// LoadBalancerPool has CIDRs such as 192.0.2.16/28 and ranges such as 192.0.2.10-192.0.2.20.
	LoadBalancerPool []loadbalancer.Range `json:"loadBalancerPool,omitempty"`

	Etcd struct {
		Servers  []string `json:"servers,omitempty"`
		CAFile   string   `json:"caFile,omitempty"`
		CertFile string   `json:"certFile,omitempty"`
		KeyFile  string   `json:"keyFile,omitempty"`
	} `json:"etcd,omitzero"`

	ServiceAccountIssuer                string          `json:"serviceAccountIssuer,omitempty"`
	ServiceAccountMaxTokenExpiration    metav1.Duration `json:"serviceAccountMaxTokenExpiration,omitzero"`
	ServiceAccountExtendTokenExpiration *bool           `json:"serviceAccountExtendTokenExpiration,omitempty"`
	MaxRequestsInflight                 *int            `json:"maxRequestsInflight,omitempty"`
	MaxMutatingRequestsInflight         *int            `json:"maxMutatingRequestsInflight,omitempty"`
	Audit                               auditFields     `json:"audit,omitzero"`
	ServiceAccountJWKSURI               string          `json:"serviceAccountJWKSURI,omitempty"`
	Authentication                      authFields      `json:"authentication,omitzero"`
	EnableAdmissionPlugins              []string        `json:"enableAdmissionPlugins,omitempty"`
	DisableAdmissionPlugins             []string        `json:"disableAdmissionPlugins,omitempty"`
	AdmissionControlConfigFile          string          `json:"admissionControlConfigFile,omitempty"`
	EncryptionProviderConfig            string          `json:"encryptionProviderConfig,omitempty"`
	EncryptionProviderConfigReload      *bool           `json:"encryptionProviderConfigAutomaticReload,omitempty"`
	UI                                  *bool           `json:"ui,omitempty"`
}

// ReadConfigFile reads a configuration file. Errors name the line and the field.
func ReadConfigFile(path string) (*ConfigFile, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	return parseConfigFile(path, text)
}

// parseConfigFile parses the text of a configuration file. The path is part of errors.
func parseConfigFile(path string, text []byte) (*ConfigFile, error) {
	documents, err := strictyaml.Parse(text, strictyaml.Limits{Documents: 1})
	if err != nil {
		return nil, fmt.Errorf("configuration %s: %w", path, err)
	}
	if len(documents) == 0 {
		return nil, fmt.Errorf("configuration %s: is empty", path)
	}
	if version, kind := documents[0].Kind(); version != ConfigFileAPIVersion || kind != ConfigFileKind {
		return nil, fmt.Errorf(
			"configuration %s: must be apiVersion: %s, kind: %s",
			path,
			ConfigFileAPIVersion,
			ConfigFileKind,
		)
	}
	f := &ConfigFile{}
	if _, err := documents[0].Decode(f); err != nil {
		return nil, fmt.Errorf("configuration %s: %w", path, err)
	}
	return f, nil
}

// Deprecations returns a warning for each deprecated field that is set.
func (f *ConfigFile) Deprecations() (warnings []string) {
	if f.Listen != "" {
		warnings = append(warnings, "listen is deprecated, use bindAddress and securePort")
	}
	if f.Names != nil {
		warnings = append(warnings, "names is deprecated, use tlsSANs")
	}
	if f.Off != nil {
		warnings = append(warnings, `off is deprecated, use controllers: ["*", "-NAME"]`)
	}
	if f.ServicesRouted != nil {
		warnings = append(warnings, "servicesRouted is deprecated and ignored: pods always get the ClusterIP of "+
			"default/kubernetes")
	}
	return warnings
}

// ApplyTo copies the settings of the file to c, except those for which a flag is set. isSet
// reports whether a flag is set.
func (f *ConfigFile) ApplyTo(c *Config, isSet func(flag string) bool) {
	text := func(flag string, to *string, from string) {
		if from != "" && !isSet(flag) {
			*to = from
		}
	}
	list := func(flag string, to *[]string, from []string) {
		if from != nil && !isSet(flag) {
			*to = from
		}
	}
	text("data-dir", &c.DataDir, f.DataDir)
	f.applyListen(c, isSet)
	if !isSet("tls-san") && !isSet("name") {
		c.TLSSANs = slices.Concat(c.TLSSANs, f.TLSSANs, f.Names)
	}
	list("controllers", &c.Controllers, f.Controllers)
	if !isSet("controllers") && !isSet("off") {
		c.Controllers = DisableControllers(c.Controllers, f.Off...)
	}
	if f.PodRanges != nil && !isSet("cluster-cidr") {
		c.ClusterCIDRs = f.PodRanges
	}
	duration := func(flag string, to *time.Duration, from time.Duration) {
		if from != 0 && !isSet(flag) {
			*to = from
		}
	}
	duration("node-monitor-grace-period", &c.NodeMonitorGracePeriod, f.NodeMonitorGracePeriod.Duration)
	duration("own-certificate-duration", &c.OwnCertificateDuration, f.OwnCertificateDuration.Duration)
	duration("cluster-signing-duration", &c.ClusterSigningDuration, f.ClusterSigningDuration.Duration)
	duration("service-account-max-token-expiration", &c.MaxTokenExpiration, f.ServiceAccountMaxTokenExpiration.Duration)
	duration("event-ttl", &c.EventTTL, f.EventTTL.Duration)
	duration("etcd-compaction-interval", &c.EtcdCompactionInterval, f.EtcdCompactionInterval.Duration)
	duration("etcd-defragmentation-interval", &c.EtcdDefragmentationInterval, f.EtcdDefragmentationInterval.Duration)
	if f.NodeReturnPeriod != nil && !isSet("node-return-period") {
		c.NodeReturnPeriod = f.NodeReturnPeriod.Duration
	}
	f.applyServices(c, isSet)
	if f.ServiceAccountExtendTokenExpiration != nil && !isSet("service-account-extend-token-expiration") {
		c.ExtendTokenExpiration = *f.ServiceAccountExtendTokenExpiration
	}
	if f.AdvertiseAddress.IsValid() && !isSet("advertise-address") {
		c.AdvertiseAddress = f.AdvertiseAddress
	}
	list("etcd-servers", &c.Etcd.Endpoints, f.Etcd.Servers)
	text("etcd-cafile", &c.Etcd.CAFile, f.Etcd.CAFile)
	text("etcd-certfile", &c.Etcd.CertFile, f.Etcd.CertFile)
	text("etcd-keyfile", &c.Etcd.KeyFile, f.Etcd.KeyFile)
	text("service-account-issuer", &c.ServiceAccountIssuer, f.ServiceAccountIssuer)
	setIfGiven(isSet, "max-requests-inflight", &c.MaxRequestsInFlight, f.MaxRequestsInflight)
	setIfGiven(isSet, "max-mutating-requests-inflight", &c.MaxMutatingRequestsInFlight, f.MaxMutatingRequestsInflight)
	text("service-account-jwks-uri", &c.ServiceAccountJWKSURI, f.ServiceAccountJWKSURI)
	f.Authentication.applyTo(&c.Authentication, isSet)
	f.Audit.applyTo(&c.Audit, isSet)
	list("enable-admission-plugins", &c.EnabledAdmissionPlugins, f.EnableAdmissionPlugins)
	text("admission-control-config-file", &c.AdmissionConfigFile, f.AdmissionControlConfigFile)
	list("disable-admission-plugins", &c.DisabledAdmissionPlugins, f.DisableAdmissionPlugins)
	text("encryption-provider-config", &c.EncryptionConfig, f.EncryptionProviderConfig)
	setIfGiven(isSet, "encryption-provider-config-automatic-reload", &c.EncryptionConfigReload,
		f.EncryptionProviderConfigReload)
	setIfGiven(isSet, "ui", &c.UI, f.UI)
}

// applyListen copies the address and the port of the API.
func (f *ConfigFile) applyListen(c *Config, isSet func(flag string) bool) {
	if isSet("listen") {
		return
	}
	host, port, _ := net.SplitHostPort(c.Listen)
	if f.Listen != "" {
		oldHost, oldPort, err := net.SplitHostPort(f.Listen)
		if err != nil {
			c.Listen = f.Listen // Validate reports the error
			return
		}
		if !isSet("bind-address") {
			host = oldHost
		}
		if !isSet("secure-port") {
			port = oldPort
		}
	}
	if f.BindAddress.IsValid() && !isSet("bind-address") {
		host = f.BindAddress.String()
	}
	if f.SecurePort != nil && !isSet("secure-port") {
		port = strconv.Itoa(int(*f.SecurePort))
	}
	c.Listen = net.JoinHostPort(host, port)
}

// applyServices copies the settings of Services.
func (f *ConfigFile) applyServices(c *Config, isSet func(flag string) bool) {
	if f.ServiceRanges != nil && !isSet("service-cluster-ip-range") {
		c.ServiceCIDRs = f.ServiceRanges
	}
	if f.NodePorts != (serviceips.PortRange{}) && !isSet("service-node-port-range") {
		c.ServiceNodePorts = f.NodePorts
	}
	if f.LoadBalancerPool != nil && !isSet("load-balancer-pool") {
		c.LoadBalancerPool = f.LoadBalancerPool
	}
}
