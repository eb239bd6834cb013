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
	"berth/internal/cis"
	"berth/nodeapi"
	servers "berth/test/control"
)

// TestCheckReportsServer runs berth check on a joined node, with a running agent and without one. It
// checks the results with a valid and with invalid kubeconfigs.
func TestCheckReportsServer(t *testing.T) {
	t.Parallel()
	p := &Pair{t: t, Server: servers.Start(t)}
	p.createBootstrapToken()
	dir := t.TempDir()
	p.joinHost(dir, pairOptions{})
	p.waitForNodeCondition("Ready", "True")
	kubeconfig := filepath.Join(dir, "kubeconfig")
	p.waitUntil("successful checks", func() string {
		all := runCheck(t, p.Agent.Command(t.Context(), "check", "-o", "json"))
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
	p.checkBenchmark()
	// Without a running agent, as before its first start.
	checkStopped := func(kubeconfig string) map[string]nodeapi.CheckItem {
		t.Helper()
		tempDir := t.TempDir()
		return runCheck(t, exec.CommandContext(t.Context(), p.Agent.Binary, "check", "-o", "json",
			"--socket", filepath.Join(tempDir, "none.sock"), "--config", p.Agent.ConfigFile,
			"--root-dir", filepath.Join(tempDir, "root"), "--state-dir", filepath.Join(tempDir, "state"),
			"--kubeconfig", kubeconfig,
			"--cert-dir", filepath.Join(filepath.Dir(p.Agent.ConfigFile), "pki"), "--hostname-override", p.Node,
			"--container-runtime-endpoint", p.Host.Endpoint))
	}
	requireFailure := func(all map[string]nodeapi.CheckItem, name, detail, remedy string) {
		t.Helper()
		if it := all[name]; it.OK || !strings.Contains(it.Detail, detail) || !strings.Contains(it.Remedy, remedy) {
			t.Errorf("%s: got %+v, want a failure with detail %q and remedy %q", name, it, detail, remedy)
		}
	}
	all := checkStopped(kubeconfig)
	for _, name := range []string{"server", "server authority", "client certificate", "serving certificate"} {
		if it := all[name]; !it.OK {
			t.Errorf("%s: got %+v, want a success", name, it)
		}
	}
	requireFailure(all, "node name", "node name "+p.Node+" is in use by another machine", "--hostname-override")
	if !all["node name"].Essential {
		t.Error("check of the node name is not essential: a node with a name in use can start")
	}

	changeKubeconfig := func(change func(server *string, authority *[]byte)) string {
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
	requireFailure(checkStopped(changeKubeconfig(func(server *string, _ *[]byte) { *server = "https://127.0.0.1:1" })),
		"server", "connection refused", "start the API server")
	other := t.TempDir()
	if _, err := pki.Open(other, time.Now); err != nil {
		t.Fatal(err)
	}
	requireFailure(checkStopped(changeKubeconfig(func(_ *string, authority *[]byte) {
		text, err := os.ReadFile(filepath.Join(other, "ca.crt"))
		if err != nil {
			t.Fatal(err)
		}
		*authority = text
	})), "server authority", p.caHash(), "join again")
}

// checkBenchmark checks a joined node against the CIS Kubernetes Benchmark. No control about its settings fails.
func (p *Pair) checkBenchmark() {
	p.t.Helper()
	out, err := p.Agent.Command(p.t.Context(), "check", "--cis", "-o", "json").Output()
	var r cis.Report
	if decodeErr := json.Unmarshal(out, &r); decodeErr != nil {
		p.t.Fatalf("berth check --cis: %v, decode output: %v: %s", err, decodeErr, out)
	}
	passed := map[string]bool{}
	for _, one := range r.Results {
		passed[one.ID] = one.Verdict == cis.Pass
		if one.Section() == "4.2" && (one.Verdict == cis.Fail || one.Verdict == cis.NotChecked) {
			p.t.Errorf("%s: got %+v", one.ID, one.Finding)
		}
	}
	for _, id := range []string{"4.1.5", "4.2.1", "4.2.2", "4.2.3", "4.2.9", "4.2.10", "4.2.11", "4.2.12"} {
		if !passed[id] {
			p.t.Errorf("%s does not pass on a joined node", id)
		}
	}
}

// runCheck runs berth check and returns its results by name. It ignores the exit code, because the
// command fails if an essential check fails.
func runCheck(t *testing.T, cmd *exec.Cmd) map[string]nodeapi.CheckItem {
	t.Helper()
	out, err := cmd.Output()
	var r nodeapi.CheckReport
	if decodeErr := json.Unmarshal(out, &r); decodeErr != nil {
		t.Fatalf("berth check: %v, decode output: %v: %s", err, decodeErr, out)
	}
	all := map[string]nodeapi.CheckItem{}
	for _, it := range r.Items {
		all[it.Name] = it
	}
	return all
}
