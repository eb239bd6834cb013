// Package daemonset decides what a DaemonSet needs next, with the semantics of upstream's controller.
//
// A pod belongs to the node of its spec.nodeName or, before it is scheduled, to the node that its affinity names. A
// decision has these steps:
//
//  1. Adopt and release pods and ControllerRevisions, and find the revision of the template.
//  2. Create a pod on each node that should run one and has none. With maxSurge, pods that terminate do not count.
//     Delete failed, succeeded, excess and misplaced pods.
//  3. RollingUpdate: replace pods of other revisions within maxUnavailable, or create a second pod within maxSurge and
//     delete the old one when the new one is available.
//  4. Delete the oldest revisions beyond spec.revisionHistoryLimit.
//
// Pods are deleted before others are created, so that rejected creations do not prevent deletions.
//
// Differences from upstream: with maxSurge, a pod that fails again and again is replaced only when its back-off ends,
// and of excess pods on a node, an available one stays, not the oldest.
//
// # Invariants
//
// The model world (TestSim) checks these:
//
//	D1 A node gets a second pod only while surging, and never a third. Pods that terminate or have failed do not
//	   count.
//	D2 No pod is created on a node that the node selector, the affinity or the taints exclude.
//	D3 A rolling update makes an available pod unavailable only if at most maxUnavailable nodes that should run a pod
//	   are without an available pod then.
//	D4 A failed pod of the newest revision is not deleted before its back-off ends.
//	D5 The revision of a pod is not deleted.
//	D6 When nothing fails any more, the set becomes stable: exactly the nodes that should run a pod have one, of the
//	   newest revision, and the status is that of the pods. No other node has a pod of an older revision.
package daemonset
