package cri

import (
	"context"

	"github.com/containerd/containerd/api/services/content/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// DownloadProgress is how far the runtime is with the parts of images that it writes to
// its store now, those of all pulls together: it does not tell them apart.
type DownloadProgress struct {
	Blobs           int
	Received, Total int64 // bytes
}

// DownloadProgress asks containerd's own service, because CRI tells nothing of a pull before
// its end. Other runtimes answer with none.
func (c *Client) DownloadProgress(ctx context.Context) (d DownloadProgress, err error) {
	ctx = metadata.AppendToOutgoingContext(ctx, "containerd-namespace", criNamespace)
	resp, err := c.content.ListStatuses(ctx, &content.ListStatusesRequest{})
	if status.Code(err) == codes.Unimplemented {
		return d, nil
	}
	for _, s := range resp.GetStatuses() {
		if s.GetTotal() <= 0 { // it is not known how much there is to come
			continue
		}
		d.Blobs++
		d.Received += min(s.GetOffset(), s.GetTotal())
		d.Total += s.GetTotal()
	}
	return d, err
}
