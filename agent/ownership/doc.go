// Package ownership decides which pods on the host belong to this agent. The host may also have pods
// of the kubelet, of another berth or of an unrelated program. They are foreign: berth never changes
// or removes anything of them, whatever their UIDs are.
//
// A pod's directory has a mark, which is written before anything else of the pod. The mark covers
// the pod's cgroup, its volumes and its log directory. The objects in the runtime have labels with
// the owner and its instance, and a network namespace belongs to the owner of its sandbox.
//
// Objects of the release before have no mark. They belong to the agent if the store has a record of
// that release about the pod, or if the runtime has a sandbox or container with berth's labels. The
// agent then writes the mark.
//
// Invariants:
//
//	O1 A pod whose directory has no mark is foreign, unless the store or the
//	   runtime proves the contrary.
//	O2 A foreign pod stays foreign: Claim never marks an existing directory, and
//	   takes no cgroup with processes.
//	O3 Without the store, marks and labels suffice.
//	O4 A deleted pod keeps its owner for a while, because the runtime may complete
//	   an interrupted call late.
package ownership
