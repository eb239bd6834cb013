package hosts

import (
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/containerd/api/services/containers/v1"
	"github.com/containerd/containerd/api/services/leases/v1"
	sandboxapi "github.com/containerd/containerd/api/services/sandbox/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// shimSocketsOf returns the existing shim sockets of the IDs. Their names are hashes of the IDs.
func (r *record) shimSocketsOf(ids []string) (out []string) {
	for _, id := range ids {
		name := fmt.Sprintf("%x", sha256.Sum256([]byte(filepath.Join(r.socket(), "k8s.io", id))))
		for _, dir := range []string{"/run/containerd/s", r.shimSockets()} {
			if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
				out = append(out, filepath.Join(dir, name))
			}
		}
	}
	return out
}

// chainsOf returns the existing iptables chains of the IDs, with or without rules. Their names are
// hashes of the IDs.
func (r *record) chainsOf(ids []string) (out []string) {
	saved, err := command("iptables-save", "-t", "nat")
	if err != nil {
		return []string{err.Error()}
	}
	existing := map[string]bool{}
	for line := range strings.Lines(saved) {
		if name, ok := strings.CutPrefix(line, ":CNI-"); ok {
			existing["CNI-"+strings.Fields(name)[0]] = true
		}
	}
	if len(existing) == 0 {
		return nil
	}
	for _, id := range ids {
		hash := fmt.Sprintf("%x", sha512.Sum512([]byte(r.network()+id)))
		for _, prefix := range []string{"CNI-", "CNI-DN-", "CNI-SN-"} {
			if chain := (prefix + hash)[:28]; existing[chain] {
				out = append(out, chain)
			}
		}
	}
	return out
}

// runtimeDirs returns the directories of sandboxes and containers that containerd and runc have.
func (r *record) runtimeDirs() (out []string) {
	for _, dir := range []string{
		filepath.Join(r.state(), "io.containerd.runtime.v2.task", "k8s.io"),
		filepath.Join(r.root(), "io.containerd.runtime.v2.task", "k8s.io"),
		filepath.Join(r.state(), "io.containerd.grpc.v1.cri", "sandboxes"),
		filepath.Join(r.root(), "io.containerd.grpc.v1.cri", "sandboxes"),
		filepath.Join(r.state(), "io.containerd.grpc.v1.cri", "containers"),
		filepath.Join(r.root(), "io.containerd.grpc.v1.cri", "containers"),
		filepath.Join(r.run(), "runc", "k8s.io"),
	} {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			if path := filepath.Join(dir, e.Name()); !isContainerdRemnant(path) {
				out = append(out, path)
			}
		}
	}
	return out
}

// isContainerdRemnant reports whether a path is what containerd leaves of a task when it dies, or
// the power fails, during the removal: a bundle renamed to a hidden name, in a directory that does
// not survive a boot, and an empty work directory. It contains nothing of a pod.
func isContainerdRemnant(path string) bool {
	if strings.HasPrefix(filepath.Base(path), ".") {
		return true
	}
	inside, err := os.ReadDir(path)
	return err == nil && len(inside) == 0 && strings.Contains(path, "/root/io.containerd.runtime.v2.task/")
}

// containerdRecords lists containerd's records and leases of sandboxes and containers, which may be
// more than CRI lists. It skips snapshots that no record references: containerd collects them as
// garbage.
func (h *Host) containerdRecords(ctx context.Context) (out []string) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second) // long enough for a busy machine
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, "containerd-namespace", "k8s.io")
	add := func(kind, id string) { out = append(out, kind+" "+id) }
	fail := func(err error) {
		if err != nil && status.Code(err) != codes.Unimplemented {
			add("error", err.Error())
		}
	}
	all, err := containers.NewContainersClient(h.conn).List(ctx, &containers.ListContainersRequest{})
	fail(err)
	for _, c := range all.GetContainers() {
		add("record of container", c.ID)
	}
	stored, err := sandboxapi.NewStoreClient(h.conn).List(ctx, &sandboxapi.StoreListRequest{})
	fail(err)
	for _, s := range stored.GetList() {
		add("record of sandbox", s.SandboxID)
	}
	held, err := leases.NewLeasesClient(h.conn).List(ctx, &leases.ListRequest{})
	fail(err)
	for _, l := range held.GetLeases() {
		if len(findIDs(l.ID)) > 0 {
			add("lease", l.ID)
		}
	}
	return out
}

// DeleteRecords deletes the records of sandboxes and containers from containerd's metadata store
// and restarts it. The containers keep running, but no list shows them, as after a call that was
// interrupted at a bad moment.
func (h *Host) DeleteRecords(ctx context.Context, ids ...string) error {
	nsCtx := metadata.AppendToOutgoingContext(ctx, "containerd-namespace", "k8s.io")
	for _, id := range ids {
		_, err := containers.NewContainersClient(h.conn).Delete(nsCtx, &containers.DeleteContainerRequest{ID: id})
		if err != nil {
			return fmt.Errorf("delete record of container %s: %w", id, err)
		}
		if h.Version == Version16 {
			continue // 1.6 has no sandbox store
		}
		_, err = sandboxapi.NewStoreClient(h.conn).Delete(nsCtx, &sandboxapi.StoreDeleteRequest{SandboxID: id})
		if err != nil && status.Code(err) != codes.NotFound { // a container
			return fmt.Errorf("delete record of sandbox %s: %w", id, err)
		}
	}
	return h.Restart(ctx)
}

// CreateLease creates a containerd lease for a sandbox that does not exist, as after a crash during
// its creation.
func (h *Host) CreateLease(ctx context.Context, id string) error {
	nsCtx := metadata.AppendToOutgoingContext(ctx, "containerd-namespace", "k8s.io")
	_, err := leases.NewLeasesClient(h.conn).Create(nsCtx, &leases.CreateRequest{ID: id})
	return err
}
