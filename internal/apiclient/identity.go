package apiclient

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// IdentityOptions say by what a node is known to its server.
type IdentityOptions struct {
	NodeName   string
	MachineID  string // of the host, by which a server tells two of one name apart
	Kubeconfig string // written when it is not there and Bootstrap is
	Bootstrap  string // kubeconfig to ask for a certificate with; empty: there is none
	CertDir    string
	Rotate     bool // renew the certificate in time
	UserAgent  string
	QPS, Burst int
	Log        *slog.Logger
}

// Identity is how a node speaks to its server: as a kubeconfig says it, or by a
// certificate of its own that it asks for with the bootstrap kubeconfig and
// renews by itself.
type Identity struct {
	Client      *Client
	Certificate *Certificate // nil: the kubeconfig has credentials of its own

	opt IdentityOptions
}

// NewIdentity reads what there is. It asks nobody yet: a node whose server is
// away, or does not know it yet, begins all the same.
func NewIdentity(o IdentityOptions) (*Identity, error) {
	id := &Identity{opt: o}
	config, own, err := id.config()
	if err != nil {
		return nil, err
	}
	options := Options{Config: config, UserAgent: o.UserAgent, QPS: o.QPS, Burst: o.Burst}
	if own {
		if id.Certificate, err = id.open(); err != nil {
			return nil, err
		}
		options.Certificate = id.Certificate
	}
	id.Client, err = New(options)
	return id, err
}

// config is how the server is reached, and whether by a certificate that is kept
// in the directory of certificates.
func (id *Identity) config() (config *rest.Config, own bool, err error) {
	o := &id.opt
	path := o.Kubeconfig
	_, missing := os.Stat(path)
	switch {
	case o.Bootstrap == "":
	case path == "":
		path, own = o.Bootstrap, true
	case errors.Is(missing, fs.ErrNotExist):
		path, own = o.Bootstrap, true
	}
	if config, err = LoadConfig(path); err != nil {
		return nil, false, err
	}
	if own || config.CertFile == id.path() {
		own = true
		config = rest.AnonymousClientConfig(config)
	}
	return config, own, nil
}

// path is where the certificate and its key are, as the kubelet has them.
func (id *Identity) path() string { return filepath.Join(id.opt.CertDir, currentName(clientName)) }

const (
	clientName = "kubelet-client"
	serverName = "kubelet-server"
)

func (id *Identity) open() (*Certificate, error) {
	o := &id.opt
	var boot func() (*Client, error)
	remedy := "give the node a fresh bootstrap kubeconfig (berth join writes one)"
	if _, err := os.Stat(o.Bootstrap); o.Bootstrap != "" && err == nil { // it may have been taken away after its use
		boot = id.bootstrap
	}
	c := CertificateOptions{
		Dir: o.CertDir, Name: clientName, Request: NodeClientRequest(o.NodeName, o.MachineID), Log: o.Log, BootstrapClient: id.begin(boot), Hint: remedy,
		OnIssued: func() { id.writeKubeconfig() },
	}
	if o.Rotate {
		c.RenewalClient = id.self
	}
	cert, warning := OpenCertificate(c)
	if warning != nil {
		o.Log.Warn("the node's certificate cannot be used; another is asked for", "err", warning)
	}
	if cert.Expires().IsZero() && boot == nil {
		return nil, fmt.Errorf("the node's certificate %s is not there: %s and start again", cert.Path(), remedy)
	}
	return cert, nil
}

// begin says who asks for a certificate while there is none that is good: with the
// one that has expired, which tells a server that knows returning nodes who has its
// key, and with the bootstrap kubeconfig, if there is one; in turn.
func (id *Identity) begin(boot func() (*Client, error)) func() (*Client, error) {
	old := false
	return func() (*Client, error) {
		old = !old || boot == nil
		if old && !id.Certificate.Expires().IsZero() {
			return id.Client, nil
		}
		if boot == nil {
			return nil, errNoCertificate
		}
		return boot()
	}
}

// bootstrap is the client that asks for the first certificate. The file is read
// when it is needed: a new one takes effect without a restart.
func (id *Identity) bootstrap() (*Client, error) {
	config, err := LoadConfig(id.opt.Bootstrap)
	if err != nil {
		return nil, err
	}
	return New(Options{Config: config, UserAgent: id.opt.UserAgent, QPS: id.opt.QPS, Burst: id.opt.Burst})
}

// self asks as the node itself, as soon as it can.
func (id *Identity) self() (*Client, error) {
	if id.Certificate != nil && !id.Certificate.Valid() {
		return nil, errNoCertificate
	}
	return id.Client, nil
}

// writeKubeconfig writes the kubeconfig of a node that has its certificate, for
// its next start and for people.
func (id *Identity) writeKubeconfig() {
	o := &id.opt
	if o.Kubeconfig == "" || o.Bootstrap == "" {
		return
	}
	if _, err := os.Stat(o.Kubeconfig); !errors.Is(err, fs.ErrNotExist) {
		return
	}
	from, err := LoadConfig(o.Bootstrap)
	if err == nil {
		err = WriteKubeconfig(o.Kubeconfig, NewKubeconfig(from, &clientcmdapi.AuthInfo{ClientCertificate: id.path(), ClientKey: id.path()}))
	}
	if err != nil {
		o.Log.Warn("the kubeconfig is not written: the next start asks with the bootstrap kubeconfig again", "err", err)
	}
}

// NewKubeconfig is a kubeconfig for the server of another, for somebody else.
func NewKubeconfig(server *rest.Config, user *clientcmdapi.AuthInfo) *clientcmdapi.Config {
	c := clientcmdapi.NewConfig()
	c.Clusters["default"] = &clientcmdapi.Cluster{
		Server: server.Host + server.APIPath, CertificateAuthorityData: server.CAData, CertificateAuthority: server.CAFile,
		TLSServerName: server.ServerName, InsecureSkipTLSVerify: server.Insecure,
	}
	c.AuthInfos["default"] = user
	c.Contexts["default"] = &clientcmdapi.Context{Cluster: "default", AuthInfo: "default"}
	c.CurrentContext = "default"
	return c
}

// WriteKubeconfig writes a kubeconfig that only its owner may read, whole or not
// at all.
func WriteKubeconfig(path string, c *clientcmdapi.Config) error {
	text, err := clientcmd.Write(*c)
	if err != nil {
		return fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	return writeFile(path, text)
}
