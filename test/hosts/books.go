package hosts

import (
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/api/services/containers/v1"
	"github.com/containerd/containerd/api/services/leases/v1"
	sandboxapi "github.com/containerd/containerd/api/services/sandbox/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

var longID = regexp.MustCompile(`\b[0-9a-f]{64}\b`)

// loggedIDs are all IDs that containerd has spoken of in its log: those of what it
// has forgotten too.
func (r *record) loggedIDs() []string {
	text, err := os.ReadFile(r.log())
	if err != nil {
		return nil
	}
	ids := longID.FindAllString(string(text), -1)
	slices.Sort(ids)
	return slices.Compact(ids)
}

// shimSocketsOf are the sockets that shims of any of the IDs have left: their names
// are hashes.
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

// chainsOf are the chains that plugins have left of any of the IDs, with or
// without rules: their names are hashes.
func (r *record) chainsOf(ids []string) (out []string) {
	saved, err := command("iptables-save", "-t", "nat")
	if err != nil {
		return []string{err.Error()}
	}
	there := map[string]bool{}
	for line := range strings.Lines(saved) {
		if name, ok := strings.CutPrefix(line, ":CNI-"); ok {
			there["CNI-"+strings.Fields(name)[0]] = true
		}
	}
	if len(there) == 0 {
		return nil
	}
	for _, id := range ids {
		hash := fmt.Sprintf("%x", sha512.Sum512([]byte(r.network()+id)))
		for _, prefix := range []string{"CNI-", "CNI-DN-", "CNI-SN-"} {
			if chain := (prefix + hash)[:28]; there[chain] {
				out = append(out, chain)
			}
		}
	}
	return out
}

// runtimeDirs are the directories that containerd and runc keep for sandboxes and
// containers.
func (r *record) runtimeDirs() (out []string) {
	for _, dir := range []string{
		filepath.Join(r.state(), "io.containerd.runtime.v2.task", "k8s.io"), filepath.Join(r.root(), "io.containerd.runtime.v2.task", "k8s.io"),
		filepath.Join(r.state(), "io.containerd.grpc.v1.cri", "sandboxes"), filepath.Join(r.root(), "io.containerd.grpc.v1.cri", "sandboxes"),
		filepath.Join(r.state(), "io.containerd.grpc.v1.cri", "containers"), filepath.Join(r.root(), "io.containerd.grpc.v1.cri", "containers"),
		filepath.Join(r.run(), "runc", "k8s.io"),
	} {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			if path := filepath.Join(dir, e.Name()); !isContainerdDebris(path) {
				out = append(out, path)
			}
		}
	}
	return out
}

// isContainerdDebris reports what containerd itself leaves of a task when it dies, or the
// power fails, while it removes it: a bundle that it has hidden first, in a
// directory that does not outlive a boot, and an empty directory to work in. It
// holds nothing of a pod.
func isContainerdDebris(path string) bool {
	if strings.HasPrefix(filepath.Base(path), ".") {
		return true
	}
	inside, err := os.ReadDir(path)
	return err == nil && len(inside) == 0 && strings.Contains(path, "/root/io.containerd.runtime.v2.task/")
}

// containerdRecords names what containerd itself lists of sandboxes and containers, which
// may be more than CRI does: records and leases. A snapshot that neither names is
// garbage that containerd collects by itself, in its own time.
func (h *Host) containerdRecords(ctx context.Context) (out []string) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, "containerd-namespace", "k8s.io")
	say := func(kind, id string) { out = append(out, kind+" "+id) }
	fail := func(err error) {
		if err != nil && status.Code(err) != codes.Unimplemented {
			say("error", err.Error())
		}
	}
	all, err := containers.NewContainersClient(h.conn).List(ctx, &containers.ListContainersRequest{})
	fail(err)
	for _, c := range all.GetContainers() {
		say("record of container", c.ID)
	}
	stored, err := sandboxapi.NewStoreClient(h.conn).List(ctx, &sandboxapi.StoreListRequest{})
	fail(err)
	for _, s := range stored.GetList() {
		say("record of sandbox", s.SandboxID)
	}
	held, err := leases.NewLeasesClient(h.conn).List(ctx, &leases.ListRequest{})
	fail(err)
	for _, l := range held.GetLeases() {
		if longID.MatchString(l.ID) {
			say("lease", l.ID)
		}
	}
	return out
}
