package apiclient

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// renamedSuffix is the suffix of files of another server that Rejoin has moved aside.
const renamedSuffix = ".old"

// Rejoin points the credentials of a node to the server that was found. Credentials of the same
// certificate authority stay, and get the new address. Credentials of another authority are renamed
// with the suffix .old, and the node requests a new certificate with its token. aside are the new
// names. Without credentials nothing changes.
func Rejoin(found *rest.Config, kubeconfig, certDir string) (renamed []string, err error) {
	_, missing := os.Stat(kubeconfig)
	switch {
	case missing == nil && trustsCA(kubeconfig, found):
		return nil, setServer(kubeconfig, found.Host)
	case errors.Is(missing, fs.ErrNotExist) && !issuedByOther(certDir, found):
		return nil, nil
	}
	var all []string
	for _, pattern := range certificateFiles() {
		match, err := filepath.Glob(filepath.Join(certDir, pattern))
		if err != nil {
			return nil, fmt.Errorf("certificates in %s: %w", certDir, err)
		}
		all = append(all, match...)
	}
	// The kubeconfig last: while it exists, another attempt finds the rest.
	for _, path := range append(all, kubeconfig) {
		switch err := os.Rename(path, path+renamedSuffix); {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return renamed, fmt.Errorf("rename credentials of another server: %w", err)
		default:
			renamed = append(renamed, path+renamedSuffix)
		}
	}
	return renamed, nil
}

// trustsCA reports whether a kubeconfig trusts the authority of the server.
func trustsCA(kubeconfig string, found *rest.Config) bool {
	c, err := LoadConfig(kubeconfig)
	if err != nil || rest.LoadTLSFiles(c) != nil {
		return false // unusable
	}
	return slices.ContainsFunc(certificates(c.CAData), func(ca *x509.Certificate) bool {
		return slices.ContainsFunc(certificates(found.CAData), func(is *x509.Certificate) bool {
			return bytes.Equal(ca.RawSubjectPublicKeyInfo, is.RawSubjectPublicKeyInfo)
		})
	})
}

// issuedByOther reports whether there is a client certificate that another authority has issued.
func issuedByOther(certDir string, found *rest.Config) bool {
	text, err := os.ReadFile(filepath.Join(certDir, currentFileName(clientName)))
	stored := certificates(text)
	return err == nil && !slices.ContainsFunc(certificates(found.CAData), func(ca *x509.Certificate) bool {
		return len(stored) > 0 && stored[0].CheckSignatureFrom(ca) == nil
	})
}

// setServer changes the server address of a kubeconfig. The credentials stay.
func setServer(path, address string) error {
	file, err := clientcmd.LoadFromFile(path)
	if err != nil {
		return fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	current := file.Contexts[file.CurrentContext]
	if current == nil || file.Clusters[current.Cluster] == nil {
		return fmt.Errorf("kubeconfig %s: the current context has no cluster", path)
	}
	cluster := file.Clusters[current.Cluster]
	if cluster.Server == address {
		return nil
	}
	cluster.Server, cluster.TLSServerName = address, "" // verified with that address
	return WriteKubeconfig(path, file)
}
