package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/nodeapi"
)

// busyPod is the spec of a pod that uses all CPU of its limit until the file /stop exists. The format
// verbs are the CPU request, the CPU limit and the memory limit.
const busyPod = "  hostNetwork: true\n  containers:\n  - name: c\n    image: busybox:1.36\n" +
	"    command: [sh, -c, 'dd if=/dev/zero of=/dev/shm/x bs=1M count=20 2>/dev/null; until [ -e /stop ]; do :; " +
	"done; sleep 1000000']\n" +
	"    resources: {requests: {cpu: %s, memory: 32Mi}, limits: {cpu: %s, memory: %s}}\n"

// topCommand checks the resource usage and the CPU pressure of a pod in berth top.
func topCommand(t *testing.T) {
	loadProfile(t, "berth-vm")
	createPods(t, laterPods)
	waitRunning(t, "busy")
	c, err := nodeapi.Dial(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	waitFor(t, "the usage of pod busy", func() (bool, string) {
		all, err := c.Top(t.Context(), nodeapi.TopRequest{PodsRequest: nodeapi.PodsRequest{Namespace: "default"},
			Window: 2 * time.Second})
		for _, p := range all.Pods {
			if p.Name != "busy" || len(p.Containers) != 1 {
				continue
			}
			r := p.Containers[0].Resources
			if r.PSI == nil {
				return false, "no PSI data"
			}
			return r.CPUNanoCores > 100e6 && r.CPUNanoCores < 300e6 && r.WorkingSetBytes > 20<<20 &&
				r.WorkingSetBytes <= 64<<20 &&
				r.Processes == 1 && p.Resources.Processes == 2 && r.PSI.CPU > 10, fmt.Sprintf("%+v %+v", r, *r.PSI)
		}
		return false, fmt.Sprint(len(all.Pods), " pods ", err)
	})
	text := output(t, "berth", "top", "busy", "--containers")
	t.Log("\n" + text)
	checkContains(t, "berth top", text, "busy", "CPU", "MEM")
	execInPod(t, "busy", "touch /stop")
}

// resize checks that a deferred resize of a running container happens after another pod is deleted.
func resize(t *testing.T) {
	before := waitRunning(t, "busy")
	dir := "kubepods/burstable/pod" + string(before.UID)
	condition := func(p *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
		for i := range p.Status.Conditions {
			if c := &p.Status.Conditions[i]; c.Type == kind && c.Status == corev1.ConditionTrue {
				return c
			}
		}
		return nil
	}
	createPods(t, map[string]string{"busy": fmt.Sprintf(busyPod, "1300m", "1300m", "96Mi")})
	p := waitPod(t, "busy", "deferred", func(p *corev1.Pod) bool {
		return condition(p,
			corev1.PodResizePending) != nil
	})
	if c := condition(p, corev1.PodResizePending); c.Reason != corev1.PodReasonDeferred ||
		!strings.Contains(c.Message, "cpu") {
		t.Errorf("condition PodResizePending: got %s %s, want Deferred because of cpu", c.Reason, c.Message)
	}
	checkFiles(t, dir+"/"+containerID(before), map[string]string{"cpu.max": "20000 100000", "memory.max": "67108864"})
	removePods(t, "steady2")
	p = waitPod(t, "busy", "resized", func(p *corev1.Pod) bool {
		r := container(p, "c").Resources
		return condition(p, corev1.PodResizePending) == nil && condition(p, corev1.PodResizeInProgress) == nil &&
			r != nil && r.Limits.Cpu().String() == "1300m"
	})
	if c := container(p, "c"); p.UID != before.UID || containerID(p) != containerID(before) || c.RestartCount != 0 ||
		c.AllocatedResources.Cpu().String() != "1300m" {
		t.Errorf("after the resize: got %s %v, before %s", summary(p), c.AllocatedResources, summary(before))
	}
	want := map[string]string{"cpu.max": "130000 100000", "memory.max": "100663296"}
	checkFiles(t, dir, want)
	checkFiles(t, dir+"/"+containerID(p), want)
}
