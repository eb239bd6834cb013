package cri

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
	"berth/cri/crifake"
)

// checkpoints is a runtime that records checkpoint requests.
type checkpoints struct {
	grpc.ClientConnInterface
	requests  []*runtimeapi.CheckpointContainerRequest
	deadlines []time.Time
}

func (c *checkpoints) Invoke(ctx context.Context, _ string, req, _ any, _ ...grpc.CallOption) error {
	c.requests = append(c.requests, req.(*runtimeapi.CheckpointContainerRequest))
	deadline, _ := ctx.Deadline()
	c.deadlines = append(c.deadlines, deadline)
	return nil
}

func TestCheckpointContainerPassesTimeout(t *testing.T) {
	t.Parallel()
	conn := &checkpoints{}
	client, err := Dial(t.Context(), Options{Conn: conn, Deadlines: Deadlines{Checkpoint: time.Hour}})
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct{ timeout, want time.Duration }{
		{0, time.Hour}, {1500 * time.Second, 1500 * time.Second}, {5400*time.Second + 1, 5401 * time.Second},
	} {
		before := time.Now()
		if err := client.CheckpointContainer(t.Context(), "c1", "/x/a.tar", c.timeout); err != nil {
			t.Fatal(err)
		}
		r := conn.requests[i]
		if r.ContainerId != "c1" || r.Location != "/x/a.tar" || r.Timeout != int64(c.want.Seconds()) {
			t.Errorf("timeout %s: got request %v", c.timeout, r)
		}
		if d := conn.deadlines[i]; d.Before(before.Add(c.want - time.Second)) {
			t.Errorf("timeout %s: deadline after %s", c.timeout, d.Sub(before))
		}
	}
}

func TestCheckpointContainerReportsRuntimeWithoutCheckpoints(t *testing.T) {
	t.Parallel()
	fake := crifake.New(crifake.Options{})
	t.Cleanup(fake.Close)
	client, err := Dial(t.Context(), Options{Conn: fake.Conn()})
	if err != nil {
		t.Fatal(err)
	}
	if err := client.CheckpointContainer(t.Context(), "c1", "/x/a.tar", 0); plan.KindOf(err) != plan.Unsupported {
		t.Errorf("got error %v", err)
	}
}
