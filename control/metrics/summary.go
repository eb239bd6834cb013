package metrics

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

const (
	kubeletPort = 10250
	// maxSummarySize limits the response of a node, in bytes.
	maxSummarySize = 64 << 20
)

// FetchSummary requests the stats summary of a node's kubelet.
func FetchSummary(ctx context.Context, client *http.Client, node *corev1.Node) (*stats.Summary, error) {
	kubelet, err := kubeletAddress(node)
	if err != nil {
		return nil, err
	}
	url := "https://" + kubelet + "/stats/summary?only_cpu_and_memory=true"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	res, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: unexpected status %s", url, res.Status)
	}
	out := &stats.Summary{}
	if err := json.NewDecoder(io.LimitReader(res.Body, maxSummarySize)).Decode(out); err != nil {
		return nil, fmt.Errorf("%s: %w", url, err)
	}
	return out, nil
}

// kubeletAddress returns address and port of a node's kubelet.
func kubeletAddress(node *corev1.Node) (string, error) {
	port := int(node.Status.DaemonEndpoints.KubeletEndpoint.Port)
	if port == 0 {
		port = kubeletPort
	}
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeHostName, corev1.NodeExternalIP} {
		for _, addr := range node.Status.Addresses {
			if addr.Type == kind && addr.Address != "" {
				return net.JoinHostPort(addr.Address, strconv.Itoa(port)), nil
			}
		}
	}
	return "", fmt.Errorf("node %s has no address yet", node.Name)
}
