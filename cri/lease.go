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

// LeakedLeases lists the leases, by the IDs of the sandboxes that they were taken
// for, of which containerd has nothing else: no record, no task. containerd 2.x
// takes one before anything else of a sandbox and holds it for the sandbox's life;
// if it dies in between nobody gives it back. One that was taken just now is among
// them: the caller looks twice.
func (c *Client) LeakedLeases(ctx context.Context) ([]string, error) {
	f, ok, err := c.Layout(ctx)
	if err != nil || !ok {
		return nil, err
	}
	var resp *leases.ListResponse
	err = c.call(ctx, verbListSandboxes, "", c.deadlines.Query, func(ctx context.Context) (err error) {
		resp, err = c.leases.List(metadata.AppendToOutgoingContext(ctx, "containerd-namespace", criNamespace), &leases.ListRequest{})
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
		if isID(l.GetID()) && !f.hasTask(l.GetID()) {
			ids = append(ids, l.GetID())
		}
	}
	return c.UnknownIDs(ctx, ids)
}

// DeleteLeakedLease gives a lease of DesertedLeases back, unless somebody answers for it by now.
func (c *Client) DeleteLeakedLease(ctx context.Context, id string) error {
	ids, err := c.LeakedLeases(ctx)
	if err != nil || !slices.Contains(ids, id) {
		return err
	}
	return c.endLease(ctx, id)
}

// hasTask reports whether there is a bundle, or runc has books, of that ID: what
// runs may need what the lease holds.
func (f Layout) hasTask(id string) bool {
	return slices.ContainsFunc(append(runcDirs(f, id), filepath.Join(f.TaskDir, id)), func(dir string) bool {
		_, err := os.Lstat(dir)
		return err == nil
	})
}
