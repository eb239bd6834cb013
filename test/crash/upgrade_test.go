package crash

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"berth/test/hosts"
)

// TestUpgradeFromPreviousRelease replaces the agent of the previous release, which has other names for its
// packages and fields, by this one. No container is restarted, and the pods keep their status and history.
func TestUpgradeFromPreviousRelease(t *testing.T) {
	t.Parallel()
	previous, err := hosts.BuildPreviousRelease(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range hosts.DividedVersions(t.Name()) {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			n := start(t, options{host: hosts.Options{Version: v}, noStart: true})
			n.startAgent(hosts.AgentOptions{
				Binary: filepath.Join(previous, "berth"),
				BerthConfig: map[string]any{
					"containerLogMaxBytesPerMinute": "10Mi",
					"serviceProxy":                  nil, "clusterDNSServer": nil, // it does not know these fields
				},
			})
			n.upgrade()
		})
	}
}

func (n *node) upgrade() {
	failed := n.simple("failed", "exit 3")
	failed.Spec.RestartPolicy = corev1.RestartPolicyNever
	probed := n.simple("probed")
	probed.Spec.Containers[0].ReadinessProbe = &corev1.Probe{PeriodSeconds: 1, TimeoutSeconds: 20,
		ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"/bin/testbox", "cat",
			"/etc/hosts"}}}}
	n.put("rich", n.rich("rich")...)
	for _, p := range []*corev1.Pod{failed, probed, n.simple("restarted"), n.simple("debugged")} {
		n.putPod(p)
	}
	names := []string{"rich", "probed", "restarted", "debugged"}
	n.awaitRunning(names...)
	n.checkOutput([]string{"restart", "restarted"})
	n.checkOutput([]string{"debug", "debugged", "--image", "busybox:1.36", "-c", "look", "--", "sleep", "1000"})
	n.waitFor("the restart, the debug container and the failure", func() bool {
		all := n.pods()
		debug := all["debugged"].Status.EphemeralContainerStatuses
		restarted := all["restarted"]
		return isReady(&restarted) && restarted.Status.ContainerStatuses[0].RestartCount == 1 &&
			len(debug) == 1 && debug[0].State.Running != nil && all["failed"].Status.Phase == corev1.PodFailed
	})
	before, old := n.liveObjects(""), n.pods()
	watch := n.watchStatus(nil, n.compareStatus)
	binary, err := hosts.BuildBerth(n.Context(), hosts.BuildOptions{Race: raceFor(n.host.Version)})
	n.must("build berth", err)
	n.waitFor("the status watch", func() bool { return watch.agentStarts() > 0 })
	n.must("stop the previous release", n.agent.Stop(n.Context()))
	n.agent.Binary = binary
	config, err := os.OpenFile(n.agent.ConfigFile, os.O_APPEND|os.O_WRONLY, 0)
	n.must("open the configuration", err)
	_, err = config.WriteString("serviceProxy: \"off\"\nclusterDNSServer: \"off\"\n")
	n.must("turn Services off, as on all hosts without a network namespace", errors.Join(err, config.Close()))
	n.launch()
	n.checkUpgraded(names, before, old)
	n.kill() // what the new release has written is complete
	n.launch()
	n.checkUpgraded(names, before, old)
	watch.finish()
	if log := n.agent.Log(); !strings.Contains(log, "containerLogMaxBytesPerMinute is deprecated and ignored") {
		n.Error("no warning about the deprecated field")
	}
	for _, name := range append(names, "failed") {
		n.removeManifest(name)
	}
	n.waitNothingLeft()
}

// checkUpgraded compares the pods with those of the previous release.
func (n *node) checkUpgraded(names []string, before map[string]string, old map[string]corev1.Pod) {
	n.Helper()
	n.awaitRunning(names...)
	n.checkStillLive(before)
	if now := n.liveObjects(""); len(now) != len(before) {
		n.Errorf("got %d sandboxes and containers, want %d", len(now), len(before))
	}
	now := n.pods()
	for name, was := range old {
		is := now[name]
		if is.UID != was.UID || is.Status.Phase != was.Status.Phase || is.Status.PodIP != was.Status.PodIP {
			n.Errorf("%s: got %s %s %q, want %s %s %q", name, is.UID, is.Status.Phase, is.Status.PodIP, was.UID,
				was.Status.Phase, was.Status.PodIP)
		}
		for i, c := range statuses(&was) {
			if got := statuses(&is)[i]; got.RestartCount != c.RestartCount || got.ContainerID != c.ContainerID {
				n.Errorf("%s/%s: got %d restarts of %s, want %d of %s", name, c.Name, got.RestartCount, got.ContainerID,
					c.RestartCount, c.ContainerID)
			}
		}
	}
	if debug := now["debugged"].Status.EphemeralContainerStatuses; len(debug) != 1 || debug[0].State.Running == nil {
		n.Errorf("debug container: got %+v", debug)
	}
	for name, event := range map[string]string{"restarted": "Killing", "rich": "Started"} {
		n.checkOutput([]string{"events", name}, event)
	}
}
