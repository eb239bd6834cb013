package cri_test

import (
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
	"berth/cri/criconfig"
)

// longestStart is how long most starts take on a busy machine.
const longestStart = 400 * time.Millisecond

// testInterruptedStarts cancels StartContainer at random times, as the death of the agent does. A container that
// has not run counts as interrupted: an ephemeral container is never started again otherwise.
func testInterruptedStarts(t *testing.T, h *host) {
	rounds := 6
	if os.Getenv("BERTH_TORTURE") != "" {
		rounds = 200
	}
	pod := h.pod(t, "sleep")
	s := h.sandbox(t, pod)
	node := criconfig.Node{Name: "node"}
	sandbox, err := criconfig.Sandbox(node, pod, h.sandboxConfig(pod, 0))
	if err != nil {
		t.Fatal(err)
	}
	ends := map[plan.ContainerState]int{}
	for attempt := range rounds {
		config, err := criconfig.Container(node, pod, &pod.Spec.Containers[0],
			h.containerConfig(pod, s, uint32(attempt))) //nolint:gosec // below rounds
		if err != nil {
			t.Fatal(err)
		}
		created, err := h.raw.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: s.ID,
			Config: config, SandboxConfig: sandbox})
		if err != nil {
			t.Fatal(err)
		}
		// The end of a connection, not of a call, is what the death of the agent ends.
		conn, err := grpc.NewClient(h.endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		after := time.Duration(rand.Int64N(int64(longestStart)))
		timer := time.AfterFunc(after, func() { _ = conn.Close() })
		_, startErr := runtimeapi.NewRuntimeServiceClient(conn).StartContainer(t.Context(),
			&runtimeapi.StartContainerRequest{ContainerId: created.ContainerId})
		timer.Stop()
		_ = conn.Close()
		var c plan.Container
		eventually(t, "the start has ended", func() bool {
			if c, err = h.client.Container(t.Context(), created.ContainerId); err != nil {
				t.Fatal(err)
			}
			if c.State != plan.Created {
				return true
			}
			// A container that is being started cannot be removed.
			_, err := h.raw.RemoveContainer(t.Context(),
				&runtimeapi.RemoveContainerRequest{ContainerId: created.ContainerId})
			return err == nil
		})
		ends[c.State]++
		if c.State == plan.Exited && !c.Interrupted {
			st, err := h.raw.ContainerStatus(t.Context(),
				&runtimeapi.ContainerStatusRequest{ContainerId: created.ContainerId})
			t.Errorf("start interrupted after %s: %v, status %v %v", after, startErr, st, err)
		}
		if err := h.client.RemoveContainer(t.Context(), created.ContainerId); err != nil {
			t.Error(err)
		}
	}
	t.Logf("%d starts: %v", rounds, ends)
}
