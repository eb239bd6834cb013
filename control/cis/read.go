package cis

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/pod-security-admission/admission/api/load"

	"berth/control"
	"berth/control/admission"
	"berth/control/audit"
	"berth/control/authn"
	"berth/internal/cis"
)

// Options select what Read reads.
type Options struct {
	// Config is the effective configuration of the server.
	Config control.Config
	// ConfigFile is the configuration file; empty: none. Units are the paths where the unit file can be.
	ConfigFile string
	Units      []string
	// Kubeconfig is that of an administrator.
	Kubeconfig string
	Now        time.Time
}

// requestTimeout limits how long the server may take to answer all requests.
const requestTimeout = time.Minute

// Read reads the facts. What cannot be read is recorded in them.
func Read(ctx context.Context, o Options) *Facts {
	f := &Facts{Config: o.Config}
	f.readFiles(o)
	f.readSettings()
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	c, err := newClients(o.Kubeconfig)
	if err != nil {
		f.ServerErr, f.ClusterErr = err, err
		return f
	}
	if f.Server, f.ServerErr = c.readServer(ctx); f.Server == nil {
		f.ClusterErr = f.ServerErr
		return f
	}
	f.Cluster, f.ClusterErr = c.readCluster(ctx)
	return f
}

func (f *Facts) readFiles(o Options) {
	dir := o.Config.DataDir
	f.Files = Files{DataDir: cis.Stat(dir), Store: cis.Stat(filepath.Join(dir, "etcd")),
		Admin: cis.Stat(o.Config.AdminKubeconfig()), SuperAdmin: cis.Stat(o.Config.SuperAdminKubeconfig())}
	if o.ConfigFile != "" {
		f.Files.Config = cis.Stat(o.ConfigFile)
	}
	for _, path := range o.Units {
		if unit := cis.Stat(path); unit.Err == nil {
			f.Files.Units = append(f.Files.Units, unit)
		}
	}
	if f.FilesErr = f.Files.DataDir.Err; f.FilesErr != nil {
		return
	}
	if f.Files.PKI, f.FilesErr = cis.Tree(filepath.Join(dir, "pki")); f.FilesErr != nil {
		return
	}
	for _, file := range f.pki(isCertificate) {
		if c, err := readCertificate(file.Path); err == nil && o.Now.After(c.NotAfter) {
			f.Files.Expired = append(f.Files.Expired, filepath.Base(file.Path))
		}
	}
	f.Files.AdminGroups = certificateGroups(o.Config.AdminKubeconfig())
}

func readCertificate(path string) (*x509.Certificate, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return parseCertificate(text)
}

func parseCertificate(text []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("contains no PEM block")
	}
	return x509.ParseCertificate(block.Bytes)
}

// certificateGroups returns the groups of the client certificate in a kubeconfig.
func certificateGroups(path string) []string {
	c, err := clientcmd.LoadFromFile(path)
	if err != nil || c.Contexts[c.CurrentContext] == nil {
		return nil
	}
	user := c.AuthInfos[c.Contexts[c.CurrentContext].AuthInfo]
	if user == nil {
		return nil
	}
	cert, err := parseCertificate(user.ClientCertificateData)
	if err != nil {
		return nil
	}
	return cert.Subject.Organization
}

// readSettings reads the files that the configuration names.
func (f *Facts) readSettings() {
	c := &f.Config
	f.Policy = audit.DefaultPolicy()
	if c.Audit.PolicyFile != "" {
		if f.Policy, f.PolicyErr = audit.LoadPolicy(c.Audit.PolicyFile); f.PolicyErr != nil {
			f.PolicyErr = fmt.Errorf("audit-policy-file: %w", f.PolicyErr)
		}
	}
	path := c.EncryptionConfig
	if path == "" {
		path = filepath.Join(c.DataDir, "pki", encryptionFile)
	}
	f.Encryption, f.EncryptionErr = readEncryption(path)
	f.readAuthentication()
	f.readPodSecurity()
}

func (f *Facts) readAuthentication() {
	o := &f.Config.Authentication
	f.Anonymous.Enabled = o.Anonymous == nil || *o.Anonymous
	if o.OIDC.IssuerURL != "" {
		f.Issuers = 1
	}
	if o.ConfigFile == "" {
		return
	}
	file, err := authn.ReadConfiguration(o.ConfigFile)
	if err != nil {
		f.AuthenticationErr = err
		return
	}
	f.Issuers = len(file.JWT)
	if file.Anonymous == nil {
		return
	}
	f.Anonymous.Enabled = file.Anonymous.Enabled
	for _, condition := range file.Anonymous.Conditions {
		f.Anonymous.Paths = append(f.Anonymous.Paths, condition.Path)
	}
}

func (f *Facts) readPodSecurity() {
	configurations, err := admission.ReadConfigurations(f.Config.AdmissionConfigFile)
	if err != nil {
		f.AdmissionErr = err
		return
	}
	config, err := load.LoadFromData(configurations["PodSecurity"])
	if err != nil {
		f.AdmissionErr = fmt.Errorf("admission-control-config-file: PodSecurity: %w", err)
		return
	}
	f.PodSecurityLevel, f.PodSecurityExempt = config.Defaults.Enforce, config.Exemptions.Namespaces
}

// readEncryption reads an EncryptionConfiguration. It returns no keys, and errors do not contain the file's content.
func readEncryption(path string) ([]EncryptedResources, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("encryption configuration: %w", err)
	}
	scheme := runtime.NewScheme()
	install.Install(scheme)
	decoded, err := runtime.Decode(serializer.NewCodecFactory(scheme).UniversalDecoder(), text)
	if err != nil {
		return nil, fmt.Errorf("encryption configuration %s: cannot be decoded", path)
	}
	config, ok := decoded.(*apiserver.EncryptionConfiguration)
	if !ok {
		return nil, fmt.Errorf("encryption configuration %s: is a %T", path, decoded)
	}
	var out []EncryptedResources
	for _, r := range config.Resources {
		e := EncryptedResources{Provider: "identity"}
		for _, resource := range r.Resources {
			e.Resources = append(e.Resources, strings.ToLower(resource))
		}
		if len(r.Providers) > 0 {
			e.Provider = providerName(&r.Providers[0])
		}
		out = append(out, e)
	}
	return out, nil
}

func providerName(p *apiserver.ProviderConfiguration) string {
	switch {
	case p.AESCBC != nil:
		return "aescbc"
	case p.AESGCM != nil:
		return "aesgcm"
	case p.KMS != nil:
		return "kms"
	case p.Secretbox != nil:
		return "secretbox"
	}
	return "identity"
}
