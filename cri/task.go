package cri

import (
	"context"
	"strings"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// containerd's CRI service may lose sight of a task: a start that is cut off
// between making the task and running it (the caller died, or took too long)
// leaves a container that counts as exited with a task that is still there, and
// from then on every removal is refused. Nothing in CRI mends that, so the task
// is taken away by containerd's own service on the same socket. Other runtimes
// answer Unimplemented, which changes nothing.

// criNamespace is where containerd's CRI service keeps its containers.
const criNamespace = "k8s.io"

// lostTask reports that a removal was refused because of a task that the CRI
// service does not see.
func lostTask(err error) bool {
	return err != nil && strings.Contains(status.Convert(err).Message(), "cannot delete running task")
}

// dropTask kills and deletes the task of a container that CRI counts as ended.
func (c *Client) dropTask(ctx context.Context, id string) error {
	ctx = metadata.AppendToOutgoingContext(ctx, "containerd-namespace", criNamespace)
	_, err := c.tasks.Kill(ctx, &tasks.KillRequest{ContainerID: id, Signal: uint32(unix.SIGKILL), All: true})
	if err != nil && status.Code(err) != codes.NotFound && status.Code(err) != codes.FailedPrecondition {
		return err
	}
	// The kill takes effect when the shim has reaped the process.
	for wait := 10 * time.Millisecond; ; wait *= 2 {
		_, err = c.tasks.Delete(ctx, &tasks.DeleteTaskRequest{ContainerID: id})
		if err == nil || status.Code(err) == codes.NotFound {
			return nil
		}
		if wait > time.Second || !pause(ctx, wait) {
			return err
		}
	}
}

// gently returns a context that outlives the cancellation of ctx for a while: a
// runtime that is left alone half-way through making something leaves more
// behind than one that may end what it has begun, such as a shim of containerd's
// that nobody knows. A context that is cancelled
// already stays so.
func gently(ctx context.Context, while time.Duration) (context.Context, context.CancelFunc) {
	if ctx.Err() != nil {
		return context.WithCancel(ctx)
	}
	out, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if pause(out, while) {
			cancel()
		}
	})
	return out, func() {
		stop()
		cancel()
	}
}
