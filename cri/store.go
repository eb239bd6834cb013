package cri

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/containerd/api/services/content/v1"
	"github.com/containerd/containerd/api/services/diff/v1"
	"github.com/containerd/containerd/api/services/images/v1"
	"github.com/containerd/containerd/api/services/leases/v1"
	"github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
)

// CRI can pull images and not be handed any. containerd's own services on the same
// socket can: blobs go into its content store, are unpacked into its snapshotter
// and named in its image store, of whose changes its CRI service is told.

// store are containerd's services for images.
type store struct {
	content content.ContentClient
	images  images.ImagesClient
	diff    diff.DiffClient
}

func newStore(conn grpc.ClientConnInterface) store {
	return store{content: content.NewContentClient(conn), images: images.NewImagesClient(conn), diff: diff.NewDiffClient(conn)}
}

const (
	// importExpiry is how long containerd keeps what an import has brought whose
	// agent never came back.
	importExpiry  = 24 * time.Hour
	importChunk   = 256 << 10
	importQuick   = 30 * time.Second // of a call that moves no data
	visibleWithin = 30 * time.Second // from the image store to CRI
	snapshotKinds = "io.containerd.snapshotter.v1."
)

// Import brings one image archive's content into containerd. Until it ends nothing
// of that is collected; after that only what an image refers to stays.
type Import struct {
	c           *Client
	lease       string
	snapshotter string
}

// HasImage tells whether containerd has an image of this full name.
func (c *Client) HasImage(ctx context.Context, name string) (bool, error) {
	found := false
	err := c.call(ctx, verbImport, name, importQuick, func(ctx context.Context) error {
		_, err := c.store.images.Get(inCRI(ctx), &images.GetImageRequest{Name: name})
		if status.Code(err) == codes.NotFound {
			return nil
		}
		found = err == nil
		return err
	})
	return found, err
}

// Import begins one; id is its own among those under way, and stands for the same
// archive after a restart. Of a runtime that is not containerd the error has kind
// plan.Unsupported.
func (c *Client) Import(ctx context.Context, id string) (*Import, error) {
	switch _, ok, err := c.Layout(ctx); {
	case err != nil:
		return nil, err
	case !ok:
		return nil, &plan.Error{Kind: plan.Unsupported, Err: errors.New("images of files can be given to containerd alone")}
	}
	disk, err := c.ImageFilesystem(ctx)
	if err != nil {
		return nil, err
	}
	i := &Import{c: c, lease: "berth-import-" + id}
	if kind, ok := strings.CutPrefix(filepath.Base(disk.Path), snapshotKinds); ok {
		i.snapshotter = kind
	}
	return i, c.call(ctx, verbImport, id, importQuick, func(ctx context.Context) error {
		ctx = inCRI(ctx)
		// One of an earlier life may be there, with content that is half written.
		if _, err := c.leases.Delete(ctx, &leases.DeleteRequest{ID: i.lease, Sync: true}); err != nil && status.Code(err) != codes.NotFound {
			return err
		}
		_, err := c.leases.Create(ctx, &leases.CreateRequest{ID: i.lease, Labels: map[string]string{
			"containerd.io/gc.expire": time.Now().Add(importExpiry).UTC().Format(time.RFC3339),
		}})
		return err
	})
}

func inCRI(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "containerd-namespace", criNamespace)
}

func (i *Import) ctx(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(inCRI(ctx), "containerd-lease", i.lease)
}

// Close lets containerd collect what no image refers to.
func (i *Import) Close(ctx context.Context) error {
	return i.c.call(ctx, verbImport, i.lease, importQuick, func(ctx context.Context) error {
		_, err := i.c.leases.Delete(inCRI(ctx), &leases.DeleteRequest{ID: i.lease})
		if status.Code(err) == codes.NotFound {
			return nil
		}
		return err
	})
}

// WriteBlob puts content into the store, under a name of its own meanwhile. The digest
// is empty where nobody knows it yet. What the reader says is wrong comes back as it
// is. Content that is there already is read and not written again.
func (i *Import) WriteBlob(ctx context.Context, name string, r io.Reader, expected digest.Digest, size int64) error {
	ref := i.lease + " " + name
	// Of an earlier life, half written; mostly there is none.
	_, _ = i.c.store.content.Abort(i.ctx(ctx), &content.AbortRequest{Ref: ref})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := i.c.store.content.Write(i.ctx(ctx))
	if err != nil {
		return mapError(ctx, verbImport, name, err)
	}
	w := blobWriter{stream: s, ref: ref, expected: expected, size: size}
	err = w.write(r)
	if broken := (*readError)(nil); errors.As(err, &broken) {
		return broken.err
	}
	if status.Code(err) == codes.AlreadyExists {
		return drain(r)
	}
	return mapError(ctx, verbImport, name, err)
}

// drain reads to the end, so that a reader which checks can tell what it has found.
func drain(r io.Reader) error {
	_, err := io.Copy(io.Discard, r)
	return err
}

// readError is of the source, not of the runtime.
type readError struct{ err error }

func (e *readError) Error() string { return e.err.Error() }

type blobWriter struct {
	stream   content.Content_WriteClient
	ref      string
	expected digest.Digest
	size     int64
}

func (w *blobWriter) ask(req *content.WriteContentRequest) error {
	req.Ref, req.Total, req.Expected = w.ref, w.size, string(w.expected)
	if err := w.stream.Send(req); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	_, err := w.stream.Recv() // has the reason where Send found the stream ended
	return err
}

