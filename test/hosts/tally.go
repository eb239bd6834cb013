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

// ResourceCounts is how much pods have on a host that runs. Unlike PodLeftovers it is taken
// in a moment and asks nobody: also of a host whose containerd is away.
type ResourceCounts struct {
	Mounts     int // but for namespaces and the agents' own directories
	Namespaces int // of the network, pinned by a mount
	Cgroups    int // of pods and containers, in all hierarchies
	Addresses  int // given out
}

// CountResources counts.
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

// podCgroup reports whether a cgroup of the host is a pod's or a container's.
func podCgroup(dir string) bool {
	name := filepath.Base(dir)
	return strings.HasPrefix(name, "pod") || strings.Contains(name, "-pod") || len(name) == 64
}

// CountLeasesAndSnapshots counts what containerd holds for pods and images, after it has collected its
// garbage: leases and snapshots. Leases that end by themselves are not among it:
// containerd takes one for each call of its own and leaves it, with a snapshot that it
// was making, for a day if it dies. While there is such a one layers is -1: unknown.
func (h *Host) CountLeasesAndSnapshots(ctx context.Context) (held, layers int, err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, "containerd-namespace", "k8s.io")
	books := leases.NewLeasesClient(h.conn)
	made, err := books.Create(ctx, &leases.CreateRequest{ID: fmt.Sprintf("tally-%d", time.Now().UnixNano())})
	if err != nil {
		return 0, 0, fmt.Errorf("make a lease: %w", err)
	}
	// Sync is what has it collect at once.
	if _, err := books.Delete(ctx, &leases.DeleteRequest{ID: made.GetLease().GetID(), Sync: true}); err != nil {
		return 0, 0, fmt.Errorf("collect garbage: %w", err)
	}
	all, err := books.List(ctx, &leases.ListRequest{})
	if err != nil {
		return 0, 0, fmt.Errorf("list leases: %w", err)
	}
	stream, err := snapshots.NewSnapshotsClient(h.conn).List(ctx, &snapshots.ListSnapshotsRequest{Snapshotter: "overlayfs"})
	for err == nil {
		var some *snapshots.ListSnapshotsResponse
		some, err = stream.Recv()
		layers += len(some.GetInfo())
	}
	if !errors.Is(err, io.EOF) {
		return 0, 0, fmt.Errorf("list snapshots: %w", err)
	}
	for _, l := range all.GetLeases() {
		if l.GetLabels()["containerd.io/gc.expire"] == "" {
			held++
		} else {
			layers = -1
		}
	}
	return held, layers, nil
}

// Addresses are those that the network has given out.
func (h *Host) Addresses() []string { return h.slot.addressesInUse() }
