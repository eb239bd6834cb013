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
	FileAPIVersion = "berth.dev/v1alpha1"
	FileKind       = "ControlConfiguration"
)

// File is a configuration file. Each field does what the flag of its name does;
// a flag that is given wins.
type File struct {
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
	ServiceRanges    []netip.Prefix   `json:"serviceRanges,omitempty"`
	NodePorts        serviceips.Ports `json:"nodePorts,omitzero"` // "30000-32767"
	ServicesRouted   *bool            `json:"servicesRouted,omitempty"`
	AdvertiseAddress netip.Addr       `json:"advertiseAddress,omitzero"`

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

// ReadFile reads a configuration file; what is wrong with it is named by line
// and field.
func ReadFile(path string) (*File, error) {
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
	if version, kind := documents[0].Kind(); version != FileAPIVersion || kind != FileKind {
		return nil, fmt.Errorf("configuration %s: must be apiVersion: %s, kind: %s", path, FileAPIVersion, FileKind)
	}
	f := &File{}
	if _, err := documents[0].Decode(f); err != nil {
		return nil, fmt.Errorf("configuration %s: %w", path, err)
	}
	return f, nil
}

// Into fills in what the file says, but for what the flags have said: given
// answers for a flag's name.
func (f *File) Into(c *Config, given func(flag string) bool) {
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
	list("name", &c.Names, f.Names)
	list("off", &c.Off, f.Off)
	if f.PodRanges != nil && !given("cluster-cidr") {
		c.PodRanges = f.PodRanges
	}
	duration := func(flag string, to *time.Duration, from time.Duration) {
		if from != 0 && !given(flag) {
			*to = from
		}
	}
	duration("node-monitor-grace-period", &c.NodeGrace, f.NodeMonitorGracePeriod.Duration)
	duration("own-certificate-duration", &c.OwnCertificates, f.OwnCertificateDuration.Duration)
	duration("cluster-signing-duration", &c.NodeCertificates, f.ClusterSigningDuration.Duration)
	duration("service-account-max-token-expiration", &c.LongestToken, f.ServiceAccountMaxTokenExpiration.Duration)
	duration("event-ttl", &c.EventTTL, f.EventTTL.Duration)
	duration("etcd-compaction-interval", &c.CompactEvery, f.EtcdCompactionInterval.Duration)
	duration("etcd-defragmentation-interval", &c.DefragmentEvery, f.EtcdDefragmentationInterval.Duration)
	if f.NodeReturnPeriod != nil && !given("node-return-period") {
		c.NodeReturn = f.NodeReturnPeriod.Duration
	}
	if f.ServiceRanges != nil && !given("service-cluster-ip-range") {
		c.ServiceRanges = f.ServiceRanges
	}
	if f.NodePorts != (serviceips.Ports{}) && !given("service-node-port-range") {
		c.NodePorts = f.NodePorts
	}
	if f.ServicesRouted != nil && !given("services-routed") {
		c.ServicesRouted = *f.ServicesRouted
	}
	if f.ServiceAccountExtendTokenExpiration != nil && !given("service-account-extend-token-expiration") {
		c.ExtendTokens = *f.ServiceAccountExtendTokenExpiration
	}
	if f.AdvertiseAddress.IsValid() && !given("advertise-address") {
		c.AdvertiseAddress = f.AdvertiseAddress
	}
	list("etcd-servers", &c.Etcd.Endpoints, f.Etcd.Servers)
	text("etcd-cafile", &c.Etcd.CAFile, f.Etcd.CAFile)
	text("etcd-certfile", &c.Etcd.CertFile, f.Etcd.CertFile)
	text("etcd-keyfile", &c.Etcd.KeyFile, f.Etcd.KeyFile)
	text("service-account-issuer", &c.Issuer, f.ServiceAccountIssuer)
	list("disable-admission-plugins", &c.AdmissionOff, f.DisableAdmissionPlugins)
	text("encryption-provider-config", &c.EncryptionConfig, f.EncryptionProviderConfig)
}
