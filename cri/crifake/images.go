package crifake

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/distribution/reference"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// PublishedImage is an image that can be pulled.
type PublishedImage struct {
	PullDuration time.Duration // duration of a pull
	Size         uint64
	User         string // user name or ID that the image declares; empty: none
	Password     string // required for a pull; empty: none
	Err          error  // error of a pull
}

// PublishImage makes an image available for pulls under a full name (docker.io/library/x:1).
func (r *Runtime) PublishImage(ref string, p PublishedImage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.published[normalizeName(ref)] = p
}

// AddImage adds an image to the node and returns its ID.
func (r *Runtime) AddImage(ref string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.addImage(normalizeName(ref), PublishedImage{})
}

// addImage adds an image to the node. The caller holds the lock. The same name always gives the
// same image.
func (r *Runtime) addImage(ref string, p PublishedImage) string {
	id := fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(ref)))
	name, _, _ := strings.Cut(ref, "@")
	repo := name
	if i := strings.LastIndex(name, ":"); i > strings.LastIndex(name, "/") {
		repo = name[:i]
	}
	image := &runtimeapi.Image{
		Id: id, RepoTags: []string{name}, RepoDigests: []string{repo + "@" + id},
		Size: max(p.Size, 1), Spec: &runtimeapi.ImageSpec{Image: id},
	}
	var uid int64
	if n, _ := fmt.Sscanf(p.User, "%d", &uid); n == 1 {
		image.Uid = &runtimeapi.Int64Value{Value: uid}
	} else {
		image.Username = p.User
	}
	r.images[id] = image
	return id
}

// resolve finds an image by ID, tag or digest. It returns nil if the image is not on the node. The
// caller holds the lock.
func (r *Runtime) resolve(ref string) *runtimeapi.Image {
	if image := r.images[ref]; image != nil {
		return image
	}
	full := normalizeName(ref)
	for _, image := range r.images {
		if slices.Contains(image.RepoTags, full) || slices.Contains(image.RepoDigests, full) {
			return image
		}
	}
	return nil
}

// normalizeName returns the full form of an image name. An invalid name is returned unchanged.
func normalizeName(ref string) string {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return ref
	}
	return reference.TagNameOnly(named).String()
}

// ListImages lists the images on the node.
func (r *Runtime) ListImages(context.Context, *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	resp := &runtimeapi.ListImagesResponse{}
	for _, image := range r.images {
		resp.Images = append(resp.Images, proto.CloneOf(image))
	}
	slices.SortFunc(resp.Images, func(a, b *runtimeapi.Image) int { return cmp.Compare(a.Id, b.Id) })
	return resp, nil
}

// ImageStatus returns the status of an image, or none if it is not on the node.
func (r *Runtime) ImageStatus(_ context.Context,
	q *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	resp := &runtimeapi.ImageStatusResponse{}
	if image := r.resolve(q.GetImage().GetImage()); image != nil {
		resp.Image = proto.CloneOf(image)
	}
	return resp, nil
}

// PullImage adds a published image to the node.
func (r *Runtime) PullImage(ctx context.Context,
	q *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	ref := normalizeName(q.GetImage().GetImage())
	r.mu.Lock()
	p, known := r.published[ref]
	r.mu.Unlock()
	switch {
	case !known:
		return nil, notFound("failed to pull and unpack image %q: failed to resolve reference %q: %s", ref, ref, ref)
	case p.Password != "" && q.GetAuth().GetPassword() != p.Password:
		return nil, status.Errorf(codes.Unknown,
			"failed to pull and unpack image %q: failed to authorize: 401 Unauthorized", ref)
	}
	if err := wait(ctx, p.PullDuration); err != nil {
		return nil, err
	}
	if p.Err != nil {
		return nil, p.Err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return &runtimeapi.PullImageResponse{ImageRef: r.addImage(ref, p)}, nil
}

// RemoveImage removes an image from the node.
func (r *Runtime) RemoveImage(_ context.Context,
	q *runtimeapi.RemoveImageRequest) (*runtimeapi.RemoveImageResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if image := r.resolve(q.GetImage().GetImage()); image != nil {
		delete(r.images, image.Id)
	}
	return &runtimeapi.RemoveImageResponse{}, nil
}

// ImageFsInfo returns the usage of the images.
func (r *Runtime) ImageFsInfo(context.Context,
	*runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	used := uint64(0)
	for _, image := range r.images {
		used += image.Size
	}
	at := func(dir string) *runtimeapi.FilesystemUsage {
		return &runtimeapi.FilesystemUsage{
			Timestamp:  time.Now().UnixNano(),
			FsId:       &runtimeapi.FilesystemIdentifier{Mountpoint: dir},
			UsedBytes:  &runtimeapi.UInt64Value{Value: used},
			InodesUsed: &runtimeapi.UInt64Value{Value: uint64(len(r.images))},
		}
	}
	resp := &runtimeapi.ImageFsInfoResponse{ImageFilesystems: []*runtimeapi.FilesystemUsage{
		at(cmp.Or(r.opts.ImageFilesystem, "/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs")),
	}}
	if r.opts.ContainerFilesystem != "" {
		resp.ContainerFilesystems = []*runtimeapi.FilesystemUsage{at(r.opts.ContainerFilesystem)}
	}
	return resp, nil
}
