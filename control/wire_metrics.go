package control

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
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"berth/control/metrics"
)

const (
	kubeletPort = 10250
	// maxSummarySize limits the response of a node, in bytes.
	maxSummarySize = 64 << 20
)

// metricsResources returns the resources of metrics.k8s.io.
func (a *Assembly) metricsResources() []Resource {
	client := &http.Client{Transport: a.kubeletClient.verified}
	core := a.Informers.Core().V1()
	nodes, pods := metrics.New(metrics.Options{
		Nodes: core.Nodes().Lister(), Pods: core.Pods().Lister(),
		Summary: func(ctx context.Context, node *corev1.Node) (*stats.Summary, error) {
			return fetchSummary(ctx, client, node)
		},
	})
	version := metricsv1beta1.SchemeGroupVersion
	return []Resource{{Version: version, Name: "nodes", Storage: nodes},
		{Version: version, Name: "pods", Storage: pods}}
}

// fetchSummary requests the stats summary of a node's kubelet.
func fetchSummary(ctx context.Context, client *http.Client, node *corev1.Node) (*stats.Summary, error) {
	host := ""
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeHostName, corev1.NodeExternalIP} {
		for _, addr := range node.Status.Addresses {
			if addr.Type == kind && host == "" {
				host = addr.Address
			}
		}
	}
	if host == "" {
		return nil, fmt.Errorf("node %s has no address yet", node.Name)
	}
	port := int(node.Status.DaemonEndpoints.KubeletEndpoint.Port)
	if port == 0 {
		port = kubeletPort
	}
	url := "https://" + net.JoinHostPort(host, strconv.Itoa(port)) + "/stats/summary?only_cpu_and_memory=true"
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
