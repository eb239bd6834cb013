// Package apiserver is the source of the pods that an API server has bound to this node.
//
// It watches the pods whose spec.nodeName is the node, and the objects that they use: each
// ConfigMap and Secret that a pod refers to, individually by name, as nodes are authorized to do;
// Services, which define part of the environment; EndpointSlices if they are needed; and
// RuntimeClasses. Services and EndpointSlices go to a services.Store for their consumers. The source
// requests service account tokens for each pod and renews them. From these it builds Snapshots of the
// desired state. It does not start or stop anything and does not write to the server.
//
// # Invariants
//
// Each invariant is covered by a test.
//
//	D1 A Snapshot is Ready only after the server has listed all pods. Before that it
//	   contains the pods of the agent's previous run, so that a node that boots
//	   without a reachable server starts them, and no other pods are terminated.
//	   The same holds while the server has listed the pods, but the node is not
//	   registered yet: the Snapshot contains the listed pods of the previous run,
//	   and no new ones.
//	D2 A pod is emitted when the objects for its sandbox and its images are
//	   resolved, or after a second. Other objects may follow while the sandbox is
//	   created. Until they are resolved, or for a second, they are marked as late,
//	   never as missing.
//	D3 An object that cannot be read any more keeps its last value.
//	D4 A change on the server that only reflects this agent's own status updates
//	   is not a change of the desired state.
//	D5 Mirror pods are passed to OnPod and are never desired.
//
// Goroutines: Source.Run owns all state. It starts and waits for one watch per object, one each for
// pods, Services, EndpointSlices and RuntimeClasses, and one goroutine per token request.
package apiserver
