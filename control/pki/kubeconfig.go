package pki

import (
	"crypto/ecdsa"
	"errors"
	"io/fs"
	"os"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// SigningKey signs service account tokens.
type SigningKey = ecdsa.PrivateKey

// Kubeconfig returns a kubeconfig for one user of the server at the URL.
func (a *Authority) Kubeconfig(server, user string, cert, key []byte) ([]byte, error) {
	c := clientcmdapi.NewConfig()
	c.Clusters["berth"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: a.PEM()}
	c.AuthInfos[user] = &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}
	c.Contexts["berth"] = &clientcmdapi.Context{Cluster: "berth", AuthInfo: user}
	c.CurrentContext = "berth"
	return clientcmd.Write(*c)
}

// WriteKubeconfig writes a kubeconfig with a new certificate of the subject, with mode 0600, unless the existing one
// is current.
func (a *Authority) WriteKubeconfig(path, server string, subject Subject) error {
	if a.isCurrentKubeconfig(path, server, subject) {
		return nil
	}
	cert, key, err := a.Issue(subject)
	if err != nil {
		return err
	}
	text, err := a.Kubeconfig(server, subject.Name, cert, key)
	if err != nil {
		return err
	}
	return writeFile(path, text, 0o600)
}

// isCurrentKubeconfig reports whether a kubeconfig has the server, the authority and the subject, and its certificate
// needs no renewal. Earlier releases gave the administrator another group.
func (a *Authority) isCurrentKubeconfig(path, server string, subject Subject) bool {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	c, err := clientcmd.Load(text)
	if err != nil || c.Clusters["berth"] == nil || c.Clusters["berth"].Server != server {
		return false
	}
	if string(c.Clusters["berth"].CertificateAuthorityData) != string(a.PEM()) {
		return false
	}
	user := c.AuthInfos[subject.Name]
	if user == nil {
		return false
	}
	cert, err := parseCertificate(user.ClientCertificateData)
	return err == nil && !needsRenewal(cert, a.now()) && cert.CheckSignatureFrom(a.cert) == nil &&
		cert.Subject.CommonName == subject.Name && coversSubject(cert, subject)
}
