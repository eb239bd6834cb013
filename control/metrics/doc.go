// Package metrics is metrics.k8s.io: what nodes, pods and containers use now, as
// "kubectl top" and autoscalers ask for it, from the nodes' own figures.
//
// A node is asked when somebody asks here, at most once in some seconds, also
// where it does not answer; nodes that nobody wants to know of are left in peace. It owns the last figures of
// each node, for rates of CPU where a node tells only totals. It stores nothing.
package metrics
