// Package apiserver is the source of the pods that a server assigns to this node.
//
// It follows the pods whose spec.nodeName is the node's, and beside them what
// they use: each ConfigMap and Secret that one of them names, by its name alone,
// as a node may; the services, which make part of their environment; the
// RuntimeClasses; and the service account tokens that it asks for, for each pod
// its own, and renews in time. From that it makes Snapshots: all that the server
// wants of this node now. It starts and ends nothing and writes nothing to the
// server.
//
// Invariants, each held by a test:
//
//	D1 A Snapshot is Ready only when the server itself has told all pods. Before
//	   that it has those of the agent's last life, so that a node that boots with
//	   no server in reach starts them, and nobody else's are ended. So it is, too,
//	   when the server tells all pods and for a while not what the node is to it:
//	   of its pods those of the last life are told, and none that is new.
//	D2 A pod is told when what its sandbox and its images need has been asked for
//	   and answered, or has not been for a second. The rest may come while the
//	   sandbox is made: until it is answered, or has not been for a second, it is
//	   told as late, never as if something were missing.
//	D3 What cannot be read any more stays as it was last read.
//	D4 What changed on the server only because this agent reported it is no change.
//	D5 Mirror pods are told to Heard and never wanted.
//
// Goroutines: Source.Run owns all state; one follower for each object, one for
// pods, services, RuntimeClasses, and one for each token being asked for, all of
// them its own, which it waits for.
package apiserver
