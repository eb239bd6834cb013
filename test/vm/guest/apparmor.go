package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// armed has a container for each kind of profile. That of late is loaded only
// when the container was seen to wait for it.
const armed = "  hostNetwork: true\n  containers:\n" +
	"  - name: c\n" + box + "    securityContext: {appArmorProfile: {type: Localhost, localhostProfile: berth-vm}}\n" +
	"    volumeMounts: [{name: data, mountPath: /data}]\n" +
	"  - name: standard\n" + box + "    securityContext: {appArmorProfile: {type: RuntimeDefault}}\n" +
	"  - name: free\n" + box + "    securityContext: {appArmorProfile: {type: Unconfined}}\n" +
	"  - name: late\n" + box + "    securityContext: {appArmorProfile: {type: Localhost, localhostProfile: berth-vm-late}}\n" +
	"  volumes: [{name: data, emptyDir: {}}]\n"

// profile lets everything be done but write below /data.
const profile = "abi <abi/3.0>,\nprofile NAME flags=(attach_disconnected, mediate_deleted) {\n" +
	"  file,\n  network,\n  capability,\n  signal,\n  unix,\n  ptrace,\n  mount,\n  umount,\n  deny /data/** w,\n}\n"

func loadProfile(t *testing.T, name string) {
	t.Helper()
	if err := os.WriteFile("/run/"+name, []byte(strings.Replace(profile, "NAME", name, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	output(t, "apparmor_parser", "--replace", "/run/"+name)
}

// appArmor confines each container as its pod has it, and lets none run
// unconfined whose profile is not there.
func appArmor(t *testing.T) {
	contains(t, "berth check", checked(t), "ok apparmor enabled")
	reason, message := "", ""
	pod(t, "armed", "waiting for a profile only", func(p *corev1.Pod) bool {
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
	contains(t, "message", message, "apparmor", "berth-vm-late")
	for name, want := range map[string]string{"c": "berth-vm (enforce)", "standard": "cri-containerd.apparmor.d (enforce)", "free": "unconfined"} {
		if got := output(t, "berth", "exec", "armed", "-c", name, "--", "cat", "/proc/1/attr/current"); got != want {
			t.Errorf("container %s is confined by %q, want %q", name, got, want)
		}
	}
	if got := inside(t, "armed", "cat /proc/self/attr/current; touch /tmp/x /data/x 2>&1 || true; ls /data"); got != "berth-vm (enforce)\ntouch: /data/x: Permission denied" {
		t.Errorf("in the container: %q", got)
	}
	if out, err := exec.CommandContext(t.Context(), "berth", "exec", "armed", "-c", "standard", "--", "sh", "-c", "mount -t tmpfs x /tmp").CombinedOutput(); err == nil {
		t.Errorf("the runtime's profile lets mount: %s", out)
	}
	loadProfile(t, "berth-vm-late")
	running(t, "armed")
}
