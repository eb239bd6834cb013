package e2e

import (
	"os"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/hosts"
	"berth/test/images"
)

// TestScenario18_OtherContainersInContainerdAreKept creates a sandbox and a container outside of berth.
// They keep running when berth starts, restarts, and creates and deletes pods.
func TestScenario18_OtherContainersInContainerdAreKept(t *testing.T) {
	forEachNewNode(t, nodeOptions{CNI: true}, func(t *testing.T, s *Namespace) {
		config := &runtimeapi.PodSandboxConfig{
			Metadata:     &runtimeapi.PodSandboxMetadata{Name: "foreign", Namespace: "other", Uid: "12345"},
			LogDirectory: t.TempDir(),
			// The labels of a kubelet: berth manages only sandboxes with its own label.
			Labels: map[string]string{"io.kubernetes.pod.name": "foreign", "io.kubernetes.pod.namespace": "other",
				"io.kubernetes.pod.uid": "12345"},
			Linux: &runtimeapi.LinuxPodSandboxConfig{CgroupParent: s.Host.CgroupRoot + "/foreign"},
		}
		sb, err := s.Host.Runtime.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: config})
		if err != nil {
			t.Fatal(err)
		}
		c, err := s.Host.Runtime.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{
			PodSandboxId: sb.PodSandboxId, SandboxConfig: config,
			Config: &runtimeapi.ContainerConfig{
				Metadata: &runtimeapi.ContainerMetadata{Name: "c"},
				Image:    &runtimeapi.ImageSpec{Image: images.TestboxRef},
				Args:     []string{"sleep"}, Linux: &runtimeapi.LinuxContainerConfig{}, Labels: config.Labels,
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Host.Runtime.StartContainer(t.Context(),
			&runtimeapi.StartContainerRequest{ContainerId: c.ContainerId}); err != nil {
			t.Fatal(err)
		}
		checkRunning := func(when string) {
			t.Helper()
			st, err := s.Host.Runtime.ContainerStatus(t.Context(),
				&runtimeapi.ContainerStatusRequest{ContainerId: c.ContainerId})
			if err != nil || st.Status.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
				t.Fatalf("%s: %v %v", when, st, err)
			}
		}
		s.Pod("managed", "containers:\n"+box("c", "", "sleep"))
		before := s.Running("managed")
		checkRunning("after a pod started")
		if err := s.Agent.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		p := s.Running("managed")
		if p.UID != before.UID || status(p, "c").ContainerID != status(before, "c").ContainerID ||
			status(p, "c").RestartCount != 0 {
			t.Errorf("pod was replaced or restarted: %s", brief(p))
		}
		checkRunning("after a restart of the agent")
		s.Remove("managed")
		s.WaitDeleted("managed")
		checkRunning("after the last pod was deleted")
		if got := s.Berth("ps", "-A"); len(got) > 0 && s.Get("foreign") != nil {
			t.Errorf("the sandbox of another client is listed: %s", got)
		}
		if _, err := s.Host.Runtime.RemovePodSandbox(t.Context(),
			&runtimeapi.RemovePodSandboxRequest{PodSandboxId: sb.PodSandboxId}); err != nil {
			t.Fatal(err)
		}
		for _, root := range []string{"/sys/fs/cgroup/*", "/sys/fs/cgroup"} {
			for _, dir := range glob(t, root+s.Host.CgroupRoot+"/foreign") {
				_ = os.Remove(dir) // the creator of the sandbox created its cgroup
			}
		}
	})
}

func TestPodsWaitForNetworkAndRecover(t *testing.T) {
	forEachNewNode(t, nodeOptions{}, func(t *testing.T, s *Namespace) {
		t.Cleanup(func() { _ = s.Host.WriteCNI() }) // without it no pod can terminate
		s.Pod("waits", "containers:\n"+box("c", "ports: [{containerPort: 8080}]", "serve"))
		s.Pod("host", "hostNetwork: true\ncontainers:\n"+box("c", "", "sleep"))
		s.waitExplanation("waits", "NetworkNotReady", "network")
		s.Event("waits", "NetworkNotReady: ")
		s.Running("host")
		if out, err := s.Try("check"); err == nil {
			t.Errorf("check succeeds without a network:\n%s", out)
		}
		if err := s.Host.WriteCNI(); err != nil {
			t.Fatal(err)
		}
		p := s.Running("waits")
		s.waitHTTP("http://" + p.Status.PodIP + ":8080/")
		// Removing the network configuration blocks new pods and has no effect on running pods.
		if err := s.Host.RemoveCNI(); err != nil {
			t.Fatal(err)
		}
		err := hosts.WaitFor(t.Context(), "the agent to log that the network is not ready", func() (bool, error) {
			log := s.Agent.Log()
			const changed = `msg="network status changed" ready=`
			return strings.LastIndex(log, changed+"false") > strings.LastIndex(log, changed+"true"), nil
		})
		if err != nil {
			t.Fatal(err)
		}
		s.Pod("next", "containers:\n"+box("c", "", "sleep"))
		s.waitExplanation("next", "NetworkNotReady")
		s.waitHTTP("http://" + p.Status.PodIP + ":8080/")
		if err := s.Host.WriteCNI(); err != nil {
			t.Fatal(err)
		}
		s.Running("next")
		if got := s.Running("waits"); got.UID != p.UID || got.Status.PodIP != p.Status.PodIP ||
			status(got, "c").RestartCount != 0 {
			t.Errorf("pod was replaced or restarted: %s", brief(got))
		}
	})
}

// TestPodsWaitForUnreachableRegistry has the registry respond with errors first.
func TestPodsWaitForUnreachableRegistry(t *testing.T) {
	forEachNewNode(t, nodeOptions{CNI: true}, func(t *testing.T, s *Namespace) {
		repo := s.pushImage(s.Open, "away")
		s.Open.Fail(1000, 503)
		s.Pod("away", "containers:\n"+imageBox("c", repo+":1", "", "sleep"))
		s.Waiting("away", "c", "ErrImagePull")
		s.waitExplanation("away", "503")
		s.Open.Fail(0, 0)
		s.Running("away")
	})
}
