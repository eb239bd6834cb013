package systemd

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/test/guide"
	"berth/test/hosts"
)

// The stand-in for the kubelet does nothing: these tests are about services, files and the program that
// runs the pods afterwards. Its unit is that of kubeadm.
const (
	kubeletProgram = "#!/bin/sh\ncase $1 in --version) echo Kubernetes v1.37.2; exit;; esac\n" +
		"while :; do sleep 1000; done\n"
	kubeletUnit = `[Unit]
Description=kubelet

[Service]
ExecStart=/usr/local/bin/kubelet
Restart=always

[Install]
WantedBy=multi-user.target
`
	kubeletDropin = `[Service]
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
ExecStart=
ExecStart=/usr/local/bin/kubelet $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS
`
	kubeletFlags  = "KUBELET_KUBEADM_ARGS=\"--container-runtime-endpoint=unix:///run/containerd/containerd.sock\"\n"
	kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
staticPodPath: /etc/kubernetes/manifests
evictionHard: {memory.available: 100Mi}
imageGCHighThresholdPercent: 100
syncFrequency: 1m0s
`
)

// TestTakeover replaces a stand-in for the kubelet with berth and back. Each step depends on the steps
// before it.
func TestTakeover(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	busybox := busyboxImage(ctx, t)
	program, err := hosts.BuildBerth(ctx, hosts.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	h := start(ctx, t, busybox.Path)
	if err := errors.Join(h.Copy(program, "/root/berth"), h.WriteFile("/usr/local/bin/kubelet", kubeletProgram),
		h.WriteFile("/etc/systemd/system/kubelet.service", kubeletUnit),
		h.WriteFile("/etc/systemd/system/kubelet.service.d/10-kubeadm.conf", kubeletDropin),
		h.WriteFile("/var/lib/kubelet/kubeadm-flags.env", kubeletFlags),
		h.WriteFile("/var/lib/kubelet/config.yaml", kubeletConfig),
		h.WriteFile("/etc/kubernetes/manifests/web.yaml", strings.Replace(fmt.Sprintf(manifest, busybox.Ref),
			"\nspec:\n", "\nspec:\n  hostNetwork: true\n", 1))); err != nil { // the host has no network configuration
		t.Fatal(err)
	}
	operator{t, h}.sh("chmod 755 /usr/local/bin/kubelet && systemctl enable --now kubelet")
	for _, step := range []struct {
		name string
		do   func(operator)
	}{
		{"a rejected takeover changes nothing", rejectTakeover},
		{"a failed takeover is rolled back", rollBackTakeover},
		{"the guide", followTakeoverGuide},
		{"killed takeovers", killTakeovers},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.do(operator{t, h}) }) {
			return
		}
	}
}

// units returns the states of both services.
func (o operator) units() string {
	o.Helper()
	const command = "systemctl is-enabled kubelet berth; systemctl is-active kubelet berth; true"
	return strings.Join(strings.Fields(o.sh(command)), " ")
}

// fails runs a command that must fail, and returns its output and error.
func (o operator) fails(line string) string {
	o.Helper()
	out, err := o.host.Run(o.Context(), "sh", "-c", line)
	if err == nil {
		o.Fatalf("%s succeeds:\n%s", line, out)
	}
	return out + err.Error()
}

func rejectTakeover(o operator) {
	const volume = "/var/lib/kubelet/pods/0a1b/volumes/kubernetes.io~csi/data"
	o.sh("mkdir -p " + volume)
	pid := o.sh("systemctl show --value -p MainPID kubelet")
	out := o.fails("/root/berth takeover")
	for _, want := range []string{"spec.volumes[data]", "0a1b", "kubernetes.io/csi", "nothing was changed"} {
		if !strings.Contains(out, want) {
			o.Errorf("no %q in:\n%s", want, out)
		}
	}
	if now := o.sh("systemctl show --value -p MainPID kubelet"); now != pid {
		o.Errorf("the kubelet was restarted: process %s, before %s", now, pid)
	}
	o.sh("test ! -e /var/lib/berth && test ! -e /etc/berth && test ! -e /usr/local/bin/berth")
	o.sh("rm -r /var/lib/kubelet/pods")
	out = o.sh("/root/berth takeover --dry-run -o json")
	for _, want := range []string{
		`"subject": "syncFrequency"`, `"verdict": "ignored"`, "staticPodPath: /etc/kubernetes",
	} {
		if !strings.Contains(out, want) {
			o.Errorf("no %q in:\n%s", want, out)
		}
	}
	o.sh("test ! -e /var/lib/berth && test ! -e /etc/berth")
}

// rollBackTakeover occupies the health port, so that berth does not start.
func rollBackTakeover(o operator) {
	o.sh("systemd-run --unit=occupy --socket-property=ListenStream=127.0.0.1:10248 true")
	o.sh("mkdir -p /etc/berth && echo '# before' >/etc/berth/config.yaml")
	out := o.fails("/root/berth takeover")
	if !strings.Contains(out, "rolling back") || !strings.Contains(out, "kubelet.service is as before") {
		o.Errorf("no rollback in:\n%s", out)
	}
	if got := o.units(); got != "enabled disabled active inactive" {
		o.Errorf("units are %s", got)
	}
	if got := o.sh("cat /etc/berth/config.yaml; ls /var/lib/berth"); strings.Contains(got, "handover.json") ||
		!strings.Contains(got, "# before") {
		o.Errorf("not as before:\n%s", got)
	}
	o.sh("systemctl stop occupy.socket; rm -r /etc/berth")
	if out := o.fails("/root/berth handback"); !strings.Contains(out, "no takeover to undo") {
		o.Errorf("got %s", out)
	}
}

// followTakeoverGuide runs the commands of docs/replace-the-kubelet.md.
func followTakeoverGuide(o operator) {
	repo, err := hosts.RepoRoot()
	if err != nil {
		o.Fatal(err)
	}
	sections, err := guide.ReadPages(filepath.Join(repo, "docs"), "replace-the-kubelet.md")
	if err != nil {
		o.Fatal(err)
	}
	o.sh("rm -f " + shellState)
	r := &guideRunner{o}
	blocks, before := 0, ""
	for _, s := range sections {
		for _, b := range s.Blocks {
			if b.Commands == "berth handback" {
				// The stand-in starts no pods: those of this host are static pods that berth has created.
				out := o.fails("/root/berth handback")
				if !strings.Contains(out, "metadata.uid") || !strings.Contains(out, "nothing was changed") {
					o.Errorf("a handback of static pods that berth created:\n%s", out)
				}
				b.Commands += " --force"
			}
			b.Commands = "cd /root\n" + b.Commands
			r.run(b)
			blocks++
		}
		if s.Name == "Take over" {
			o.waitRunning()
			before = o.tasks()
			if got := o.units(); got != "disabled enabled inactive active" {
				o.Errorf("units are %s after the takeover", got)
			}
			if out := o.fails("/root/berth uninstall --yes"); !strings.Contains(out, "run berth handback first") {
				o.Errorf("berth uninstall after a takeover: %s", out)
			}
			if out := o.sh("/root/berth takeover"); strings.Contains(out, "start") {
				o.Errorf("a second takeover does something:\n%s", out)
			}
		}
	}
	if blocks < 5 {
		o.Errorf("the guide has only %d blocks", blocks)
	}
	if got := o.units(); got != "enabled disabled active inactive" {
		o.Errorf("units are %s after the handback", got)
	}
	o.checkNotRestarted(before)
	o.sh("test ! -e /var/lib/berth/handover.json && test ! -e /etc/berth/config.yaml")
	if marks := o.sh("find /var/lib/kubelet/pods -name .berth"); marks != "" {
		o.Errorf("pods have the mark of berth after the handback: %s", marks)
	}
}

// killTakeovers kills the command at the beginning of each step, and undoes or completes what it did.
func killTakeovers(o operator) {
	before := o.tasks()
	kill := func(command, step string) {
		o.sh("mkfifo /root/out; /root/berth " + command + " >/root/out 2>&1 & pid=$!; while read -r line; do " +
			"case $line in '" + step + "'*) kill -9 $pid;; esac; done </root/out; wait $pid; rm /root/out")
	}
	for _, step := range []string{"write the configuration", "add a drop-in", "enable berth",
		"stop and disable kubelet", "start berth", "wait until berth"} {
		kill("takeover", step)
		o.sh("/root/berth handback --force")
		if got := o.units(); !strings.HasPrefix(got, "enabled disabled active inactive") {
			o.Errorf("units are %s after a takeover that was killed at %q", got, step)
		}
		kill("takeover", step)
		o.sh("/root/berth takeover")
		if got := o.units(); got != "disabled enabled inactive active" {
			o.Errorf("units are %s after a takeover that was repeated at %q", got, step)
		}
		o.sh("/root/berth handback --force")
	}
	o.sh("/root/berth takeover")
	for _, step := range []string{"stop berth", "enable kubelet", "disable berth", "release the pods",
		"remove the drop-in", "start kubelet"} {
		kill("handback --force", step)
		o.sh("/root/berth handback --force || test ! -e /var/lib/berth/handover.json")
		if got := o.units(); got != "enabled disabled active inactive" {
			o.Errorf("units are %s after a handback that was killed at %q", got, step)
		}
		o.sh("/root/berth takeover")
	}
	o.sh("/root/berth handback --force")
	o.checkNotRestarted(before)
	// Released pods, which berth itself created here, survive its removal.
	o.sh("/root/berth uninstall --yes")
	o.checkNotRestarted(before)
}
