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

const null = "example.com/null"

// nulls is what a container says to want so many.
func nulls(n int) string { return fmt.Sprintf("resources: {limits: {%s: %d}}", null, n) }

// plugin starts a device plugin beside the agent; it ends with the test.
func (s *Space) plugin(count int, more ...string) *hosts.DevicePlugin {
	s.t.Helper()
	p, err := s.Agent.StartDevicePlugin(s.t.Context(), null, count, more...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(p.Kill)
	return p
}

// tell has a plugin change its devices.
func (s *Space) tellPlugin(p *hosts.DevicePlugin, line string) {
	s.t.Helper()
	if err := p.Send(line); err != nil {
		s.t.Fatal(err)
	}
}

// devices waits until the agent counts so many of a state.
func (s *Space) devices(state string, n float64) {
	s.t.Helper()
	s.counted(fmt.Sprintf("berth_devices{resource_name=%q,state=%q}", null, state), is(n))
}

// given is what a pod's container c was given, by its environment.
func (s *Space) given(pod string) string {
	s.t.Helper()
	return strings.TrimSpace(s.Exec(pod, "c", "/bin/testbox", "env", "NULL_DEVICES"))
}

func TestDevicePlugin(t *testing.T) {
	alone(t, nodeOptions{CNI: true}, func(t *testing.T, s *Space) {
		p := s.plugin(2)
		s.devices("healthy", 2)
		s.counted("kubelet_device_plugin_registration_total", atLeast(1))
		s.contains("check", s.Berth("check"), "devices "+null, "2 devices, 2 healthy, 0 allocated")
		s.Pod("one", "containers:\n"+box("c", nulls(1), "stat /dev/null-0", "cat /etc/of-the-host", end, "sleep"))
		s.Running("one")
		s.hasLines(s.Report("one", "c")) // the node and the mount are there, or it would have ended
		if got := s.given("one"); got != "null-0" {
			t.Errorf("given %q", got)
		}
		if !strings.Contains(p.Log(), "allocate null-0\nstart null-0\n") {
			t.Errorf("the plugin was asked:\n%s", p.Log())
		}
		pod := s.Wait("one", "healthy in the status", func(p *corev1.Pod) bool { return health(p) == "null-0=Healthy" })
		s.Pod("two", "containers:\n"+box("c", nulls(1), "sleep"))
		s.Running("two")
		if got := s.given("two"); got != "null-1" {
			t.Errorf("given %q", got)
		}
		// All are taken: the third waits until one comes free.
		s.Pod("three", "containers:\n"+box("c", nulls(1), "sleep"))
		s.whyHas("three", "OutOf"+null, "Node didn't have enough resource: "+null+", requested: 1, used: 2, capacity: 2")
		s.Remove("two")
		s.Running("three")
		if got := s.given("three"); got != "null-1" {
			t.Errorf("given %q", got)
		}
		// One breaks: who has it keeps it, and is informed.
		s.tellPlugin(p, "unhealthy null-0")
		s.Wait("one", "unhealthy in the status", func(p *corev1.Pod) bool { return health(p) == "null-0=Unhealthy" })
		s.devices("healthy", 1)
		s.tellPlugin(p, "healthy null-0")
		s.devices("healthy", 2)
		// The plugin dies; pods go on, and another process takes over.
		p.Kill()
		s.devices("healthy", 0)
		s.devices("listed", 2)
		s.contains("check", s.Berth("check"), "device plugin is not running")
		p = s.plugin(2)
		s.devices("healthy", 2)
		if now := s.Running("one"); now.UID != pod.UID || status(now, "c").ContainerID != status(pod, "c").ContainerID {
			t.Errorf("it was touched: %s", brief(now))
		}
		// Where the plugin refuses, the pod says so and is tried again.
		s.Remove("three")
		s.Gone("three")
		s.tellPlugin(p, "refuse burnt")
		s.Pod("four", "containers:\n"+box("c", nulls(1), "sleep"))
		s.whyHas("four", "UnexpectedAdmissionError", "Allocate failed due to rpc error: code = Unknown desc = burnt, which is unexpected")
		s.tellPlugin(p, "refuse")
		s.Running("four")
	})
}

// health is how the devices of container c are.
func health(p *corev1.Pod) string {
	var out []string
	for _, r := range status(p, "c").AllocatedResourcesStatus {
		for _, d := range r.Resources {
			out = append(out, fmt.Sprintf("%s=%s", d.ResourceID, d.Health))
		}
	}
	return strings.Join(out, " ")
}

// TestDevicesAcrossAgentRestarts kills the agent: who has what stays, and the
// plugin registers again when its socket is recreated.
func TestDevicesAcrossAgentRestarts(t *testing.T) {
	alone(t, nodeOptions{CNI: true}, func(t *testing.T, s *Space) {
		s.plugin(2)
		s.Pod("crashes", "restartPolicy: Always\ncontainers:\n"+box("c", nulls(1), "print NULL", "env NULL_DEVICES", end, "await /tmp/x", "exit 1"))
		s.Pod("stays", "containers:\n"+box("c", nulls(1), "sleep"))
		had := map[string]string{}
		ids := map[string]string{}
		for _, name := range []string{"crashes", "stays"} {
			ids[name] = status(s.Running(name), "c").ContainerID
			had[name] = s.given(name)
		}
		s.Killed()
		s.devices("healthy", 2)
		s.devices("given", 2)
		for name, id := range ids {
			if now := status(s.Running(name), "c"); now.ContainerID != id || now.RestartCount != 0 {
				t.Errorf("%s was touched: %+v", name, now)
			}
		}
		// A container that starts again has what it had; a pod that is new gets none.
		s.Exec("crashes", "c", "/bin/testbox", "write", "/tmp/x", "y")
		s.Wait("crashes", "started again", func(p *corev1.Pod) bool {
			return status(p, "c").RestartCount > 0 && status(p, "c").State.Running != nil
		})
		if got := s.given("crashes"); got != had["crashes"] {
			t.Errorf("it had %s and has %s", had["crashes"], got)
		}
		s.Pod("new", "containers:\n"+box("c", nulls(1), "sleep"))
		s.whyHas("new", "OutOf"+null, "requested: 1, used: 2, capacity: 2")
		// What a lost store knew of it, the containers tell.
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
		s.devices("healthy", 2)
		s.devices("given", 2)
		s.whyHas("new", "OutOf"+null, "requested: 1, used: 2, capacity: 2")
		s.Remove("stays")
		s.Running("new")
		if got := s.given("new"); got != had["stays"] {
			t.Errorf("%s has come free, and the new pod has %s", had["stays"], got)
		}
	})
}

// TestContainerRestartsWithoutDevicePlugin has the container end while the plugin
// is away, in the agent's life that gave it its device and in the next.
func TestContainerRestartsWithoutDevicePlugin(t *testing.T) {
	alone(t, nodeOptions{CNI: true}, func(t *testing.T, s *Space) {
		p := s.plugin(2, "quiet")
		s.devices("healthy", 2)
		s.Pod("crashes", "restartPolicy: Always\ncontainers:\n"+box("c", nulls(1), "stat /dev/null-0", end, "await /tmp/x", "exit 1"))
		was := s.Running("crashes")
		p.Kill()
		s.devices("healthy", 0)
		s.Pod("new", "containers:\n"+box("c", nulls(1), "sleep"))
		for life := range 2 {
			if life > 0 {
				if err := s.Agent.Restart(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			s.Exec("crashes", "c", "/bin/testbox", "write", "/tmp/x", "y")
			now := s.Wait("crashes", "started again", func(p *corev1.Pod) bool {
				c := status(p, "c")
				return c.RestartCount > int32(life) && c.State.Running != nil
			})
			if got := s.given("crashes"); got != "null-0" || now.UID != was.UID {
				t.Errorf("given %q: %s", got, brief(now))
			}
		}
		if p := s.Get("new"); p.Status.Phase != corev1.PodPending {
			t.Errorf("a new pod was given what nobody makes ready: %s", brief(p))
		}
		s.plugin(2, "quiet")
		s.Running("new")
		if got := s.given("new"); got != "null-1" {
			t.Errorf("given %q", got)
		}
	})
}

// TestDevicesAreAllocatedOnceDespiteAgentCrashes has more pods than devices come
// and go while the agent is killed again and again.
func TestDevicesAreAllocatedOnceDespiteAgentCrashes(t *testing.T) {
	alone(t, nodeOptions{CNI: true}, func(t *testing.T, s *Space) {
		const devices, rounds = 3, 5
		s.plugin(devices)
		pod := func(i int) string { return fmt.Sprintf("p%d", i) }
		for i := range devices + 1 { // the last waits
			s.Pod(pod(i), "containers:\n"+box("c", nulls(1), "sleep"))
		}
		for round := range rounds {
			s.Remove(pod(round)) // the next takes over what it had
			s.Pod(pod(round+devices+1), "containers:\n"+box("c", nulls(1), "sleep"))
			s.Killed()
		}
		for i := range rounds {
			s.Gone(pod(i))
		}
		s.devices("given", devices)
		holder := map[string]string{}
		ctx, cancel := withBound(t)
		defer cancel()
		err := hosts.WaitFor(ctx, "as many pods to run as there are devices", func() (bool, error) { return len(s.running()) == devices, nil })
		if err != nil {
			t.Fatalf("%v: %v run", err, s.running())
		}
		for _, name := range s.running() {
			id := s.given(name)
			if other := holder[id]; other != "" || id == "" {
				t.Errorf("%s has %q, which %q has", name, id, other)
			}
			holder[id] = name
		}
	})
}

// running are the pods that run.
func (s *Space) running() (names []string) {
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

// TestScenario19_PodsWaitForDevicesAfterReboot has the node lose its power
// and boot with the plugin coming last.
func TestScenario19_PodsWaitForDevicesAfterReboot(t *testing.T) {
	alone(t, nodeOptions{CNI: true}, func(t *testing.T, s *Space) {
		p := s.plugin(1)
		s.Pod("wants", "containers:\n"+box("c", nulls(1), "sleep"))
		was := s.Running("wants")
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
		w := s.Waiting("wants", "c", "DevicesNotReady")
		if w.UID != was.UID || w.Status.Phase == corev1.PodFailed {
			t.Errorf("while it waits: %s", brief(w))
		}
		s.whyHas("wants", "DevicesNotReady", null+": no device plugin registered")
		s.Event("wants", "DevicesNotReady: "+null)
		s.plugin(1)
		if now := s.Running("wants"); now.UID != was.UID {
			t.Errorf("another pod: %s", brief(now))
		}
		if got := s.given("wants"); got != "null-0" {
			t.Errorf("given %q", got)
		}
	})
}
