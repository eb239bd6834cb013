package control

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/test/hosts"
)

// TestUpgradeFromPreviousRelease starts the server of this release on the data of the previous one, with
// flags that are renamed since. The objects, the certificates and the kubeconfig remain valid.
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
	kubeconfig, err := os.ReadFile(p.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
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
	if now, err := os.ReadFile(p.Kubeconfig()); err != nil || string(now) != string(kubeconfig) {
		t.Errorf("the kubeconfig changed: %v", err)
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
