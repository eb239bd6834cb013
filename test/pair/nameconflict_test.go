package pair

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/test/hosts"
)

// TestSecondNodeWithSameNameIsRejected joins a second node with the name of the first, with a bootstrap
// token and with the administrator's kubeconfig. The errors name the solutions. The first node is not
// affected.
func TestSecondNodeWithSameNameIsRejected(t *testing.T) {
	t.Parallel()
	first := startPair(t, pairOptions{Config: map[string]any{"nodeLeaseDurationSeconds": leaseSeconds}})
	first.createBootstrapToken()
	first.Apply(t, first.pod("stays", "", "sleep"))
	first.waitForField("pod", "stays", readyStatus, "True")
	uid := first.field("node", first.Node, ".metadata.uid")
	t.Run("with a token", func(t *testing.T) {
		p := &Pair{t: t, Server: first.Server}
		p.joinHost(t.TempDir(), pairOptions{Name: first.Node, Binary: withOtherMachineID(t)})
		missing := func(text string) string {
			for _, want := range []string{"NodeNameInUse", "is running on another host", "--hostname-override=NAME",
				"kubectl delete node " + first.Node} {
				if !strings.Contains(text, want) {
					return fmt.Sprintf("%q not found in: %s", want, text)
				}
			}
			return ""
		}
		p.waitUntil("the error in the agent log", func() string { return missing(p.Agent.Log()) })
		p.waitUntil("the error in berth check", func() string {
			return missing(runCheck(t, p.Agent.Command(t.Context(), "check", "-o",
				"json"))["client certificate"].Detail)
		})
		p.waitUntil("the denied certificate signing request", func() string {
			return missing(p.Kubectl(t, "get", "csr", "-o",
				`jsonpath={range .items[*].status.conditions[?(@.type=="Denied")]}{.reason}: {.message}{end}`))
		})
	})
	t.Run("with the administrator's kubeconfig", func(t *testing.T) {
		p := &Pair{t: t, Server: first.Server}
		p.startHost(pairOptions{Name: first.Node, Binary: withOtherMachineID(t)}, "--kubeconfig", p.Kubeconfig)
		agent := p.Agent
		p.Agent = nil // it exits with an error
		ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
		defer cancel()
		err := agent.Wait(ctx)
		if text := agent.Log(); err == nil || !strings.Contains(text, "is in use by another machine") ||
			!strings.Contains(text, "--hostname-override") {
			t.Errorf("agent exited with %v, want an error that names the solution: %s", err, text)
		}
	})
	if now := first.field("node", first.Node, ".metadata.uid"); now != uid {
		t.Errorf("got Node UID %s, want %s", now, uid)
	}
	first.waitForNodeCondition("Ready", "True")
	if n, phase := first.field("pod", "stays", restartCount), first.field("pod", "stays", ".status.phase"); n != "0" ||
		phase != "Running" {
		t.Errorf("got pod phase %s with %s restarts, want Running without restarts", phase, n)
	}
}

// withOtherMachineID returns a wrapper of the agent's program, which replaces /etc/machine-id.
func withOtherMachineID(t *testing.T) string {
	t.Helper()
	built, err := artifacts()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	id, script := filepath.Join(dir, "machine-id"), filepath.Join(dir, "berth")
	text := fmt.Sprintf("#!/bin/sh\nexec unshare --mount sh -c 'mount --bind %s /etc/machine-id && exec %s \"$@\"' "+
		"berth \"$@\"\n", id, built.berth)
	if err := os.WriteFile(id, fmt.Appendf(nil, "%032x\n", time.Now().UnixNano()), 0o444); err != nil {
		t.Fatal(err)
	}
	if err := hosts.WriteProgram(script, text); err != nil {
		t.Fatal(err)
	}
	return script
}
