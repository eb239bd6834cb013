package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/hosts"
)

// TestDiskBecomesReadOnly is what a kernel makes of a file system with errors: what
// runs goes on, what is to start waits and says why, and both that and what was to end
// is done when the disk can be written again.
func TestDiskBecomesReadOnly(t *testing.T) {
	forEachNewNode(t, nodeOptions{CNI: true, Nodefs: "size=64m"}, func(t *testing.T, s *Namespace) {
		const spec = "terminationGracePeriodSeconds: 1\nvolumes: [{name: data, emptyDir: {}}]\ncontainers:\n"
		pod := spec + box("c", "volumeMounts: [{name: data, mountPath: /data}], readinessProbe: {exec: {command: [/bin/testbox, exit]}, periodSeconds: 1}", "sleep")
		s.Pod("before", pod)
		s.Pod("leaves", pod)
		before := s.Running("before")
		s.Running("leaves")
		remount := func(flags uintptr) {
			t.Helper()
			if err := unix.Mount("", s.Agent.RootDir, "", unix.MS_REMOUNT|flags, ""); err != nil {
				t.Fatal(err)
			}
		}
		remount(unix.MS_RDONLY)
		s.Pod("after", pod)
		s.Remove("leaves")
		s.waitWhy("after", "read-only file system")
		s.waitWhy("leaves", "read-only file system")
		checkUnchanged := func() {
			t.Helper()
			if p := s.Running("before"); status(p, "c").ContainerID != status(before, "c").ContainerID || status(p, "c").RestartCount != 0 {
				t.Errorf("it was %s and is %s", brief(before), brief(p))
			}
		}
		checkUnchanged()
		// Neither does a new life of the agent need to write there.
		if err := s.Agent.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		checkUnchanged()
		remount(0)
		if p := s.Running("after"); status(p, "c").RestartCount != 0 {
			t.Errorf("%s", brief(p))
		}
		s.WaitDeleted("leaves")
		checkUnchanged()
	})
}

// TestNodeIsRenamed: its pods from files are others then, as for a kubelet, and
// those of the old name end first. Under its first name again it restarts too.
func TestNodeIsRenamed(t *testing.T) {
	forEachNewNode(t, nodeOptions{CNI: true}, func(t *testing.T, s *Namespace) {
		s.Pod("stays", "terminationGracePeriodSeconds: 1\ncontainers:\n"+box("c", "", "sleep"))
		p := s.Running("stays")
		i := slices.Index(s.Agent.Args, "--hostname-override") + 1
		first := s.Agent.Args[i]
		for _, name := range []string{"another-name", first} {
			if err := s.Agent.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
			s.Agent.Args[i] = name
			if err := s.Agent.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := s.Agent.WaitReady(t.Context()); err != nil {
				t.Fatal(err)
			}
			previous := p
			p = s.Wait("stays", "of the node "+name, func(p *corev1.Pod) bool { return p.Spec.NodeName == name && podReady(p) })
			if p.UID == previous.UID || status(p, "c").RestartCount != 0 {
				t.Errorf("on %s: %s %s", name, p.UID, brief(p))
			}
			s.waitSandboxesRemoved(previous)
		}
	})
}

// TestProcessLimitIsExhausted: none may be started in the cgroup of all pods. Who runs is
// left alone, who is to start says what it lacks, and starts when there is room.
func TestProcessLimitIsExhausted(t *testing.T) {
	forEachNewNode(t, nodeOptions{CNI: true}, func(t *testing.T, s *Namespace) {
		// A program of one thread: one that wants another later does not live without.
		s.Pod("before", "containers:\n"+sh("c", "", "echo up; exec sleep 1000"))
		before := s.Running("before")
		s.WaitLog("before", "c", "up") // runc has become it
		setPIDsMax := func(limit string) {
			t.Helper()
			for _, root := range []string{"/sys/fs/cgroup/pids", "/sys/fs/cgroup"} { // of either version of cgroups
				if file := filepath.Join(root, s.Host.CgroupRoot, "kubepods/pids.max"); exists(file) {
					if err := os.WriteFile(file, []byte(limit), 0); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		setPIDsMax("1")
		s.Pod("after", "containers:\n"+box("c", "", "sleep"))
		s.waitWhy("after", "FailedCreatePodSandBox", "runc create failed")
		setPIDsMax("max")
		if p := s.Running("after"); status(p, "c").LastTerminationState.Terminated != nil {
			t.Errorf("it never ran before: %s", brief(p))
		}
		if p := s.Running("before"); status(p, "c").ContainerID != status(before, "c").ContainerID || status(p, "c").RestartCount != 0 {
			t.Errorf("it was %s and is %s", brief(before), brief(p))
		}
	})
}

// noneOf waits until the runtime has nothing of a pod any more.
func (s *Namespace) waitSandboxesRemoved(p *corev1.Pod) {
	s.t.Helper()
	filter := &runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{"io.kubernetes.pod.uid": string(p.UID)}}
	err := hosts.WaitFor(s.t.Context(), "the end of "+string(p.UID), func() (bool, error) {
		list, err := s.Host.Runtime.ListPodSandbox(s.t.Context(), &runtimeapi.ListPodSandboxRequest{Filter: filter})
		return len(list.GetItems()) == 0, err
	})
	if err != nil {
		s.t.Error(err)
	}
}

// TestManyCrashingPods all at once, and again and again: one more pod starts beside
// them and is left alone, and they end when they are to. With BERTH_TORTURE they are 110.
func TestManyCrashingPods(t *testing.T) {
	podCount := 12
	if os.Getenv("BERTH_TORTURE") != "" {
		podCount = 110
	}
	forEachNewNode(t, nodeOptions{CNI: true, Config: map[string]any{"maxPods": podCount + 1}}, func(t *testing.T, s *Namespace) {
		for i := range podCount {
			s.Pod(fmt.Sprint("crash", i), "containers:\n"+box("c", "", "exit 3"))
		}
		crashing := func(p *corev1.Pod) bool {
			c := status(p, "c")
			return c.RestartCount >= 2 && c.LastTerminationState.Terminated != nil && c.LastTerminationState.Terminated.ExitCode == 3
		}
		s.waitPods("crashing", podCount, crashing)
		s.Pod("more", "containers:\n"+box("c", "readinessProbe: {exec: {command: [/bin/testbox, exit]}, periodSeconds: 1}", "sleep"))
		more := s.Running("more")
		s.waitPods("crashing on", podCount, func(p *corev1.Pod) bool { return crashing(p) && status(p, "c").RestartCount >= 4 })
		if p := s.Running("more"); p.UID != more.UID || status(p, "c").RestartCount != 0 {
			t.Errorf("%s", brief(p))
		}
		for i := range podCount {
			s.Remove(fmt.Sprint("crash", i))
		}
		s.Remove("more")
		s.waitPods("gone", 0, nil)
	})
}
