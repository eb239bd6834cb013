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

// WritableLayer is what a container has written to its own root file system.
type WritableLayer struct {
	Timestamp     time.Time
	Bytes, Inodes uint64
}

// WritableLayers asks what the containers have written, by ID. It is a call for all of
// them, made when somebody asks and never in between.
func (c *Client) WritableLayers(ctx context.Context) (map[string]WritableLayer, error) {
	var resp *runtimeapi.ListContainerStatsResponse
	err := c.call(ctx, verbLayers, "", c.deadlines.Query, func(ctx context.Context) (err error) {
		resp, err = c.runtime.ListContainerStats(ctx, &runtimeapi.ListContainerStatsRequest{
			Filter: &runtimeapi.ContainerStatsFilter{LabelSelector: ownSelector()},
		})
		return err
	})
	out := map[string]WritableLayer{}
	for _, s := range resp.GetStats() {
		if l := s.GetWritableLayer(); l != nil {
			out[s.GetAttributes().GetId()] = WritableLayer{Timestamp: nanos(l.GetTimestamp()), Bytes: l.GetUsedBytes().GetValue(), Inodes: l.GetInodesUsed().GetValue()}
		}
	}
	return out, err
}

// reclaims is the lease whose end has containerd collect garbage.
const reclaims = "berth-reclaims"

// CollectGarbage has containerd take from the disk what it has no record of any more, as
// the layers of containers that were removed, and waits for it. By itself it does so
// after some hundred changes. Of other runtimes nothing is asked.
func (c *Client) CollectGarbage(ctx context.Context) error {
	if _, ok, err := c.Layout(ctx); err != nil || !ok {
		return err
	}
	return c.call(ctx, verbReclaim, "", c.deadlines.RemoveContainer, func(ctx context.Context) error {
		ctx = metadata.AppendToOutgoingContext(ctx, "containerd-namespace", criNamespace)
		if _, err := c.leases.Create(ctx, &leases.CreateRequest{ID: reclaims}); err != nil && status.Code(err) != codes.AlreadyExists {
			return err
		}
		_, err := c.leases.Delete(ctx, &leases.DeleteRequest{ID: reclaims, Sync: true})
		return err
	})
}

// ImageFilesystem is where the runtime keeps images, and how much of that they take.
type ImageFilesystem struct {
	Path           string
	ContainersPath string // where it keeps what containers write; empty: it does not say
	Bytes, Inodes  uint64
}

// ImageFilesystem asks for it; the path is empty if the runtime does not say.
func (c *Client) ImageFilesystem(ctx context.Context) (ImageFilesystem, error) {
	var resp *runtimeapi.ImageFsInfoResponse
	err := c.call(ctx, verbImageDisk, "", c.deadlines.Query, func(ctx context.Context) (err error) {
		resp, err = c.images.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
		return err
	})
	var d ImageFilesystem
	if all := resp.GetImageFilesystems(); len(all) > 0 {
		f := all[0]
		d = ImageFilesystem{Path: f.GetFsId().GetMountpoint(), Bytes: f.GetUsedBytes().GetValue(), Inodes: f.GetInodesUsed().GetValue()}
	}
	if all := resp.GetContainerFilesystems(); len(all) > 0 {
		d.ContainersPath = all[0].GetFsId().GetMountpoint()
	}
	return d, err
}
