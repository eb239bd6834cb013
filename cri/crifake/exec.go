package crifake

import (
	"context"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ExecSync executes steps in a container. The first word of the command, the program, is ignored.
func (r *Runtime) ExecSync(ctx context.Context, q *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	c, err := r.runningContainer(q.ContainerId)
	if err != nil {
		return nil, err
	}
	if q.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(q.Timeout)*time.Second)
		defer cancel()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := c.process.done
	r.goroutines.Go(func() {
		select {
		case <-ctx.Done():
		case <-done:
			cancel()
		}
	})
	stdout, stderr, code, err := command(ctx, q.Cmd[min(1, len(q.Cmd)):])
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ExecSyncResponse{Stdout: stdout, Stderr: stderr, ExitCode: code}, nil
}

// Exec returns a URL on which nothing listens.
func (r *Runtime) Exec(_ context.Context, q *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	if _, err := r.runningContainer(q.ContainerId); err != nil {
		return nil, err
	}
	return &runtimeapi.ExecResponse{Url: "http://127.0.0.1:0/exec/" + q.ContainerId[:16]}, nil
}

// Attach returns a URL on which nothing listens.
func (r *Runtime) Attach(_ context.Context, q *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	if _, err := r.runningContainer(q.ContainerId); err != nil {
		return nil, err
	}
	return &runtimeapi.AttachResponse{Url: "http://127.0.0.1:0/attach/" + q.ContainerId[:16]}, nil
}
