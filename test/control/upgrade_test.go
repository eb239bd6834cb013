package control

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"berth/control/pki"
	"berth/test/hosts"
)

// TestUpgradeFromPreviousRelease starts the server of this release on the data of the previous one, with
// flags that are renamed since. The objects and the certificates of nodes remain valid. The kubeconfig gets the new
// group of the administrator.
func TestUpgradeFromPreviousRelease(t *testing.T) {
	t.Parallel()
	previous, err := hosts.BuildPreviousRelease(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	flags := []string{"--off=pod-garbage-collector-controller", "--name=upgrade.example"}
	p := &Process{DataDir: t.TempDir(), logFile: filepath.Join(t.TempDir(), "log"), Listen: freeAddress(t),
		Program: filepath.Join(previous, "berth-control")}
	p.Start(t, flags...)
	t.Cleanup(func() { p.stopAndLog(t) })
	client, err := p.WaitReady(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), configMap("kept", "a", "b"),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := kubeconfigGroups(t, p.Kubeconfig()); !slices.Equal(got, []string{"system:masters"}) {
		t.Errorf("kubeconfig of the previous release: got groups %q, want system:masters", got)
	}
	node := p.nodeConfig(t)
	p.Stop(t)
	p.Program = ""
	p.Start(t, flags...)
	if client, err = p.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, err := client.CoreV1().ConfigMaps("default").Get(t.Context(), "kept", metav1.GetOptions{}); err != nil ||
		got.Data["a"] != "b" {
		t.Errorf("object of the previous release: got %v, %v", got, err)
	}
	if got := kubeconfigGroups(t, p.Kubeconfig()); !slices.Equal(got, []string{pki.AdminsGroup}) {
		t.Errorf("kubeconfig of this release: got groups %q, want %s", got, pki.AdminsGroup)
	}
	nodeClient, err := kubernetes.NewForConfig(node)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := nodeClient.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "x"}},
		metav1.CreateOptions{}); err != nil {
		t.Errorf("node with a certificate of the previous release: %v", err)
	}
	log, err := os.ReadFile(p.logFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, flag := range []string{"off", "name"} {
		if !strings.Contains(string(log), `msg="flag deprecated" flag=`+flag) {
			t.Errorf("no deprecation warning for flag %s:\n%s", flag, log)
		}
	}
}

// kubeconfigGroups returns the groups in the client certificate of a kubeconfig.
func kubeconfigGroups(t *testing.T, path string) []string {
	t.Helper()
	c, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(c.CertData)
	if block == nil {
		t.Fatalf("%s has no client certificate", path)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert.Subject.Organization
}

// nodeConfig returns the configuration of node x with a certificate of the server's CA.
func (p *Process) nodeConfig(t *testing.T) *restclient.Config {
	t.Helper()
	admin, err := p.Config(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	authority, err := pki.Open(filepath.Join(p.DataDir, "pki"), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	c := restclient.AnonymousClientConfig(admin)
	c.CertData, c.KeyData, err = authority.Issue(pki.Subject{Name: "system:node:x", Groups: []string{"system:nodes"},
		ExtKeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}
