package control

import (
	"path/filepath"
	"testing"

	"berth/control"
	"berth/control/storage"
)

// TestTheSecondServerTakesOver ends the one of two servers that leads.
func TestTheSecondServerTakesOver(t *testing.T) {
	t.Parallel()
	endpoints := cluster(t)
	with := func(c *control.Config) { c.Etcd = storage.ClientConfig{Endpoints: endpoints} }
	one := Start(t, with)
	shows(t, one, "default", "-n", "default", "get", "sa", "default", "-o", "jsonpath={.metadata.name}")
	leader := one.Kubectl(t, "-n", "kube-system", "get", "lease", "berth-control", "-o", "jsonpath={.spec.holderIdentity}")
	two := Start(t, with, func(c *control.Config) { c.EncryptionConfig = filepath.Join(one.DataDir, "pki", "encryption.yaml") })
	if again := two.Kubectl(t, "-n", "kube-system", "get", "lease", "berth-control", "-o", "jsonpath={.spec.holderIdentity}"); leader == "" || again != leader {
		t.Errorf("%q leads, then %q", leader, again)
	}
	one.Stop(t)
	two.Kubectl(t, "create", "namespace", "after")
	shows(t, two, "default", "-n", "after", "get", "sa", "default", "-o", "jsonpath={.metadata.name}")
}
