package pair

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"berth/control/pki"
	"berth/nodeapi"
	servers "berth/test/control"
)

// TestCheckReportsServer runs berth check on a joined node, with and without a running agent, with
// and without problems.
func TestCheckReportsServer(t *testing.T) {
	t.Parallel()
	p := &Pair{t: t, Server: servers.Start(t)}
	p.issueToken()
	dir := t.TempDir()
	p.joinHost(dir, pairOptions{})
	p.nodeIs("Ready", "True")
	kubeconfig := filepath.Join(dir, "kubeconfig")
	p.until("all to be well", func() string {
		all := items(t, p.Agent.Command(t.Context(), "check", "-o", "json"))
		for name, want := range map[string]string{
			"server": p.Server.Config.Host, "server authority": p.caHash() + " until ", "server clock": "",
			"client certificate":  "valid until ",
			"serving certificate": "valid until ", "node name": p.Node + ": used by this node",
		} {
			if it := all[name]; !it.OK || !strings.HasPrefix(it.Detail, want) {
				return name + ": " + it.Detail
			}
		}
		return ""
	})
	// Without a running agent, as on a machine on which it was not started yet.
	here := func(kubeconfig string) map[string]nodeapi.CheckItem {
		t.Helper()
		own := t.TempDir()
		return items(t, exec.CommandContext(t.Context(), p.Agent.Binary, "check", "-o", "json", "--socket", filepath.Join(own,
			"none.sock"),
			"--config", p.Agent.ConfigFile, "--root-dir", filepath.Join(own, "root"), "--state-dir", filepath.Join(own, "state"),
			"--kubeconfig", kubeconfig,
			"--cert-dir", filepath.Join(filepath.Dir(p.Agent.ConfigFile), "pki"), "--hostname-override", p.Node,
			"--container-runtime-endpoint", p.Host.Endpoint))
	}
	bad := func(all map[string]nodeapi.CheckItem, name, detail, remedy string) {
		t.Helper()
		if it := all[name]; it.OK || !strings.Contains(it.Detail, detail) || !strings.Contains(it.Remedy, remedy) {
			t.Errorf("%s: %+v", name, it)
		}
	}
	all := here(kubeconfig)
	for _, name := range []string{"server", "server authority", "client certificate", "serving certificate"} {
		if it := all[name]; !it.OK {
			t.Errorf("%s: %+v", name, it)
		}
	}
	bad(all, "node name", "node name "+p.Node+" is in use by another machine", "--hostname-override")
	if !all["node name"].Essential {
		t.Error("a node with a used name could start")
	}

	changed := func(change func(server *string, authority *[]byte)) string {
		c, err := clientcmd.LoadFromFile(kubeconfig)
		if err != nil {
			t.Fatal(err)
		}
		for _, cluster := range c.Clusters {
			change(&cluster.Server, &cluster.CertificateAuthorityData)
		}
		path := filepath.Join(t.TempDir(), "kubeconfig")
		if err := clientcmd.WriteToFile(*c, path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	bad(here(changed(func(server *string, _ *[]byte) { *server = "https://127.0.0.1:1" })), "server", "connection refused",
		"start the API server")
	other := t.TempDir()
	if _, err := pki.Open(other, time.Now); err != nil {
		t.Fatal(err)
	}
	bad(here(changed(func(_ *string, authority *[]byte) {
		text, err := os.ReadFile(filepath.Join(other, "ca.crt"))
		if err != nil {
			t.Fatal(err)
		}
		*authority = text
	})), "server authority", p.caHash(), "join again")
}

// items returns the results of berth check by name. The command may fail: it does so if an
// essential check fails.
func items(t *testing.T, cmd *exec.Cmd) map[string]nodeapi.CheckItem {
	t.Helper()
	out, err := cmd.Output()
	var r nodeapi.CheckReport
	if bad := json.Unmarshal(out, &r); bad != nil {
		t.Fatalf("%v, %v: %s", err, bad, out)
	}
	all := map[string]nodeapi.CheckItem{}
	for _, it := range r.Items {
		all[it.Name] = it
	}
	return all
}
