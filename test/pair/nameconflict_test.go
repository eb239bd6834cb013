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

// TestSecondNodeWithSameNameIsRejected: the error explains the solutions, for a node with a token
// and for one with permissions, and the first node is not affected.
func TestSecondNodeWithSameNameIsRejected(t *testing.T) {
	t.Parallel()
	first := start(t, pairOptions{Config: map[string]any{"nodeLeaseDurationSeconds": leaseSeconds}})
	first.issueToken()
	first.Apply(t, first.pod("stays", "", "sleep"))
	first.waitForField("pod", "stays", ready, "True")
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
		p.until("the agent's log", func() string { return missing(p.Agent.Log()) })
		p.until("berth check", func() string {
			return missing(items(t, p.Agent.Command(t.Context(), "check", "-o", "json"))["client certificate"].Detail)
		})
		p.until("the request", func() string {
			return missing(p.Kubectl(t, "get", "csr", "-o",
				`jsonpath={range .items[*].status.conditions[?(@.type=="Denied")]}{.reason}: {.message}{end}`))
		})
	})
	t.Run("with the administrator's kubeconfig", func(t *testing.T) {
		p := &Pair{t: t, Server: first.Server}
		p.host(pairOptions{Name: first.Node, Binary: withOtherMachineID(t)}, "--kubeconfig", p.Kubeconfig)
		agent := p.Agent
		p.Agent = nil // it exits with an error
		ctx, cancel := context.WithTimeout(t.Context(), waitBound)
		defer cancel()
		err := agent.Wait(ctx)
		if text := agent.Log(); err == nil || !strings.Contains(text, "is in use by another machine") ||
			!strings.Contains(text, "--hostname-override") {
			t.Errorf("%v: %s", err, text)
		}
	})
	if now := first.field("node", first.Node, ".metadata.uid"); now != uid {
		t.Errorf("Node UID was %s, got %s", uid, now)
	}
	first.nodeIs("Ready", "True")
	if n, phase := first.field("pod", "stays", restarts), first.field("pod", "stays", ".status.phase"); n != "0" ||
		phase != "Running" {
		t.Errorf("got pod %s with %s restarts", phase, n)
	}
}

// withOtherMachineID returns the agent's program for a machine with another machine ID.
func withOtherMachineID(t *testing.T) string {
	t.Helper()
	made, err := artifacts()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	id, script := filepath.Join(dir, "machine-id"), filepath.Join(dir, "berth")
	text := fmt.Sprintf("#!/bin/sh\nexec unshare --mount sh -c 'mount --bind %s /etc/machine-id && exec %s \"$@\"' "+
		"berth \"$@\"\n", id, made.berth)
	if err := os.WriteFile(id, fmt.Appendf(nil, "%032x\n", time.Now().UnixNano()), 0o444); err != nil {
		t.Fatal(err)
	}
	if err := hosts.WriteProgram(script, text); err != nil {
		t.Fatal(err)
	}
	return script
}
