package hosts

import (
	"context"
	"fmt"

	"github.com/containerd/containerd/api/services/containers/v1"
	"github.com/containerd/containerd/api/services/leases/v1"
	sandboxapi "github.com/containerd/containerd/api/services/sandbox/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// DeleteRecords strikes sandboxes and containers out of containerd's books and restarts
// it, so that it knows no more of them than after a call that was cut off at a
// bad moment: they run, and no list shows them.
func (h *Host) DeleteRecords(ctx context.Context, ids ...string) error {
	inside := metadata.AppendToOutgoingContext(ctx, "containerd-namespace", "k8s.io")
	for _, id := range ids {
		_, err := containers.NewContainersClient(h.conn).Delete(inside, &containers.DeleteContainerRequest{ID: id})
		if err != nil {
			return fmt.Errorf("forget %s: %w", id, err)
		}
		if h.Version == Version16 {
			continue // it has no store of sandboxes
		}
		_, err = sandboxapi.NewStoreClient(h.conn).Delete(inside, &sandboxapi.StoreDeleteRequest{SandboxID: id})
		if err != nil && status.Code(err) != codes.NotFound { // a container
			return fmt.Errorf("forget sandbox %s: %w", id, err)
		}
	}
	return h.Restart(ctx)
}

// CreateLease has containerd hold a lease for a sandbox that it never made, as after
// its death in between.
func (h *Host) CreateLease(ctx context.Context, id string) error {
	inside := metadata.AppendToOutgoingContext(ctx, "containerd-namespace", "k8s.io")
	_, err := leases.NewLeasesClient(h.conn).Create(inside, &leases.CreateRequest{ID: id})
	return err
}
