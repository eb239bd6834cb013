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

// bootIDScript runs an agent program that sees another boot ID than this machine's: that in the file
// boot_id next to the script. Mount propagation to pods is not changed.
const bootIDScript = `#!/bin/sh
exec unshare --mount --propagation unchanged /bin/sh -c '
mount --make-rprivate /proc && mount --bind DIR/boot_id /proc/sys/kernel/random/boot_id && exec PROGRAM "$@"' sh "$@"
`

// rebootableHost is a pair whose host can be shut down and booted.
type rebootableHost struct {
	*Pair
	logind   *hosts.Logind
	bootFile string                      // file with the boot ID
	released func(context.Context) error // held by the agent's last inhibitor lock
}

func startDown(t *testing.T) *rebootableHost {
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
	made, err := artifacts()
	if err != nil {
		t.Fatal(err)
	}
	d := &rebootableHost{logind: l, bootFile: filepath.Join(dir, "boot_id")}
	program := filepath.Join(dir, "berth")
	script := strings.NewReplacer("DIR", dir, "PROGRAM", made.berth).Replace(bootIDScript)
	if err := errors.Join(hosts.WriteProgram(program, script), os.WriteFile(d.bootFile, []byte("boot-1\n"),
		0o644)); err != nil {
		t.Fatal(err)
	}
	d.Pair = start(t, pairOptions{
		Cut: true, Binary: program, Env: []string{l.Env},
		Config: map[string]any{"shutdownGracePeriod": "30s", "shutdownGracePeriodCriticalPods": "5s"},
	})
	d.lock()
	return d
}

func (d *rebootableHost) lock() {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), waitBound)
	defer cancel()
	var err error
	if d.released, err = d.logind.NextInhibitor(ctx); err != nil {
		d.t.Fatal(err)
	}
}

// shutDown returns when logind can continue.
func (d *rebootableHost) shutDown() {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), waitBound)
	defer cancel()
	if err := errors.Join(d.logind.StartShutdown(), d.released(ctx)); err != nil {
		d.t.Fatal(err)
	}
}

// boot completes the shutdown and boots again.
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
	d.lock()
}

// podEnd returns how the API object reports the end of a pod.
func (d *rebootableHost) podEnd(pod string) string {
	return strings.Join([]string{
		d.field("pod", pod, ".status.phase"), d.field("pod", pod, ".status.reason"), d.field("pod", pod, ".status.message"),
		d.field("pod", pod, `.status.conditions[?(@.type=="DisruptionTarget")].reason`),
		d.field("pod", pod, ".status.containerStatuses[0].state.terminated.reason"), d.field("pod", pod,
			".status.containerStatuses[0].restartCount"),
	}, "/")
}

const endedWithNode = "Failed/Terminated/Pod was terminated in response to imminent node " +
	"shutdown./TerminationByKubelet/Error/0"

// TestScenario26_ServerReceivesPodStatusAfterNodeShutdown: the status is reported before the host
// goes down if the server is reachable, together with the node's condition, otherwise after the
// next boot. A static pod runs again after each boot.
func TestScenario26_ServerReceivesPodStatusAfterNodeShutdown(t *testing.T) {
	t.Parallel()
	d := startDown(t)
	filed := "filed-" + d.Node
	manifest := "apiVersion: v1\nkind: Pod\nmetadata: {name: filed}\nspec:\n  terminationGracePeriodSeconds: 1\n  " +
		"containers: [{name: c, image: \"" + images.TestboxRef + "\", args: [sleep]}]\n"
	if err := os.WriteFile(filepath.Join(d.Agent.ManifestDir, "filed.yaml"), []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	d.Apply(t, d.pod("first", "", "sleep"))
	d.waitForField("pod", "first", ready, "True")
	d.waitForField("pod", filed, ready, "True")
	d.waitForField("node", d.Node, ".status.nodeInfo.bootID", "boot-1")
	d.shutDown()
	for _, name := range []string{"first", filed} {
		if got := d.podEnd(name); got != endedWithNode {
			t.Errorf("pod status at shutdown, %s:\n%s", name, got)
		}
	}
	if got := d.field("node", d.Node, ready) + d.field("node", d.Node,
		`.status.conditions[?(@.type=="Ready")].message`); !strings.HasPrefix(got, "False") || !strings.Contains(got,
		"node is shutting down") {
		t.Errorf("node condition at shutdown: %s", got)
	}

	d.boot("boot-2")
	d.nodeIs("Ready", "True")
	d.waitForField("node", d.Node, ".status.nodeInfo.bootID", "boot-2")
	d.waitForField("pod", filed, ".status.containerStatuses[0].restartCount", "1")
	d.waitForField("pod", filed, ready, "True")
	d.Apply(t, d.pod("second", "", "sleep"))
	d.waitForField("pod", "second", ready, "True")
	if got := d.podEnd("first"); got != endedWithNode {
		t.Errorf("after the boot, got status of the first pod\n%s", got)
	}

	d.wire.cut()
	d.shutDown()
	if got := d.field("pod", "second", ".status.phase"); got != "Running" {
		t.Errorf("second pod while the server was unreachable: got %s", got)
	}
	d.boot("boot-3")
	d.agentPods(filed)
	d.wire.join()
	d.until("how the second ended", func() string {
		if got := d.podEnd("second"); got != endedWithNode {
			return got
		}
		return ""
	})
	d.nodeIs("Ready", "True")
	d.waitForField("node", d.Node, ".status.nodeInfo.bootID", "boot-3")
	d.waitForField("pod", filed, ".status.containerStatuses[0].restartCount", "2")
	d.waitForField("pod", filed, ready, "True")
	if got := d.podEnd("first"); got != endedWithNode {
		t.Errorf("after both boots, got status of the first pod\n%s", got)
	}
}
