// Package pods implements the pod resources of the API server beyond storage: the strategies
// (strategy.go), the subresources that change one part of a pod (status, binding, ephemeral
// containers, resize), eviction with disruption budgets, and connections to the kubelet of the
// pod's node (log, exec, attach, port-forward) or to the pod itself (proxy).
//
// Pods are validated by podspec, which the node agent shares. The package does not start, stop or
// schedule pods: it records the decisions of other components, and proxies connections.
//
//	     create            bind           status from the node
//	──────────────► Pending ────► Pending, bound ────► Running … Succeeded, Failed
//	                   │                │                 │             │
//	                 delete           delete            delete        delete
//	                   ▼                ▼                 ▼             ▼
//	                removed     marked with its grace period;        removed
//	                            the kubelet deletes it with grace
//	                            period 0 when nothing is left
package pods
