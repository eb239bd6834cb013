// Package stats measures the resource usage of the node, its pods and containers: for the kubelet's
// Summary API and metrics, for `berth top`, and for eviction. CPU, memory and processes are read from
// cgroup files. The runtime is queried only for its file systems. Nothing is measured without a request.
package stats
