// Package metrics implements metrics.k8s.io: the current resource usage of nodes, pods and
// containers, for "kubectl top" and autoscalers. The values come from the kubelets' stats
// summaries.
//
// A kubelet is queried only on request, and at most once per cacheTTL, also if it does not respond.
// The package caches the last summary of each node to compute CPU rates where a kubelet reports
// only totals. It stores nothing.
package metrics
