package apiclient

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// LoadConfig reads the current context of a kubeconfig file. Errors name the file and the field.
func LoadConfig(path string) (*rest.Config, error) {
	file, err := clientcmd.LoadFromFile(path)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	if err := clientcmd.ResolveLocalPaths(file); err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	c, err := clientcmd.NewDefaultClientConfig(*file, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	return c, nil
}

// NewKubeconfig returns a kubeconfig for a server with the credentials of a user.
func NewKubeconfig(server *rest.Config, user *clientcmdapi.AuthInfo) *clientcmdapi.Config {
	c := clientcmdapi.NewConfig()
	c.Clusters["default"] = &clientcmdapi.Cluster{
		Server: server.Host + server.APIPath, CertificateAuthorityData: server.CAData,
		CertificateAuthority: server.CAFile,
		TLSServerName:        server.ServerName, InsecureSkipTLSVerify: server.Insecure,
	}
	c.AuthInfos["default"] = user
	c.Contexts["default"] = &clientcmdapi.Context{Cluster: "default", AuthInfo: "default"}
	c.CurrentContext = "default"
	return c
}

// WriteKubeconfig writes a kubeconfig atomically, readable only by its owner.
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

// UnrotatedCertificate returns the field of a kubeconfig with a client certificate of a node, if the certificate
// directory has a newer one. The kubelet takes the newer one, berth that of the kubeconfig. Empty: the kubeconfig
// has no client certificate, or both are the same file.
func UnrotatedCertificate(kubeconfig, certDir string) (field, current string, err error) {
	current = filepath.Join(certDir, currentFileName(clientName))
	rotated, err := os.Stat(current)
	if errors.Is(err, fs.ErrNotExist) {
		return "", current, nil
	}
	if err != nil {
		return "", current, err
	}
	c, err := LoadConfig(kubeconfig)
	switch {
	case err != nil:
		return "", current, err
	case len(c.CertData) > 0:
		return "users[].user.client-certificate-data", current, nil
	case c.CertFile == "":
		return "", current, nil
	}
	named, err := os.Stat(c.CertFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", current, err
	}
	if err == nil && filepath.Clean(c.CertFile) == current && os.SameFile(named, rotated) {
		return "", current, nil
	}
	return "users[].user.client-certificate", current, nil
}
