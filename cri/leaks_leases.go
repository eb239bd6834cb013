package cri

import (
	"context"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/containerd/api/services/leases/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// LeakedLeases returns the leases, by sandbox ID, for which containerd has no record and no task.
// containerd 2.x takes a lease before it creates anything else of a sandbox and holds it until the
// sandbox is removed. If containerd dies in between, the lease is leaked. A lease that was taken a
// moment ago may be in the result, so the caller has to list twice.
func (c *Client) LeakedLeases(ctx context.Context) ([]string, error) {
	f, ok, err := c.Layout(ctx)
	if err != nil || !ok {
		return nil, err
	}
	var resp *leases.ListResponse
	err = c.call(ctx, verbListSandboxes, "", c.deadlines.Query, func(ctx context.Context) (err error) {
		resp, err = c.leases.List(metadata.AppendToOutgoingContext(ctx, "containerd-namespace", criNamespace),
			&leases.ListRequest{})
		if status.Code(err) == codes.Unimplemented {
			return nil
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, l := range resp.GetLeases() {
		if isContainerID(l.GetID()) && !f.hasTask(l.GetID()) {
			ids = append(ids, l.GetID())
		}
	}
	return c.UnknownIDs(ctx, ids)
}

// DeleteLeakedLease deletes a lease that LeakedLeases returned, unless it is in use by now.
func (c *Client) DeleteLeakedLease(ctx context.Context, id string) error {
	ids, err := c.LeakedLeases(ctx)
	if err != nil || !slices.Contains(ids, id) {
		return err
	}
	return c.deleteLease(ctx, id)
}

// hasTask reports whether the ID has a bundle or a runc state directory. What runs there may need
// what the lease holds.
func (f Layout) hasTask(id string) bool {
	return slices.ContainsFunc(append(runcDirs(f, id), filepath.Join(f.TaskDir, id)), func(dir string) bool {
		_, err := os.Lstat(dir)
		return err == nil
	})
}
