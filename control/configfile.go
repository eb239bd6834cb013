package control

import (
	"fmt"
	"net/netip"
	"os"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/control/serviceips"
	"berth/internal/strictyaml"
)

// What a configuration file says it is.
const (
	ConfigFileAPIVersion = "berth.dev/v1alpha1"
	ConfigFileKind       = "ControlConfiguration"
)

// ConfigFile is a configuration file. Each field does what the flag of its name does;
// a flag that is given wins.
type ConfigFile struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	DataDir string   `json:"dataDir,omitempty"`
	Listen  string   `json:"listen,omitempty"`
	Names   []string `json:"names,omitempty"`
	Off     []string `json:"off,omitempty"`
	// PodRanges as in 10.42.0.0/16, one per family; [] is none.
	PodRanges []netip.Prefix `json:"podRanges,omitempty"`

	// NodeMonitorGracePeriod as in 40s.
	NodeMonitorGracePeriod metav1.Duration `json:"nodeMonitorGracePeriod,omitzero"`
	// As in 1h, 5m.
	EventTTL                    metav1.Duration `json:"eventTTL,omitzero"`
	EtcdCompactionInterval      metav1.Duration `json:"etcdCompactionInterval,omitzero"`
	EtcdDefragmentationInterval metav1.Duration `json:"etcdDefragmentationInterval,omitzero"`

	// How long certificates are good, and may be renewed afterwards, as in 8760h.
	OwnCertificateDuration metav1.Duration  `json:"ownCertificateDuration,omitzero"`
	ClusterSigningDuration metav1.Duration  `json:"clusterSigningDuration,omitzero"`
	NodeReturnPeriod       *metav1.Duration `json:"nodeReturnPeriod,omitempty"`

	// ServiceRanges as in 10.43.0.0/16, one or one per family.
	ServiceRanges    []netip.Prefix       `json:"serviceRanges,omitempty"`
	NodePorts        serviceips.PortRange `json:"nodePorts,omitzero"` // "30000-32767"
	ServicesRouted   *bool                `json:"servicesRouted,omitempty"`
	AdvertiseAddress netip.Addr           `json:"advertiseAddress,omitzero"`

	Etcd struct {
		Servers  []string `json:"servers,omitempty"`
		CAFile   string   `json:"caFile,omitempty"`
		CertFile string   `json:"certFile,omitempty"`
		KeyFile  string   `json:"keyFile,omitempty"`
	} `json:"etcd,omitzero"`

	ServiceAccountIssuer                string          `json:"serviceAccountIssuer,omitempty"`
	ServiceAccountMaxTokenExpiration    metav1.Duration `json:"serviceAccountMaxTokenExpiration,omitzero"`
	ServiceAccountExtendTokenExpiration *bool           `json:"serviceAccountExtendTokenExpiration,omitempty"`
	DisableAdmissionPlugins             []string        `json:"disableAdmissionPlugins,omitempty"`
	EncryptionProviderConfig            string          `json:"encryptionProviderConfig,omitempty"`
}

// ReadConfigFile reads a configuration file; what is wrong with it is named by line
// and field.
func ReadConfigFile(path string) (*ConfigFile, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	documents, err := strictyaml.Parse(text, strictyaml.Limits{Documents: 1})
	if err != nil {
		return nil, fmt.Errorf("configuration %s: %w", path, err)
	}
	if len(documents) == 0 {
		return nil, fmt.Errorf("configuration %s: is empty", path)
	}
	if version, kind := documents[0].Kind(); version != ConfigFileAPIVersion || kind != ConfigFileKind {
		return nil, fmt.Errorf("configuration %s: must be apiVersion: %s, kind: %s", path, ConfigFileAPIVersion, ConfigFileKind)
	}
	f := &ConfigFile{}
	if _, err := documents[0].Decode(f); err != nil {
		return nil, fmt.Errorf("configuration %s: %w", path, err)
	}
	return f, nil
}

// ApplyTo fills in what the file says, but for what the flags have said: given
// answers for a flag's name.
func (f *ConfigFile) ApplyTo(c *Config, given func(flag string) bool) {
	text := func(flag string, to *string, from string) {
		if from != "" && !given(flag) {
			*to = from
		}
	}
	list := func(flag string, to *[]string, from []string) {
		if from != nil && !given(flag) {
			*to = from
		}
	}
	text("data-dir", &c.DataDir, f.DataDir)
	text("listen", &c.Listen, f.Listen)
	list("name", &c.TLSSANs, f.Names)
	list("off", &c.Off, f.Off)
	if f.PodRanges != nil && !given("cluster-cidr") {
		c.ClusterCIDRs = f.PodRanges
	}
	duration := func(flag string, to *time.Duration, from time.Duration) {
		if from != 0 && !given(flag) {
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
	if f.NodeReturnPeriod != nil && !given("node-return-period") {
		c.NodeReturnPeriod = f.NodeReturnPeriod.Duration
	}
	if f.ServiceRanges != nil && !given("service-cluster-ip-range") {
		c.ServiceCIDRs = f.ServiceRanges
	}
	if f.NodePorts != (serviceips.PortRange{}) && !given("service-node-port-range") {
		c.ServiceNodePorts = f.NodePorts
	}
	if f.ServicesRouted != nil && !given("services-routed") {
		c.ServicesRouted = *f.ServicesRouted
	}
	if f.ServiceAccountExtendTokenExpiration != nil && !given("service-account-extend-token-expiration") {
		c.ExtendTokenExpiration = *f.ServiceAccountExtendTokenExpiration
	}
	if f.AdvertiseAddress.IsValid() && !given("advertise-address") {
		c.AdvertiseAddress = f.AdvertiseAddress
	}
	list("etcd-servers", &c.Etcd.Endpoints, f.Etcd.Servers)
	text("etcd-cafile", &c.Etcd.CAFile, f.Etcd.CAFile)
	text("etcd-certfile", &c.Etcd.CertFile, f.Etcd.CertFile)
	text("etcd-keyfile", &c.Etcd.KeyFile, f.Etcd.KeyFile)
	text("service-account-issuer", &c.ServiceAccountIssuer, f.ServiceAccountIssuer)
	list("disable-admission-plugins", &c.DisabledAdmissionPlugins, f.DisableAdmissionPlugins)
	text("encryption-provider-config", &c.EncryptionConfig, f.EncryptionProviderConfig)
}
