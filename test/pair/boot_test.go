package pair

import (
	"regexp"
	"strings"
	"testing"
)

// tokenFile is the path of the service account token in a pod.
const tokenFile = "/var/run/secrets/kubernetes.io/serviceaccount/token"

// tokenIn returns the first token in a container log, or "".
func tokenIn(log string) string {
	return regexp.MustCompile(`eyJ[\w-]+\.[\w-]+\.[\w-]+`).FindString(log)
}

// TestNodeBootsWithoutServer boots a node that cannot reach its server. Its pods restart with the
// stored ConfigMap, secret and token, and keep their UIDs.
func TestNodeBootsWithoutServer(t *testing.T) {
	t.Parallel()
	p := startPair(t, pairOptions{UseServerProxy: true})
	p.Apply(t, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: conf}\ndata: {key: one}\n")
	p.Apply(t, "apiVersion: v1\nkind: Secret\nmetadata: {name: key}\nstringData: {word: swordfish}\n")
	p.Apply(t, p.pod("boots", "volumeMounts: [{name: v, mountPath: /v}]\nenv: [{name: WORD, valueFrom: {secretKeyRef: "+
		"{name: key, key: word}}}]",
		"cat", "/v/key", ",", "env", "WORD", ",", "cat", tokenFile, ",", "print", ";", ",",
		"sleep")+"\n  volumes: [{name: v, configMap: {name: conf}}]\n")
	p.waitForField("pod", "boots", readyStatus, "True")
	uid := p.field("pod", "boots", ".metadata.uid")
	if text := p.containerLog("boots"); p.tokenUser(tokenIn(text)) != defaultAccount {
		t.Fatalf("no valid token in the container log:\n%s", text)
	}
	p.serverProxy.disconnect()
	if err := p.Agent.Kill9(); err != nil {
		t.Fatal(err)
	}
	if err := p.Host.PowerLoss(); err != nil {
		t.Fatal(err)
	}
	if err := p.Host.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Agent.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Agent.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.waitForAgentPods("boots")
	if text := p.containerLog("boots"); strings.Count(text, "swordfish") == 0 || !strings.Contains(text, "one") {
		t.Errorf("ConfigMap or secret data not found in the container log:\n%s", text)
	}
	token := tokenIn(p.containerLog("boots"))
	p.serverProxy.connect()
	if got := p.tokenUser(token); got != defaultAccount {
		t.Errorf("token issued before the boot: got user %q, want %q:\n%s", got, defaultAccount,
			p.containerLog("boots"))
	}
	p.waitForField("pod", "boots", ".status.containerStatuses[0].restartCount", "1")
	p.waitForField("pod", "boots", readyStatus, "True")
	if now := p.field("pod", "boots", ".metadata.uid"); now != uid {
		t.Errorf("got pod UID %s, want %s", now, uid)
	}
}
