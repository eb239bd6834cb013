package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/test/guide"
)

// The page that the checks follow, and its sections in order.
const (
	docPage             = "replace-the-kubelet.md"
	sectionPlan         = "Check the plan"
	sectionTakeOver     = "Take over"
	sectionHandbackPlan = "Check the plan of a handback"
	sectionHandBack     = "Hand back"
)

// follow runs the commands of a section of the page and returns their output.
func follow(t *testing.T, name string) string {
	t.Helper()
	sections, err := guide.ReadPages(extraDir, docPage)
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	blocks := 0
	for _, s := range sections {
		if s.Name != name {
			continue
		}
		for _, b := range s.Blocks {
			blocks++
			start := time.Now()
			c := exec.CommandContext(t.Context(), "sh", "-e", "-c", b.Commands)
			c.Dir = "/root" // with the program berth
			out, err := c.CombinedOutput()
			all.Write(out)
			t.Logf("%s, line %d, %.1fs:\n%s\n%s", docPage, b.Line, time.Since(start).Seconds(), b.Commands, out)
			if err := b.Check(string(out), err); err != nil {
				t.Fatalf("%s, line %d: %v", docPage, b.Line, err)
			}
		}
	}
	if blocks == 0 {
		t.Fatalf("%s has no commands in section %q", docPage, name)
	}
	return all.String()
}

// compare compares the state with that before. what describes who has changed it.
func compare(t *testing.T, what string, was map[string]string) {
	t.Helper()
	now, _ := observe(t)
	checkUnchanged(t, what, was, now)
	t.Logf("%s: %d sandboxes, containers, pods and statuses compared", what, len(was))
}

// takeOver checks the plan and takes over, as the page says.
func takeOver(t *testing.T) {
	longChecks(t)
	if err := copyProgram(extraDir+"/berth-to-install", "/root/berth"); err != nil {
		t.Fatal(err)
	}
	was := loadBefore(t)
	pid := properties(t, "kubelet.service", "MainPID")["MainPID"]
	plan := follow(t, sectionPlan)
	checkContains(t, "the plan", plan, "cgroupDriver", "--bootstrap-kubeconfig", "rotateCertificates",
		"--node-ip", "--kubeconfig", "allocated_pods_state", "actuated_pods_state")
	if strings.Contains("\n"+plan, "\nrejected") {
		t.Fatalf("a row of the plan is rejected:\n%s", plan)
	}
	if now := properties(t, "kubelet.service", "MainPID")["MainPID"]; now != pid {
		t.Errorf("--dry-run has restarted the kubelet: process %s, before %s", now, pid)
	}
	for _, path := range []string{"/var/lib/berth", "/etc/berth", "/usr/local/bin/berth"} {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("--dry-run has created %s", path)
		}
	}
	out := follow(t, sectionTakeOver)
	if n := strings.Count(out, " adopted"); n < readyPods {
		t.Errorf("%d pods are adopted, want %d", n, readyPods)
	}
	checkUnits(t, "disabled enabled inactive active")
	waitNodeReady(t, time.Now())
	startCanary(t, "takeover")
	compare(t, "takeover", was.State)
	_, ready := observe(t)
	checkUnchanged(t, "readiness after the takeover", was.Ready, ready)
	checkWrites(t, 1)
	checkContains(t, "berth check", berthCheck(t), "ok cgroup driver systemd", "ok cgroups cgroup v2")
}

func copyProgram(from, to string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, text, 0o755)
}

// podsWork checks probes, exec and logs of adopted pods, by the API server and by the node.
func podsWork(t *testing.T) {
	longChecks(t)
	checkContains(t, "kubectl logs", output(t, "kubectl", "logs", "db", "-c", "c"), "started")
	checkContains(t, "logs of the static pod",
		output(t, "kubectl", "logs", "-n", "kube-system", "static-host-"+nodeName), "started")
	checkContains(t, "volumes", output(t, "kubectl", "exec", "db", "-c", "c", "--", "cat", "/settings/key",
		"/password/key"), "value", "secret")
	checkContains(t, "berth logs", output(t, "berth", "logs", "db", "-c", "c"), "started")
	pods, err := client(t).CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: "app=web"})
	if err != nil || len(pods.Items) != 1 {
		t.Fatalf("pods of the deployment: %v, %v", pods, err)
	}
	web := pods.Items[0].Name
	probes := func() int {
		n, err := strconv.Atoi(output(t, "kubectl", "exec", web, "--", "sh", "-c",
			"cat /tmp/probes 2>/dev/null | wc -l"))
		if err != nil {
			t.Error(err)
		}
		return n
	}
	before := probes()
	waitFor(t, "the liveness probe to run", func() (bool, string) {
		now := probes()
		return now > before, fmt.Sprint(now)
	})
	for _, step := range []struct {
		command string
		want    corev1.ConditionStatus
	}{{"rm /tmp/ready", corev1.ConditionFalse}, {"touch /tmp/ready", corev1.ConditionTrue}} {
		output(t, "kubectl", "exec", web, "--", "sh", "-c", step.command)
		waitFor(t, "readiness "+string(step.want)+" after "+step.command, func() (bool, string) {
			p, err := client(t).CoreV1().Pods("default").Get(t.Context(), web, metav1.GetOptions{})
			return err == nil && readyCondition(p).Status == step.want, fmt.Sprint(summary(p), err)
		})
	}
}

