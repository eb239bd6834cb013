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

// asideSuffix is what the files of another server end in that Rejoin has put aside.
const asideSuffix = ".old"

// Rejoin has what a node knows a server by lead to the one that was found. What is
// of that server's authority stays, with the address at which it was found. What is
// of another is put aside under its name and .old: the node asks anew, with its
// token. aside are the new names; where there was nothing, nothing changes.
func Rejoin(found *rest.Config, kubeconfig, certDir string) (aside []string, err error) {
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
	// The kubeconfig last: while it is there, another try finds the rest.
	for _, path := range append(all, kubeconfig) {
		switch err := os.Rename(path, path+asideSuffix); {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return aside, fmt.Errorf("put aside what is of another server: %w", err)
		default:
			aside = append(aside, path+asideSuffix)
		}
	}
	return aside, nil
}

// trustsCA tells whether a kubeconfig trusts the authority of the server.
func trustsCA(kubeconfig string, found *rest.Config) bool {
	c, err := LoadConfig(kubeconfig)
	if err != nil || rest.LoadTLSFiles(c) != nil {
		return false // nobody can come in by it
	}
	return slices.ContainsFunc(certificates(c.CAData), func(ca *x509.Certificate) bool {
		return slices.ContainsFunc(certificates(found.CAData), func(is *x509.Certificate) bool {
			return bytes.Equal(ca.RawSubjectPublicKeyInfo, is.RawSubjectPublicKeyInfo)
		})
	})
}

// issuedByOther tells whether there is a client certificate that another authority has
// issued.
func issuedByOther(certDir string, found *rest.Config) bool {
	text, err := os.ReadFile(filepath.Join(certDir, currentName(clientName)))
	kept := certificates(text)
	return err == nil && !slices.ContainsFunc(certificates(found.CAData), func(ca *x509.Certificate) bool {
		return len(kept) > 0 && kept[0].CheckSignatureFrom(ca) == nil
	})
}

// setServer has a kubeconfig name another address of its server. Whoever speaks by
// it stays as it says.
func setServer(path, address string) error {
	file, err := clientcmd.LoadFromFile(path)
	if err != nil {
		return fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	current := file.Contexts[file.CurrentContext]
	if current == nil || file.Clusters[current.Cluster] == nil {
		return fmt.Errorf("kubeconfig %s: its current context names no cluster", path)
	}
	cluster := file.Clusters[current.Cluster]
	if cluster.Server == address {
		return nil
	}
	cluster.Server, cluster.TLSServerName = address, "" // it was found by that address
	return WriteKubeconfig(path, file)
}
