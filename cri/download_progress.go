package cri

import (
	"context"
	"fmt"
	"time"

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

// DownloadSummary describes the progress of the runtime's downloads; empty: none are known.
func (c *Client) DownloadSummary(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, downloadsTimeout)
	defer cancel()
	d, err := c.DownloadProgress(ctx)
	if err != nil || d.Blobs == 0 {
		return ""
	}
	mib := func(n int64) float64 { return float64(n) / (1 << 20) }
	return fmt.Sprintf("downloads of the runtime: %.1f of %.1f MiB", mib(d.Received), mib(d.Total))
}

// downloadsTimeout limits the query of optional progress information.
const downloadsTimeout = 500 * time.Millisecond
