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

// containerd's CRI service may lose a task: a start that is interrupted between creating the task
// and running it leaves a container that counts as exited but still has its task, and every removal
// is refused from then on. CRI has no way to repair that, so the task is deleted through
// containerd's own service on the same socket. Other runtimes return Unimplemented, which has no
// effect.

// criNamespace is the containerd namespace of the CRI service.
const criNamespace = "k8s.io"

// hasLeakedTask reports whether a removal was refused because of a task that the CRI service does
// not know.
func hasLeakedTask(err error) bool {
	return err != nil && strings.Contains(status.Convert(err).Message(), "cannot delete running task")
}

// deleteTask kills and deletes the task of a container that CRI counts as exited.
func (c *Client) deleteTask(ctx context.Context, id string) error {
	ctx = metadata.AppendToOutgoingContext(ctx, "containerd-namespace", criNamespace)
	_, err := c.tasks.Kill(ctx, &tasks.KillRequest{ContainerID: id, Signal: uint32(unix.SIGKILL), All: true})
	if err != nil && status.Code(err) != codes.NotFound && status.Code(err) != codes.FailedPrecondition {
		return err
	}
	// The kill takes effect once the shim has reaped the process.
	for wait := 10 * time.Millisecond; ; wait *= 2 {
		_, err = c.tasks.Delete(ctx, &tasks.DeleteTaskRequest{ContainerID: id})
		if err == nil || status.Code(err) == codes.NotFound {
			return nil
		}
		if wait > time.Second || !sleep(ctx, wait) {
			return err
		}
	}
}

// withCancelGrace returns a context that outlives the cancellation of ctx by the given duration. A
// runtime that is interrupted while it creates something leaves more behind than one that can
// complete, for example a containerd shim without a record. If ctx is canceled already, so is the
// result.
func withCancelGrace(ctx context.Context, while time.Duration) (context.Context, context.CancelFunc) {
	if ctx.Err() != nil {
		return context.WithCancel(ctx)
	}
	out, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if sleep(out, while) {
			cancel()
		}
	})
	return out, func() {
		stop()
		cancel()
	}
}
