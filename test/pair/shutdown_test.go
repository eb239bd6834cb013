package pair

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/test/hosts"
	"berth/test/images"
)

// bootIDScript runs the agent with the boot ID in the file boot_id next to the script. It does not
// change mount propagation to pods.
const bootIDScript = `#!/bin/sh
exec unshare --mount --propagation unchanged /bin/sh -c '
mount --make-rprivate /proc && mount --bind DIR/boot_id /proc/sys/kernel/random/boot_id && exec PROGRAM "$@"' sh "$@"
`

// rebootableHost is a pair whose host can be shut down and booted.
type rebootableHost struct {
	*Pair
	logind       *hosts.Logind
	bootFile     string                      // file with the boot ID
	waitReleased func(context.Context) error // waits until the agent releases its inhibitor lock
}

// startRebootableHost starts a pair with a fake logind and waits for the inhibitor lock of the agent.
func startRebootableHost(t *testing.T) *rebootableHost {
	t.Helper()
	dir := t.TempDir()
	l, err := hosts.StartLogind(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	built, err := artifacts()
	if err != nil {
		t.Fatal(err)
	}
	d := &rebootableHost{logind: l, bootFile: filepath.Join(dir, "boot_id")}
	program := filepath.Join(dir, "berth")
	script := strings.NewReplacer("DIR", dir, "PROGRAM", built.berth).Replace(bootIDScript)
	if err := errors.Join(hosts.WriteProgram(program, script), os.WriteFile(d.bootFile, []byte("boot-1\n"),
		0o644)); err != nil {
		t.Fatal(err)
	}
	d.Pair = startPair(t, pairOptions{
		UseServerProxy: true, Binary: program, Env: []string{l.Env},
		Config: map[string]any{"shutdownGracePeriod": "30s", "shutdownGracePeriodCriticalPods": "5s"},
	})
	d.waitForInhibitor()
	return d
}

// waitForInhibitor waits until the agent takes an inhibitor lock.
func (d *rebootableHost) waitForInhibitor() {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), waitTimeout)
	defer cancel()
	var err error
	if d.waitReleased, err = d.logind.NextInhibitor(ctx); err != nil {
		d.t.Fatal(err)
	}
}

// shutDown starts a shutdown and waits until the agent releases its inhibitor lock.
func (d *rebootableHost) shutDown() {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), waitTimeout)
	defer cancel()
	if err := errors.Join(d.logind.StartShutdown(), d.waitReleased(ctx)); err != nil {
		d.t.Fatal(err)
	}
}

// boot completes the shutdown and boots the host with a new boot ID.
func (d *rebootableHost) boot(id string) {
	d.t.Helper()
	d.logind.Reset()
	if err := errors.Join(d.Agent.Kill9(), d.Host.PowerLoss(), os.WriteFile(d.bootFile, []byte(id+"\n"),
		0o644)); err != nil {
		d.t.Fatal(err)
	}
	ctx := d.t.Context()
	if err := errors.Join(d.Host.Restart(ctx), d.Agent.Start(ctx), d.Agent.WaitReady(ctx)); err != nil {
		d.t.Fatal(err)
	}
	d.waitForInhibitor()
}

// terminationStatus returns the fields of the pod status that report its termination.
func (d *rebootableHost) terminationStatus(pod string) string {
	return strings.Join([]string{
		d.field("pod", pod, ".status.phase"), d.field("pod", pod, ".status.reason"),
		d.field("pod", pod, ".status.message"),
		d.field("pod", pod, `.status.conditions[?(@.type=="DisruptionTarget")].reason`),
		d.field("pod", pod, ".status.containerStatuses[0].state.terminated.reason"), d.field("pod", pod,
			".status.containerStatuses[0].restartCount"),
	}, "/")
}

const nodeShutdownStatus = "Failed/Terminated/Pod was terminated in response to imminent node " +
	"shutdown./TerminationByKubelet/Error/0"

// TestScenario26_ServerReceivesPodStatusAfterNodeShutdown shuts a node down. If the server is reachable,
// the agent reports the pod status and the node condition before the shutdown, otherwise after the next
// boot. A static pod restarts after each boot.
func TestScenario26_ServerReceivesPodStatusAfterNodeShutdown(t *testing.T) {
	t.Parallel()
	d := startRebootableHost(t)
	staticPod := "filed-" + d.Node
	manifest := "apiVersion: v1\nkind: Pod\nmetadata: {name: filed}\nspec:\n  terminationGracePeriodSeconds: 1\n  " +
		"containers: [{name: c, image: \"" + images.TestboxRef + "\", args: [sleep]}]\n"
	if err := os.WriteFile(filepath.Join(d.Agent.ManifestDir, "filed.yaml"), []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	d.Apply(t, d.pod("first", "", "sleep"))
	d.waitForField("pod", "first", readyStatus, "True")
	d.waitForField("pod", staticPod, readyStatus, "True")
	d.waitForField("node", d.Node, ".status.nodeInfo.bootID", "boot-1")
	d.shutDown()
	for _, name := range []string{"first", staticPod} {
		if got := d.terminationStatus(name); got != nodeShutdownStatus {
			t.Errorf("pod %s at shutdown: got status\n%s\nwant\n%s", name, got, nodeShutdownStatus)
		}
	}
	if got := d.field("node", d.Node, readyStatus) + d.field("node", d.Node,
		`.status.conditions[?(@.type=="Ready")].message`); !strings.HasPrefix(got, "False") || !strings.Contains(got,
		"node is shutting down") {
		t.Errorf("node condition Ready at shutdown: got %s", got)
	}

	d.boot("boot-2")
	d.waitForNodeCondition("Ready", "True")
	d.waitForField("node", d.Node, ".status.nodeInfo.bootID", "boot-2")
	d.waitForField("pod", staticPod, ".status.containerStatuses[0].restartCount", "1")
	d.waitForField("pod", staticPod, readyStatus, "True")
	d.Apply(t, d.pod("second", "", "sleep"))
	d.waitForField("pod", "second", readyStatus, "True")
	if got := d.terminationStatus("first"); got != nodeShutdownStatus {
		t.Errorf("first pod after the boot: got status\n%s\nwant\n%s", got, nodeShutdownStatus)
	}

	d.serverProxy.disconnect()
	d.shutDown()
	if got := d.field("pod", "second", ".status.phase"); got != "Running" {
		t.Errorf("second pod while the server is unreachable: got phase %s, want Running", got)
	}
	d.boot("boot-3")
	d.waitForAgentPods(staticPod)
	d.serverProxy.connect()
	d.waitUntil("the termination status of the second pod", func() string {
		if got := d.terminationStatus("second"); got != nodeShutdownStatus {
			return got
		}
		return ""
	})
	d.waitForNodeCondition("Ready", "True")
	d.waitForField("node", d.Node, ".status.nodeInfo.bootID", "boot-3")
	d.waitForField("pod", staticPod, ".status.containerStatuses[0].restartCount", "2")
	d.waitForField("pod", staticPod, readyStatus, "True")
	if got := d.terminationStatus("first"); got != nodeShutdownStatus {
		t.Errorf("first pod after both boots: got status\n%s\nwant\n%s", got, nodeShutdownStatus)
	}
}
