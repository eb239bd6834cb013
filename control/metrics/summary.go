package metrics

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"

	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// maxSummarySize limits the response of a node, in bytes.
const maxSummarySize = 64 << 20

// FetchSummary requests the stats summary of the kubelet with the given URL.
func FetchSummary(ctx context.Context, client *http.Client, kubelet *url.URL) (*stats.Summary, error) {
	at := kubelet.JoinPath("/stats/summary").String() + "?only_cpu_and_memory=true"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, http.NoBody)
	if err != nil {
		return nil, err
	}
	res, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: unexpected status %s", at, res.Status)
	}
	out := &stats.Summary{}
	if err := json.NewDecoder(io.LimitReader(res.Body, maxSummarySize)).Decode(out); err != nil {
		return nil, fmt.Errorf("%s: %w", at, err)
	}
	return out, nil
}
