package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// apparmorPod has a container for each type of profile. The profile of container late is loaded only
// after the container waits for it.
const apparmorPod = "  hostNetwork: true\n  containers:\n" +
	"  - name: c\n" + sleepContainer +
	"    securityContext: {appArmorProfile: {type: Localhost, localhostProfile: berth-vm}}\n" +
	"    volumeMounts: [{name: data, mountPath: /data}]\n" +
	"  - name: standard\n" + sleepContainer + "    securityContext: {appArmorProfile: {type: RuntimeDefault}}\n" +
	"  - name: free\n" + sleepContainer + "    securityContext: {appArmorProfile: {type: Unconfined}}\n" +
	"  - name: late\n" + sleepContainer +
	"    securityContext: {appArmorProfile: {type: Localhost, localhostProfile: berth-vm-late}}\n" +
	"  volumes: [{name: data, emptyDir: {}}]\n"

// profile allows everything except writes below /data.
const profile = "abi <abi/3.0>,\nprofile NAME flags=(attach_disconnected, mediate_deleted) {\n" +
	"  file,\n  network,\n  capability,\n  signal,\n  unix,\n  ptrace,\n  mount,\n  umount,\n  deny /data/** w,\n}\n"

func loadProfile(t *testing.T, name string) {
	t.Helper()
	if err := os.WriteFile("/run/"+name, []byte(strings.Replace(profile, "NAME", name, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	output(t, "apparmor_parser", "--replace", "/run/"+name)
}

// appArmor checks that each container has the profile of its pod spec, and that a container whose
// profile is not loaded does not start.
func appArmor(t *testing.T) {
	checkContains(t, "berth check", berthCheck(t), "ok apparmor enabled")
	reason, message := "", ""
	waitPod(t, "armed", "ready except for the missing profile", func(p *corev1.Pod) bool {
		if w := container(p, "late").State.Waiting; w != nil {
			reason, message = w.Reason, w.Message
		}
		ready := 0
		for _, c := range p.Status.ContainerStatuses {
			if c.Ready {
				ready++
			}
		}
		return ready == 3 && reason == "CreateContainerError"
	})
	t.Logf("%s: %s", reason, message)
	checkContains(t, "message", message, "apparmor", "berth-vm-late")
	for name, want := range map[string]string{"c": "berth-vm (enforce)",
		"standard": "cri-containerd.apparmor.d (enforce)", "free": "unconfined"} {
		if got := output(t, "berth", "exec", "armed", "-c", name, "--", "cat", "/proc/1/attr/current"); got != want {
			t.Errorf("AppArmor profile of container %s: got %q, want %q", name, got, want)
		}
	}
	got := execInPod(t, "armed", "cat /proc/self/attr/current; touch /tmp/x /data/x 2>&1 || true; ls /data")
	if got != "berth-vm (enforce)\ntouch: /data/x: Permission denied" {
		t.Errorf("write below /data: got %q, want permission denied", got)
	}
	if out, err := exec.CommandContext(t.Context(), "berth", "exec", "armed", "-c", "standard", "--", "sh", "-c",
		"mount -t tmpfs x /tmp").CombinedOutput(); err == nil {
		t.Errorf("mount succeeds under the default profile of the runtime: %s", out)
	}
	loadProfile(t, "berth-vm-late")
	waitRunning(t, "armed")
}
