package pair

import (
	"regexp"
	"strings"
	"testing"
)

// tokenFile is the path of the service account token in a pod.
const tokenFile = "/var/run/secrets/kubernetes.io/serviceaccount/token"

// tokenIn returns the token that a pod has written to its log.
func tokenIn(log string) string {
	return regexp.MustCompile(`eyJ[\w-]+\.[\w-]+\.[\w-]+`).FindString(log)
}

// TestNodeBootsWithoutServer: the last known pods start again with their previous data, and the
// server finds them unchanged.
func TestNodeBootsWithoutServer(t *testing.T) {
	t.Parallel()
	p := start(t, pairOptions{Cut: true})
	p.Apply(t, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: conf}\ndata: {key: one}\n")
	p.Apply(t, "apiVersion: v1\nkind: Secret\nmetadata: {name: key}\nstringData: {word: swordfish}\n")
	p.Apply(t, p.pod("boots", "volumeMounts: [{name: v, mountPath: /v}]\nenv: [{name: WORD, valueFrom: {secretKeyRef: "+
		"{name: key, key: word}}}]",
		"cat", "/v/key", ",", "env", "WORD", ",", "cat", tokenFile, ",", "print", ";", ",",
		"sleep")+"\n  volumes: [{name: v, configMap: {name: conf}}]\n")
	p.waitForField("pod", "boots", ready, "True")
	uid := p.field("pod", "boots", ".metadata.uid")
	if text := p.log("boots"); p.account(tokenIn(text)) != defaultAccount {
		t.Fatalf("no token in the pod:\n%s", text)
	}
	p.wire.cut()
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
	p.agentPods("boots")
	if text := p.log("boots"); strings.Count(text, "swordfish") == 0 || !strings.Contains(text, "one") {
		t.Errorf("the pod lost its data:\n%s", text)
	}
	token := tokenIn(p.log("boots"))
	p.wire.join()
	if got := p.account(token); got != defaultAccount {
		t.Errorf("first token of the pod: got user %q:\n%s", got, p.log("boots"))
	}
	p.waitForField("pod", "boots", ".status.containerStatuses[0].restartCount", "1")
	p.waitForField("pod", "boots", ready, "True")
	if now := p.field("pod", "boots", ".metadata.uid"); now != uid {
		t.Errorf("pod %s became %s", uid, now)
	}
}
