package apiclient

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// IdentityOptions configures the credentials of a node.
type IdentityOptions struct {
	NodeName   string
	MachineID  string // of the host, to distinguish hosts with the same name
	Kubeconfig string // written if it does not exist and Bootstrap is set
	Bootstrap  string // kubeconfig to request a certificate; empty: none
	CertDir    string
	Rotate     bool // renew the certificate
	UserAgent  string
	QPS, Burst int
	Log        *slog.Logger
	// OnRequest is called for each finished request to the server; may be nil.
	OnRequest func(Request)
	// OnClientCertificateError and OnServingCertificateError are called for each failed request for
	// the certificate; may be nil.
	OnClientCertificateError, OnServingCertificateError func()
	// OnServingCertificateRotated receives the age of a serving certificate that was replaced; may be
	// nil.
	OnServingCertificateRotated func(age time.Duration)
}

// Identity contains the credentials of a node: those of a kubeconfig, or a client certificate that
// it requests with the bootstrap kubeconfig and renews.
type Identity struct {
	Client      *Client
	Certificate *Certificate // nil: the kubeconfig has its own credentials

	opt IdentityOptions
}

// NewIdentity loads the credentials. It does not contact the server: a node starts without a
// reachable server, or before it is registered.
func NewIdentity(o IdentityOptions) (*Identity, error) {
	id := &Identity{opt: o}
	config, own, err := id.config()
	if err != nil {
		return nil, err
	}
	options := Options{
		Config: config, UserAgent: o.UserAgent, QPS: o.QPS, Burst: o.Burst, OnRequest: o.OnRequest,
	}
	if own {
		if id.Certificate, err = id.open(); err != nil {
			return nil, err
		}
		options.Certificate = id.Certificate
	}
	id.Client, err = New(options)
	return id, err
}

// config returns the server configuration, and whether the certificate in the certificate directory
// is used.
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

// path is the file of the certificate and its key, as the kubelet names it.
func (id *Identity) path() string { return filepath.Join(id.opt.CertDir, currentFileName(clientName)) }

const (
	clientName = "kubelet-client"
	serverName = "kubelet-server"
)

func (id *Identity) open() (*Certificate, error) {
	o := &id.opt
	var boot func() (*Client, error)
	hint := "create a new bootstrap kubeconfig (berth join writes one)"
	if _, err := os.Stat(o.Bootstrap); o.Bootstrap != "" && err == nil { // it may have been removed after use
		boot = id.bootstrap
	}
	c := CertificateOptions{
		Dir: o.CertDir, Name: clientName, Request: NodeClientRequest(o.NodeName, o.MachineID), Log: o.Log,
		BootstrapClient: id.begin(boot), Hint: hint,
		OnIssued: func() { id.writeKubeconfig() }, OnError: o.OnClientCertificateError,
	}
	if o.Rotate {
		c.RenewalClient = id.self
	}
	cert, warning := OpenCertificate(c)
	if warning != nil {
		o.Log.Warn("client certificate unusable, requesting another one", "err", warning)
	}
	if cert.Expires().IsZero() && boot == nil {
		return nil, fmt.Errorf("client certificate %s does not exist: %s and restart the agent", cert.Path(), hint)
	}
	return cert, nil
}

// begin returns the client for requests without a valid certificate: alternately the expired
// certificate, which proves to a server that the node has its key, and the bootstrap kubeconfig, if
// there is one.
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

// bootstrap returns the client that requests the first certificate. The file is read on demand. A
// new one takes effect without a restart.
func (id *Identity) bootstrap() (*Client, error) {
	config, err := LoadConfig(id.opt.Bootstrap)
	if err != nil {
		return nil, err
	}
	return New(Options{
		Config: config, UserAgent: id.opt.UserAgent, QPS: id.opt.QPS, Burst: id.opt.Burst, OnRequest: id.opt.OnRequest,
	})
}

// self returns the client of the node itself, once it has a certificate.
func (id *Identity) self() (*Client, error) {
	if id.Certificate != nil && !id.Certificate.Valid() {
		return nil, errNoCertificate
	}
	return id.Client, nil
}

// writeKubeconfig writes the kubeconfig of a node with a certificate, for its next start and for
// users.
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
		err = WriteKubeconfig(
			o.Kubeconfig,
			NewKubeconfig(from, &clientcmdapi.AuthInfo{ClientCertificate: id.path(), ClientKey: id.path()}),
		)
	}
	if err != nil {
		o.Log.Warn("kubeconfig not written, the next start uses the bootstrap kubeconfig again", "err", err)
	}
}

// ServingCertificate returns the serving certificate of the node, issued by the API server and
// renewed in time. The caller must call Run.
func (id *Identity) ServingCertificate(ips []netip.Addr) *Certificate {
	o := &id.opt
	c, warning := OpenCertificate(CertificateOptions{
		Dir: o.CertDir, Name: serverName, Request: NodeServingRequest(o.NodeName, ips), Log: o.Log,
		RenewalClient: id.self, BootstrapClient: id.self,
		Hint:    "check with kubectl get csr whether it waits for approval",
		OnError: o.OnServingCertificateError, OnRotated: o.OnServingCertificateRotated,
	})
	if warning != nil {
		o.Log.Info("serving certificate unusable, requesting another one", "err", warning)
	}
	return c
}
