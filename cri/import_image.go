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

// CRI can only pull images. containerd's own services on the same socket can import them: blobs are
// written to the content store, unpacked into the snapshotter and named in the image store, which
// notifies the CRI service of changes.

// imageServices are containerd's services for images.
type imageServices struct {
	content content.ContentClient
	images  images.ImagesClient
	diff    diff.DiffClient
}

func newImageServices(conn grpc.ClientConnInterface) imageServices {
	return imageServices{content: content.NewContentClient(conn), images: images.NewImagesClient(conn),
		diff: diff.NewDiffClient(conn)}
}

const (
	// importExpiry is how long containerd keeps the content of an import whose agent did not come
	// back.
	importExpiry        = 24 * time.Hour
	importChunk         = 256 << 10
	importCallTimeout   = 30 * time.Second // for a call that transfers no data
	imageVisibleTimeout = 30 * time.Second // from the image store to CRI
	snapshotterPrefix   = "io.containerd.snapshotter.v1."
)

// Import writes the content of one image archive to containerd. Until Close, no content is garbage
// collected. After Close, only content that an image references is kept.
type Import struct {
	c           *Client
	lease       string
	snapshotter string
}

// HasImage reports whether containerd has an image with this full name.
func (c *Client) HasImage(ctx context.Context, name string) (bool, error) {
	found := false
	err := c.call(ctx, verbImport, name, importCallTimeout, func(ctx context.Context) error {
		_, err := c.imageServices.images.Get(withCRINamespace(ctx), &images.GetImageRequest{Name: name})
		if status.Code(err) == codes.NotFound {
			return nil
		}
		found = err == nil
		return err
	})
	return found, err
}

// Import starts an import. The id is unique among the imports in progress and identifies the same
// archive after a restart. If the runtime is not containerd, the error has kind plan.Unsupported.
func (c *Client) Import(ctx context.Context, id string) (*Import, error) {
	switch _, ok, err := c.Layout(ctx); {
	case err != nil:
		return nil, err
	case !ok:
		return nil, &plan.Error{Kind: plan.Unsupported, Err: errors.New("images can be imported only into containerd")}
	}
	disk, err := c.ImageFilesystem(ctx)
	if err != nil {
		return nil, err
	}
	i := &Import{c: c, lease: "berth-import-" + id}
	if kind, ok := strings.CutPrefix(filepath.Base(disk.Path), snapshotterPrefix); ok {
		i.snapshotter = kind
	}
	return i, c.call(ctx, verbImport, id, importCallTimeout, func(ctx context.Context) error {
		ctx = withCRINamespace(ctx)
		// A lease of an earlier process may exist, with incomplete content.
		if _, err := c.leases.Delete(ctx, &leases.DeleteRequest{ID: i.lease, Sync: true}); err != nil &&
			status.Code(err) != codes.NotFound {
			return err
		}
		_, err := c.leases.Create(ctx, &leases.CreateRequest{ID: i.lease, Labels: map[string]string{
			"containerd.io/gc.expire": time.Now().Add(importExpiry).UTC().Format(time.RFC3339),
		}})
		return err
	})
}

func withCRINamespace(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "containerd-namespace", criNamespace)
}

func (i *Import) leaseContext(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(withCRINamespace(ctx), "containerd-lease", i.lease)
}

// Close releases the lease, so that containerd can collect content that no image references.
func (i *Import) Close(ctx context.Context) error {
	return i.c.call(ctx, verbImport, i.lease, importCallTimeout, func(ctx context.Context) error {
		_, err := i.c.leases.Delete(withCRINamespace(ctx), &leases.DeleteRequest{ID: i.lease})
		if status.Code(err) == codes.NotFound {
			return nil
		}
		return err
	})
}

// WriteBlob writes a blob to the content store, under a temporary name of its own. The expected
// digest is empty if it is unknown. Errors of the reader are returned unchanged. If the blob
// exists, the reader is read to its end and discarded.
func (i *Import) WriteBlob(ctx context.Context, name string, r io.Reader, expected digest.Digest, size int64) error {
	ref := i.lease + " " + name
	// Of an earlier process, incomplete. Usually there is none.
	_, _ = i.c.imageServices.content.Abort(i.leaseContext(ctx), &content.AbortRequest{Ref: ref})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := i.c.imageServices.content.Write(i.leaseContext(ctx))
	if err != nil {
		return mapError(ctx, verbImport, name, err)
	}
	w := blobWriter{stream: s, ref: ref, expected: expected, size: size}
	err = w.write(r)
	if source := (*sourceError)(nil); errors.As(err, &source) {
		return source.err
	}
	if status.Code(err) == codes.AlreadyExists {
		return discardAll(r)
	}
	return mapError(ctx, verbImport, name, err)
}

// discardAll reads to the end, so that a verifying reader can return its error.
func discardAll(r io.Reader) error {
	_, err := io.Copy(io.Discard, r)
	return err
}

// sourceError is an error of the reader, not of the runtime.
type sourceError struct{ err error }

func (e *sourceError) Error() string { return e.err.Error() }

type blobWriter struct {
	stream   content.Content_WriteClient
	ref      string
	expected digest.Digest
	size     int64
}

func (w *blobWriter) send(req *content.WriteContentRequest) error {
	req.Ref, req.Total, req.Expected = w.ref, w.size, string(w.expected)
	if err := w.stream.Send(req); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	_, err := w.stream.Recv() // returns the reason if Send found the stream closed
	return err
}