// killAgent kills berth, which systemd starts again.
func killAgent(t *testing.T) {
	longChecks(t)
	was := loadBefore(t)
	pid, err := strconv.Atoi(properties(t, "berth.service", "MainPID")["MainPID"])
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "systemd to start berth again", func() (bool, string) {
		p := properties(t, "berth.service", "MainPID", "NRestarts", "ActiveState")
		return p["NRestarts"] == "1" && p["ActiveState"] == "active" && p["MainPID"] != "0", fmt.Sprint(p)
	})
	waitNodeReady(t, time.Now())
	startCanary(t, "kill")
	compare(t, "kill -9 of berth", was.State)
	checkWrites(t, 1)
}

// handBack checks the plan and hands back, as the page says.
func handBack(t *testing.T) {
	longChecks(t)
	was := loadBefore(t)
	handBackByGuide(t, "handback", was)
	checkWrites(t, 1)
}

func handBackByGuide(t *testing.T, name string, was before) {
	t.Helper()
	plan := follow(t, sectionHandbackPlan)
	if strings.Contains("\n"+plan, "\nrejected") {
		t.Fatalf("a row of the plan is rejected:\n%s", plan)
	}
	follow(t, sectionHandBack)
	checkUnits(t, "enabled disabled active inactive")
	n := waitNodeReady(t, time.Now())
	startCanary(t, name)
	compare(t, name, was.State)
	for label := range n.Labels {
		if strings.HasPrefix(label, "unsupported.berth.dev/") {
			t.Errorf("the Node has label %s after the handback", label)
		}
	}
	for _, path := range []string{"/var/lib/berth/handover.json", "/etc/berth/config.yaml",
		"/etc/systemd/system/kubelet.service.d/zz-berth.conf"} {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s exists after the handback", path)
		}
	}
	if marks := output(t, "find", "/var/lib/kubelet/pods", "-maxdepth", "2", "-name", ".berth"); marks != "" {
		t.Errorf("pods have the mark of berth after the handback: %s", marks)
	}
	checkContains(t, "kubectl logs", output(t, "kubectl", "logs", "db", "-c", "c"), "started")
	waitFor(t, "the version of the kubelet in the status of the Node", func() (bool, string) {
		n, err := client(t).CoreV1().Nodes().Get(t.Context(), nodeName, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		now := n.Status.NodeInfo.KubeletVersion
		return output(t, "kubelet", "--version") == "Kubernetes "+now, now
	})
}

// interruptTakeover kills a takeover when it stops the kubelet, completes it, and leaves berth for the reboot.
func interruptTakeover(t *testing.T) {
	longChecks(t)
	was := loadBefore(t)
	c := exec.CommandContext(t.Context(), "/root/berth", "takeover")
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	killed := false
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "stop and disable kubelet") {
			killed = c.Process.Kill() == nil
			break
		}
	}
	if err := c.Wait(); err == nil || !killed {
		t.Errorf("the takeover was not killed: %v", err)
	}
	t.Logf("after the kill: %s", units(t))
	t.Logf("%s", output(t, "/root/berth", "takeover"))
	checkUnits(t, "disabled enabled inactive active")
	waitNodeReady(t, time.Now())
	startCanary(t, "interrupted")
	compare(t, "interrupted takeover", was.State)
	checkWrites(t, 1)
}

