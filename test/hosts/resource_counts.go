package hosts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/api/services/leases/v1"
	"github.com/containerd/containerd/api/services/snapshots/v1"
	"google.golang.org/grpc/metadata"
)

// ResourceCounts are the resources of pods on a running host. Unlike PodResources they need no
// running containerd and are fast to collect.
type ResourceCounts struct {
	Mounts     int // except namespaces and the agents' own directories
	Namespaces int // network namespaces pinned by a mount
	Cgroups    int // cgroups of pods and containers, in all hierarchies
	Addresses  int // allocated addresses
}

// CountResources counts the resources of pods.
func (h *Host) CountResources() (t ResourceCounts) {
	r := &h.slot.record
	for _, m := range r.mounts() {
		switch {
		case strings.Contains(m, "/netns/"):
			t.Namespaces++
		case !slices.Contains(r.Below, m):
			t.Mounts++
		}
	}
	dirs, _ := r.cgroupDirs()
	for _, d := range dirs {
		if podCgroup(d) {
			t.Cgroups++
		}
	}
	t.Addresses = len(r.addressesInUse())
	return t
}

// podCgroup reports whether a cgroup of the host belongs to a pod or container.
func podCgroup(dir string) bool {
	name := filepath.Base(dir)
	return strings.HasPrefix(name, "pod") || strings.Contains(name, "-pod") || len(name) == 64
}

// CountLeasesAndSnapshots counts containerd's leases and snapshots after a garbage collection. It
// skips leases with an expiry: containerd takes one for each of its own calls and, if it dies,
// leaves it for a day, with the snapshot in progress. While there is such a lease, snapshotCount is -1 for
// unknown.
func (h *Host) CountLeasesAndSnapshots(ctx context.Context) (leaseCount, snapshotCount int, err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, "containerd-namespace", "k8s.io")
	client := leases.NewLeasesClient(h.conn)
	lease, err := client.Create(ctx, &leases.CreateRequest{ID: fmt.Sprintf("tally-%d", time.Now().UnixNano())})
	if err != nil {
		return 0, 0, fmt.Errorf("create lease: %w", err)
	}
	// Sync triggers the garbage collection.
	if _, err := client.Delete(ctx, &leases.DeleteRequest{ID: lease.GetLease().GetID(), Sync: true}); err != nil {
		return 0, 0, fmt.Errorf("collect garbage: %w", err)
	}
	all, err := client.List(ctx, &leases.ListRequest{})
	if err != nil {
		return 0, 0, fmt.Errorf("list leases: %w", err)
	}
	stream, err := snapshots.NewSnapshotsClient(h.conn).List(ctx,
		&snapshots.ListSnapshotsRequest{Snapshotter: "overlayfs"})
	for err == nil {
		var resp *snapshots.ListSnapshotsResponse
		resp, err = stream.Recv()
		snapshotCount += len(resp.GetInfo())
	}
	if !errors.Is(err, io.EOF) {
		return 0, 0, fmt.Errorf("list snapshots: %w", err)
	}
	for _, l := range all.GetLeases() {
		if l.GetLabels()["containerd.io/gc.expire"] == "" {
			leaseCount++
		} else {
			snapshotCount = -1
		}
	}
	return leaseCount, snapshotCount, nil
}

// Addresses returns the addresses that the network has allocated.
func (h *Host) Addresses() []string { return h.slot.addressesInUse() }