func (w *blobWriter) write(r io.Reader) error {
	if err := w.send(&content.WriteContentRequest{Action: content.WriteAction_STAT}); err != nil {
		return err
	}
	offset := int64(0)
	buf := make([]byte, importChunk)
	for {
		n, err := io.ReadFull(r, buf)
		if n > 0 {
			if err := w.send(&content.WriteContentRequest{Action: content.WriteAction_WRITE, Offset: offset,
				Data: buf[:n]}); err != nil {
				return err
			}
			offset += int64(n)
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) && offset == w.size {
			break
		}
		if err != nil {
			return &sourceError{err}
		}
	}
	return w.send(&content.WriteContentRequest{Action: content.WriteAction_COMMIT, Offset: offset})
}

// SetReferences lets a blob reference others, with labels of containerd's garbage collector.
func (i *Import) SetReferences(ctx context.Context, blob digest.Digest, labels map[string]string) error {
	req := &content.UpdateRequest{Info: &content.Info{Digest: string(blob), Labels: labels},
		UpdateMask: &fieldmaskpb.FieldMask{}}
	for k := range labels {
		req.UpdateMask.Paths = append(req.UpdateMask.Paths, "labels."+k)
	}
	return i.c.call(ctx, verbImport, string(blob), importCallTimeout, func(ctx context.Context) error {
		_, err := i.c.imageServices.content.Update(i.leaseContext(ctx), req)
		return err
	})
}

// ErrDiffIDMismatch means that an unpacked layer differs from its diff ID in the image
// configuration.
var ErrDiffIDMismatch = errors.New("content does not match the diff ID in the image configuration")

// Unpack unpacks the layers that are not unpacked yet and lets the image configuration reference
// them. If the snapshotter is unknown, the first container unpacks the image.
func (i *Import) Unpack(ctx context.Context, config digest.Digest, layers []ocispec.Descriptor,
	diffs []digest.Digest) error {
	if i.snapshotter == "" {
		return nil
	}
	parent := ""
	for n, l := range layers {
		chain := identity.ChainID(diffs[:n+1]).String()
		if err := i.unpackLayer(ctx, parent, chain, l, diffs[n]); err != nil {
			return err
		}
		parent = chain
	}
	if parent == "" {
		return nil
	}
	return i.SetReferences(ctx, config, map[string]string{"containerd.io/gc.ref.snapshot." + i.snapshotter: parent})
}

func (i *Import) unpackLayer(ctx context.Context, parent, chain string, l ocispec.Descriptor,
	want digest.Digest) error {
	c, inside := i.c, i.leaseContext(ctx)
	_, err := c.snapshots.Stat(inside, &snapshots.StatSnapshotRequest{Snapshotter: i.snapshotter, Key: chain})
	if status.Code(err) != codes.NotFound {
		return mapError(ctx, verbImport, chain, err)
	}
	key := i.lease + " " + chain
	prepare := &snapshots.PrepareSnapshotRequest{Snapshotter: i.snapshotter, Key: key, Parent: parent}
	prepared, err := c.snapshots.Prepare(inside, prepare)
	if status.Code(err) == codes.AlreadyExists { // of an earlier process, incomplete
		_, _ = c.snapshots.Remove(inside, &snapshots.RemoveSnapshotRequest{Snapshotter: i.snapshotter, Key: key})
		prepared, err = c.snapshots.Prepare(inside, prepare)
	}
	if err != nil {
		return mapError(ctx, verbImport, chain, err)
	}
	applied, err := c.imageServices.diff.Apply(inside, &diff.ApplyRequest{
		Diff:   &types.Descriptor{MediaType: l.MediaType, Digest: string(l.Digest), Size: l.Size},
		Mounts: prepared.GetMounts(),
	})
	if err == nil && applied.GetApplied().GetDigest() != string(want) {
		err = fmt.Errorf("layer %s: %w", l.Digest, ErrDiffIDMismatch)
	}
	if err == nil {
		_, err = c.snapshots.Commit(inside, &snapshots.CommitSnapshotRequest{Snapshotter: i.snapshotter, Name: chain,
			Key: key})
		if err == nil {
			return nil
		}
	}
	clean, cancel := context.WithTimeout(context.WithoutCancel(inside), importCallTimeout)
	defer cancel()
	_, _ = c.snapshots.Remove(clean, &snapshots.RemoveSnapshotRequest{Snapshotter: i.snapshotter, Key: key})
	if errors.Is(err, ErrDiffIDMismatch) {
		return err
	}
	if status.Code(err) == codes.AlreadyExists {
		return nil // another client was faster
	}
	return mapError(ctx, verbImport, chain, err)
}

// TagImage creates the image name, and waits until CRI lists the image.
func (i *Import) TagImage(ctx context.Context, name string, target ocispec.Descriptor) error {
	err := i.c.call(ctx, verbImport, name, importCallTimeout, func(ctx context.Context) error {
		img := &images.Image{Name: name, Target: &types.Descriptor{MediaType: target.MediaType,
			Digest: string(target.Digest), Size: target.Size}}
		_, err := i.c.imageServices.images.Create(i.leaseContext(ctx), &images.CreateImageRequest{Image: img})
		if status.Code(err) == codes.AlreadyExists {
			_, err = i.c.imageServices.images.Update(i.leaseContext(ctx),
				&images.UpdateImageRequest{Image: img, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"target"}}})
		}
		return err
	})
	if err != nil {
		return err
	}
	return i.c.waitImageVisible(ctx, name)
}

// waitImageVisible waits until CRI lists an image that containerd has.
func (c *Client) waitImageVisible(ctx context.Context, name string) error {
	return c.call(ctx, verbImport, name, imageVisibleTimeout, func(ctx context.Context) error {
		for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
			resp, err := c.images.ImageStatus(ctx,
				&runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: name}})
			if err != nil || resp.GetImage() != nil {
				return err
			}
			if !sleep(ctx, wait) {
				return ctx.Err()
			}
		}
	})
}