// bootWithBerth checks after a reboot that berth has started and the kubelet has not, and that the pods run
// again with their UIDs.
func bootWithBerth(t *testing.T) {
	longChecks(t)
	was := loadBefore(t)
	if boot := strings.TrimSpace(readFile(t, "/proc/sys/kernel/random/boot_id")); boot == was.Boot {
		t.Fatal("the machine did not reboot")
	}
	waitActive(t)
	checkUnits(t, "disabled enabled inactive active")
	waitNodeReady(t, time.Now())
	waitStartedAfter(t, time.Now().Add(-uptime()))
	waitPodsReady(t, readyPods+1)
	startCanary(t, "reboot")
	state, ready := observe(t)
	for name, value := range was.State {
		now := state[name]
		switch kind, _, _ := strings.Cut(name, " "); kind {
		case "pod": // UIDs are the same. Addresses outside of the host's network change.
			if first, _, _ := strings.Cut(value, " ["); !strings.HasPrefix(now, first) {
				t.Errorf("%s: got %s after the reboot, before %s", name, now, value)
			}
		case "container":
			if now == value || now == "" && !strings.HasSuffix(name, "/debugger") {
				t.Errorf("%s: got %q after the reboot, before %q", name, now, value)
			}
		}
	}
	checkWrites(t, 2)
	was.State, was.Ready = state, ready
	was.save(t)
}

// kubeletStaysOff starts the kubelet as a node monitor or kubeadm would.
func kubeletStaysOff(t *testing.T) {
	longChecks(t)
	output(t, "systemctl", "restart", "kubelet")
	p := properties(t, "kubelet.service", "ActiveState", "ConditionResult")
	if p["ActiveState"] != "inactive" || p["ConditionResult"] != "no" {
		t.Errorf("kubelet.service: got %v, want inactive because of its condition", p)
	}
	checkUnits(t, "disabled enabled inactive active")
}

// resizeBeforeHandback resizes a container in place, and another one with a restart.
func resizeBeforeHandback(t *testing.T) {
	longChecks(t)
	before, err := client(t).CoreV1().Pods("default").Get(t.Context(), "restarted", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for name, resources := range resizedPods {
		output(t, "kubectl", "patch", "pod", name, "--subresource=resize", "-p",
			`{"spec":{"containers":[{"name":"c","resources":`+resources+`}]}}`)
	}
	checkResized(t)
	waitPod(t, "restarted", "restarted once more", func(p *corev1.Pod) bool {
		c := container(p, "c")
		return c.State.Running != nil && c.RestartCount == container(before, "c").RestartCount+1
	})
	waitPodsReady(t, readyPods)
}

// resizedPods are the resources of containers that are resized under berth. The kubelet would restart the
// container of restarted again if it did not know them.
var resizedPods = map[string]string{
	"db":        `{"requests":{"cpu":"150m"},"limits":{"cpu":"150m"}}`,
	"restarted": `{"limits":{"memory":"96Mi"}}`,
}

// checkResized waits until the resizes of resizedPods are complete.
func checkResized(t *testing.T) {
	t.Helper()
	for name, limit := range map[string]string{"db": "150m", "restarted": "96Mi"} {
		waitFor(t, "the resize of pod "+name+" to be complete", func() (bool, string) {
			p, err := client(t).CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return false, err.Error()
			}
			for _, c := range p.Status.Conditions {
				if strings.HasPrefix(string(c.Type), "PodResize") && c.Status == corev1.ConditionTrue {
					return false, c.String()
				}
			}
			r := container(p, "c").Resources
			if r == nil {
				return false, "no resources in the status"
			}
			return r.Limits.Cpu().String() == limit || r.Limits.Memory().String() == limit, fmt.Sprint(r.Limits)
		})
	}
}

// handBackAfterReboot hands back containers that berth has started, with a certificate that berth has renewed.
func handBackAfterReboot(t *testing.T) {
	longChecks(t)
	state, ready := observe(t)
	was := before{State: state, Ready: ready}
	cert, err := os.Readlink(clientCert)
	if err != nil {
		t.Error(err)
	}
	handBackByGuide(t, "handback-reboot", was)
	checkWrites(t, 2)
	checkResized(t)
	checkContains(t, "allocated_pods_state", readFile(t, "/var/lib/kubelet/allocated_pods_state"), "150m", "96Mi")
	if now, err := os.Readlink(clientCert); err != nil {
		t.Error(err)
	} else {
		t.Logf("certificate at the handback: %s, now: %s", cert, now)
	}
	for line := range strings.Lines(output(t, "journalctl", "-b", "-u", "kubelet", "-o", "cat", "--no-pager")) {
		if strings.Contains(line, "checkpoint is corrupted") || strings.Contains(line, "Error migrating image") {
			t.Errorf("the kubelet does not accept a file of berth: %s", line)
		}
	}
}
