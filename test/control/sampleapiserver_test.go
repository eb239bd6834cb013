package control

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/cert"

	"berth/test/hosts"
)

// TestSampleAPIServer registers upstream's sample API server, which authenticates the front proxy by the ConfigMap and
// asks this server for the permissions of the user. It runs only with BERTH_TORTURE.
func TestSampleAPIServer(t *testing.T) {
	t.Parallel()
	if os.Getenv("BERTH_TORTURE") == "" {
		t.Skip("builds sample-apiserver; set BERTH_TORTURE=1")
	}
	program, err := buildSampleAPIServer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s := Start(t)
	ca := startSampleAPIServer(t, s, program)
	s.Apply(t, ca.apiService("wardle.example.com", "v1alpha1", "sample"))
	waitForAvailability(t, s, "v1alpha1.wardle.example.com", "True")
	eventually(t, "discovery of flunders", func() (bool, string) {
		out, _ := s.TryKubectl(t, "", "api-resources", "--api-group="+wardle, "--no-headers")
		return strings.Contains(out, "Flunder"), out
	})
	if out := s.Kubectl(t, "explain", "flunders.spec.reference"); !strings.Contains(out, "FIELD: reference") {
		t.Errorf("kubectl explain: got %s", out)
	}
	manifest := `apiVersion: wardle.example.com/v1alpha1
kind: Flunder
metadata: {name: mine, namespace: default, labels: {a: b}}
spec: {reference: other}
`
	for range 2 { // creates, and then changes nothing
		s.Apply(t, manifest, "--server-side")
	}
	out := s.Kubectl(t, "get", "flunders", "-l", "a=b", "-o", "jsonpath={.items[*].spec.reference}")
	if !strings.HasSuffix(out, "other") { // after a warning
		t.Errorf("label selector: got %q", out)
	}
	s.Kubectl(t, "label", "flunder", "mine", "x=y")
	jane := s.clientAs(t, "jane")
	path := "/apis/wardle.example.com/v1alpha1/namespaces/default/flunders/mine"
	if _, err := raw(jane, path); !apierrors.IsForbidden(err) {
		t.Errorf("get without permission: got %v, want forbidden", err)
	}
	s.Kubectl(t, "create", "clusterrole", "flunder-reader", "--verb=get", "--resource=flunders.wardle.example.com")
	s.Kubectl(t, "create", "clusterrolebinding", "jane", "--clusterrole=flunder-reader", "--user=jane")
	eventually(t, "permission for jane", func() (bool, string) {
		out, err := raw(jane, path)
		return err == nil && strings.Contains(out, `"reference":"other"`), fmt.Sprint(out, err)
	})
	s.Kubectl(t, "create", "namespace", "wardle")
	s.Apply(t, strings.Replace(manifest, "namespace: default", "namespace: wardle", 1))
	s.Kubectl(t, "delete", "namespace", "wardle", "--timeout=4m")
	s.Kubectl(t, "delete", "apiservice", "v1alpha1.wardle.example.com")
	if out, err := s.TryKubectl(t, "", "get", "flunders"); err == nil {
		t.Errorf("after the removal: got %s", out)
	}
}

// buildSampleAPIServer builds the program once per version and returns its path.
func buildSampleAPIServer(ctx context.Context) (string, error) {
	repo, err := hosts.RepoRoot()
	if err != nil {
		return "", err
	}
	module := filepath.Join(repo, "test")
	key, err := hosts.ModuleKey(module, "")
	if err != nil {
		return "", err
	}
	dir, err := hosts.Cached("sample-apiserver", key, func(dir string) error {
		build := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o",
			filepath.Join(dir, "sample-apiserver"), "k8s.io/sample-apiserver")
		build.Dir = module
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("build sample-apiserver: %w\n%s", err, out)
		}
		return nil
	})
	return filepath.Join(dir, "sample-apiserver"), err
}

// startSampleAPIServer starts the program with the store of the server, as the Service sample, until the test ends.
func startSampleAPIServer(t *testing.T, s *Server, program string) *extensionServer {
	t.Helper()
	dir, address := t.TempDir(), nonLoopbackAddress(t)
	bundle, key, err := cert.GenerateSelfSignedCertKey("sample", []net.IP{net.ParseIP(address)},
		[]string{"sample.default.svc"})
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	for path, text := range map[string][]byte{certFile: bundle, keyFile: key} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, port, err := net.SplitHostPort(freeAddress(t))
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), program, "--secure-port="+port,
		"--bind-address="+address, "--tls-cert-file="+certFile, "--tls-private-key-file="+keyFile,
		"--etcd-servers="+s.EtcdClient.Endpoints()[0], "--kubeconfig="+s.Kubeconfig,
		"--authentication-kubeconfig="+s.Kubeconfig, "--authorization-kubeconfig="+s.Kubeconfig)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // fails only if it has exited
		_ = cmd.Wait()
		_ = log.Close()
		if text, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("sample-apiserver:\n%.20000s", text)
		}
	})
	e := &extensionServer{webhookServer: &webhookServer{caBundle: bundle, port: port}}
	e.asService(t, s, "sample")
	return e
}
