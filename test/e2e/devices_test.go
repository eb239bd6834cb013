package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"berth/nodeapi"
	"berth/test/hosts"
)

const nullDevice = "example.com/null"

// nullDevices returns the resources of a container that requests n devices.
func nullDevices(n int) string { return fmt.Sprintf("resources: {limits: {%s: %d}}", nullDevice, n) }

// startDevicePlugin starts a device plugin. The cleanup of the test kills it.
func (s *Namespace) startDevicePlugin(count int, more ...string) *hosts.DevicePlugin {
	s.t.Helper()
	p, err := s.Agent.StartDevicePlugin(s.t.Context(), nullDevice, count, more...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(p.Kill)
	return p
}

// sendToPlugin sends a command to a plugin.
func (s *Namespace) sendToPlugin(p *hosts.DevicePlugin, line string) {
	s.t.Helper()
	if err := p.Send(line); err != nil {
		s.t.Fatal(err)
	}
}

// waitDevices waits until the metric berth_devices has the value n for a state.
func (s *Namespace) waitDevices(state string, n float64) {
	s.t.Helper()
	s.waitMetric(fmt.Sprintf("berth_devices{resource_name=%q,state=%q}", nullDevice, state), equals(n))
}

// allocatedDevice returns the device IDs of a pod's container c, from its environment.
func (s *Namespace) allocatedDevice(pod string) string {
	s.t.Helper()
	return strings.TrimSpace(s.Exec(pod, "c", "/bin/testbox", "env", "NULL_DEVICES"))
}

func TestDevicePlugin(t *testing.T) {
	forEachNewNode(t, nodeOptions{CNI: true}, func(t *testing.T, s *Namespace) {
		p := s.startDevicePlugin(2)
		s.waitDevices("healthy", 2)
		s.waitMetric("kubelet_device_plugin_registration_total", atLeast(1))
		s.contains("check", s.Berth("check"), "devices "+nullDevice, "2 devices, 2 healthy, 0 allocated")
		s.Pod("one", "containers:\n"+box("c", nullDevices(1), "stat /dev/null-0", "cat /etc/of-the-host", end, "sleep"))
		s.Running("one")
		s.hasLines(s.WaitOutput("one", "c")) // the steps fail without the device node and the mount
		if got := s.allocatedDevice("one"); got != "null-0" {
			t.Errorf("got device %q", got)
		}
		if !strings.Contains(p.Log(), "allocate null-0\nstart null-0\n") {
			t.Errorf("unexpected calls of the plugin:\n%s", p.Log())
		}
		pod := s.Wait("one", "healthy in the status", func(p *corev1.Pod) bool {
			return deviceHealth(p) == "null-0=Healthy"
		})
		s.Pod("two", "containers:\n"+box("c", nullDevices(1), "sleep"))
		s.Running("two")
		if got := s.allocatedDevice("two"); got != "null-1" {
			t.Errorf("got device %q", got)
		}
		// All devices are allocated: the third pod waits until one is free.
		s.Pod("three", "containers:\n"+box("c", nullDevices(1), "sleep"))
		s.waitExplanation("three", "OutOf"+nullDevice,
			"Node didn't have enough resource: "+nullDevice+", requested: 1, used: 2, capacity: 2")
		s.Remove("two")
		s.Running("three")
		if got := s.allocatedDevice("three"); got != "null-1" {
			t.Errorf("got device %q", got)
		}
		// An unhealthy device stays allocated. The pod status shows it.
		s.sendToPlugin(p, "unhealthy null-0")
		s.Wait("one", "unhealthy in the status", func(p *corev1.Pod) bool {
			return deviceHealth(p) == "null-0=Unhealthy"
		})
		s.waitDevices("healthy", 1)
		s.sendToPlugin(p, "healthy null-0")
		s.waitDevices("healthy", 2)
		// The plugin stops. Pods keep running, and a new plugin process registers.
		p.Kill()
		s.waitDevices("healthy", 0)
		s.waitDevices("listed", 2)
		s.contains("check", s.Berth("check"), "device plugin is not running")
		p = s.startDevicePlugin(2)
		s.waitDevices("healthy", 2)
		if now := s.Running("one"); now.UID != pod.UID || status(now, "c").ContainerID != status(pod, "c").ContainerID {
			t.Errorf("pod was replaced or restarted: %s", brief(now))
		}
		// When Allocate fails, the pod has the reason and admission is retried.
		s.Remove("three")
		s.WaitDeleted("three")
		s.sendToPlugin(p, "refuse broken")
		s.Pod("four", "containers:\n"+box("c", nullDevices(1), "sleep"))
		s.waitExplanation("four", "UnexpectedAdmissionError",
			"Allocate failed due to rpc error: code = Unknown desc = broken, which is unexpected")
		s.sendToPlugin(p, "refuse")
		s.Running("four")
	})
}

// deviceHealth returns the health of the devices of container c.
func deviceHealth(p *corev1.Pod) string {
	var out []string
	for _, r := range status(p, "c").AllocatedResourcesStatus {
		for _, d := range r.Resources {
			out = append(out, fmt.Sprintf("%s=%s", d.ResourceID, d.Health))
		}
	}
	return strings.Join(out, " ")
}

// TestDevicesAcrossAgentRestarts kills the agent. Allocations persist, and the plugin registers again
// when the agent recreates its socket.
func TestDevicesAcrossAgentRestarts(t *testing.T) {
	forEachNewNode(t, nodeOptions{CNI: true}, func(t *testing.T, s *Namespace) {
		s.startDevicePlugin(2)
		s.Pod("crashes", "restartPolicy: Always\ncontainers:\n"+
			box("c", nullDevices(1), "print NULL", "env NULL_DEVICES", end, "await /tmp/x", "exit 1"))
		s.Pod("stays", "containers:\n"+box("c", nullDevices(1), "sleep"))
		allocated := map[string]string{}
		ids := map[string]string{}
		for _, name := range []string{"crashes", "stays"} {
			ids[name] = status(s.Running(name), "c").ContainerID
			allocated[name] = s.allocatedDevice(name)
		}
		s.KillAndRestartAgent()
		s.waitDevices("healthy", 2)
		s.waitDevices("allocated", 2)
		for name, id := range ids {
			if now := status(s.Running(name), "c"); now.ContainerID != id || now.RestartCount != 0 {
				t.Errorf("%s was replaced or restarted: %+v", name, now)
			}
		}
		// A restarted container keeps its device. A new pod gets none.
		s.crash("crashes")
		s.Wait("crashes", "restarted", func(p *corev1.Pod) bool {
			return status(p, "c").RestartCount > 0 && status(p, "c").State.Running != nil
		})
		if got := s.allocatedDevice("crashes"); got != allocated["crashes"] {
			t.Errorf("device after the restart: got %s, want %s", got, allocated["crashes"])
		}
		s.Pod("new", "containers:\n"+box("c", nullDevices(1), "sleep"))
		s.waitExplanation("new", "OutOf"+nullDevice, "requested: 1, used: 2, capacity: 2")
		// Without the store, the agent restores the allocations from the containers.
		if err := s.Agent.Kill9(); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(s.Agent.StateDir); err != nil {
			t.Fatal(err)
		}
		if err := s.Agent.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := s.Agent.WaitReady(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.waitDevices("healthy", 2)
		s.waitDevices("allocated", 2)
		s.waitExplanation("new", "OutOf"+nullDevice, "requested: 1, used: 2, capacity: 2")
		s.Remove("stays")
		s.Running("new")
		if got := s.allocatedDevice("new"); got != allocated["stays"] {
			t.Errorf("freed device is %s, new pod has %s", allocated["stays"], got)
		}
	})
}

// crash makes a container exit that awaits /tmp/x. It may exit before the command that creates the file,
// which then fails.
func (s *Namespace) crash(pod string) {
	_ = s.Agent.Command(s.t.Context(), "exec", "-n", s.ns, pod, "-c", "c", "--", "/bin/testbox", "write", "/tmp/x",
		"y").Run()
}

// TestContainerRestartsWithoutDevicePlugin checks that a container restarts with its device while no
// plugin runs, before and after an agent restart.
func TestContainerRestartsWithoutDevicePlugin(t *testing.T) {
	forEachNewNode(t, nodeOptions{CNI: true}, func(t *testing.T, s *Namespace) {
		p := s.startDevicePlugin(2, "quiet")
		s.waitDevices("healthy", 2)
		s.Pod("crashes", "restartPolicy: Always\ncontainers:\n"+
			box("c", nullDevices(1), "stat /dev/null-0", end, "await /tmp/x", "exit 1"))
		before := s.Running("crashes")
		p.Kill()
		s.waitDevices("healthy", 0)
		s.Pod("new", "containers:\n"+box("c", nullDevices(1), "sleep"))
		for round := range 2 {
			if round > 0 {
				if err := s.Agent.Restart(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			s.crash("crashes")
			after := s.Wait("crashes", "restarted", func(p *corev1.Pod) bool {
				c := status(p, "c")
				return c.RestartCount > int32(round) && c.State.Running != nil
			})
			if got := s.allocatedDevice("crashes"); got != "null-0" || after.UID != before.UID {
				t.Errorf("given %q: %s", got, brief(after))
			}
		}
		if p := s.Get("new"); p.Status.Phase != corev1.PodPending {
			t.Errorf("a new pod got a device without a plugin: %s", brief(p))
		}
		s.startDevicePlugin(2, "quiet")
		s.Running("new")
		if got := s.allocatedDevice("new"); got != "null-1" {
			t.Errorf("got device %q", got)
		}
	})
}

// TestDevicesAreAllocatedOnceDespiteAgentCrashes creates and deletes more pods than there are devices
// while the agent is killed repeatedly.
func TestDevicesAreAllocatedOnceDespiteAgentCrashes(t *testing.T) {
	forEachNewNode(t, nodeOptions{CNI: true}, func(t *testing.T, s *Namespace) {
		const devices, rounds = 3, 5
		s.startDevicePlugin(devices)
		pod := func(i int) string { return fmt.Sprintf("p%d", i) }
		for i := range devices + 1 { // the last pod waits for a device
			s.Pod(pod(i), "containers:\n"+box("c", nullDevices(1), "sleep"))
		}
		for round := range rounds {
			s.Remove(pod(round)) // the waiting pod gets its device
			s.Pod(pod(round+devices+1), "containers:\n"+box("c", nullDevices(1), "sleep"))
			s.KillAndRestartAgent()
		}
		for i := range rounds {
			s.WaitDeleted(pod(i))
		}
		s.waitDevices("allocated", devices)
		holder := map[string]string{}
		ctx, cancel := waitContext(t)
		defer cancel()
		err := hosts.WaitFor(ctx, "one running pod for each device", func() (bool, error) {
			return len(s.runningPods()) == devices, nil
		})
		if err != nil {
			t.Fatalf("%v: running pods: %v", err, s.runningPods())
		}
		for _, name := range s.runningPods() {
			id := s.allocatedDevice(name)
			if other := holder[id]; other != "" || id == "" {
				t.Errorf("%s has device %q, which is allocated to %q", name, id, other)
			}
			holder[id] = name
		}
	})
}

// runningPods returns the names of the running pods.
func (s *Namespace) runningPods() (names []string) {
	s.t.Helper()
	list, err := s.Client.Pods(s.t.Context(), nodeapi.PodsRequest{Namespace: s.ns})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, p := range list.Items {
		if p.Status.Phase == corev1.PodRunning {
			names = append(names, p.Name)
		}
	}
	return names
}

// TestScenario19_PodsWaitForDevicesAfterReboot reboots the node after a power loss. The device plugin
// starts last.
func TestScenario19_PodsWaitForDevicesAfterReboot(t *testing.T) {
	forEachNewNode(t, nodeOptions{CNI: true}, func(t *testing.T, s *Namespace) {
		p := s.startDevicePlugin(1)
		s.Pod("device-user", "containers:\n"+box("c", nullDevices(1), "sleep"))
		before := s.Running("device-user")
		p.Kill()
		if err := s.Host.PowerLoss(); err != nil {
			t.Fatal(err)
		}
		if err := s.Host.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := s.Agent.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := s.Agent.WaitReady(t.Context()); err != nil {
			t.Fatal(err)
		}
		waiting := s.Waiting("device-user", "c", "DevicesNotReady")
		if waiting.UID != before.UID || waiting.Status.Phase == corev1.PodFailed {
			t.Errorf("pod that waits for its device: %s", brief(waiting))
		}
		s.waitExplanation("device-user", "DevicesNotReady", nullDevice+": no device plugin registered")
		s.Event("device-user", "DevicesNotReady: "+nullDevice)
		s.startDevicePlugin(1)
		if after := s.Running("device-user"); after.UID != before.UID {
			t.Errorf("pod was replaced: %s", brief(after))
		}
		if got := s.allocatedDevice("device-user"); got != "null-0" {
			t.Errorf("got device %q", got)
		}
	})
}
