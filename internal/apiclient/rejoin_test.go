package apiclient

import (
	"encoding/pem"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// foundAt is a server of the authority as Discover finds it.
func (a *authority) foundAt(address string) *rest.Config {
	c := &rest.Config{Host: address}
	c.CAData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
	return c
}

// joinedNode creates the files that a node has after its first start.
func (a *authority) joinedNode(t *testing.T) (kubeconfig string, cert *Certificate) {
	t.Helper()
	dir := t.TempDir()
	c := a.server(t)
	begin := func() (*Client, error) { return c, nil }
	cert, warning := OpenCertificate(
		CertificateOptions{
			Dir:             filepath.Join(dir, "pki"),
			Name:            clientName,
			Request:         NodeClientRequest("n", "m"),
			BootstrapClient: begin,
		},
	)
	if warning != nil {
		t.Fatal(warning)
	}
	if err := cert.obtain(t.Context(), begin); err != nil {
		t.Fatal(err)
	}
	kubeconfig = filepath.Join(dir, "kubeconfig")
	user := &clientcmdapi.AuthInfo{ClientCertificate: cert.Path(), ClientKey: cert.Path()}
	if err := WriteKubeconfig(kubeconfig, NewKubeconfig(a.foundAt("https://first:6443"), user)); err != nil {
		t.Fatal(err)
	}
	return kubeconfig, cert
}

func TestRejoinUpdatesServerAddress(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	kubeconfig, cert := a.joinedNode(t)
	for range 2 { // the second call changes nothing
		renamed, err := Rejoin(a.foundAt("https://second:6443"), kubeconfig, cert.opt.Dir)
		if err != nil || len(renamed) > 0 {
			t.Fatalf("got renamed files %v, %v", renamed, err)
		}
		c, err := LoadConfig(kubeconfig)
		if err != nil || c.Host != "https://second:6443" || c.CertFile != cert.Path() {
			t.Errorf("%+v, %v", c, err)
		}
	}
	if again, warning := OpenCertificate(cert.opt); warning != nil || !again.Valid() {
		t.Errorf("certificate: %v", warning)
	}
}

func TestRejoinMovesFilesOfOtherCA(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string]bool{"with a kubeconfig": false, "without": true} {
		a, other := newAuthority(t), newAuthority(t)
		kubeconfig, cert := a.joinedNode(t)
		if lost {
			if err := os.Remove(kubeconfig); err != nil {
				t.Fatal(err)
			}
			if renamed, err := Rejoin(a.foundAt("https://second:6443"), kubeconfig, cert.opt.Dir); err != nil ||
				len(renamed) > 0 {
				t.Errorf("%s: certificate of the same CA: got renamed files %v, %v", name, renamed, err)
			}
		}
		serving := filepath.Join(cert.opt.Dir, currentFileName(serverName))
		if err := os.WriteFile(serving, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		renamed, err := Rejoin(other.foundAt("https://first:6443"), kubeconfig, cert.opt.Dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{kubeconfig, cert.Path(), serving} {
			if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: %s is still there: %v", name, path, err)
			}
			if was := path + ".old"; !slices.Contains(renamed, was) && (path != kubeconfig || !lost) {
				t.Errorf("%s: file %s is not among the renamed files %v", name, was, renamed)
			}
		}
		if again, warning := OpenCertificate(cert.opt); warning != nil || again.Valid() {
			t.Errorf("%s: certificate of another CA is valid: %v", name, warning)
		}
		entries, err := os.ReadDir(cert.opt.Dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries { // an uninstall finds them
			if !slices.ContainsFunc(
				CertificateFilePatterns(),
				func(p string) bool { ok, _ := filepath.Match(p, e.Name()); return ok },
			) {
				t.Errorf("%s: file %s remains", name, e.Name())
			}
		}
	}
}

// TestRejoinUpdatesAdminKubeconfig: the credentials are kept, and the TLS server name of the old address
// is removed.
func TestRejoinUpdatesAdminKubeconfig(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	was := a.foundAt("https://first:6443")
	was.ServerName = "first"
	if err := WriteKubeconfig(kubeconfig, NewKubeconfig(was, &clientcmdapi.AuthInfo{Token: "secret"})); err != nil {
		t.Fatal(err)
	}
	if _, err := Rejoin(a.foundAt("https://second:6443"), kubeconfig, t.TempDir()); err != nil {
		t.Fatal(err)
	}
	c, err := LoadConfig(kubeconfig)
	if err != nil || c.Host != "https://second:6443" || c.BearerToken != "secret" || c.ServerName != "" {
		t.Errorf("%+v, %v", c, err)
	}
	if all := certificates(c.CAData); len(all) != 1 || !all[0].Equal(a.cert) {
		t.Errorf("got %d CAs", len(all))
	}
}
