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

// TestDiskBecomesReadOnly remounts the disk read-only, as the kernel does after file system errors.
// Running pods keep running. Pod starts and deletions wait, report the reason, and complete when the
// disk is writable again.
func TestDiskBecomesReadOnly(t *testing.T) {
	forEachNewNode(t, nodeOptions{CNI: true, Nodefs: "size=64m"}, func(t *testing.T, s *Namespace) {
		const spec = "terminationGracePeriodSeconds: 1\nvolumes: [{name: data, emptyDir: {}}]\ncontainers:\n"
		pod := spec + box("c", "volumeMounts: [{name: data, mountPath: /data}], readinessProbe: {exec: {command: "+
			"[/bin/testbox, exit]}, periodSeconds: 1}", "sleep")
		s.Pod("before", pod)
		s.Pod("deleted", pod)
		before := s.Running("before")
		s.Running("deleted")
		remount := func(flags uintptr) {
			t.Helper()
			if err := unix.Mount("", s.Agent.RootDir, "", unix.MS_REMOUNT|flags, ""); err != nil {
				t.Fatal(err)
			}
		}
		remount(unix.MS_RDONLY)
		s.Pod("after", pod)
		s.Remove("deleted")
		s.waitWhy("after", "read-only file system")
		s.waitWhy("deleted", "read-only file system")
		checkUnchanged := func() {
			t.Helper()
			if p := s.Running("before"); status(p, "c").ContainerID != status(before, "c").ContainerID ||
				status(p, "c").RestartCount != 0 {
				t.Errorf("pod before: %s, after: %s", brief(before), brief(p))
			}
		}
		checkUnchanged()
		// The agent also restarts without write access to the disk.
		if err := s.Agent.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		checkUnchanged()
		remount(0)
		if p := s.Running("after"); status(p, "c").RestartCount != 0 {
			t.Errorf("%s", brief(p))
		}
		s.WaitDeleted("deleted")
		checkUnchanged()
	})
}

// TestNodeIsRenamed renames the node and then restores the name. As with a kubelet, the static pods
// are replaced. Pods of the previous name are deleted first.
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
			p = s.Wait("stays", "ready on node "+name, func(p *corev1.Pod) bool {
				return p.Spec.NodeName == name && podReady(p)
			})
			if p.UID == previous.UID || status(p, "c").RestartCount != 0 {
				t.Errorf("on %s: %s %s", name, p.UID, brief(p))
			}
			s.waitSandboxesRemoved(previous)
		}
	})
}

// TestProcessLimitIsExhausted sets pids.max of the kubepods cgroup so that no process can start.
// Running pods keep running. A new pod reports the reason and starts after the limit is raised.
func TestProcessLimitIsExhausted(t *testing.T) {
	forEachNewNode(t, nodeOptions{CNI: true}, func(t *testing.T, s *Namespace) {
		// A single-threaded program, because a program that needs another thread would crash.
		s.Pod("before", "containers:\n"+sh("c", "", "echo up; exec sleep 1000"))
		before := s.Running("before")
		s.WaitLog("before", "c", "up") // the process of runc has executed the program
		setPIDsMax := func(limit string) {
			t.Helper()
			for _, root := range []string{"/sys/fs/cgroup/pids", "/sys/fs/cgroup"} { // of either cgroup version
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
			t.Errorf("the container ran before the limit was raised: %s", brief(p))
		}
		if p := s.Running("before"); status(p, "c").ContainerID != status(before, "c").ContainerID ||
			status(p, "c").RestartCount != 0 {
			t.Errorf("pod before: %s, after: %s", brief(before), brief(p))
		}
	})
}

// waitSandboxesRemoved waits until the runtime has no sandbox of a pod.
func (s *Namespace) waitSandboxesRemoved(p *corev1.Pod) {
	s.t.Helper()
	filter := &runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{"io.kubernetes.pod.uid": string(p.UID)}}
	err := hosts.WaitFor(s.t.Context(), "removal of the sandboxes of "+string(p.UID), func() (bool, error) {
		list, err := s.Host.Runtime.ListPodSandbox(s.t.Context(), &runtimeapi.ListPodSandboxRequest{Filter: filter})
		return len(list.GetItems()) == 0, err
	})
	if err != nil {
		s.t.Error(err)
	}
}

// TestManyCrashingPods runs many pods that crash repeatedly. Another pod starts and keeps running, and
// all pods can be deleted. With BERTH_TORTURE there are 110 pods.
func TestManyCrashingPods(t *testing.T) {
	podCount := 12
	if os.Getenv("BERTH_TORTURE") != "" {
		podCount = 110
	}
	options := nodeOptions{CNI: true, Config: map[string]any{"maxPods": podCount + 1}}
	forEachNewNode(t, options, func(t *testing.T, s *Namespace) {
		for i := range podCount {
			s.Pod(fmt.Sprint("crash", i), "containers:\n"+box("c", "", "exit 3"))
		}
		crashing := func(p *corev1.Pod) bool {
			c := status(p, "c")
			return c.RestartCount >= 2 && c.LastTerminationState.Terminated != nil &&
				c.LastTerminationState.Terminated.ExitCode == 3
		}
		s.waitPods("crashing", podCount, crashing)
		s.Pod("more", "containers:\n"+
			box("c", "readinessProbe: {exec: {command: [/bin/testbox, exit]}, periodSeconds: 1}", "sleep"))
		more := s.Running("more")
		s.waitPods("still crashing", podCount, func(p *corev1.Pod) bool {
			return crashing(p) && status(p, "c").RestartCount >= 4
		})
		if p := s.Running("more"); p.UID != more.UID || status(p, "c").RestartCount != 0 {
			t.Errorf("%s", brief(p))
		}
		for i := range podCount {
			s.Remove(fmt.Sprint("crash", i))
		}
		s.Remove("more")
		s.waitPods("deleted", 0, nil)
	})
}
