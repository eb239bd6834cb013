package e2e

import (
	"os"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/hosts"
	"berth/test/images"
)

// TestScenario18_OtherContainersInContainerdAreKept has a sandbox with
// a container that berth did not make, through its start, pods' lives and a
// restart.
func TestScenario18_OtherContainersInContainerdAreKept(t *testing.T) {
	forEachNewNode(t, nodeOptions{CNI: true}, func(t *testing.T, s *Namespace) {
		config := &runtimeapi.PodSandboxConfig{
			Metadata:     &runtimeapi.PodSandboxMetadata{Name: "foreign", Namespace: "theirs", Uid: "12345"},
			LogDirectory: t.TempDir(),
			// Labels as a kubelet's: only berth's own mark makes a sandbox berth's.
			Labels: map[string]string{"io.kubernetes.pod.name": "foreign", "io.kubernetes.pod.namespace": "theirs", "io.kubernetes.pod.uid": "12345"},
			Linux:  &runtimeapi.LinuxPodSandboxConfig{CgroupParent: s.Host.CgroupRoot + "/foreign"},
		}
		sb, err := s.Host.Runtime.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: config})
		if err != nil {
			t.Fatal(err)
		}
		c, err := s.Host.Runtime.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{
			PodSandboxId: sb.PodSandboxId, SandboxConfig: config,
			Config: &runtimeapi.ContainerConfig{
				Metadata: &runtimeapi.ContainerMetadata{Name: "c"}, Image: &runtimeapi.ImageSpec{Image: images.TestboxRef},
				Args: []string{"sleep"}, Linux: &runtimeapi.LinuxContainerConfig{}, Labels: config.Labels,
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Host.Runtime.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: c.ContainerId}); err != nil {
			t.Fatal(err)
		}
		checkRunning := func(when string) {
			t.Helper()
			st, err := s.Host.Runtime.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: c.ContainerId})
			if err != nil || st.Status.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
				t.Fatalf("%s: %v %v", when, st, err)
			}
		}
		s.Pod("own", "containers:\n"+box("c", "", "sleep"))
		before := s.Running("own")
		checkRunning("after a pod began")
		if err := s.Agent.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		p := s.Running("own")
		if p.UID != before.UID || status(p, "c").ContainerID != status(before, "c").ContainerID || status(p, "c").RestartCount != 0 {
			t.Errorf("the restart touched its own pod: %s", brief(p))
		}
		checkRunning("after a restart of the agent")
		s.Remove("own")
		s.WaitDeleted("own")
		checkRunning("after the last pod was gone")
		if got := s.Berth("ps", "-A"); len(got) > 0 && s.Get("foreign") != nil {
			t.Errorf("it is listed: %s", got)
		}
		if _, err := s.Host.Runtime.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: sb.PodSandboxId}); err != nil {
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
		t.Cleanup(func() { _ = s.Host.WriteCNI() }) // else no pod could end
		s.Pod("waits", "containers:\n"+box("c", "ports: [{containerPort: 8080}]", "serve"))
		s.Pod("host", "hostNetwork: true\ncontainers:\n"+box("c", "", "sleep"))
		s.waitExplanation("waits", "NetworkNotReady", "network")
		s.Event("waits", "NetworkNotReady: ")
		s.Running("host")
		if out, err := s.Try("check"); err == nil {
			t.Errorf("check is content without a network:\n%s", out)
		}
		if err := s.Host.WriteCNI(); err != nil {
			t.Fatal(err)
		}
		p := s.Running("waits")
		s.waitHTTP("http://" + p.Status.PodIP + ":8080/")
		// One that goes away touches no pod that runs, and holds up new ones.
		if err := s.Host.RemoveCNI(); err != nil {
			t.Fatal(err)
		}
		err := hosts.WaitFor(t.Context(), "the agent to miss the network", func() (bool, error) {
			log := s.Agent.Log()
			return strings.LastIndex(log, "msg=network ready=false") > strings.LastIndex(log, "msg=network ready=true"), nil
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
		if got := s.Running("waits"); got.UID != p.UID || got.Status.PodIP != p.Status.PodIP || status(got, "c").RestartCount != 0 {
			t.Errorf("the pod was touched: %s", brief(got))
		}
	})
}

// TestPodsWaitForUnreachableRegistry has the registry answer with errors first.
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