func (w *blobWriter) write(r io.Reader) error {
	if err := w.ask(&content.WriteContentRequest{Action: content.WriteAction_STAT}); err != nil {
		return err
	}
	offset := int64(0)
	buf := make([]byte, importChunk)
	for {
		n, err := io.ReadFull(r, buf)
		if n > 0 {
			if err := w.ask(&content.WriteContentRequest{Action: content.WriteAction_WRITE, Offset: offset, Data: buf[:n]}); err != nil {
				return err
			}
			offset += int64(n)
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) && offset == w.size {
			break
		}
		if err != nil {
			return &readError{err}
		}
	}
	return w.ask(&content.WriteContentRequest{Action: content.WriteAction_COMMIT, Offset: offset})
}

// SetReferences has a blob keep others: labels are those of containerd's garbage collector.
func (i *Import) SetReferences(ctx context.Context, blob digest.Digest, labels map[string]string) error {
	req := &content.UpdateRequest{Info: &content.Info{Digest: string(blob), Labels: labels}, UpdateMask: &fieldmaskpb.FieldMask{}}
	for k := range labels {
		req.UpdateMask.Paths = append(req.UpdateMask.Paths, "labels."+k)
	}
	return i.c.call(ctx, verbImport, string(blob), importQuick, func(ctx context.Context) error {
		_, err := i.c.store.content.Update(i.ctx(ctx), req)
		return err
	})
}

// ErrDiffIDMismatch says that a layer is not what its image's configuration says.
var ErrDiffIDMismatch = errors.New("a layer is not what the image's configuration says")

// Unpack makes the layers ready to be used, as far as they are not, and has the
// image's configuration keep them. Where the snapshotter is not known it is left to
// the first container.
func (i *Import) Unpack(ctx context.Context, config digest.Digest, layers []ocispec.Descriptor, diffs []digest.Digest) error {
	if i.snapshotter == "" {
		return nil
	}
	parent := ""
	for n, l := range layers {
		chain := identity.ChainID(diffs[:n+1]).String()
		if err := i.layer(ctx, parent, chain, l, diffs[n]); err != nil {
			return err
		}
		parent = chain
	}
	if parent == "" {
		return nil
	}
	return i.SetReferences(ctx, config, map[string]string{"containerd.io/gc.ref.snapshot." + i.snapshotter: parent})
}

func (i *Import) layer(ctx context.Context, parent, chain string, l ocispec.Descriptor, want digest.Digest) error {
	c, inside := i.c, i.ctx(ctx)
	_, err := c.snapshots.Stat(inside, &snapshots.StatSnapshotRequest{Snapshotter: i.snapshotter, Key: chain})
	if status.Code(err) != codes.NotFound {
		return mapError(ctx, verbImport, chain, err)
	}
	key := i.lease + " " + chain
	prepare := &snapshots.PrepareSnapshotRequest{Snapshotter: i.snapshotter, Key: key, Parent: parent}
	made, err := c.snapshots.Prepare(inside, prepare)
	if status.Code(err) == codes.AlreadyExists { // of an earlier life, half filled
		_, _ = c.snapshots.Remove(inside, &snapshots.RemoveSnapshotRequest{Snapshotter: i.snapshotter, Key: key})
		made, err = c.snapshots.Prepare(inside, prepare)
	}
	if err != nil {
		return mapError(ctx, verbImport, chain, err)
	}
	applied, err := c.store.diff.Apply(inside, &diff.ApplyRequest{
		Diff: &types.Descriptor{MediaType: l.MediaType, Digest: string(l.Digest), Size: l.Size}, Mounts: made.GetMounts(),
	})
	if err == nil && applied.GetApplied().GetDigest() != string(want) {
		err = fmt.Errorf("layer %s: %w", l.Digest, ErrDiffIDMismatch)
	}
	if err == nil {
		_, err = c.snapshots.Commit(inside, &snapshots.CommitSnapshotRequest{Snapshotter: i.snapshotter, Name: chain, Key: key})
		if err == nil {
			return nil
		}
	}
	clean, cancel := context.WithTimeout(context.WithoutCancel(inside), importQuick)
	defer cancel()
	_, _ = c.snapshots.Remove(clean, &snapshots.RemoveSnapshotRequest{Snapshotter: i.snapshotter, Key: key})
	if errors.Is(err, ErrDiffIDMismatch) {
		return err
	}
	if status.Code(err) == codes.AlreadyExists {
		return nil // somebody else was faster
	}
	return mapError(ctx, verbImport, chain, err)
}

// TagImage gives an image its name, and waits until CRI knows it.
func (i *Import) TagImage(ctx context.Context, name string, target ocispec.Descriptor) error {
	err := i.c.call(ctx, verbImport, name, importQuick, func(ctx context.Context) error {
		img := &images.Image{Name: name, Target: &types.Descriptor{MediaType: target.MediaType, Digest: string(target.Digest), Size: target.Size}}
		_, err := i.c.store.images.Create(i.ctx(ctx), &images.CreateImageRequest{Image: img})
		if status.Code(err) == codes.AlreadyExists {
			_, err = i.c.store.images.Update(i.ctx(ctx), &images.UpdateImageRequest{Image: img, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"target"}}})
		}
		return err
	})
	if err != nil {
		return err
	}
	return i.c.visible(ctx, name)
}

// visible waits until CRI shows an image that containerd has.
func (c *Client) visible(ctx context.Context, name string) error {
	return c.call(ctx, verbImport, name, visibleWithin, func(ctx context.Context) error {
		for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
			resp, err := c.images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: name}})
			if err != nil || resp.GetImage() != nil {
				return err
			}
			if !pause(ctx, wait) {
				return ctx.Err()
			}
		}
	})
}
