package cri

import (
	"context"

	"github.com/containerd/containerd/api/services/content/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// DownloadProgress is the progress of the blobs that the runtime is downloading, of all pulls
// together. The runtime does not distinguish pulls.
type DownloadProgress struct {
	Blobs           int
	Received, Total int64 // bytes, as Total
}

// DownloadProgress lists the active ingests of containerd's content service, because CRI reports
// nothing about a pull before its end. For other runtimes the result is empty.
func (c *Client) DownloadProgress(ctx context.Context) (d DownloadProgress, err error) {
	ctx = metadata.AppendToOutgoingContext(ctx, "containerd-namespace", criNamespace)
	resp, err := c.content.ListStatuses(ctx, &content.ListStatusesRequest{})
	if status.Code(err) == codes.Unimplemented {
		return d, nil
	}
	for _, s := range resp.GetStatuses() {
		if s.GetTotal() <= 0 { // the total size is unknown
			continue
		}
		d.Blobs++
		d.Received += min(s.GetOffset(), s.GetTotal())
		d.Total += s.GetTotal()
	}
	return d, err
}
