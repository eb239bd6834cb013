package cri

import (
	"context"
	"time"

	"github.com/containerd/containerd/api/services/leases/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// WritableLayer is the usage of a container's writable layer.
type WritableLayer struct {
	Timestamp     time.Time
	Bytes, Inodes uint64
}

// WritableLayers returns the writable layer usage of all containers by ID, in one call.
func (c *Client) WritableLayers(ctx context.Context) (map[string]WritableLayer, error) {
	var resp *runtimeapi.ListContainerStatsResponse
	err := c.call(ctx, verbContainerStats, "", c.deadlines.Query, func(ctx context.Context) (err error) {
		resp, err = c.runtime.ListContainerStats(ctx, &runtimeapi.ListContainerStatsRequest{
			Filter: &runtimeapi.ContainerStatsFilter{LabelSelector: c.adoptions.selector()},
		})
		return err
	})
	out := map[string]WritableLayer{}
	for _, s := range resp.GetStats() {
		if l := s.GetWritableLayer(); l != nil {
			out[s.GetAttributes().GetId()] = WritableLayer{Timestamp: timeFromNanos(l.GetTimestamp()),
				Bytes: l.GetUsedBytes().GetValue(), Inodes: l.GetInodesUsed().GetValue()}
		}
	}
	return out, err
}

// gcLease is the lease whose deletion triggers containerd's garbage collection.
const gcLease = "berth-reclaims"

// CollectGarbage runs containerd's garbage collection and waits for it. It frees content without a
// record, for example the layers of removed containers. By itself containerd collects only after
// some hundred changes. Other runtimes are not called.
func (c *Client) CollectGarbage(ctx context.Context) error {
	if _, ok, err := c.Layout(ctx); err != nil || !ok {
		return err
	}
	return c.call(ctx, verbCollectGarbage, "", c.deadlines.RemoveContainer, func(ctx context.Context) error {
		ctx = metadata.AppendToOutgoingContext(ctx, "containerd-namespace", criNamespace)
		if _, err := c.leases.Create(ctx, &leases.CreateRequest{ID: gcLease}); err != nil &&
			status.Code(err) != codes.AlreadyExists {
			return err
		}
		_, err := c.leases.Delete(ctx, &leases.DeleteRequest{ID: gcLease, Sync: true})
		return err
	})
}

// ImageFilesystem is the file system on which the runtime stores images, with the usage of the
// images.
type ImageFilesystem struct {
	Path           string
	ContainersPath string // where the runtime stores writable layers; empty: not reported
	Bytes, Inodes  uint64
}

// ImageFilesystem returns the image file system. The path is empty if the runtime does not report
// it.
func (c *Client) ImageFilesystem(ctx context.Context) (ImageFilesystem, error) {
	var resp *runtimeapi.ImageFsInfoResponse
	err := c.call(ctx, verbImageFsInfo, "", c.deadlines.Query, func(ctx context.Context) (err error) {
		resp, err = c.images.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
		return err
	})
	var d ImageFilesystem
	if all := resp.GetImageFilesystems(); len(all) > 0 {
		f := all[0]
		d = ImageFilesystem{Path: f.GetFsId().GetMountpoint(), Bytes: f.GetUsedBytes().GetValue(),
			Inodes: f.GetInodesUsed().GetValue()}
	}
	if all := resp.GetContainerFilesystems(); len(all) > 0 {
		d.ContainersPath = all[0].GetFsId().GetMountpoint()
	}
	return d, err
}
