package networks

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	checkInterval       = 10 * time.Minute
	reportRetryInterval = 30 * time.Second
	reportTimeout       = 10 * time.Second
)

// RunChecks checks all attachments once ready is closed and then periodically, until ctx ends. It
// calls report with each new failure.
func (n *Networks) RunChecks(ctx context.Context, ready <-chan struct{}, report func(CheckFailure)) {
	ticker := time.NewTicker(checkInterval)
	defer ticker.Stop()
	select {
	case <-ctx.Done():
	case <-ready:
	}
	for ctx.Err() == nil {
		for _, f := range n.Check(ctx) {
			report(f)
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}

// PatchFunc patches the status of a pod on the API server.
type PatchFunc func(ctx context.Context, p Pod, strategicMergePatch []byte) error

// RunReports writes the annotation with the network status to the API server until ctx ends.
func (n *Networks) RunReports(ctx context.Context, patch PatchFunc, log *slog.Logger) {
	retry := time.NewTimer(reportRetryInterval)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.StatusChanged():
		case <-retry.C:
		}
		failed := n.ReportStatuses(func(p Pod, annotation string) error {
			err := reportStatus(ctx, patch, p, annotation)
			if err != nil {
				log.Debug("network status update failed", "pod", p.Namespace+"/"+p.Name, "err", err)
			}
			return err
		})
		if failed {
			retry.Reset(reportRetryInterval)
		}
	}
}

func reportStatus(ctx context.Context, patch PatchFunc, p Pod, annotation string) error {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": p.UID, "annotations": map[string]string{StatusAnnotation: annotation},
	}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	err = patch(ctx, p, body)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // deleted, or a static pod
		return nil
	}
	return err
}
