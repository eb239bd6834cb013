package apiclient

import (
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// TestUnrotatedCertificate compares the certificates that a kubeconfig names with that in the certificate directory.
func TestUnrotatedCertificate(t *testing.T) {
	t.Parallel()
	const inFile, inline = "users[].user.client-certificate", "users[].user.client-certificate-data"
	dir := t.TempDir()
	certs := filepath.Join(dir, "pki")
	first, second, current := filepath.Join(certs, "1.pem"), filepath.Join(certs, "2.pem"),
		filepath.Join(certs, "kubelet-client-current.pem")
	if err := os.Mkdir(certs, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{first, second} {
		if err := os.WriteFile(path, []byte("certificate"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(second, current); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		user    clientcmdapi.AuthInfo
		certDir string
		want    string
	}{
		{clientcmdapi.AuthInfo{ClientCertificate: current, ClientKey: current}, certs, ""},
		{clientcmdapi.AuthInfo{ClientCertificate: first, ClientKey: first}, certs, inFile},
		// The link changes at the next rotation, the file does not.
		{clientcmdapi.AuthInfo{ClientCertificate: second, ClientKey: second}, certs, inFile},
		{clientcmdapi.AuthInfo{ClientCertificateData: []byte("c"), ClientKeyData: []byte("k")}, certs, inline},
		{clientcmdapi.AuthInfo{ClientCertificateData: []byte("c"), ClientKeyData: []byte("k")}, dir, ""},
		{clientcmdapi.AuthInfo{Token: "t"}, certs, ""},
	} {
		kubeconfig := filepath.Join(dir, "kubeconfig")
		if err := WriteKubeconfig(kubeconfig, NewKubeconfig(&rest.Config{Host: "https://s"}, &row.user)); err != nil {
			t.Fatal(err)
		}
		got, path, err := UnrotatedCertificate(kubeconfig, row.certDir)
		if err != nil || got != row.want || filepath.Dir(path) != row.certDir {
			t.Errorf("%+v in %s: got %q, %q, %v, want %q", row.user, row.certDir, got, path, err, row.want)
		}
	}
}
