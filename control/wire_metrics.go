package control

import (
	"context"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"berth/control/metrics"
)

// metricsResources returns the resources of metrics.k8s.io.
func (a *Assembly) metricsResources() []Resource {
	client := &http.Client{Transport: a.kubeletClient.verified}
	core := a.Informers.Core().V1()
	nodes, pods := metrics.New(metrics.Options{
		Nodes: core.Nodes().Lister(), Pods: core.Pods().Lister(),
		Summary: func(ctx context.Context, node *corev1.Node) (*stats.Summary, error) {
			return metrics.FetchSummary(ctx, client, node)
		},
	})
	version := metricsv1beta1.SchemeGroupVersion
	return []Resource{{Version: version, Name: "nodes", Storage: nodes},
		{Version: version, Name: "pods", Storage: pods}}
}
